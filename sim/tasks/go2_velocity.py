"""Unitree Go2 tracks velocity commands on flat ground: 50 Hz joint setpoints, dense reward, pushes."""

from robot_rl.interface.control import JointOffsetConfig
from robot_rl.interface.pipeline import Interface
from robot_rl.interface.shield import ShieldConfig
from robot_rl.interface.spec import Field
from robot_rl.interface.symmetry import Mirror, Reflection, joined
from sim import rewards as r
from sim.commands import CommandSchedule
from sim.randomization import Randomize
from sim.rewards import Reward
from sim.scenes import Camera, Scene
from sim.tasks.base import Task

_RANDOMIZATION = (
    # Up to 5 kg more: after training with lighter trunks only, a loaded robot with low stiffness fell forward.
    Randomize("base.mass_scale", 0.85, 1.7),
    Randomize("base.com_x", -0.03, 0.03),
    Randomize("base.com_y", -0.02, 0.02),
    Randomize("base.com_z", -0.02, 0.02),
    Randomize("payload.mass", 0.0, 2.0),
    Randomize("robot.link_mass_scale", 0.9, 1.1),
    Randomize("ground.friction", 0.5, 1.25),
    Randomize("robot.strength_scale", 0.85, 1.1),
    Randomize("robot.stiffness_scale", 0.85, 1.15),
    Randomize("robot.damping_scale", 0.7, 1.3),
    Randomize("robot.armature_scale", 0.7, 1.4),
    Randomize("robot.joint_friction", 0.0, 0.3),
    # Rounded up to whole physics steps: 10 or 20 ms. The critic observes the sampled value.
    Randomize("robot.action_delay", 0.0, 0.02),
    Randomize("robot.home_offset", 0.0, 0.1),
    Randomize("sensor.encoder_offset", 0.0, 0.02),
    Randomize("sensor.joint_noise", 0.0, 0.01),
    Randomize("sensor.velocity_noise", 0.0, 0.5),
    Randomize("sensor.gyro_noise", 0.0, 0.1),
    Randomize("sensor.gyro_bias", 0.0, 0.05),
    Randomize("sensor.tilt_noise", 0.0, 0.02),
    Randomize("sensor.tilt_bias", 0.0, 0.03),
    Randomize("sensor.state_delay", 0.0, 0.01),
    Randomize("push.speed", 0.0, 1.0),
    Randomize("push.interval", 3.0, 8.0),
)

_LEGS = (1, 0, 3, 2)
"""For each leg, the index of its counterpart on the other side of the trunk."""
JOINTS = Reflection([3 * leg + k for leg in _LEGS for k in range(3)], (-1, 1, 1) * 4)
"""Reflection of the joints; hip angles change their sign."""
VECTOR, PSEUDOVECTOR = Reflection(range(3), (1, -1, 1)), Reflection(range(3), (-1, 1, -1))
_DRAWN = Reflection(range(len(_RANDOMIZATION)), [-1 if r.parameter == "base.com_y" else 1 for r in _RANDOMIZATION])

_FEET = ((0.18, 0.17), (0.18, -0.17), (-0.27, 0.17), (-0.27, -0.17))
"""Positions of the feet relative to the trunk's centre, forward and left, m."""
_GAIT = 2.75
"""Gait frequency, Hz."""
_STEP = 0.7 * (0.25 / _GAIT) / 0.31
"""Swing amplitude of a leg of 0.31 m per 1 m/s of hip speed, rad: 0.7 of the amplitude without slip, to leave room for
the policy."""
_STRIDE = tuple(
    numbers
    for x, y in _FEET  # the hip moves at (vx - y turn, vy + x turn)
    for numbers in ((0.0, _STEP, x * _STEP), (-_STEP, 0.0, y * _STEP), (0.0, 0.0, 0.0))
)

TASK = Task(
    interface=Interface(
        task="go2-velocity",
        robot="go2",
        instruction="walk as commanded",
        observations=(
            "angular_velocity", "projected_gravity", "command", "gait_clock", "joint_position", "joint_velocity",
            "last_action",
        ),
        command=(
            Field("velocity", ("x", "y"), "m/s", (-1.0, -0.5), (1.0, 0.5), "trunk"),
            Field("turn", ("yaw",), "rad/s", (-1.0,), (1.0,), "trunk"),
        ),
        gait=_GAIT,
        failure="fallen:60:0.15",
        horizon=1000,
        # A trot: front left and rear right swing in the second half of the cycle. The knees lift the feet by 8 cm.
        controller=JointOffsetConfig(
            swing=(0.0, 0.25, -0.5) * 4, swing_from=(0.5,) * 3 + (0.0,) * 6 + (0.5,) * 3, stride=_STRIDE
        ),
        shield=ShieldConfig(velocity=1.0, margin=0.02),
    ),
    scene=Scene(
        cameras=(Camera("side", position=(0.3, -1.5, 0.75), target=(0.0, 0.0, -0.1), follows=True),),
        timestep=0.01, iterations=4, cone="pyramidal", impratio=1.0,
    ),
    randomization=_RANDOMIZATION,
    rewards=(
        Reward("alive", 0.8, r.alive),
        Reward("track_lin_vel_xy", 2.0, r.track_lin_vel_xy),
        Reward("track_ang_vel_z", 1.0, r.track_ang_vel_z),
        Reward("lin_vel_z", -1.0, r.lin_vel_z),
        Reward("ang_vel_xy", -0.03, r.ang_vel_xy),
        Reward("flat_orientation", -4.0, r.flat_orientation),
        Reward("base_height", -0.2, r.base_height),
        Reward("joint_torque", -1e-4, r.joint_torque),
        Reward("joint_power", -1e-3, r.joint_power),
        Reward("joint_acc", -1e-7, r.joint_acc),
        Reward("action_rate", -0.05, r.action_rate),
        Reward("posture", -0.1, r.posture),
        Reward("trot_gait", 1.0, r.trot_gait),
        Reward("feet_clearance", -0.4, r.feet_clearance),
        Reward("feet_slip", -0.8, r.feet_slip),
        Reward("feet_air_standing", -0.2, r.feet_air_standing),
    ),
    privileged=("base_velocity", "base_height", "foot_force"),
    commands=CommandSchedule(),
    metrics=r.gait_metrics,
    mirror=Mirror(
        observation=joined(
            PSEUDOVECTOR,  # angular velocity
            VECTOR,  # gravity
            Reflection(range(3), (1, -1, -1)),  # command
            Reflection(range(2), (-1, -1)),  # gait clock: the diagonals are exchanged
            *(JOINTS,) * 3,
        ),
        privileged=joined(VECTOR, Reflection(range(1), (1,)), Reflection(_LEGS, (1, 1, 1, 1)), _DRAWN),
        action=JOINTS,
    ),
)  # fmt: skip
