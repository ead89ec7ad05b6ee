"""Results of checks: figures with intervals, steps to 80 % success, verdicts; and the table of results in the docs."""

import inspect
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from robot_rl.bench.checks import EXPERT, Check, checks
from robot_rl.bench.methods import ROOT
from robot_rl.recipes import recipes
from robot_rl.report.comparison import compare, read_arm, same_task
from robot_rl.report.figures import figure, interval, percent
from robot_rl.report.folders import read_json
from robot_rl.training.run import SEED, commit_of, provenance, read_metrics, write_json, write_text
from robot_rl.util.errors import ConfigError, UnknownName, UserError

BEGIN, END = "<!-- checks: begin -->", "<!-- checks: end -->"
REACHED = 0.8
"""Success rate in training that counts as learned."""
CONTROLS = {"control", "second"}
SEEDS = 0.9
"""Share of the method's seeds that must be above a control's mean."""


@dataclass(frozen=True)
class Series:
    """Checks with a file of published results and a page whose table shows them."""

    checks: Mapping[str, Check]
    published: Path
    page: Path
    table: Callable[[Mapping[str, Any]], str]
    """Return the results as a Markdown table."""


def judge(name: str, check: Check, work: Path, seeds: Sequence[int], errors: Mapping[str, str]) -> dict[str, Any]:
    """Return the record of a finished check; `errors` is the result of `run_check`."""
    record: dict[str, Any] = {name: getattr(check, name) for name in ("claim", "task", "figure", "at_least")}
    record |= {"data": list(check.data), "evaluate": list(check.evaluate)}
    record |= {"base": asdict(check.base) if check.base else None}
    record |= {"base_data": list(check.base_data)} if check.base_data else {}
    for part, arm in check.arms.items():
        failed = next((errors[name] for name in (part, "base", "data") if name in errors), "")
        record[part] = {"recipe": arm.recipe, "flags": list(arm.flags)} | ({"error": failed} if failed else {})
    record["verdict"] = "error"
    runs = {part: [work / name / part / f"{SEED}{seed}" for seed in seeds] for part in check.arms}
    if not errors:
        try:
            arms = same_task([read_arm(work / name / part, folders) for part, folders in runs.items()])
            *controls, method = arms
            pairs = {part: compare([arm, method], check.figure) for part, arm in zip(runs, controls, strict=False)}
        except UserError as error:
            record["method"]["error"] = str(error).replace(str(work), "WORK")
        else:
            for part, measured in pairs.items():
                record[part] |= _figures(measured["arms"][0], runs[part])
                record["difference" if part == "control" else f"{part}_difference"] = measured["arms"][1]["difference"]
            record["method"] |= _figures(pairs["control"]["arms"][1], runs["method"])
            settings = [read_json(runs[part][0] / "config.json", dict, []) for part in ("control", "method")]
            record["unlike"] = unlike(*settings)
            if "second" in runs:
                other = read_json(runs["second"][0] / "config.json", dict, [])
                record["second_unlike"] = unlike(other, settings[1])
            record["verdict"] = "passed" if passes(record, check.parity) else "failed"
    return record | provenance_of([run for folders in runs.values() for run in folders])


def _figures(row: Mapping[str, Any], runs: Sequence[Path]) -> dict[str, Any]:
    """Return an arm's mean with its interval, from a row of a comparison, and how fast the arm learned."""
    found = {key: row[key] for key in ("seeds", "episodes", "mean", "low", "high", "per_seed")}
    return found | {"first_episode": read_json(runs[0] / "evaluation.json", dict, []).get("seed")} | learning(runs)


def passes(record: Mapping[str, Any], parity: bool = False) -> bool:
    """Return whether the method of a measured check passes against every control; see the page of the methods.

    `parity`: whether it is enough that the method's mean is not below a control's interval.
    """
    method, bar = record["method"], record["at_least"]
    for part in CONTROLS & record.keys():
        control, gap = record[part], record["difference" if part == "control" else f"{part}_difference"]
        if parity and not method["mean"] >= control["low"]:
            return False
        above = sum(seed > control["mean"] for seed in method["per_seed"]) / len(method["per_seed"])
        if not parity and (gap["low"] <= 0 or above < SEEDS or (bar and not method["low"] >= bar > control["mean"])):
            return False
    return True


