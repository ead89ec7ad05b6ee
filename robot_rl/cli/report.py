"""`robot-rl report` and `robot-rl compare`: HTML pages of runs, and comparisons of evaluated runs."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from robot_rl.cli.options import Json


@dataclass
class Report:
    """Write one offline HTML file with the success rates, curves, timing and videos of runs."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, or folders of run folders, in display order."""
    out: Path | None = None
    """HTML file; default: report.html in the run folder, or in the current folder if several run folders are given."""
    json: Json = False

    def run(self) -> int:
        from robot_rl.cli.console import print_table, printer, show
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
        if report["stages"]:
            rows = [
                (stage["label"], stage["where"], figure(stage["episodes"]), percent(stage["success"]),
                 interval(stage["success_low"], stage["success_high"]))
                for stage in report["stages"]
            ]  # fmt: skip
            head = ("stage", "where", "episodes", "success", "95 % interval")
            print_table("", head, rows, left=head[:2])
        console = printer()
        for note in report["notes"]:
            console.print(note, markup=False, soft_wrap=True)
        console.print(f"written: {out}" + (f", in the new folder {new}" if new else ""), markup=False, soft_wrap=True)
        return 0


@dataclass
class Compare:
    """Compare evaluated runs of one task by means with 95 % intervals over seeds and episodes.

    Each run's difference to the first run is paired by episode if the two runs have the same seeds and held-out
    episodes."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, or folders of seed runs from `train --seeds`; the first is the reference."""
    figure: str = ""
    """Success, return, or a metric of the task to compare; default: success if all runs report it, else return."""
    out: Path | None = None
    """HTML file to write, with the comparison and the learning curves; default: none."""
    json: Json = False

    def run(self) -> int:
        from robot_rl.cli.console import print_table, printer, show
        from robot_rl.report.comparison import HEAD, compare, read_arms, table_rows, write_comparison
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
        title = f"{result['figure']} on held-out episodes of {result['task']}, with 95 % intervals"
        head = [name.lower() for name in HEAD]
        print_table(title, head, table_rows(result), left=(*head[:3], head[-1]))
        console = printer()
        for note in result["notes"]:
            console.print(note, markup=False, soft_wrap=True)
        if self.out:
            console.print(f"written: {self.out}", markup=False, soft_wrap=True)
        return 0
