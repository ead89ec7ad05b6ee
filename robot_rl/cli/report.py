"""`robot-rl report`: write run folders up as one HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro


@dataclass
class Report:
    """Write success with intervals, curves, timing and videos of runs into one HTML file that works offline."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, or folders of run folders, in the order to show them."""
    out: Path | None = None
    """File to write; default report.html in the folder, or here if several are named."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Write the report and print its stages; return the exit status."""
        from rich.markup import escape
        from rich.table import Table

        from robot_rl.cli.console import printer, show
        from robot_rl.report import write_report
        from robot_rl.report.figures import figure, interval, percent
        from robot_rl.util.errors import ConfigError

        if not self.runs:
            raise ConfigError("name at least one run folder: robot-rl report runs/<date>-<time>-demo")
        out = self.out or (self.runs[0] if len(self.runs) == 1 else Path()) / "report.html"
        new = next((p for p in reversed(out.parents) if not p.exists()), None)
        report = write_report(list(self.runs), out)
        if self.json:
            show(report, True)
            return 0
        console = printer()
        if report["stages"]:
            table = Table("stage", "where", box=None)
            for name in ("episodes", "success", "95 % interval"):
                table.add_column(name, justify="right")
            for stage in report["stages"]:
                table.add_row(
                    escape(stage["label"]), escape(stage["where"]), figure(stage["episodes"]),
                    percent(stage["success"]), interval(stage["success_low"], stage["success_high"]),
                )  # fmt: skip
            console.print(table)
        for note in report["notes"]:
            console.print(note, markup=False, soft_wrap=True)
        console.print(f"written: {out}" + (f", in the new folder {new}" if new else ""), markup=False, soft_wrap=True)
        return 0
