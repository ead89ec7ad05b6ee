"""What a check found: figures with intervals, steps to 80 %, verdict; and the table of all of it for the docs."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from robot_rl.bench.checks import EXPERT, Arm, Check, checks
from robot_rl.bench.methods import ARMS, ROOT
from robot_rl.recipes import recipes
from robot_rl.report.comparison import compare, read_arm, same_task
from robot_rl.report.figures import figure, interval, percent
from robot_rl.report.folders import read_json
from robot_rl.training.run import SEED, provenance, read_metrics, write_json, write_text
from robot_rl.util.errors import ConfigError, UnknownName, UserError

PUBLISHED = Path("benchmarks/results/methods.json")
PAGE = Path("docs/methods.md")
BEGIN, END = "<!-- checks: begin -->", "<!-- checks: end -->"
REACHED = 0.8
"""Success while training that is counted as learned."""


def judge(name: str, check: Check, work: Path, seeds: Sequence[int], errors: Mapping[str, str]) -> dict[str, Any]:
    """Return the record of a check that has run; `errors` of `run_check`."""
    record: dict[str, Any] = {name: getattr(check, name) for name in ("claim", "task", "figure", "at_least")}
    record |= {
        "data": list(check.data),
        "evaluate": list(check.evaluate),
        "base": asdict(check.base) if check.base else None,
    }
    for part in ARMS:
        arm: Arm = getattr(check, part)
        failed = next((errors[name] for name in (part, "base", "data") if name in errors), "")
        record[part] = {"recipe": arm.recipe, "flags": list(arm.flags)} | ({"error": failed} if failed else {})
    record["verdict"] = "error"
    if not errors:
        runs = {part: [work / name / part / f"{SEED}{seed}" for seed in seeds] for part in ARMS}
        try:
            measured = compare(same_task([read_arm(work / name / part, runs[part]) for part in ARMS]), check.figure)
        except UserError as error:
            record["method"]["error"] = str(error).replace(str(work), "WORK")
        else:
            for part, row in zip(ARMS, measured["arms"], strict=True):
                record[part] |= {k: row[k] for k in ("seeds", "episodes", "mean", "low", "high", "per_seed")}
                record[part]["first_episode"] = read_json(runs[part][0] / "evaluation.json", dict, []).get("seed")
                record[part] |= learning(runs[part])
            record["difference"] = found = measured["arms"][1]["difference"]
            reached = {part: record[part]["mean"] >= check.at_least for part in ARMS}
            proves = reached["method"] and not (check.at_least and reached["control"])
            record["verdict"] = "passed" if proves and found["low"] > 0 else "failed"
    return record | made_with([work / name / part / f"{SEED}{seed}" for part in ARMS for seed in seeds])


def made_with(runs: Sequence[Path]) -> dict[str, Any]:
    """Return commit, machine and versions that runs were made with, and when the last began."""
    found = [made for run in runs if (made := read_json(run / "provenance.json", dict, []))] or [provenance()]
    last = max(found, key=lambda made: str(made["started"]))
    commits = ", ".join(sorted({str(made["commit"]) for made in found}))
    return {"commit": commits, "machine": last["machine"], "versions": last["versions"], "measured": last["started"]}


def learning(runs: Sequence[Path]) -> dict[str, Any]:
    """Return minutes of training, and environment steps and minutes to 80 % success while training, means over seeds.

    `reached` counts the seeds that got there; without it training reports no success, or that of an operator too.
    """
    curves = [rows for run in runs if (rows := read_metrics(run))]
    if not curves:
        return {}
    found: dict[str, Any] = {"minutes": sum(rows[-1]["seconds"] for rows in curves) / 60 / len(curves)}
    # An operator's successes are not the policy's.
    known = [rows for rows in curves if any("train/success" in r and "train/corrected_share" not in r for r in rows)]
    if not known:
        return found
    first = [next((row for row in rows if row.get("train/success", 0) >= REACHED), None) for rows in known]
    there = [row for row in first if row is not None]
    found |= {"reached": len(there)}
    if there:
        found["steps_to_80"] = sum(row.get("train/steps", row["step"]) for row in there) / len(there)
        found["minutes_to_80"] = sum(row["seconds"] for row in there) / 60 / len(there)
    return found


def publish(records: Mapping[str, Any]) -> None:
    """Put records that were measured into the published results; the others keep theirs."""
    merge(checkout(PUBLISHED), {name: record for name, record in records.items() if record["verdict"] != "error"})


def check_size(names: Iterable[str], seeds: int, episodes: int) -> None:
    """Raise ConfigError if published results of these checks are of more seeds or episodes."""
    published = read_results(checkout(PUBLISHED))
    for name in names:
        method = published.get(name, {}).get("method", {})
        if len(method.get("seeds", ())) > seeds or method.get("episodes", 0) > seeds * episodes:
            raise ConfigError(
                f"the published {name} has {len(method['seeds'])} seeds and {method['episodes']} episodes, this would "
                f"have {seeds} and {seeds * episodes}; leave out --publish"
            )


def merge(path: Path, records: Mapping[str, Any]) -> None:
    """Put records into a results file, beside those of other checks."""
    kept = read_results(path)
    write_json(path, dict(sorted({**kept, **records}.items())))


def read_results(path: Path) -> dict[str, Any]:
    """Return the records of a results file by check; empty if there is none."""
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); remove it or restore it") from None
    return found if isinstance(found, dict) else {}


def checkout(path: Path) -> Path:
    """Return a file of the repository; ConfigError where robot-rl runs without one."""
    if not (ROOT / path).parent.is_dir():
        raise ConfigError(f"{path} belongs to the repository, and robot-rl runs from {ROOT}, which is none; clone it")
    return ROOT / path


def write_table() -> Path:
    """Write the table of published results into the docs page; return the page."""
    page = checkout(PAGE)
    text = page.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise UserError(f"{page} must hold {BEGIN} and {END} once each, for the table between them")
    head, rest = text.split(BEGIN)
    table = docs_table(read_results(checkout(PUBLISHED)))
    return write_text(page, f"{head}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}")


def docs_table(records: Mapping[str, Any]) -> str:
    """Return the results as a Markdown table with a row per check."""
    head = ("method", "paper", "control", "task", "result", "at least", "control's", "difference",
            "steps, minutes to 80 %", "verdict")  # fmt: skip
    rows = [head, ("---",) * len(head), *(_row(name, records[name]) for name in sorted(records))]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def _row(name: str, record: Mapping[str, Any]) -> tuple[str, ...]:
    method, control, rate = record["method"], record["control"], record["figure"] == "success"
    verdict = record["verdict"] if record["verdict"] == "passed" else f"**{record['verdict']}**"
    if record["verdict"] == "failed" and record["difference"]["low"] > 0:
        verdict += ": too low" if method["mean"] < record["at_least"] else ": control too high"
    verdict += "" if as_now(name, record) else ", of an earlier form of the check"
    verdict += "*" if "-dirty" in record["commit"] else ""
    results = [_interval(arm, rate) if "mean" in arm else "error" for arm in (method, control)]
    gap = _interval(record["difference"], rate, signed=True) if "difference" in record else "–"
    shared = options(method["flags"])
    unlike = [word for option in options(control["flags"]) if option not in shared for word in option]
    other = f"`{control['recipe']}`"
    if record.get("base") == {key: control[key] for key in ("recipe", "flags")}:
        other += ", its base"
    elif unlike:
        other += f" `{shlex.join(unlike)}`"
    source = (checks[name].paper if name in checks else "") or paper(method["recipe"])
    what = f"`{record['task']}`" + ("" if rate else f", {record['figure']}")
    what += f", `{shlex.join(record['evaluate'])}`" if record.get("evaluate") else ""
    bar = (percent(record["at_least"], 0) if rate else figure(record["at_least"])) if record["at_least"] else "–"
    return (f"`{name}`", source, other, what, results[0], bar, results[1], gap, _reached(method),
            verdict)  # fmt: skip


def as_now(name: str, record: Mapping[str, Any]) -> bool:
    """Return whether a record is of the check as it is now, as far as it exists."""
    if name not in checks:
        return True
    now = json.loads(json.dumps(asdict(checks[name])))
    arms = all({key: record[arm][key] for key in now[arm]} == now[arm] for arm in ARMS)
    same = all(record[key] == now[key] for key in ("task", "figure", "at_least", "data", "base"))
    return arms and same and record.get("evaluate", []) == now["evaluate"]


def options(flags: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a command line's options, each with its values."""
    starts = [*(k for k, flag in enumerate(flags) if flag.startswith("--")), len(flags)]
    return [tuple(flags[a:b]) for a, b in pairwise(starts)]


