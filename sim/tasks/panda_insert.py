"""Franka Panda inserts a round peg of 20 mm into a square hole of 22 mm: a clearance of 1 mm on each side.

Tracked poses of peg and socket are as precise as a good marker tracker's: 0.5 mm of noise and of bias at most.
"""

from dataclasses import replace

from robot_rl.interface.control import ToolDeltaConfig
from sim.objects import Cylinder, Socket
from sim.randomization import Randomize
from sim.scenes import Scene
from sim.tasks.panda_lift import TASK as LIFT

_PRECISE = ("sensor.object_noise", "sensor.object_bias")
RADIUS, HOLE = 0.010, 0.011
"""Radius of the peg, and half of the hole's width, m."""

TASK = replace(
    LIFT,
    interface=replace(
        LIFT.interface,
        task="panda-insert",
        instruction="insert the peg into the socket",
        observations=(
            "joint_position", "tool_position", "gripper_width", "object_position:peg", "object_to_tool:peg",
            "object_position:socket", "object_to_object:peg:socket", "last_action",
        ),
        success="inserted:peg:socket:0.004:0.028",
        horizon=260,
        controller=ToolDeltaConfig(step=0.03),
    ),
    scene=Scene(
        objects=(
            Cylinder("peg", (RADIUS, RADIUS, 0.04), 0.06, rgba=(0.85, 0.55, 0.1, 1.0)),
            Socket("socket", HOLE, rgba=(0.35, 0.4, 0.5, 1.0)),
        ),
        cameras=LIFT.scene.cameras,
    ),
    randomization=(
        Randomize("peg.x", 0.4, 0.56),
        Randomize("peg.y", -0.18, -0.06),
        Randomize("socket.x", 0.42, 0.58),
        Randomize("socket.y", 0.04, 0.16),
        Randomize("peg.mass", 0.03, 0.1, "log_uniform"),
        Randomize("peg.friction", 0.6, 1.4),
        Randomize("socket.friction", 0.2, 0.6),
        Randomize("sensor.object_noise", 0.0, 0.0005),
        Randomize("sensor.object_bias", 0.0, 0.0005),
        *(r for r in LIFT.randomization if not r.parameter.startswith("cube.") and r.parameter not in _PRECISE),
    ),
    expert="sim.experts.manipulation:insert",
)  # fmt: skip
