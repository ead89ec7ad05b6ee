"""Franka Panda lifts a cube, observed by a front and a wrist camera with randomized appearance."""

from dataclasses import replace

from robot_rl.interface.pipeline import Picture
from sim.randomization import Randomize
from sim.scenes import Camera
from sim.tasks.panda_lift import TASK as LIFT

WRIST = Camera("wrist", position=(0.1, 0.0, 0.03), target=(0.03, 0.0, 0.14), fovy=75.0, body="hand")

APPEARANCE = (
    Randomize("light.x", -0.8, 0.8),
    Randomize("light.y", -0.8, 0.8),
    Randomize("light.strength_scale", 0.5, 1.5, "log_uniform"),
    Randomize("robot.shade_scale", 0.7, 1.2, "log_uniform"),
    Randomize("table.red", 0.2, 1.0),
    Randomize("table.green", 0.2, 1.0),
    Randomize("table.blue", 0.2, 1.0),
    Randomize("table.texture", 0.0, 1.0),
    *(Randomize(f"camera.front.{way}", -0.03, 0.03) for way in ("x", "y", "z")),
    *(Randomize(f"camera.front.{way}", -0.03, 0.03) for way in ("pitch", "yaw", "roll")),
    Randomize("camera.front.zoom_scale", 0.95, 1.05, "log_uniform"),
    *(Randomize(f"camera.wrist.{way}", -0.003, 0.003) for way in ("x", "y", "z")),
    *(Randomize(f"camera.wrist.{way}", -0.02, 0.02) for way in ("pitch", "yaw", "roll")),
    Randomize("picture.exposure_scale", 0.7, 1.4, "log_uniform"),
    Randomize("picture.noise", 0.0, 0.03),
    Randomize("picture.blur", 0.0, 0.7),
    Randomize("picture.jpeg_loss", 0.0, 40.0),
)
"""Randomized lights, colours, camera mountings and image noise; the cube is always red."""

PROPRIOCEPTION = ("joint_position", "tool_position", "gripper_width")
"""Proprioceptive observation terms, without the last action: from the last action, a behavior-cloned policy would infer
the demonstrator's direction, ignore the images, and stay still at the start of an episode."""
HOME = Randomize("robot.home_offset", 0.0, 0.2)
"""Range of home offsets, wider than in panda-lift: otherwise the arm's posture reveals the demonstrator's direction."""

TASK = replace(
    LIFT,
    interface=replace(
        LIFT.interface,
        task="panda-lift-cameras",
        observations=PROPRIOCEPTION,
        cameras=(),  # set by Task to those of the scene
        pictures=(Picture("front"), Picture("wrist")),
    ),
    scene=replace(LIFT.scene, cameras=(*LIFT.scene.cameras, WRIST)),
    randomization=(*(r for r in LIFT.randomization if r.parameter != HOME.parameter), HOME, *APPEARANCE),
    expert_observations=LIFT.interface.observations,
)
