"""Loading of the policy that a command line names, a bundle or a server at ws://HOST:PORT; and `robot-rl serve`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from robot_rl.cli.options import BundlePath, Runtime
from robot_rl.util.limits import Interval, PositiveInt

if TYPE_CHECKING:
    from policies.bundle import Bundle, Runtime

PATIENCE = 60.0
"""Timeout for a server's answer while no robot moves, s."""


def open_policy(
    source: Path, runtime: Runtime, task: str | None = None, keys: tuple[str, ...] = (), execute: int = 0,
    timeout: float = PATIENCE,
) -> Bundle:  # fmt: skip
    """Load a bundle, or connect to a policy server and return a bundle whose policy calls the server.

    Args:
        task: for a foreign server (not `robot-rl serve`), the task whose contract it follows; for `robot-rl serve`,
            must be the policy's task.
        keys: for a foreign server, its observation names, `OURS=THEIRS`.
        execute: for a foreign server, the number of actions to execute per chunk; 0: all actions.
        timeout: longest wait for an answer, s.

    Raises:
        ConfigError: an option is missing or does not apply.
        RemoteFailure: no server answers.
    """
    from policies.bundle import load_bundle
    from policies.remote import address_of
    from robot_rl.util.errors import ConfigError

    if not (address := address_of(source)):
        for name, value in (("task", task), ("keys", keys), ("execute", execute)):
            if value:
                raise ConfigError(f"--{name} is for a server, ws://HOST:PORT; {source} is a bundle: leave it out")
        return load_bundle(source, runtime)
    if runtime != "torch":
        raise ConfigError(f"the server chooses its runtime: `robot-rl serve BUNDLE --runtime {runtime}`")
    from policies.remote.client import ServedPolicy
    from policies.remote.connection import Connection
    from policies.remote.contract import ServedBundle, read

    connection = Connection(address, timeout)
    terms = read(connection.metadata, address)
    if terms is None:
        return _foreign(connection, task, keys, execute)
    if keys or execute:
        raise ConfigError(f"{address} is a `robot-rl serve`, which says these itself: leave out --keys and --execute")
    if task and task != terms.task:
        raise ConfigError(f"the policy at {address} is for task {terms.task!r}, not for {task!r}; leave out --task")
    policy = ServedPolicy(connection, terms)
    return ServedBundle(
        policy, terms.interface, terms.robot, terms.learned, task=terms.task, address=address,
        described=terms.described,
    )  # fmt: skip


def _foreign(connection: Any, task: str | None, keys: tuple[str, ...], execute: int) -> Bundle:
    """Return a bundle with a foreign server's policy and the contract of `task`, one of robot-rl's tasks."""
    from policies.remote.client import ForeignPolicy, translation
    from policies.remote.contract import ServedBundle, size_of
    from robot_rl.interface.pipeline import Pipeline
    from robot_rl.util.errors import ConfigError
    from sim.tasks import tasks, without_robot

    if not task or without_robot(task):
        raise ConfigError(
            f"the server at {connection.address} does not say what its policy is for: name a robot's --task, see "
            "`robot-rl tasks`"
        )
    interface = tasks.get(task).interface
    pipeline = Pipeline(interface)
    names = translation(keys, pipeline.observation_spec)
    policy = ForeignPolicy(connection, size_of(pipeline), pipeline.actions, names, execute)
    return ServedBundle(policy, interface, pipeline.robot.fingerprint(), address=connection.address)


def server_report(policy: Any) -> dict[str, Any]:
    """Return the summary of a policy's server for the evaluation's result; {} for a local policy."""
    connection = getattr(policy, "connection", None)
    return {} if connection is None else {"server": connection.summary()}


@dataclass
class Serve:
    """Serve a bundle's policy over a websocket in openpi's protocol until Ctrl-C.

    There is no password and no encryption; from another machine, connect through ssh -L 8000:127.0.0.1:8000 HOST."""

    bundle: BundlePath
    host: str = "127.0.0.1"
    """Listening address. The default accepts connections from this machine only, 0.0.0.0 from the whole network."""
    port: Annotated[int, Interval(ge=0, le=65535)] = 8000
    """Port; 0: any free port."""
    runtime: Runtime = "torch"
    device: str = "cpu"
    """Policy device: cpu, cuda, cuda:1 and the like, or auto for cuda if available."""
    threads: PositiveInt = 2
    """Number of policy threads."""

    def run(self) -> int:
        import logging

        import torch

        from policies.bundle import load_bundle
        from policies.remote.server import PolicyServer
        from robot_rl import __version__
        from robot_rl.cli.console import console
        from robot_rl.robots import robots
        from robot_rl.util.devices import find_device
        from robot_rl.util.errors import ConfigError

        torch.set_num_threads(self.threads)
        device = find_device(self.device)
        if device != "cpu" and self.runtime == "onnx":
            raise ConfigError(f"--runtime onnx computes on the CPU; leave out --device {self.device}")
        bundle = load_bundle(self.bundle, self.runtime)
        if bundle.contract is not None:
            bundle.check_robot(robots.get(bundle.interface.robot))
        logging.basicConfig(format="serve: %(message)s", level=logging.WARNING)
        logging.getLogger("websockets.server").setLevel(logging.CRITICAL)  # ignore port scans
        server = PolicyServer(bundle, __version__, device)

        def ready(address: str) -> None:
            console.print(f"serve: {bundle.task} at {address}; Ctrl-C ends it", soft_wrap=True, markup=False)
            if not address.startswith(("ws://127.", "ws://[::1]")):
                console.print("serve: warning: no password and no encryption; others on the network can use it")

        server.run(self.host, self.port, ready)
        counts = ", ".join(f"{count} {name}" for name, count in server.counts.items())
        console.print(f"serve: {counts}", soft_wrap=True)
        return 0
