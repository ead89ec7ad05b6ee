"""`robot-rl transfer`: measure how much of a policy's success is left in other simulations and on the twin."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from robot_rl.cli import options as opt
from robot_rl.util.limits import NonNegativeInt, PositiveInt, Seed
from robot_rl.util.seeds import HELD_OUT

if TYPE_CHECKING:
    from policies.bundle import Bundle

PLACES = ("mujoco", "nominal", "genesis", "warp", "dynamics", "identified", "twin")
"""Names of the places, in the order of the table."""


@dataclass
class Transfer:
    """Measure a policy in other simulations than that of its training and on the robot's twin, as a table and a page.

    mujoco, genesis, warp: the task in an engine; nominal: without randomization; dynamics: with the twin's hidden
    values of parameters, but without messages; identified: with the ranges of --identified; twin: the twin behind its
    topics, as `deploy --twin`."""

    bundle: tyro.conf.Positional[Path]
    """Bundle, or run folder that contains one."""
    where: tuple[str, ...] = ("mujoco", "nominal", "dynamics", "twin")
    """Places to measure in; identified is added with --identified."""
    identified: Path | None = None
    """Ranges of `robot-rl sysid`."""
    episodes: PositiveInt = 100
    """Number of episodes in each simulation, the same seeds in all."""
    twin_episodes: NonNegativeInt = 40
    """Number of episodes on the twin."""
    seed: Seed = HELD_OUT
    """Seed of the first episode."""
    num_envs: PositiveInt = 50
    """Number of parallel simulations."""
    out: Path | None = None
    """JSON file of the results; default transfer.json beside the bundle. The picture, an HTML page, goes beside it."""
    json: opt.Json = False

    def run(self) -> int:
        import torch

        from policies.bundle import bundle_folder, load_bundle
        from robot_rl.cli.console import print_table, show
        from robot_rl.training.run import write_json
        from robot_rl.util.errors import ConfigError, UnknownName

        torch.set_num_threads(2)
        chosen = {*self.where} | ({"identified"} if self.identified else set())
        for name in sorted(chosen - {*PLACES}):
            raise UnknownName("place", name, PLACES)
        if "identified" in chosen and not self.identified:
            raise ConfigError("the place identified needs --identified FILE, the ranges that `robot-rl sysid` wrote")
        bundle = load_bundle(self.bundle)
        settings = {name: self._simulation(name, bundle) for name in PLACES if name in chosen and name != "twin"}
        rows = [{"place": name} | self._simulated(name, bundle, given) for name, given in settings.items()]
        if "twin" in chosen and self.twin_episodes:
            rows.append({"place": "twin"} | self._deployed(bundle))
        out = self.out or bundle_folder(self.bundle).parent / "transfer.json"
        result = {"bundle": str(self.bundle), "task": bundle.task, "seed": self.seed, "places": rows}
        write_json(out, result)
        measures = [key for key in rows[0] if key == "success" or key.endswith("_error")]
        draw(rows, measures, f"{bundle.label}: {bundle.task}", out.with_suffix(".html"))
        if self.json:
            show(result, True)
            return 0
        table = [(row["place"], str(row["episodes"]), *(shown(row, key) for key in measures)) for row in rows]
        print_table(f"{bundle.label}, 95 % intervals", ("place", "episodes", *measures), table, left=("place",))
        return 0

    def _simulation(self, name: str, bundle: Bundle) -> dict[str, Any]:
        """Return the keywords of `TaskEnv` for a place, whose task is checked before anything runs."""
        from real.twin import hidden_values
        from sim.randomization.ranges import read_ranges, with_ranges, with_values
        from sim.tasks import tasks

        task = tasks.get(bundle.task)
        bundle.check_task(task.interface)
        if name == "dynamics":
            return {"task": with_values(task, hidden_values(task))}
        if name == "identified":
            return {"task": with_ranges(task, read_ranges(self.identified))}
        engine = name if name in ("genesis", "warp") else "mujoco"
        return {"task": task, "engine": engine, "randomize": name != "nominal"}

    def _simulated(self, name: str, bundle: Bundle, simulation: dict[str, Any]) -> dict[str, Any]:
        from robot_rl.cli.console import bar
        from robot_rl.evaluation import evaluate
        from sim.env import TaskEnv
        from sim.randomization.checks import nominal

        kept = nominal(simulation["task"], simulation.get("engine", "mujoco"))
        env = TaskEnv(num_envs=min(self.num_envs, self.episodes), **simulation)
        with bar(name) as update:
            found = evaluate(
                bundle.policy, env, self.episodes, self.seed, lambda done, _: update(done, self.episodes, "episodes")
            )
        env.close()
        return found.summary() | {"divergences": found.divergences} | ({"nominal": kept} if kept else {})

    def _deployed(self, bundle: Bundle) -> dict[str, Any]:
        """Return the summary of `robot-rl deploy --twin` in a process of its own, which has its own nodes."""
        import json
        import subprocess
        import sys
        import tempfile

        from robot_rl.util.errors import UserError

        command = [sys.executable, "-m", "robot_rl.cli.main", "deploy", str(self.bundle), "--twin", "--json"]
        command += ["--robot", bundle.interface.robot, "--episodes", str(self.twin_episodes), "--seed", str(self.seed)]
        command += ["--video-episodes", "0"] + (["--commands", "schedule"] if bundle.interface.command else [])
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([*command, "--out", f"{folder}/run"], stdout=subprocess.PIPE, text=True)
        try:
            summary: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            said = f"`robot-rl deploy --twin` ended with status {done.returncode}; its message is above"
            raise UserError(said) from None
        return {k: v for k, v in summary.items() if k != "run"}


def interval(row: dict[str, Any], key: str) -> tuple[float, float, float] | None:
    """Return value, low and high of a measure, all the same without an interval; None if it was not measured."""
    value = row.get(key)
    low, high = (row.get(f"{key}_{end}") for end in ("low", "high"))
    if isinstance(value, dict):
        value, low, high = value["mean"], value["low"], value["high"]
    return None if value is None else (value, value if low is None else low, value if high is None else high)


def shown(row: dict[str, Any], key: str) -> str:
    """Return a measure of a row with its interval."""
    found = interval(row, key)
    return "" if found is None else "{:.2f} [{:.2f}, {:.2f}]".format(*found)


def draw(rows: list[dict[str, Any]], measures: list[str], title: str, file: Path) -> None:
    """Write a page with one bar per place for each measure, with its interval."""
    from plotly import graph_objects as go
    from plotly.subplots import make_subplots

    from robot_rl.util.files import replace_file

    page = make_subplots(max(1, len(measures)), 1, subplot_titles=measures)
    for k, key in enumerate(measures):
        found = {row["place"]: ends for row in rows if (ends := interval(row, key)) is not None}
        values, lows, highs = zip(*found.values(), strict=True)
        error = {"type": "data", "symmetric": False}
        error["array"] = [high - value for value, high in zip(values, highs, strict=True)]
        error["arrayminus"] = [value - low for value, low in zip(values, lows, strict=True)]
        bars = go.Bar(x=values, y=list(found), orientation="h", error_x=error, showlegend=False)
        page.add_trace(bars, row=k + 1, col=1)
    page.update_yaxes(autorange="reversed")
    page.update_layout(height=120 + 60 * len(rows) * max(1, len(measures)), title=title)
    replace_file(file, page.to_html(include_plotlyjs=True).encode())