def unlike(*settings: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the settings that both runs have and in which they differ, by name, such as "training.steps", with both
    values. A check says something about its method only if this is what the method is."""
    first, second = (dict(_flat(each.get("config", {}))) for each in settings)
    return {name: [first[name], second[name]] for name in first if name in second and first[name] != second[name]}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def provenance_of(runs: Sequence[Path]) -> dict[str, Any]:
    """Return the commits of runs, and the machine, versions and start time of the last run."""
    made = [known for run in runs if (known := read_json(run / "provenance.json", dict, []))] or [provenance()]
    last = max(made, key=lambda each: str(each["started"]))
    commits = ", ".join(sorted({str(each["commit"]) for each in made}))
    return {"commit": commits, "machine": last["machine"], "versions": last["versions"], "measured": last["started"]}


def learning(runs: Sequence[Path]) -> dict[str, Any]:
    """Return means over seeds: minutes of training, and environment steps and minutes to 80 % success in training.

    `reached` is the number of seeds that reached 80 %. Only the minutes of training are returned if training reports
    no success, or a success that includes an operator's corrections.
    """
    curves = [rows for run in runs if (rows := read_metrics(run))]
    if not curves:
        return {}
    result: dict[str, Any] = {"minutes": sum(rows[-1]["seconds"] for rows in curves) / 60 / len(curves)}
    # Success with corrections is not only the policy's.
    known = [rows for rows in curves if any("train/success" in r and "train/corrected_share" not in r for r in rows)]
    if not known:
        return result
    first = [next((row for row in rows if row.get("train/success", 0) >= REACHED), None) for rows in known]
    reached = [row for row in first if row is not None]
    result |= {"reached": len(reached)}
    if reached:
        result["steps_to_80"] = sum(row.get("train/steps", row["step"]) for row in reached) / len(reached)
        result["minutes_to_80"] = sum(row["seconds"] for row in reached) / 60 / len(reached)
    return result


def publish(records: Mapping[str, Any], file: Path) -> None:
    """Write the records without errors to the published results `file`; published records of other checks stay."""
    merge(checkout(file), {name: record for name, record in records.items() if record["verdict"] != "error"})


def require_commit() -> None:
    """Raise ConfigError if tracked files differ from the commit that published records would name."""
    if commit_of(ROOT).endswith("-dirty"):
        raise ConfigError(
            f"--publish records the commit, and files in {ROOT} differ from it: commit or stash the changes, or leave "
            "out --publish"
        )


def check_size(names: Iterable[str], seeds: int, episodes: int, file: Path) -> None:
    """Raise ConfigError if results of checks `names` in `file` have more seeds or more episodes than given."""
    published = read_results(checkout(file))
    for name in names:
        method = published.get(name, {}).get("method", {})
        if len(method.get("seeds", ())) > seeds or method.get("episodes", 0) > seeds * episodes:
            raise ConfigError(
                f"the published {name} has {len(method['seeds'])} seeds and {method['episodes']} episodes, this would "
                f"have {seeds} and {seeds * episodes}; leave out --publish"
            )


def merge(path: Path, records: Mapping[str, Any]) -> None:
    """Write records to a results file; records of other checks stay."""
    kept = read_results(path)
    write_json(path, dict(sorted({**kept, **records}.items())))


def read_results(path: Path) -> dict[str, Any]:
    """Return the records of a results file by check; {} if the file does not exist."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); remove it or restore it") from None
    return content if isinstance(content, dict) else {}


def checkout(path: Path) -> Path:
    """Return the path of a file of the repository; ConfigError if robot-rl runs outside a repository."""
    if not (ROOT / path).parent.is_dir():
        raise ConfigError(f"{path} belongs to the repository, and robot-rl runs from {ROOT}, which is none; clone it")
    return ROOT / path


def write_table(series: Series) -> Path:
    """Write the table of published results to the docs page; return the path of the page."""
    page = checkout(series.page)
    text = page.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise UserError(f"{page} must hold {BEGIN} and {END} once each, for the table between them")
    head, rest = text.split(BEGIN)
    table = series.table(read_results(checkout(series.published)))
    return write_text(page, f"{head}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}")


def docs_table(records: Mapping[str, Any]) -> str:
    """Return the results as a Markdown table with one row per check."""
    head = ("method", "paper", "reduced", "control", "task", "result", "at least", "control's", "difference",
            "minutes of all", "steps, minutes to 80 %", "verdict")  # fmt: skip
    rows = [head, ("---",) * len(head), *(_row(name, records[name]) for name in sorted(records))]
    return markdown(rows)


