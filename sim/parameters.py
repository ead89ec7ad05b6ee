"""Table of the parameters of a simulation: unit, nominal value, range, owner and effect of each, stated only here.

Randomization, range files, curricula, identification, engines and the twins read this table. `<object>` and `<camera>`
in a name stand for the name of an object or camera of the scene: `<object>.mass` is the pattern of `cube.mass`.
"""

import math
import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from robot_rl.interface.robot import RobotSpec
from sim.objects.base import Object
from sim.scenes import Scene

Owner = Literal["engine", "sensor", "look", "placement", "episode"]
"""Part of the simulation that applies a parameter: physics, sensor model, renderer, initial poses, or the episode."""
Effect = Literal["set", "add", "scale"]
"""How a value acts on the quantity in the model: it replaces the quantity, is added to it, or multiplies it."""
OBJECT, CAMERA = "<object>", "<camera>"
DEFAULT_X = 0.5
"""Coordinate x of an object that no parameter places, m."""


@dataclass(frozen=True)
class Parameter:
    """One row of the table."""

    name: str
    unit: str
    owner: Owner
    effect: Effect
    doc: str
    nominal: float | None = 0.0
    """Value that leaves the model unchanged; None: the value in the robot's model or in the scene."""
    low: float = -math.inf
    high: float = math.inf
    """Smallest and largest valid value."""
    above: bool = False
    """Whether `low` itself is invalid."""
    legged: bool = False
    """Whether only robots with a floating base have the parameter."""

    def invalid(self, low: float) -> str:
        """Return why a range cannot begin with `low`; "" if it can."""
        if self.above and low == self.low:
            return "a scale of 0 leaves nothing; give a positive low" if self.effect == "scale" else "must be positive"
        return f"cannot be negative, low is {low} {self.unit}" if low < self.low else ""


def _scale(name: str, doc: str, owner: Owner = "engine", legged: bool = False) -> Parameter:
    return Parameter(name, "1", owner, "scale", doc, 1.0, 0.0, above=True, legged=legged)


def _size(name: str, unit: str, doc: str, legged: bool = False, high: float = math.inf) -> Parameter:
    """Return a sensor's error or delay, which is not negative."""
    return Parameter(name, unit, "sensor", "add", doc, low=0.0, high=high, legged=legged)


def _look(name: str, unit: str, doc: str, nominal: float | None = 0.0, effect: Effect = "add") -> Parameter:
    return Parameter(name, unit, "look", effect, doc, nominal)


