"""`robot-rl bench loop`: measure the lateness of the command loop against a bare loop."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from robot_rl.cli.options import Json
from robot_rl.util.limits import Interval

if TYPE_CHECKING:
    from policies.bundle import Bundle
    from robot_rl.interface.robot import RobotSpec


@dataclass
class Loop:
    """Measure the lateness of the command loop of `robot-rl launch` on the twin, and of the guard of a legged robot.

    Twin, guard and policy are separate processes in a private ROS domain on this machine. As a baseline, an
    empty loop at the same rate runs before and after the episode, each time for half of the episode's length."""

    robot: tyro.conf.Positional[str] = "go2"
    """Robot name, see `robot-rl robots`."""
    policy: Path | None = None
    """Bundle, or a run folder that contains one; default: a network with zero actions."""
    seconds: Annotated[float, Interval(ge=1)] = 60.0
    """Episode length, and total duration of the bare loop, s."""
    json: Json = False

    def run(self) -> int:
        from real.control.timing import bare_loop
        from robot_rl.cli.console import console, show
        from robot_rl.robots import robots
        from robot_rl.training.run import provenance

        robot = robots.get(self.robot)
        bundle = acting(robot, self.policy)
        half, rate = self.seconds / 2, robot.command_rate
        # No progress bar: its thread would make the loops late.
        console.print(f"bare loop at {rate:g} Hz, {half:g} s")
        before = bare_loop(rate, half)
        console.print(f"command loop of {self.robot} and its twin, {self.seconds:g} s")
        loops = deploy(bundle, robot, self.seconds, "schedule" if self.policy else "person")
        console.print(f"bare loop again, {half:g} s")
        after = bare_loop(rate, half)
        loops["bare loop"] = (before + after).summary()
        floor = loops["bare loop"]["lateness_us"]["p99"]
        above = {name: row["lateness_us"]["p99"] - floor for name, row in loops.items() if name != "bare loop"}
        if self.json:
            result = {"robot": self.robot, "policy": str(self.policy or "zero actions"), "loops": loops}
            show(result | {"p99_above_bare_us": above, "provenance": provenance()}, True)
        else:
            _print(loops, above)
        return 0


def acting(robot: RobotSpec, policy: Path | None) -> Bundle:
    """Return the bundle in `policy`, or a bundle of a zero-action network for the robot's first task."""
    from torch import nn

    from policies.base import Size
    from policies.bundle import Bundle, load_bundle
    from policies.feedforward import FeedforwardPolicy
    from robot_rl.interface.pipeline import Pipeline
    from sim.tasks import task_of, tasks

    if policy is not None:
        bundle = load_bundle(policy)
        bundle.check_robot(robot)
        tasks.get(bundle.interface.task)  # raises if the twin cannot simulate the task
    else:
        interface = task_of(robot.name).interface
        pipeline = Pipeline(interface)
        network = FeedforwardPolicy(Size(pipeline.observer.spec.size, pipeline.actions.size))
        head = network.actor[-1]
        assert isinstance(head, nn.Linear)
        nn.init.zeros_(head.weight)  # the bias is zero already
        bundle = Bundle(network, interface, robot.fingerprint())
    # Without a success test, an arm's episode lasts until the time limit.
    return replace(bundle, contract=replace(bundle.interface, success=""))


def deploy(bundle: Bundle, robot: RobotSpec, seconds: float, commands: str) -> dict[str, Any]:
    """Run one episode with the robot's launch file; return the timing of the command loop and of the guard, if any."""
    import os
    import tempfile

    from policies.bundle import save_bundle
    from real.launching.launch import describe
    from real.launching.processes import ProcessRunner
    from robot_rl.cli.launch import EXECUTABLE, private_domain
    from robot_rl.util.errors import Interrupted, UserError

    output: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory(prefix="robot-rl-bench-") as name:
        folder = Path(name)
        save_bundle(bundle, folder / "bundle")
        values = {"policy": str(folder / "bundle"), "out": str(folder / "run"), "robot": robot.name, "twin": "true"}
        values["lockstep"] = "false"  # this measures real time
        values |= {"task": bundle.interface.task, "camera": "false", "episodes": "1", "seconds": str(seconds)}
        values |= {"commands": commands} if robot.base else {}
        nodes = describe("quadruped" if robot.base else "arm", values)
        nodes = [replace(node, command=(*node.command, "--json")) if node.guards_robot else node for node in nodes]
        environment = os.environ | private_domain()
        runner = ProcessRunner(nodes, EXECUTABLE, lambda *line: output.append(line), environment)
        code = runner.run()
        if runner.interrupted:
            said = "interrupted; nothing was measured, and nothing is left running"
            raise Interrupted(said, runner.interrupted - 128)
        if code:
            raise UserError(f"nothing was measured: {_first_to_end(output)}")
        loops = {"command loop": jsonlib.loads((folder / "run" / "loop.json").read_text())}
    if robot.base:
        reports = [line for node, line in output if node == "guard" and line.startswith("{")]
        if not reports:
            raise UserError("the guard was killed before it could report; see what ends processes here, and try again")
        loops["guard"] = jsonlib.loads(reports[-1])
    return loops


def _first_to_end(output: list[tuple[str, str]]) -> str:
    """Return a sentence that names the first process that ended early, with the process's error message."""
    ended = [line for node, line in output if node == "launch" and (" exited with " in line or " was killed " in line)]
    first = ended[0] if ended else output[-1][1]
    errors = [line for node, line in output if node == first.split()[0] and line.startswith("robot-rl: ")]
    return f"{first}: {errors[-1].removeprefix('robot-rl: ')}" if errors else first


def _print(loops: Mapping[str, Any], above: Mapping[str, float]) -> None:
    """Print a table of the lateness of each loop, us; `above` has each loop's p99 above that of the bare loop."""
    from robot_rl.cli.console import print_table

    rows = []
    for name, row in loops.items():
        late = [f"{row['lateness_us'][key]:.0f}" for key in ("p50", "p99", "p999", "max")]
        counts = f"{row['rate']:g}", row["ticks"], row["missed"], f"{row['late_share']:.2%}"
        difference = f"{above[name]:+.0f}" if name in above else ""
        rows.append((name, *counts, f"{row['drift_us']:.0f}", *late, difference))
    head = ("loop", "Hz", "ticks", "missed", ">1 ms", "drift", "p50", "p99", "p99.9", "max", "above")
    print_table("lateness, \u00b5s; above: p99 above the bare loop's", head, rows, left=("loop",))