def markdown(rows: Iterable[Sequence[str]]) -> str:
    """Return rows of cells as a Markdown table."""
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def _row(name: str, record: Mapping[str, Any]) -> tuple[str, ...]:
    method, rate = record["method"], record["figure"] == "success"
    controls = [record[part] for part in ("control", "second") if part in record]
    gaps = [record[each] for each in ("difference", "second_difference") if each in record]
    failed = record["verdict"] != "error" and not passes(record)
    verdict = "**failed**" if failed else "passed" if record["verdict"] != "error" else "**error**"
    if failed and all(each["low"] > 0 for each in gaps):
        bar = record["at_least"]
        high = bar and any(arm["mean"] >= bar for arm in controls)
        verdict += ": control too high" if high else ": too low" if bar > method["low"] else ": not with every seed"
    verdict += "" if is_current(name, record) else ", of an earlier form of the check"
    verdict += "*" if "-dirty" in record["commit"] else ""
    results = [interval_of(arm, rate) if "mean" in arm else "error" for arm in (method, *controls)]
    gap = "; ".join(interval_of(each, rate, signed=True) for each in gaps) or "–"
    other = "; ".join(_control(record, arm) for arm in controls)
    source = (checks[name].paper if name in checks else "") or paper(method["recipe"])
    what = f"`{record['task']}`" + ("" if rate else f", {record['figure']}")
    what += f", `{shlex.join(record['evaluate'])}`" if record.get("evaluate") else ""
    bar = (percent(record["at_least"], 0) if rate else figure(record["at_least"])) if record["at_least"] else "–"
    spent = "; ".join(f"{arm['minutes']:.1f}" if "minutes" in arm else "–" for arm in (method, *controls))
    less = getattr(_recipe(method["recipe"]), "reduced", "") or "–"
    return (f"`{name}`", source, less, other, what, results[0], bar, "; ".join(results[1:]), gap, spent,
            _reached(method), verdict)  # fmt: skip


def _control(record: Mapping[str, Any], control: Mapping[str, Any]) -> str:
    """Return a control's recipe, and the flags that the method does not have."""
    shared = options(record["method"]["flags"])
    own = [word for option in options(control["flags"]) if option not in shared for word in option]
    if record.get("base") == {key: control[key] for key in ("recipe", "flags")}:
        return f"`{control['recipe']}`, its base"
    return f"`{control['recipe']}`" + f" `{shlex.join(own)}`" * bool(own)


def is_current(name: str, record: Mapping[str, Any]) -> bool:
    """Return whether a record was measured with its check's current settings; True for an unknown check."""
    if name not in checks:
        return True
    now = json.loads(json.dumps(asdict(checks[name])))
    named = [part for part in ("control", "second", "method") if now[part] or part in record]
    arms = all(
        now[arm] and {key: record.get(arm, {}).get(key) for key in now[arm]} == now[arm] for arm in named
    )
    same = all(record[key] == now[key] for key in ("task", "figure", "at_least", "data", "base"))
    return arms and same and record.get("evaluate", []) == now["evaluate"]


def options(flags: Sequence[str]) -> list[tuple[str, ...]]:
    """Split the words of a command line into tuples of an option and its values."""
    starts = [*(k for k, flag in enumerate(flags) if flag.startswith("--")), len(flags)]
    return [tuple(flags[a:b]) for a, b in pairwise(starts)]


def interval_of(row: Mapping[str, Any], rate: bool, signed: bool = False) -> str:
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


def _recipe(name: str) -> Any:
    """Return a recipe class; None for the demonstrator, and if the recipe's package is not installed."""
    try:
        return None if name == EXPERT else recipes.get(name)
    except UnknownName:
        return None


def paper(recipe: str) -> str:
    """Return authors, year and arXiv number from the docstring of a recipe or of its module."""
    kind = _recipe(recipe)
    if kind is None:
        return "–"
    text = f"{kind.__doc__} {inspect.getdoc(sys.modules[kind.__module__])}"
    text = " ".join(text.split())
    authors = re.search(r"[A-Z][\w-]+(?: et al\.| and [A-Z][\w-]+)? (?:19|20)\d\d", text)
    number = re.search(r"\b\d{4}\.\d{5}\b", text)
    return ", ".join(found for found in (authors and authors[0], number and f"arXiv {number[0]}") if found) or "–"


METHODS = Series(checks, Path("benchmarks/results/methods.json"), Path("docs/methods.md"), docs_table)
