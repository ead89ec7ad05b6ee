"""`robot-rl replay`: watch a recorded session in the browser."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from robot_rl.util.limits import NonNegativeInt


@dataclass
class Replay:
    """Watch a session's bag, or the black box of a stop, in the browser.

    The messages go to topics under /replay on this machine, where no robot listens. The page pauses, changes the speed
    and goes to any time."""

    bag: tyro.conf.Positional[Path]
    """Folder of a bag: RUN/bag of --bag, RUN/black_box/stop-0 of a stop, or one recorded with ROS 2."""
    robot: str = ""
    """Robot of the bag; default: that of the run folder that holds the bag."""
    task: str | None = None
    """Task whose objects are shown; default: the robot's first."""
    speed: Literal["1/10", "1/4", "1/2", "1", "2"] = "1"
    """Initial speed; 1 is real time."""
    port: NonNegativeInt = 0
    """Port of the page; 0: 8080 or the next free port."""

    def run(self) -> int:
        import os

        from robot_rl.cli.view import require_viewer
        from robot_rl.view.replay import NAMESPACE, SPEEDS, read
        from robot_rl.view.replay import Replay as Player

        require_viewer(self.port)
        rows = read(self.bag)
        name = self.robot or self._recorded()
        os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
        from real.bus import open_node
        from real.teleop import until_signal
        from robot_rl.robots import robots
        from robot_rl.view import LiveView
        from sim.tasks import scene_of

        robot, scene, where = robots.get(name), scene_of(name, self.task), NAMESPACE
        with until_signal() as wait, open_node("view", where) as node, open_node("bag", where) as bag:
            view = LiveView(node, robot, scene, self.port, cameras=False, recorded=True)
            try:
                _say(view.page.address)
                speeds = dict(zip(("1/10", "1/4", "1/2", "1", "2"), SPEEDS.values(), strict=True))
                Player(bag, view, rows, speeds[self.speed]).run(wait)
            finally:
                view.close()
        return 0

    def _recorded(self) -> str:
        """Return the robot of the run folder that holds the bag. ConfigError if there is none."""
        from robot_rl.util.errors import ConfigError

        for folder in list(self.bag.resolve().parents)[:2]:
            settings: Any = {}
            if (folder / "config.json").exists():
                settings = json.loads((folder / "config.json").read_text())
            if robot := settings.get("robot"):
                return str(robot)
        raise ConfigError(f"{self.bag} is in no run folder that names a robot: name it with --robot")


def _say(address: str) -> None:
    from robot_rl.cli.console import console

    console.print(f"replay: {address} (this machine only); Ctrl-C ends it", soft_wrap=True)
