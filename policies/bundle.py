"""Bundles: one folder with everything that a robot's computer needs to run a policy, without pickled code.

policy.json          class, configuration, interface, robot, provenance, sha256 of the weights
policy.safetensors   weights and normalization
critic.safetensors   optional: value functions, for further training
policy.onnx          optional: the policy for ONNX Runtime, which `robot-rl export` writes
policy.yaml          optional: inputs and outputs of policy.onnx
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from policies.base import Policy, Size, policy_class
from policies.errors import BundleError, NoBundle, WrongBundle
from policies.onnx import load_onnx
from policies.weights import read_weights, require_fit, sha256
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.observation_spec import ObservationSpec
from robot_rl.interface.observations import terms
from robot_rl.interface.pipeline import Interface, Pipeline
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.success import objects_of, tests
from robot_rl.robots import robots
from robot_rl.util.errors import UnknownName, UserError, nearest
from robot_rl.util.files import leaks, replacing_folder
from robot_rl.util.registry import check_trusted_task

FORMAT = 1
WEIGHTS, CRITIC = "policy.safetensors", "critic.safetensors"
Runtime = Literal["torch", "onnx"]
"""Library that evaluates the policy."""


@dataclass
class Bundle:
    """A policy with its interface and its origin."""

    policy: Policy
    contract: Interface | None
    """Meaning of observations and actions; None for the policy of a Gymnasium environment, which runs on no robot."""
    robot: dict[str, Any]
    """Fingerprint of the robot that the policy is for."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Origin of the policy: task, recipe, seed, dataset, commit and versions."""
    critic: dict[str, Tensor] = field(default_factory=dict)
    agent: dict[str, Any] = field(default_factory=dict)
    """Settings of the learner, for further training with the critic."""
    task: str = ""
    folder: Path | None = None
    """Folder that the bundle was read from."""
    described: EnvInfo | None = None
    """Observations and actions of a policy without a contract; None in bundles of earlier versions of robot-rl."""

    def __post_init__(self) -> None:
        self.task = self.task or (self.contract.task if self.contract else "")

    @property
    def specs(self) -> EnvInfo | None:
        """Return the policy's observations and actions; None if unknown."""
        return EnvInfo.of(Pipeline(self.contract)) if self.contract else self.described

    @property
    def info(self) -> EnvInfo:
        """Return the policy's observations and actions; raise WrongBundle if unknown."""
        if (found := self.specs) is None:
            raise WrongBundle(f"{self.label} lacks its specs: an earlier robot-rl wrote it; train it again")
        return found

    @property
    def interface(self) -> Interface:
        """Return the contract; raise WrongBundle if there is none."""
        if self.contract is None:
            raise WrongBundle(f"{self.label} is for {self.task}, which no robot runs; take one of a robot's task")
        return self.contract

    @property
    def label(self) -> str:
        """Return the words by which messages refer to this bundle."""
        return f"bundle {self.folder}" if self.folder else "this bundle"

    def close(self) -> None:
        """Close the connection of a policy on a server; do nothing for a local policy."""

    def check_robot(self, robot: RobotSpec) -> None:
        """Raise BundleError if the bundle does not fit a robot, naming the fields that differ or are missing."""
        theirs = robot.fingerprint() | {"interface": robot.kind}
        ours = self.robot | {"interface": self.interface.robot}
        same_kind = robot.runs(str(ours.get("name")))
        if (missing := theirs.keys() - ours.keys()) and same_kind:
            raise BundleError(
                f"{self.label} does not hold the robot's {', '.join(sorted(missing))}: an earlier robot-rl wrote it; "
                "train it again"
            )
        different = [k for k, v in theirs.items() if ours.get(k) != v]
        if different:
            name = different[0]
            whom = f"robot {ours.get('name')!r}, not for {robot.name!r}"
            if same_kind:
                whom = f"another {robot.name!r} than this robot"
            raise WrongBundle(
                f"{self.label} is for {whom}: {', '.join(different)} "
                f"differ ({name} is {ours.get(name)} in the bundle, {theirs[name]} on the robot)"
            )
        try:
            pipeline, size = Pipeline(self.interface, robot), self.policy.size
        except (UserError, ValueError) as error:
            raise WrongBundle(f"{self.label} cannot drive {robot.name!r}: {error}; copy or train it again") from None
        for test in self.interface.tests:
            if unseen := [name for name in objects_of(test) if name not in pipeline.objects]:
                raise WrongBundle(
                    f"{self.label} ends its episodes by {test!r}, but observes no object {unseen[0]!r}; "
                    f"{nearest(unseen[0], pipeline.objects)}"
                )
        for picture in self.interface.pictures:
            if robot.cameras and picture.camera not in robot.cameras:
                raise WrongBundle(
                    f"{self.label} sees camera {picture.camera!r}, which robot {robot.name!r} lacks: it has "
                    f"{', '.join(robot.cameras)}; name it in `cameras` of the robot's spec once it is there"
                )
        wanted = (pipeline.observer.spec.size, pipeline.actions.size)
        if (size.observation, size.action) != wanted:
            raise WrongBundle(
                f"{self.label} does not fit together: the policy reads {size.observation} numbers and writes "
                f"{size.action}, its interface has {wanted[0]} and {wanted[1]}; train it again"
            )
        if size.extra_inputs != pipeline.extra_inputs:
            raise WrongBundle(
                f"{self.label} does not fit together: besides numbers the policy reads {_listed(size.extra_inputs)}, "
                f"its interface has {_listed(pipeline.extra_inputs)}; train it again"
            )

    def check_task(self, interface: Interface) -> None:
        """Raise WrongBundle if a task's observations, actions, shield or episode ends differ from the bundle's.

        A policy runs with the task's interface in simulation and with the bundle's on a robot, so its success rates are
        comparable only if these interfaces agree.
        """
        same = ("robot", "observations", "pictures", "command", "gait", "controller", "shield")
        for name in (*same, "success", "success_hold", "failure", "horizon"):
            ours, theirs = getattr(self.interface, name), getattr(interface, name)
            if ours != theirs:
                raise WrongBundle(
                    f"{self.label} was trained for other {name} than task {interface.task!r} has: {ours!r} in it, "
                    f"{theirs!r} in the task; train it again, or use the commit in its provenance"
                )


