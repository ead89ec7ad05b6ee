"""`robot-rl serve`: serve a policy over a websocket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from robot_rl.cli.options import BundlePath, Runtime
from robot_rl.util.limits import Interval, PositiveInt


@dataclass
class Serve:
    """Serve a bundle's policy over a websocket in openpi's protocol until Ctrl-C.

    There is no password and no encryption; from another machine, connect through ssh -L 8000:127.0.0.1:8000 HOST."""

    bundle: BundlePath
    host: str = "127.0.0.1"
    """Listening address. The default accepts connections from this machine only; 0.0.0.0 from the whole network."""
    port: Annotated[int, Interval(ge=0, le=65535)] = 8000
    """Port; 0: any free port."""
    runtime: Runtime = "torch"
    device: str = "cpu"
    """Policy device: cpu, cuda, cuda:1 and the like, or auto for cuda if available."""
    threads: PositiveInt = 2
    """Policy threads."""

    def run(self) -> int:
        """Serve until interrupted; return the exit status."""
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
