"""A bundle: one folder with everything a robot's computer needs to run a policy, and no pickled code.

policy.json          class, configuration, interface, robot, provenance
policy.safetensors   weights and normalization
critic.safetensors   optional: value functions, for whoever goes on learning
policy.onnx          optional: the policy for ONNX Runtime, which `robot-rl export` writes
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from policies.base import Policy, Size
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from policies.gaussian import GaussianConfig
from policies.residual import ResidualConfig, ResidualPolicy
from robot_rl.errors import Misfit, UnknownName, UserError
from robot_rl.interface import Interface, Pipeline
from robot_rl.robots import robots
from robot_rl.spec import RobotSpec

FORMAT = 1
LATER = {"velocity", "effort", "feet", "motors", "contacts"}
"""Fields of a fingerprint that the first bundles do not hold."""
Runtime = Literal["torch", "onnx"]
"""What computes the policy."""


class BundleError(Misfit):
    """A bundle that is missing, damaged, or made for something else."""


@dataclass
class Bundle:
    """A policy with its interface and history."""

    policy: Policy
    interface: Interface
    robot: dict[str, Any]
    """The robot's fingerprint."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Task, recipe, seed, dataset, commit, versions."""
    critic: dict[str, Tensor] = field(default_factory=dict)
    folder: Path | None = None
    """Where it was read from."""

    @property
    def called(self) -> str:
        """How a sentence begins that is about it."""
        return f"bundle {self.folder}" if self.folder else "this bundle"

    def check_robot(self, robot: RobotSpec) -> None:
        """Refuse another robot, naming the fields that differ. What an older bundle did not record is not compared."""
        theirs = robot.fingerprint() | {"interface": robot.name}
        ours = self.robot | {"interface": self.interface.robot}
        recorded = theirs.keys() - (LATER - ours.keys())
        different = [k for k, v in theirs.items() if k in recorded and ours.get(k) != v]
        if different:
            name = different[0]
            whom = f"robot {ours.get('name')!r}, not for {robot.name!r}"
            if ours.get("name") == robot.name:
                whom = f"another {robot.name!r} than this robot"
            raise WrongBundle(
                f"{self.called} is for {whom}: {', '.join(different)} "
                f"differ ({name} is {ours.get(name)} in the bundle, {theirs[name]} on the robot)"
            )
        pipeline, size = Pipeline(self.interface, robot), self.policy.size
        wanted = (pipeline.observer.spec.size, pipeline.actions.size)
        if (size.observation, size.action) != wanted:
            raise WrongBundle(
                f"{self.called} does not fit together: the policy reads {size.observation} numbers and writes "
                f"{size.action}, its interface has {wanted[0]} and {wanted[1]}; train it again"
            )

    def check_task(self, interface: Interface) -> None:
        """Refuse a task whose policies see other observations, or whose actions do something else."""
        for name in ("robot", "observations", "command", "gait", "controller"):
            ours, theirs = getattr(self.interface, name), getattr(interface, name)
            if ours != theirs:
                raise WrongBundle(
                    f"{self.called} was trained for other {name} than task {interface.task!r} has: {ours} in it, "
                    f"{theirs} in the task; train it again, or use the commit in its provenance"
                )


class WrongBundle(BundleError):  # noqa: N818 - it reads as a sentence
    """A sound bundle for something else."""


def _build(spec: dict[str, Any]) -> Policy:
    config = spec["config"]
    if spec["class"] == "diffusion":
        return DiffusionPolicy(Size(**spec["size"]), DiffusionConfig(**config))
    if spec["class"] == "feedforward":
        hidden = tuple(config["hidden"])
        return FeedforwardPolicy(Size(**spec["size"]), FeedforwardConfig(**config | {"hidden": hidden}))
    if spec["class"] == "residual":
        base = _build(spec["base"])
        if not isinstance(base, DiffusionPolicy):
            raise ValueError(f"base class {spec['base']['class']!r}")
        actor = config["actor"] | {"hidden": tuple(config["actor"]["hidden"])}
        return ResidualPolicy(base, ResidualConfig(**config | {"actor": GaussianConfig(**actor)}))
    raise KeyError(f"class {spec['class']!r}")


def _describe(policy: Policy) -> dict[str, Any]:
    spec: dict[str, Any] = {"config": asdict(policy.config)}
    if isinstance(policy, ResidualPolicy):
        return spec | {"class": "residual", "base": _describe(policy.base)}
    assert isinstance(policy, DiffusionPolicy | FeedforwardPolicy)
    name = "diffusion" if isinstance(policy, DiffusionPolicy) else "feedforward"
    return spec | {"class": name, "size": asdict(policy.size)}


