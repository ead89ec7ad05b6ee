"""Franka Panda executes language instructions with four objects and a tray; 5 of the 24 instructions are held out."""

from dataclasses import replace

from robot_rl.interface.pipeline import Instruction, Picture
from sim.objects import Ball, Box, Cylinder, Tray
from sim.randomization import Randomize
from sim.scenes import Scene
from sim.tasks.panda_lift import TASK as LIFT
from sim.tasks.panda_lift_cameras import PROPRIOCEPTION, WRIST
from sim.tasks.panda_lift_cameras import TASK as CAMERAS

HALF = 0.055
"""Half of the tray's inner width, m."""
OBJECTS = (
    Box("red_cube", 0.02, 0.06, rgba=(0.85, 0.15, 0.1, 1)),
    Ball("green_ball", 0.02, 0.05, rgba=(0.1, 0.65, 0.15, 1)),
    Cylinder("blue_cylinder", 0.02, 0.06, rgba=(0.1, 0.2, 0.85, 1)),
    Box("yellow_cube", 0.02, 0.06, rgba=(0.95, 0.8, 0.1, 1)),
)
TRAY = Tray("tray", HALF, 0.3, rgba=(0.75, 0.7, 0.65, 1))
WIDER_RANGES = {
    r.parameter: r
    for r in (
        Randomize("robot.stiffness_scale", 0.6, 1.3, "log_uniform"),
        Randomize("robot.damping_scale", 0.7, 1.5, "log_uniform"),
        Randomize("robot.joint_friction", 0.0, 1.0),
        Randomize("robot.action_delay", 0.005, 0.07),
    )
}
"""Ranges wider than those of panda-lift; the wider ranges include the hidden dynamics of `robot-rl twin`."""
HELD_OUT = (
    "touch the blue cylinder", "lift the yellow cube", "push the green ball to the left",
    "put the red cube next to the blue cylinder", "put the blue cylinder into the tray",
)  # fmt: skip
"""Instructions that are not used in training; all their words occur in other instructions."""


def _instructions() -> tuple[Instruction, ...]:
    names = [o.name for o in OBJECTS]
    pairs: list[tuple[str, str]] = []
    for k, name in enumerate(names):
        words, other = f"the {name.replace('_', ' ')}", names[(k + 2) % len(names)]
        pairs += [
            (f"touch {words}", f"reached:{name}:0.03"),
            (f"lift {words}", f"lifted:{name}:0.1"),
            (f"push {words} to the left", f"beyond:{name}:0.22"),
            (f"push {words} to the right", f"beyond:{name}:-0.22"),
            (f"put {words} next to the {other.replace('_', ' ')}", f"beside:{name}:{other}:0.085"),
            (f"put {words} into the tray", f"inside:{name}:tray:{HALF}"),
        ]
    return tuple(Instruction(text, test, text in HELD_OUT) for text, test in pairs)


TASK = replace(
    LIFT,
    interface=replace(
        LIFT.interface,
        task="tabletop",
        instruction="do what you are told",
        instructions=_instructions(),
        observations=PROPRIOCEPTION,
        success="",
        horizon=160,
        cameras=(),  # set by Task to those of the scene
        pictures=(Picture("front"), Picture("wrist")),
    ),
    scene=Scene(
        objects=(*OBJECTS, TRAY),
        cameras=(LIFT.scene.cameras[0], WRIST),
        places=((0.36, -0.1), (0.42, 0.09), (0.48, -0.09), (0.54, 0.1), (0.6, -0.08)),
    ),
    randomization=(
        *(Randomize(f"{o.name}.{axis}", -0.02, 0.02) for o in (*OBJECTS, TRAY) for axis in ("x", "y")),
        *(Randomize(f"{o.name}.yaw", -0.35, 0.35) for o in OBJECTS),
        *(WIDER_RANGES.get(r.parameter, r) for r in CAMERAS.randomization if not r.parameter.startswith("cube.")),
    ),
    expert="sim.experts.tabletop:TabletopExpert",
    expert_observations=(
        "tool_position", "gripper_width", "instruction", *(f"object_position:{o.name}" for o in (*OBJECTS, TRAY)),
    ),
)  # fmt: skip