def _listed(spec: ObservationSpec) -> str:
    return ", ".join(f"{key} {'x'.join(map(str, field.shape))}".strip() for key, field in spec.items()) or "nothing"


def save_bundle(bundle: Bundle, path: Path) -> None:
    """Write a bundle to the folder `path`, which appears under this name only after all files are written."""
    try:
        with replacing_folder(path) as temporary:
            weights = {k: v.contiguous() for k, v in bundle.policy.state_dict().items()}
            save_file(weights, temporary / WEIGHTS)
            if bundle.critic:
                save_file({k: v.contiguous() for k, v in bundle.critic.items()}, temporary / CRITIC)
            meta = {
                "format": FORMAT,
                "policy": bundle.policy.describe(),
                "task": bundle.task,
                "interface": bundle.contract.to_json() if bundle.contract else None,
                **({"specs": bundle.described.to_json()} if bundle.described and not bundle.contract else {}),
                "agent": bundle.agent,
                "robot": bundle.robot,
                "provenance": bundle.provenance,
                "sha256": {file.name: sha256(file.read_bytes()) for file in sorted(temporary.iterdir())},
            }
            (temporary / "policy.json").write_text(json.dumps(meta, indent=2))
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write the bundle {path} ({error}); free space or choose another --out") from error


def bundle_folder(path: Path | str) -> Path:
    """Return the folder of a bundle, given that folder itself or the run folder that contains it."""
    inner = Path(path) / "bundle"
    return inner if (inner / "policy.json").is_file() else Path(path)