def save_bundle(bundle: Bundle, path: Path) -> None:
    """Write a bundle; the folder appears under its name only when it is whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        weights = {k: v.contiguous() for k, v in bundle.policy.state_dict().items()}
        save_file(weights, temporary / "policy.safetensors")
        if bundle.critic:
            save_file({k: v.contiguous() for k, v in bundle.critic.items()}, temporary / "critic.safetensors")
        meta = {
            "format": FORMAT,
            "policy": _describe(bundle.policy),
            "interface": bundle.interface.to_json(),
            "robot": bundle.robot,
            "provenance": bundle.provenance,
        }
        (temporary / "policy.json").write_text(json.dumps(meta, indent=2))
        old = path.with_name(f".{path.name}.{os.getpid()}.old")
        if path.exists():
            path.rename(old)
        temporary.rename(path)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write the bundle {path} ({error}); free space or choose another --out") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def bundle_folder(path: Path | str) -> Path:
    """The folder of a bundle; a run folder stands for the bundle in it."""
    inner = Path(path) / "bundle"
    return inner if (inner / "policy.json").is_file() else Path(path)


def load_bundle(path: Path | str, runtime: Runtime = "torch") -> Bundle:
    """Read a bundle; needs nothing besides the folder. A run folder stands for the bundle in it.

    With runtime "onnx" the policy is that of policy.onnx, which is refused where it does not fit the rest.
    """
    path = bundle_folder(path)
    file = path / "policy.json"
    if not file.is_file():
        raise BundleError(f"{path} is no bundle: it has no policy.json; name a folder that `robot-rl train` wrote")
    try:
        meta = json.loads(file.read_text())
        if not isinstance(meta, dict) or "format" not in meta:
            raise BundleError(f"{file} is foreign: no `robot-rl train` wrote it; name a folder that one did")
        if meta["format"] != FORMAT:
            raise BundleError(
                f"{file}: format {meta['format']}, but this robot-rl reads format {FORMAT}; update robot-rl"
            )
        policy = _build(meta["policy"])
        interface = Interface.from_json(meta["interface"])
        robots.get(interface.robot)
        if not isinstance(meta["robot"], dict):
            raise TypeError("robot is no table")
        bundle = Bundle(policy, interface, meta["robot"], meta.get("provenance", {}), folder=path)
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError, UnknownName) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise BundleError(f"{file} is damaged or foreign ({reason}); copy the bundle again") from None
    weights = _read(path / "policy.safetensors")
    _require_fit(weights, policy, path / "policy.safetensors")
    policy.load_state_dict(weights)
    if not all(v.isfinite().all() for v in weights.values()):
        raise BundleError(f"{path / 'policy.safetensors'} holds non-finite weights; train it again")
    if (path / "critic.safetensors").is_file():
        bundle.critic = _read(path / "critic.safetensors")
        if not all(v.isfinite().all() for v in bundle.critic.values()):
            raise BundleError(
                f"{path / 'critic.safetensors'} holds non-finite weights; train it again, or delete that file: what "
                "goes on learning then begins with new critics"
            )
    policy.eval()
    if runtime == "onnx":
        from policies.metadata import load_onnx

        bundle.policy = load_onnx(path, bundle)
    return bundle


def _require_fit(weights: dict[str, Tensor], policy: Policy, file: Path) -> None:
    """Refuse weights of another network, naming the first difference."""
    found, wanted = ({k: tuple(v.shape) for k, v in s.items()} for s in (weights, policy.state_dict()))
    different = sorted(k for k in found.keys() | wanted.keys() if found.get(k) != wanted.get(k))
    if different:
        name = different[0]
        there, here = (s.get(name, "absent") for s in (found, wanted))
        more = f", and {len(different) - 1} more differ" if len(different) > 1 else ""
        raise BundleError(
            f"{file} holds the weights of another policy than policy.json says: {name} is {there} in it, not {here}"
            f"{more}; copy the bundle again"
        )


def _read(file: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(file)
    except FileNotFoundError:
        raise BundleError(f"{file} is missing; copy the whole bundle folder") from None
    except Exception as error:  # safetensors raises its own error type for truncated or foreign files
        raise BundleError(f"{file} is damaged ({error}); copy the bundle again") from None