LONGEST_ACTION_DELAY, LONGEST_SENSOR_DELAY = 0.08, 0.25
"""Largest delay of commands, s, for which engines have room, and of measurements, s."""
ROWS = (
    Parameter("robot.action_delay", "s", "engine", "set", "delay of joint commands, rounded up to whole physics steps",
              low=0.0, high=LONGEST_ACTION_DELAY),
    _scale("robot.stiffness_scale", "stiffness of the joint servos"),
    _scale("robot.damping_scale", "damping of the joint servos"),
    _scale("robot.strength_scale", "torque of the motors: gains and limits"),
    Parameter("robot.joint_friction", "N m", "engine", "set", "dry friction of every joint", None, 0.0),
    _scale("robot.armature_scale", "inertia of the motors' rotors"),
    _scale("base.mass_scale", "mass and inertia of the trunk", legged=True),
    *(Parameter(f"base.com_{axis}", "m", "engine", "add", "shift of the trunk's centre of mass, trunk frame",
                legged=True) for axis in "xyz"),
    Parameter("payload.mass", "kg", "engine", "add", "mass on the trunk", low=0.0, legged=True),
    _scale("robot.link_mass_scale", "mass and inertia of all links except the trunk", legged=True),
    Parameter("ground.friction", "1", "engine", "set", "sliding friction of the feet on the ground", None, 0.0,
              legged=True),
    Parameter("<object>.mass", "kg", "engine", "set", "mass; the inertia scales with it", None, 0.0),
    Parameter("<object>.size", "m", "engine", "set", "half of the width", None, 0.0),
    Parameter("<object>.friction", "1", "engine", "set", "sliding friction", None, 0.0),
    Parameter("<object>.joint_friction", "N, N m", "engine", "set", "dry friction of its own joints", None, 0.0),
    Parameter("<object>.joint_damping", "N s/m, N m s", "engine", "set", "damping of its own joints", None, 0.0),
    _size("sensor.joint_noise", "rad", "standard deviation of the noise of joint positions"),
    _size("sensor.velocity_noise", "rad/s", "standard deviation of the noise of joint velocities", legged=True),
    Parameter("sensor.encoder_offset", "rad", "sensor", "add", "largest offset of an encoder; one value per joint"),
    _size("sensor.gyro_noise", "rad/s", "standard deviation of the noise of angular velocities", legged=True),
    _size("sensor.gyro_bias", "rad/s", "largest bias of an angular velocity", legged=True),
    _size("sensor.tilt_noise", "rad", "standard deviation of the noise of the orientation", legged=True),
    _size("sensor.tilt_bias", "rad", "largest bias of the orientation about each axis", legged=True),
    _size("sensor.state_delay", "s", "delay of joint and IMU measurements", high=LONGEST_SENSOR_DELAY),
    _size("sensor.scan_noise", "m", "standard deviation of the noise of the scan of uneven ground", legged=True),
    _size("sensor.object_noise", "m", "standard deviation of the noise of object positions"),
    _size("sensor.object_bias", "m", "largest constant error of an object's position per axis, at random"),
    _size("sensor.object_delay", "s", "delay of object poses", high=LONGEST_SENSOR_DELAY),
    *(Parameter(f"<object>.bias_{axis}", "m", "sensor", "add", "constant error of the object's position, base frame")
      for axis in "xyz"),
    _size("camera.delay", "s", "delay of pictures, rounded to whole control periods", high=LONGEST_SENSOR_DELAY),
    *(_look(f"{name}.{colour}", "1", "colour, 0 to 1", None, "set")
      for name in ("table", OBJECT) for colour in ("red", "green", "blue")),
    _look("table.texture", "1", "0 to 1: one of the textures, in equal shares", 0.0, "set"),
    _scale("robot.shade_scale", "colours of the robot", "look"),
    *(_look(f"light.{axis}", "1", "added to the light's direction, whose z is about -1") for axis in "xy"),
    _scale("light.strength_scale", "colour of the light", "look"),
    *(_look(f"camera.<camera>.{axis}", "m", f"shift of the camera {way}, camera frame")
      for axis, way in zip("xyz", ("to the right", "up", "backwards"), strict=True)),
    *(_look(f"camera.<camera>.{name}", "rad", f"turn of the camera about its {axis} axis")
      for name, axis in (("pitch", "right"), ("yaw", "up"), ("roll", "backward"))),
    _scale("camera.<camera>.zoom_scale", "field of view", "look"),
    _scale("picture.exposure_scale", "brightness", "look"),
    Parameter("picture.noise", "1", "look", "add", "standard deviation of the noise, as a share of a pixel's range",
              low=0.0),
    _look("picture.blur", "px", "standard deviation of the Gaussian blur"),
    _look("picture.jpeg_loss", "1", "100 minus the JPEG quality; below 1, nothing is compressed"),
    Parameter("<object>.x", "m", "placement", "set", "coordinate, base frame; with places, offset from a place",
              DEFAULT_X),
    Parameter("<object>.y", "m", "placement", "set", "coordinate, base frame; with places, offset from a place"),
    Parameter("<object>.z", "m", "placement", "set", "height of the centre; None: the object rests on the table", None),
    Parameter("<object>.yaw", "rad", "placement", "set", "angle about the vertical axis"),
    Parameter("<object>.joint", "m, rad", "placement", "set", "position of the object's first own joint"),
    Parameter("robot.home_offset", "rad", "episode", "add", "largest offset of an initial joint position"),
    Parameter("start.roll", "rad", "episode", "set", "initial roll of the trunk", legged=True),
    Parameter("start.pitch", "rad", "episode", "set", "initial pitch of the trunk", legged=True),
    Parameter("start.height", "m", "episode", "add", "initial height of the trunk above where it stands", legged=True,
              low=0.0),
    Parameter("push.speed", "m/s", "episode", "add", "horizontal velocity that a push adds to the trunk", legged=True),
    Parameter("push.interval", "s", "episode", "set", "time between two pushes", None, legged=True),
)  # fmt: skip
"""The table."""
_EXACT = {row.name: row for row in ROWS if "<" not in row.name}
_PATTERNS = [
    (re.compile(re.escape(row.name).replace(OBJECT, "(.+)").replace(CAMERA, "(.+)")), row)
    for row in sorted(ROWS, key=lambda row: CAMERA not in row.name)  # first cameras': camera.front.x is no object's
    if "<" in row.name
]
TRUNK = tuple(name for name in _EXACT if name.startswith(("base.", "payload.")))
"""Parameters that together determine mass, centre of mass and inertia of a trunk."""
PLACE = tuple(row.name.rpartition(".")[2] for row in ROWS if row.owner == "placement")
"""A task places an object by the parameters `<object>.x`, `.y`, `.z` (m) and `.yaw` (rad), and the first of its own
joints by `.joint`."""