def load_bundle(path: Path | str, runtime: Runtime = "torch") -> Bundle:
    """Read a bundle from its folder or a run folder; runtime "onnx" uses policy.onnx, which must fit the bundle."""
    path = bundle_folder(path)
    file = path / "policy.json"
    if not file.is_file():
        raise NoBundle(path)
    if fault := next(leaks(path), None):
        raise BundleError(fault)
    try:
        meta = json.loads(file.read_text())
        if not isinstance(meta, dict) or "format" not in meta:
            raise BundleError(f"{file} is foreign: no `robot-rl train` wrote it; name a folder that one did")
        if meta["format"] != FORMAT:
            newer = isinstance(meta["format"], int) and meta["format"] > FORMAT
            remedy = "update robot-rl" if newer else "train it again, or use the robot-rl that wrote it"
            raise BundleError(f"{file}: format {meta['format']}, but this robot-rl reads format {FORMAT}; {remedy}")
        check_names(meta)
        found = policy_class(meta["policy"])
        with torch.device("meta"):  # nothing is allocated until the sizes match those of the weights
            wanted = found.build(meta["policy"]).state_dict()
        interface = Interface.from_json(meta["interface"]) if meta["interface"] is not None else None
        if interface is not None:
            robots.get(interface.robot)
        if not isinstance(meta["robot"], dict):
            raise TypeError("robot is no table")
        for name, kind in (("task", str), ("provenance", dict), ("agent", dict)):
            if not isinstance(meta.get(name, kind()), kind):
                raise TypeError(f"{name} is {meta[name]!r}")
        sums = dict(meta["sha256"])
        weights = read_weights(path / WEIGHTS, sums)
        require_fit(weights, wanted, path / WEIGHTS)
        policy = found.build(meta["policy"])
        bundle = Bundle(policy, interface, meta["robot"], meta.get("provenance", {}), folder=path)
        bundle.task, bundle.agent = meta.get("task", "") or bundle.task, meta.get("agent", {})
        bundle.described = described(meta, bundle.task, policy.size)
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError, UnknownName) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise BundleError(f"{file} is damaged or foreign ({reason}); copy it again, or train it again") from None
    policy.load_state_dict(weights)
    if not all(v.isfinite().all() for v in weights.values()):
        raise BundleError(f"{path / WEIGHTS} holds non-finite weights; train it again")
    if (path / CRITIC).is_file():
        bundle.critic = read_weights(path / CRITIC, sums)
        if not all(v.isfinite().all() for v in bundle.critic.values()):
            raise BundleError(
                f"{path / CRITIC} holds non-finite weights; train it again, or delete that file: further training "
                "then starts with new critics"
            )
    policy.eval()
    if runtime == "onnx":
        bundle.policy = load_onnx(path, bundle.policy, bundle.info)
    return bundle


def described(meta: dict[str, Any], task: str, size: Size) -> EnvInfo | None:
    """Return the specs in the description of a bundle or server that has no interface; None if there are no specs.
    ValueError if the policy's sizes differ from the specs."""
    if meta["interface"] is not None or meta.get("specs") is None:
        return None
    info = EnvInfo.from_json(task, meta["specs"])
    if (info.observation, info.action, info.extra_inputs) != (size.observation, size.action, size.extra_inputs):
        raise ValueError("its policy has other inputs or outputs than its specs")
    return info


def check_names(meta: dict[str, Any]) -> None:
    """Raise ConfigError if a task, robot, term or test named in a description would import an untrusted package;
    `policy_class` checks the name of the policy's class."""
    check_trusted_task(str(meta.get("task", "")))
    if (interface := meta["interface"]) is not None:
        robots.vet(str(interface["robot"]))
        for name in interface["observations"]:
            terms.vet(str(name))
        per_instruction = [each["success"] for each in interface.get("instructions", ())]
        for name in filter(None, (interface.get("success"), interface.get("failure"), *per_instruction)):
            tests.vet(str(name))
        check_trusted_task(str(interface["task"]))
