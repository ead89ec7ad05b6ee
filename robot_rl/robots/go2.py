"""Unitree Go2.

Sources: the manufacturer's URDF in genesis-world for position, speed and torque limits and feet (compared in a test),
Unitree's reinforcement-learning examples for the gains (stiffness 20 to 40 N m/rad there), the Unitree SDK for the
order of the motors, and the MuJoCo Menagerie model for armature and dry friction.
"""

from dataclasses import replace

from robot_rl.interface.driver import UnitreeLowLevel, UnitreeSport
from robot_rl.interface.robot import FloatingBase, Joint, RobotSpec

LEGS = ("FL", "FR", "RL", "RR")
"""Names of the legs: front left, front right, rear left, rear right."""
WIRE_LEGS = ("FR", "FL", "RR", "RL")
"""Names of the legs in the order of Unitree's messages."""
STIFFNESS, DAMPING = 40.0, 1.0
_MOTORS = tuple(f"{leg}_{part}_joint" for leg in WIRE_LEGS for part in ("hip", "thigh", "calf"))
_FEET = tuple(f"{leg}_foot" for leg in WIRE_LEGS)


def _leg(name: str) -> tuple[Joint, ...]:
    def joint(part: str, low: float, high: float, velocity: float, effort: float) -> Joint:
        # The acceleration limit is not active: torque alone bounds the acceleration.
        return Joint(f"{name}_{part}_joint", low, high, velocity, 1e4, effort, stiffness=STIFFNESS, damping=DAMPING)

    thigh = (-1.5708, 3.4907) if name[0] == "F" else (-0.5236, 4.5379)
    return (
        joint("hip", -1.0472, 1.0472, 30.1, 23.7),
        joint("thigh", *thigh, 30.1, 23.7),
        joint("calf", -2.7227, -0.83776, 20.07, 35.55),
    )


GO2 = RobotSpec(
    name="go2",
    joints=tuple(joint for leg in LEGS for joint in _leg(leg)),
    # Hips turned outwards and rear thighs farther back, so the feet are below the hips and slightly apart.
    home=(0.1, 0.8, -1.5, -0.1, 0.8, -1.5, 0.1, 1.0, -1.5, -0.1, 1.0, -1.5),
    model="urdf/go2/urdf/go2.urdf",
    base=FloatingBase(
        "base",
        height=0.32,
        feet=tuple(f"{leg}_foot" for leg in LEGS),
        foot_radius=0.022,
        lying=(0.0, 1.36, -2.65) * 4,  # from Unitree's examples
        aliases=("base_link", "trunk"),  # in the MJCF of Unitree's simulator and in older files
    ),
    collision_bodies=("base", *(f"{leg}_foot" for leg in LEGS)),
    armature=0.01,
    joint_friction=0.1,
    state_rate=500.0,
    command_rate=500.0,
    driver=UnitreeLowLevel(motors=_MOTORS, feet=_FEET),
)
GO2_SPORT = replace(
    GO2,
    name="go2_sport",  # policies for the legs are not for it
    command_rate=50.0,
    driver=UnitreeSport(motors=_MOTORS, feet=_FEET),
)
