"""Policies measured against recorded actions: `robot-rl evaluate --dataset`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from policies.bundle import Bundle
    from robot_rl.cli.evaluate import Evaluate
    from robot_rl.data import Dataset
    from robot_rl.evaluation import Evaluation

SIMULATION = (
    "video", "skill", "execution", "inference_delay", "env_python", "engine", "device", "without", "randomization",
    "range", "instructions", "changes", "levels", "grid", "attack", "perturb", "perturb_tries", "smooth", "mjcf",
    "episode_steps",
)  # fmt: skip
"""Options of `Evaluate` that do not apply with --dataset."""


def measure(command: Evaluate, path: Path) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Compare a policy with a dataset; return the summary, the task and errors per episode, and whether the policy was
    trained on a dataset without a task."""
    from policies.base import RunnablePolicy
    from robot_rl.cli.console import bar
    from robot_rl.cli.remote import open_policy, server_report
    from robot_rl.data.recorded import RecordedEnv
    from robot_rl.data.recording import ACTION, check, episodes_of
    from robot_rl.evaluation import ActionRepeat, evaluate
    from robot_rl.util.errors import ConfigError
    from robot_rl.util.registry import DATASET

    assert command.dataset is not None
    for name in SIMULATION:
        if getattr(command, name) != vars(type(command))[name]:
            raise ConfigError(f"--{name.replace('_', '-')} does nothing with --dataset; leave it out")
    bundle = open_policy(path, command.runtime, command.task, command.keys, command.execute)
    info, policy = bundle.info, bundle.policy
    data, first = held_out(command, bundle, path)
    check(data, info)
    episodes = episodes_of(data, info, first, successes=info.reports_success, physical=True)[: command.episodes]
    if not episodes:
        raise ConfigError(f"none of the episodes of {data.root} from number {first} on succeeded; record some")
    acts: RunnablePolicy = policy if command.interval is None else ActionRepeat(policy, command.interval)
    learned = data.columns([ACTION])[ACTION][: data.episodes[first].start].float().mean(0) if first else None
    env = RecordedEnv(episodes, info, min(command.num_envs, len(episodes)), acts.execute, command.seed, learned)
    with bar("evaluate") as update:
        found = evaluate(acts, env, len(episodes), command.seed, lambda k, _: update(k, len(episodes), "episodes"))
    summary: dict[str, Any] = {"label": command.label or path.name, "where": "dataset", "dataset": str(data.root)}
    summary |= {"held_out": first > 0, "episodes": len(episodes), "frames": sum(found.steps), "seed": command.seed}
    summary |= server_report(policy) or {"runtime": command.runtime}
    summary |= {} if command.interval is None else {"interval": command.interval}
    if close := getattr(policy, "close", None):
        close()
    errors = {name: values for name, values in found.metrics.items() if "/" not in name}
    units = [field.unit for field in info.actions.fields for _ in field.dims]
    kept = {"task": bundle.task, "per_episode": errors}
    return summary | means(found, info.actions.names, units), kept, bundle.task.startswith(DATASET)


def means(found: Evaluation, numbers: list[str], units: list[str]) -> dict[str, Any]:
    """Return action errors with 95 % intervals over episodes: overall, as fractions of the action ranges, and for each
    action dimension in its unit."""
    from robot_rl.util.statistics import mean_interval

    errors = {name: mean_interval(values) for name, values in found.metrics.items()}
    each = {
        number: {"unit": unit} | {name: errors[f"{name}/{number}"] for name in ("action", "hold", "mean")}
        for number, unit in zip(numbers, units, strict=True)
    }
    return {name: value for name, value in errors.items() if "/" not in name} | {"by_number": each}


def held_out(command: Evaluate, bundle: Bundle, path: Path) -> tuple[Dataset, int]:
    """Return the dataset, and the number of its first episode that the policy was not trained on.

    The policy's training dataset is recognized by the contents of its first episodes, whatever its folder. Raises
    ConfigError if the policy was trained on all episodes.
    """
    from robot_rl.data import Dataset
    from robot_rl.data.recording import numbers_digest
    from robot_rl.data.view import DatasetView
    from robot_rl.util.errors import ConfigError

    root, provenance = command.dataset, bundle.provenance
    assert root is not None
    view = DatasetView.inherited(provenance, Dataset(root).features)
    view = replace(view, rename=command.rename or view.rename)
    data = Dataset(root, view)
    learned = provenance.get("inputs", {}).get("dataset", {})
    count = learned.get("episodes", 0)
    if not count or count > data.num_episodes or command.all_episodes:
        return data, 0
    if numbers_digest(Dataset(root, replace(view, episodes=count))) != learned.get("numbers"):
        return data, 0
    if count == data.num_episodes:
        raise ConfigError(
            f"{path} learned from all {count} episodes of {root}: name another --dataset, train with --held-out 0.1, "
            "or add --all-episodes to measure what it remembers"
        )
    return data, count


def show_errors(summary: dict[str, Any]) -> None:
    """Print a policy's errors on a dataset as a table with a row for each action dimension and one for all."""
    from robot_rl.cli.console import print_table

    which, kinds = "held-out " if summary["held_out"] else "", ("action", "hold", "mean")
    overall = {"unit": "of range"} | {name: summary[f"{name}_error"] for name in kinds}
    rows = [
        (number, row["unit"], *(_plus_minus(**row[name]) for name in kinds))
        for number, row in (summary["by_number"] | {"all": overall}).items()
    ]
    title = f"mean absolute error of {summary['label']} on {summary['episodes']} {which}episodes"
    print_table(title, ("action", "unit", "policy", "hold the last", "mean action"), rows, left=("action", "unit"))


def _plus_minus(mean: float, low: float | None, high: float | None) -> str:
    """Return a mean with half the width of its 95 % interval, if any (a single episode has none)."""
    return f"{mean:.3g}" if low is None or high is None else f"{mean:.3g} \u00b1 {(high - low) / 2:.2g}"
