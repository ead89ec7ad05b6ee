"""Options shared by several commands, with their help texts."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, Suppress, UseAppendAction, arg

from robot_rl.util.limits import Fraction, NonNegativeInt, PositiveInt, Seed

Json = Annotated[bool, arg(help="Print one JSON object instead of a table.")]
RosArgs = Suppress[list[str]]
RandomSeed = Annotated[Seed, arg(help="Seed of everything random.")]
TaskName = Positional[Annotated[str, arg(help="Task name, see `robot-rl tasks`, or import path, my_lab.drawer:TASK.")]]
RobotName = Positional[Annotated[str, arg(help="Robot name, see `robot-rl robots`.")]]
BundlePath = Positional[Annotated[Path, arg(help="Bundle, or a run folder that contains one.")]]
DatasetPath = Positional[Annotated[Path, arg(help="Dataset folder; it contains meta/.")]]
Engine = Annotated[str, arg(help="Physics engine: mujoco, genesis or warp.")]
PhysicsDevice = Annotated[str, arg(help="Physics device: cpu; with genesis and warp also cuda, or auto, cuda if any.")]
Without = Annotated[tuple[str, ...], arg(help="Randomized parameters to keep at nominal values, such as cube.mass.")]
RangeFile = Annotated[
    Path | None,
    arg(help="JSON or TOML file of ranges, {parameter: {low, high, distribution}}, that replace those of the task or "
        "are added to them; see docs/randomization.md."),
]  # fmt: skip
Range = UseAppendAction[
    Annotated[
        tuple[str, ...],
        arg(help="Range of one parameter, cube.mass=0.05:0.4 or cube.mass=0.05:0.4:log_uniform, or a constant, "
            "cube.mass=0.2; after those of --randomization; may be repeated."),
    ]
]  # fmt: skip
Instructions = Annotated[str, arg(help="The task's instructions to use: training, held-out, all, or a common prefix.")]
Changes = Annotated[Fraction, arg(help="Fraction of episodes in which the instruction changes midway.")]
Levels = Annotated[str, arg(help="Levels of uneven ground on which episodes begin, 3 or 2..5; default: all.")]
Mjcf = Annotated[str, arg(help="Model file of the robot, MJCF or URDF; default: the `model` of its spec.")]
TwinFaults = UseAppendAction[
    Annotated[
        tuple[str, ...],
        arg(help="Fault of the twin, NAME=VALUE, such as motor-delay=0.04, or NAME=JOINT:VALUE; may be repeated; see "
            "docs/shaking.md."),
    ]
]  # fmt: skip
"""See `real.twin.faults`."""
EpisodeSteps = Annotated[
    PositiveInt | None,
    arg(help="Time limit of a gym: task, steps; required if the environment has none. Default: the environment's."),
]
EnvPython = Annotated[Path | None, arg(help="Python of another virtual environment in which a gym: task runs.")]
Runtime = Annotated[
    Literal["torch", "onnx"],
    arg(help="Policy runtime: torch, or ONNX Runtime with the file that `robot-rl export` wrote."),
]
ExecutionMode = Literal["receding", "ensemble", "asynchronous", "realtime"]
Bag = Annotated[
    bool,
    arg(help="Also write all messages, except pictures, and every control period to the run folder's `bag` (rosbag2, "
        "MCAP)."),
]  # fmt: skip
Ray = Annotated[
    str,
    arg(help="Ray cluster on whose nodes to learn or simulate: HOST:6379 from one of its nodes, or ray://HOST:10001 "
        "from outside."),
]  # fmt: skip
Classifier = Annotated[
    Path | None,
    arg(help="Success classifier that judges episodes by camera images instead of the task's own test, so that objects "
        "need no tracking; see `robot-rl classifier fit`."),
]  # fmt: skip
Profile = Annotated[
    str, arg(help="The robot's driver: a profile such as ur_robot_driver, or a YAML file; default: the spec's driver.")
]
InstructionTopic = Annotated[str, arg(help="Instruction, if the policy reads any; the topic `instruction` changes it.")]
ServerKeys = Annotated[
    tuple[str, ...], arg(help="For a server other than `robot-rl serve`: its observation names, OURS=THEIRS.")
]
ServerExecute = Annotated[
    NonNegativeInt, arg(help="For a server other than `robot-rl serve`: actions executed per chunk; 0: all.")
]
