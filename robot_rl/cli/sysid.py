"""`robot-rl sysid`: fit a simulation to a robot's log, and write ranges for training."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from robot_rl.cli import options as opt

if TYPE_CHECKING:
    from robot_rl.identification.identify import Identified


@dataclass
class Sysid:
    """Fit parameters of the simulation to the log of a robot, print them with 95 % intervals, and write ranges for
    `robot-rl train --randomization`. Parameters that the log cannot show are named and left out."""

    log: tyro.conf.Positional[Path]
    """Run folder of `robot-rl excite` or `robot-rl deploy`, a LeRobot dataset with joint positions as state and action,
    a rosbag2 folder with joint states and position commands, or a CSV file with the columns time, position.JOINT and
    command.JOINT of each joint."""
    robot: str = ""
    """Robot of a bag, of a CSV file, or of a dataset that does not say it."""
    states: str = ""
    """Topic of a bag's joint states; default: the only one of all joints."""
    commands: str = ""
    """Topic of a bag's commands: joint positions as Float64MultiArray, JointState, or JointTrajectory of one point;
    default: the only one."""
    held: tyro.conf.UseAppendAction[tuple[str, ...]] = field(default=())
    """Object in the gripper: cube for the whole log, or cube=5:60 from second 5 to 60; may be repeated. Default: what
    `robot-rl excite --hold` recorded."""
    out: Path | None = None
    """File of the ranges; default ranges.json in the log's folder. The plot goes beside it."""
    mjcf: opt.Mjcf = ""
    json: opt.Json = False

    def run(self) -> int:
        from robot_rl.cli.console import console, print_table, show
        from robot_rl.identification.identify import identify
        from robot_rl.identification.log import read_log
        from robot_rl.training.run import write_json

        log = read_log(self.log, self.robot, self.states, self.commands)
        held = dict(map(_held, self.held))
        log.objects = {name: poses for name, poses in log.objects.items() if name in held or not held}
        found = identify(log, self.mjcf, {name: span for name, span in held.items() if span})
        folder = self.log if self.log.is_dir() else self.log.parent
        out = self.out or folder / "ranges.json"
        write_json(out, found.ranges())
        plot = out.with_suffix(".html")
        _draw(found, log.robot.joint_names, plot)
        facts = {"seconds": found.seconds, "rms_before": found.before, "rms_after": found.after, "ranges": str(out)}
        if self.json:
            show(facts | {"plot": str(plot), "estimates": found.rows(), "notes": found.notes}, True)
            return 0
        rows = [
            (e.parameter, f"{e.estimate:.4g}", f"{e.low:.4g} to {e.high:.4g}", e.unit, e.why)
            if e.shown
            else (e.parameter, "", "not shown", e.unit, e.why)
            for e in sorted(found.estimates, key=lambda e: not e.shown)
        ]
        head = ("parameter", "estimate", "95 % interval", "unit", "note")
        print_table(f"{self.log}, {found.seconds:.0f} s", head, rows, left=("parameter", "unit", "note"))
        for note in found.notes:
            console.print(note, soft_wrap=True)
        judged = "error" if found.notes else "held-out error"
        use = f"train with --randomization {out}" if found.after < found.before else "no better: do not train with it"
        console.print(
            f"{judged} {1000 * found.before:.2f} mrad with nominal parameters, {1000 * found.after:.2f} mrad with"
            f" these; {plot}; {use}",
            soft_wrap=True,
        )
        return 0


def _held(text: str) -> tuple[str, tuple[float, float] | None]:
    from robot_rl.util.errors import ConfigError

    name, _, span = text.partition("=")
    if not span:
        return name, None
    first, _, last = span.partition(":")
    try:
        return name, (float(first), float(last))
    except ValueError:
        raise ConfigError(f"--held {text}: write OBJECT or OBJECT=FROM:TO in seconds, cube=5:60") from None


def _draw(found: Identified, joints: tuple[str, ...], file: Path) -> None:
    """Write a page with the measured and simulated positions of a held-out window, one plot per joint."""
    from plotly import graph_objects as go
    from plotly.subplots import make_subplots

    from robot_rl.util.files import replace_file

    page = make_subplots(len(joints), 1, shared_xaxes=True, subplot_titles=list(joints))
    lines = (("measured", found.measured), ("nominal", found.simulated[0]), ("identified", found.simulated[1]))
    for k in range(len(joints)):
        for (name, values), colour in zip(lines, ("#222", "#d95f02", "#1b9e77"), strict=True):
            line = go.Scatter(x=found.time, y=values[:, k], name=name, line={"color": colour}, showlegend=k == 0)
            page.add_trace(line, row=k + 1, col=1)
    page.update_layout(height=180 * len(joints), title="Held-out window: joint positions, rad, over time, s")
    replace_file(file, page.to_html(include_plotlyjs=True).encode())
