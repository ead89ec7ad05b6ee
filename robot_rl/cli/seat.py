"""`robot-rl console`: watch and move a robot or its twin in the browser."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import tyro

from robot_rl.cli import options as opt
from robot_rl.util.limits import NonNegativeFloat, NonNegativeInt

CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj /CN=robot-rl "
    "-addext subjectAltName={name} -keyout console.key -out console.pem"
)
"""Command that makes a certificate of one's own for a name, such as DNS:robot-pc or IP:192.168.1.10."""


@dataclass
class Console:
    """Watch a robot or its twin in the browser, take over from its policy, and mark its episodes.

    One page at a time has the controls: keys, pads, and a handle at an arm's tool. Other pages watch, and may stop the
    robot. The printed address contains a token; without it nobody gets in."""

    robot: tyro.conf.Positional[str] = "panda"
    """Robot on this ROS domain."""
    task: str | None = None
    """Task whose objects and cameras are shown; default: the robot's first task."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0: all of this computer's. Other computers need --certificate."""
    port: NonNegativeInt = 0
    """Port of the page; 0: 8080 or the next free port."""
    certificate: str = ""
    """Certificate (PEM) for https."""
    key: str = ""
    """Key (PEM) of the certificate; empty: in the same file."""
    profile: opt.Profile = ""
    present: bool = False
    """Be a device of the robot from the start, also while nobody has the controls: sessions then wait for a person. No
    other device may be open beside it."""
    seconds: NonNegativeFloat = 0.0
    """Duration, s; 0: until Ctrl-C."""
    cameras: Literal["auto", "on", "off"] = "auto"
    """Show the task's cameras; auto: for arms only, because rendering makes a legged twin late."""
    mjcf: opt.Mjcf = ""
    ros_args: opt.RosArgs = field(default_factory=list)

    def run(self) -> int:
        import ipaddress
        import socket

        import torch

        from real.bus import open_node
        from real.teleop import until_signal
        from robot_rl.cli.console import console
        from robot_rl.cli.view import require_viewer
        from robot_rl.robots import robots
        from robot_rl.robots.profiles import with_profile
        from robot_rl.util.errors import ConfigError
        from sim.tasks import scene_of, task_of

        require_viewer(self.port)
        torch.set_num_threads(1)
        try:
            at = ipaddress.ip_address(self.host)
            near, name = at.is_loopback, f"DNS:{socket.gethostname()}" if at.is_unspecified else f"IP:{at}"
        except ValueError:
            near, name = self.host == "localhost", f"DNS:{self.host}"
        if not (near or self.certificate):
            raise ConfigError(
                f"--host {self.host} lets other computers in, which needs https: make a certificate with\n"
                f"  {CERTIFICATE.format(name=name)}\nand give --certificate console.pem --key console.key"
            )
        robot = with_profile(robots.get(self.robot), self.profile)
        scene_of(self.robot, self.task)  # a wrong name is an error here, not in the viewer
        try:
            turns = getattr(task_of(self.robot, self.task).interface.controller, "turn", 0.0) > 0
        except ConfigError:  # a robot without a task
            turns = False
        from robot_rl.view.console import Console as Page
        from robot_rl.view.server import tls_context
        from robot_rl.view.viewer import Drawn

        tls = tls_context(self.certificate, self.key) if self.certificate else None
        cameras = self.cameras == "on" or (self.cameras == "auto" and robot.base is None)
        with until_signal() as wait, open_node("console", ros_args=self.ros_args) as node:
            drawn = Drawn(self.robot, self.task, self.profile, cameras, self.mjcf, tuple(self.ros_args))
            page = Page(node, robot, drawn, host=self.host, port=self.port, tls=tls, turns=turns, present=self.present)
            try:
                console.print(f"console: {page.server.address}", soft_wrap=True, markup=False, highlight=False)
                page.run(wait, self.seconds)
            finally:
                page.close()
        return 0
