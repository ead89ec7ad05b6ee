"""`robot-rl bench methods`: measure each method against its control."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robot_rl.cli.options import Json
from robot_rl.util.limits import PositiveInt


@dataclass
class Methods:
    """Train and evaluate each method and its control on the task on which they should differ, with the same data, seeds
    and episodes. After Ctrl-C or a kill, the same command continues; finished runs are not repeated."""

    only: tuple[str, ...] = ()
    """Checks to run; default: all."""
    seeds: PositiveInt = 3
    """Number of training seeds: 0, 1, ..."""
    work: Path = Path("runs/methods")
    """Folder of the runs, their logs and results.json."""
    jobs: PositiveInt = 1
    """Seeds to run in parallel, one core each."""
    episodes: PositiveInt = 200
    """Episodes per seed: held-out episodes with --publish, else development episodes."""
    publish: bool = False
    """Also write the results to benchmarks/results/methods.json."""
    table: bool = False
    """Run nothing; write the table of published results to docs/methods.md."""
    json: Json = False

    def run(self) -> int:
        """Run the checks; return 1 if any could not be measured."""
        from robot_rl.bench.checks import checks
        from robot_rl.bench.methods import Runner, interrupted_by_signals, run_check
        from robot_rl.bench.results import check_size, judge, merge, publish, write_table
        from robot_rl.cli.console import bar, show
        from robot_rl.util.errors import ConfigError, Interrupted, UnknownName

        if self.table:
            if self.only:
                raise ConfigError("--table writes the whole table; leave out --only")
            show({"written": str(write_table())}, self.json)
            return 0
        for name in self.only:
            if name not in checks:
                raise UnknownName("check", name, checks)
        if self.publish:
            check_size(self.only or checks, self.seeds, self.episodes)
        work = self.work.resolve()
        runner, seeds = Runner(work), range(self.seeds)
        records: dict[str, Any] = {}
        try:
            with interrupted_by_signals():
                for name in self.only or checks:
                    with bar(f"bench methods {len(records) + 1}/{len(self.only or checks)}") as update:
                        todo = name, checks[name], runner, seeds, self.episodes, self.jobs
                        errors = run_check(*todo, update, self.publish)
                    records[name] = judge(name, checks[name], work, seeds, errors)
                    merge(work / "results.json", {name: records[name]})
                    if self.publish:
                        publish({name: records[name]})
        except KeyboardInterrupt as error:
            said = f"stopped; what had finished is in {work}: the same command goes on"
            raise Interrupted(said, error.args[0]) from None
        show(records if self.json else {name: _line(record) for name, record in records.items()}, self.json, "checks")
        return int(any(record["verdict"] == "error" for record in records.values()))


def _line(record: dict[str, Any]) -> str:
    """Return a one-line summary of a check."""
    arms = record["method"], record["control"]
    if "difference" not in record:
        return "; ".join(f"{arm['recipe']}: {arm['error']}" for arm in arms if "error" in arm)
    shown = ", ".join(f"{arm['recipe']} {_interval(arm)}" for arm in arms)
    return f"{record['verdict']}: {shown}, difference {_interval(record['difference'])}"


def _interval(row: dict[str, Any]) -> str:
    return f"{row['mean']:.3g} [{row['low']:.3g}, {row['high']:.3g}]"
