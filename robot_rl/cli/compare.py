"""`robot-rl compare`: is one policy better than another, and how sure is that?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass
class Compare:
    """Compare evaluated runs of one task: means with 95 % intervals over seeds and episodes, and differences to the
    first one, episode by episode where they share seeds and held-out episodes."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, or folders of seed runs as `train --seeds` makes them; the others are compared with the first."""
    figure: str = ""
    """What is compared: success, return, or one of the task's metrics; default success, where it is reported."""
    out: Path | None = None
    """HTML file to write, with learning curves."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Compare; return the exit status."""
        from rich.table import Table
        from rich.text import Text

        from robot_rl.cli.console import printer, show
        from robot_rl.report.comparison import compare, read_arms
        from robot_rl.report.comparison_page import HEAD, table_rows, write_comparison
        from robot_rl.util.errors import ConfigError

        if len(self.runs) < 2:
            raise ConfigError("name at least two runs, or folders of seed runs: robot-rl compare runs/a runs/b")
        if len({run.resolve() for run in self.runs}) < len(self.runs):
            raise ConfigError("a folder is named twice: each run is compared once")
        arms = read_arms(self.runs)
        result = compare(arms, self.figure)
        if self.out:
            write_comparison(arms, result, self.out)
        if self.json:
            show(result, True)
            return 0
        console = printer()
        rows = Table(
            title=f"{result['figure']} on held-out episodes of {result['task']}, with 95 % intervals", box=None
        )
        for k, name in enumerate(HEAD):
            rows.add_column(name.lower(), justify="right" if 3 <= k < 6 else "left")
        for row in table_rows(result):
            rows.add_row(*map(Text, row))
        console.print(rows)
        for note in result["notes"]:
            console.print(note, markup=False, soft_wrap=True)
        if self.out:
            console.print(f"written: {self.out}", markup=False, soft_wrap=True)
        return 0
