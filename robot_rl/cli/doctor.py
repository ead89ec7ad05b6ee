"""`robot-rl doctor`: is this machine fit for simulation, learning, and driving a robot?"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from robot_rl.cli import checks, trials
from robot_rl.cli.checks import Check
from robot_rl.cli.console import show

_MARKS = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}


@dataclass
class Doctor:
    """Check this machine and say how to mend what is missing; takes under 10 s."""

    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Print the findings; 1 if something needed is missing or broken, else 0."""
        started = time.monotonic()
        console = Console(highlight=False)
        if self.json:
            found = run_all()
        else:
            with console.status("checking") as status:

                def say(name: str) -> None:
                    if name == "lateness":
                        status.stop()  # its own thread would make the timer late
                    status.update(f"checking {name}")

                found = run_all(say)
        seconds = time.monotonic() - started
        failed = any(check.status == "fail" for check in found)
        if self.json:
            report = {"ok": not failed, "seconds": round(seconds, 2), "checks": [asdict(c) for c in found]}
            show(report, True)
        else:
            console.print(_table(found))
            counts = Counter(str(check.status) for check in found)
            total = ", ".join(f"{counts[status]} {status}" for status in _MARKS)
            console.print(f"{total}, in {seconds:.1f} s")
        return int(failed)


def run_all(progress: Callable[[str], None] = lambda _name: None) -> list[Check]:
    """Run every check one after the other, so that none disturbs another's timing."""
    found = []
    for check in (
        checks.python, checks.packages, checks.processor, checks.memory, checks.disk, checks.assets,
        trials.rendering, trials.transport, trials.realtime, trials.lateness,
        checks.gpu, checks.gamepad, checks.display,
    ):  # fmt: skip
        progress(check.__name__)
        result = check()
        found += [result] if isinstance(result, Check) else list(result)
    return found


def _table(found: list[Check]) -> Table:
    table = Table("", "check", box=None)
    table.add_column("found", overflow="fold")
    for check in found:
        remedy = f"\n[bold]-> {escape(check.remedy)}[/]" if check.remedy else ""
        table.add_row(_MARKS[check.status], check.name, escape(check.detail) + remedy)
    return table
