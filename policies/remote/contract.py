"""Metadata that a server sends when a client connects: openpi's format, with our contract under `robot_rl`."""

import json
from dataclasses import dataclass, field
from typing import Any

from policies.base import Size
from policies.bundle import Bundle, check_names, described
from policies.errors import BundleError
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.observation_spec import STATE, ObservationField, ObservationSpec
from robot_rl.interface.pipeline import Interface, Pipeline
from robot_rl.robots import robots
from robot_rl.util.errors import UnknownName
from robot_rl.util.limits import PositiveInt, validate

NAME = "robot_rl"
"""Key of our contract in the metadata."""
PROTOCOL = 1
LEARNED = ("inputs", "rename", "image_size")


@dataclass
class ServedBundle(Bundle):
    """Bundle whose policy is on a server."""

    address: str = ""

    @property
    def label(self) -> str:
        return f"the policy at {self.address}"

    def close(self) -> None:
        self.policy.close()  # type: ignore[operator]


@dataclass(frozen=True)
class ServedContract:
    """Description of a served policy, which the server sends to its clients."""

    task: str
    interface: Interface | None
    robot: dict[str, Any]
    size: Size
    horizon: PositiveInt
    execute: PositiveInt
    inpaints: bool
    described: EnvInfo | None = None
    learned: dict[str, Any] = field(default_factory=dict)
    """Training data and their preprocessing, from the bundle's provenance."""

    def __post_init__(self) -> None:
        validate(self, "metadata, ")
        if self.execute > self.horizon:
            raise ValueError(f"execute {self.execute} is more than horizon {self.horizon}")


def size_of(pipeline: Pipeline) -> Size:
    """Return the sizes of a policy for an interface's pipeline."""
    return Size(pipeline.observer.spec.size, pipeline.actions.size, pipeline.extra_inputs)


def spec_of(bundle: Bundle) -> ObservationSpec:
    """Return the spec of a bundle's observations."""
    if bundle.contract is None and bundle.described:
        return ObservationSpec.from_vector(bundle.described.state) | bundle.described.extra_inputs
    if bundle.contract is not None:
        return Pipeline(bundle.contract).observation_spec
    state = ObservationField((bundle.policy.size.observation,))
    return ObservationSpec.of(**{STATE: state}) | bundle.policy.size.extra_inputs


def describe(bundle: Bundle, version: str) -> dict[str, Any]:
    """Return the metadata of a server of the bundle's policy."""
    policy, interface, specs = bundle.policy, bundle.contract, bundle.specs
    ours = {
        "protocol": PROTOCOL,
        "version": version,
        "task": bundle.task,
        "policy": policy.class_name,
        "size": policy.size.to_json(),
        "horizon": policy.horizon,
        "execute": policy.execute,
        "inpaints": bool(getattr(policy, "inpaints", False)),
        "rate": specs.rate if specs else None,
        "observation": spec_of(bundle).to_json(),
        "actions": {"units": "physical" if specs else "[-1, 1]", "fields": specs.actions.to_json() if specs else []},
        "interface": interface.to_json() if interface else None,
        "specs": specs.to_json() if specs and not interface else None,
        "learned": {name: bundle.provenance[name] for name in LEARNED if name in bundle.provenance},
        "robot": bundle.robot,
    }
    plain: dict[str, Any] = json.loads(json.dumps({NAME: ours}))
    return plain


def read(metadata: dict[str, Any], address: str) -> ServedContract | None:
    """Return the contract in a server's metadata; None for servers of other programs.

    Raises:
        BundleError: the contract is damaged, of another protocol version, or names untrusted code.
    """
    if NAME not in metadata:
        return None
    try:
        ours = metadata[NAME]
        if ours["protocol"] != PROTOCOL:
            raise BundleError(
                f"the server at {address} speaks protocol {ours['protocol']}, this robot-rl {PROTOCOL}; use one version"
            )
        check_names(ours)
        interface = Interface.from_json(ours["interface"]) if ours["interface"] is not None else None
        if interface is not None:
            robots.get(interface.robot)
        if not isinstance(ours["robot"], dict):
            raise TypeError("robot is no table")
        size = Size.from_json(ours["size"])
        return ServedContract(
            ours["task"], interface, ours["robot"], size, ours["horizon"], ours["execute"], ours["inpaints"],
            described(ours, ours["task"], size), dict(ours.get("learned", {})),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, UnknownName) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise BundleError(f"the metadata of the server at {address} is damaged or foreign ({reason})") from None
