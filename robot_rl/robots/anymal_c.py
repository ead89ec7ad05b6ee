"""ANYbotics ANYmal C.

Sources: the URDF in genesis-world for geometry, masses, feet and torque. Gains and standing posture are those usual in
simulation (legged_gym, Rudin et al. 2022). Assumed, without a source: the speed limit, below the URDF's 20 rad/s,
armature, dry friction, and the position limits, which the URDF lacks. For simulation only.
"""

from robot_rl.interface.robot import FloatingBase, Joint, RobotSpec

LEGS = ("LF", "RF", "LH", "RH")
"""Names of the legs: left front, right front, left hind, right hind."""
STIFFNESS, DAMPING = 80.0, 2.0


def _leg(name: str) -> tuple[Joint, ...]:
    def joint(part: str, low: float, high: float) -> Joint:
        # The acceleration limit is not active: torque alone bounds the acceleration.
        return Joint(f"{name}_{part}", low, high, 12.0, 1e4, 80.0, stiffness=STIFFNESS, damping=DAMPING)

    knee = (-2.4, -0.1) if name[1] == "F" else (0.1, 2.4)  # the knees point to the middle of the trunk
    return joint("HAA", -0.7, 0.7), joint("HFE", -1.5, 1.5), joint("KFE", *knee)


ANYMAL_C = RobotSpec(
    name="anymal_c",
    joints=tuple(joint for leg in LEGS for joint in _leg(leg)),
    home=(0.0, 0.4, -0.8, 0.0, 0.4, -0.8, 0.0, -0.4, 0.8, 0.0, -0.4, 0.8),
    model="urdf/anymal_c/urdf/anymal_c.urdf",
    base=FloatingBase(
        "base",
        height=0.57,
        feet=tuple(f"{leg}_FOOT" for leg in LEGS),
        foot_radius=0.03,
        lying=(0.0, 1.2, -2.3, 0.0, 1.2, -2.3, 0.0, -1.2, 2.3, 0.0, -1.2, 2.3),
    ),
    collision_bodies=("base", *(f"{leg}_FOOT" for leg in LEGS)),
    armature=0.06,
    joint_friction=0.1,
    state_rate=400.0,
    command_rate=400.0,
)
