"""`robot-rl serve`: a policy behind a socket."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from robot_rl.util.limits import Interval, PositiveInt


@dataclass
class Serve:
    """Serve a bundle's policy over a websocket, in openpi's protocol, until Ctrl-C.

    There is no password and no encryption: from another machine, come through ssh -L 8000:127.0.0.1:8000 HOST."""

    bundle: tyro.conf.Positional[Path]
    """Bundle, or a run folder that holds one."""
    host: str = "127.0.0.1"
    """Address to listen at. By default only this machine gets at it; 0.0.0.0 is for everybody on the network."""
    port: Annotated[int, Interval(ge=0, le=65535)] = 8000
    """Port; 0: a free one."""
    runtime: Literal["torch", "onnx"] = "torch"
    """Runtime of the policy: torch, or ONNX Runtime with the file that `robot-rl export` wrote."""
    device: str = "cpu"
    """Device of the policy: cpu, cuda, cuda:1 and the like, or auto for cuda if there is one."""
    threads: PositiveInt = 2
    """Threads of the policy."""

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
        logging.getLogger("websockets.server").setLevel(logging.CRITICAL)  # a port scan is no news
        server = PolicyServer(bundle, __version__, device)

        def ready(address: str) -> None:
            console.print(f"serve: {bundle.task} at {address}; Ctrl-C ends it", soft_wrap=True, markup=False)
            if not address.startswith(("ws://127.", "ws://[::1]")):
                console.print("serve: warning: no password and no encryption; others on the network can use it")

        server.run(self.host, self.port, ready)
        counts = ", ".join(f"{count} {name}" for name, count in server.counts.items())
        console.print(f"serve: {counts}", soft_wrap=True)
        return 0