def _interval(row: Mapping[str, Any], rate: bool, signed: bool = False) -> str:
    if rate and not signed:
        return f"{percent(row['mean'], 0)} [{interval(row['low'], row['high'])}]"
    show = (lambda v: percent(v, 0)) if rate else figure
    return f"{show(row['mean'])} [{show(row['low'])}, {show(row['high'])}]"


def _reached(arm: Mapping[str, Any]) -> str:
    if "reached" not in arm:
        return "–"
    if "steps_to_80" not in arm:
        return "not reached"
    seeds = len(arm["seeds"])
    some = "" if arm["reached"] == seeds else f" ({arm['reached']} of {seeds} seeds)"
    return f"{figure(round(arm['steps_to_80'], -2))}, {arm['minutes_to_80']:.1f}{some}"


def paper(recipe: str) -> str:
    """Return authors, year and arXiv number from the docstring of a recipe or of its file."""
    if recipe == EXPERT:
        return "–"
    try:
        kind = recipes.get(recipe)
        text = f"{kind.__doc__} {inspect.getdoc(sys.modules[kind.__module__])}"
    except UnknownName:  # measured by a package that is not installed here
        return "–"
    text = " ".join(text.split())
    who = re.search(r"[A-Z][\w-]+(?: et al\.| and [A-Z][\w-]+)? (?:19|20)\d\d", text)
    number = re.search(r"\b\d{4}\.\d{5}\b", text)
    return ", ".join(found for found in (who and who[0], number and f"arXiv {number[0]}") if found) or "–"