@cache
def find(name: str) -> Parameter | None:
    """Return the row of a parameter, for example of cube.mass; None if there is none."""
    return _EXACT.get(name) or next((row for pattern, row in _PATTERNS if pattern.fullmatch(name)), None)


def nominal(name: str) -> float:
    """Return the nominal value of a parameter that has one for every robot and scene."""
    row = find(name)
    assert row is not None and row.nominal is not None, name
    return row.nominal


def parameters(robot: RobotSpec, scene: Scene, *owners: Owner) -> dict[str, Parameter]:
    """Return the parameters that a robot and a scene have, by name; of all `owners` if none is named."""
    found: dict[str, Parameter] = {}
    for row in ROWS:
        if (owners and row.owner not in owners) or (row.legged and not robot.base):
            continue
        if row.name.startswith("sensor.object_") and not scene.objects:
            continue
        if row.name == "sensor.scan_noise" and scene.ground is None:
            continue
        if OBJECT in row.name:
            last = row.name.rpartition(".")[2]
            named = scene.poses if row.owner == "sensor" else [o.name for o in scene.objects if _has(o, row, last)]
            found |= {row.name.replace(OBJECT, name): row for name in named}
        elif CAMERA in row.name:
            found |= {row.name.replace(CAMERA, camera.name): row for camera in scene.cameras}
        elif row.name != "camera.delay" or scene.cameras:
            found[row.name] = row
    return found


def _has(thing: Object, row: Parameter, last: str) -> bool:
    if row.owner == "engine":
        return last in thing.acting
    return last != "joint" or bool(thing.joints)


def nominal_value(name: str, scene: Scene) -> float | None:
    """Return a parameter's value in a scene without randomization; None: it is a property of the robot's model."""
    row = find(name)
    thing = next((o for o in scene.objects if name.startswith(f"{o.name}.")), None)
    if row is None or thing is None or OBJECT not in row.name:
        return row.nominal if row else None
    last = row.name.rpartition(".")[2]
    if row.owner == "look":
        return thing.rgba[("red", "green", "blue").index(last)]
    if row.owner == "placement":
        return thing.rest if last == "z" else 0.0 if scene.places else row.nominal
    if row.owner == "engine":
        return thing.width if last == "size" else getattr(thing, last, None)
    return row.nominal
