"""Checks of methods: real commands, interruption, verdicts; the table in the docs equals the results."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from robot_rl.bench import results
from robot_rl.bench.checks import EXPERT, Arm, Check, checks
from robot_rl.bench.methods import Runner, required_inputs, run_check, steps
from robot_rl.bench.peers import PEERS
from robot_rl.bench.results import METHODS, checkout, docs_table, judge, learning, merge, passes, read_results
from robot_rl.cli.bench import Methods
from robot_rl.cli.main import parse
from robot_rl.cli.train import Train
from robot_rl.recipes import recipes
from robot_rl.util.errors import ConfigError
from robot_rl.util.seeds import DEVELOPMENT, HELD_OUT
from sim.make import describe

pytestmark = pytest.mark.timeout(400)
SMALL = ("--policy.hidden", "16", "--training.log-every", "10")
TINY = Check(
    "Forty updates beat one.", "testbed:fork", Arm("bc", (*SMALL, "--training.updates", "40")),
    Arm("bc", (*SMALL, "--training.updates", "1")), ("--episodes", "4", "--skill", "STEADY"),
)  # fmt: skip


def run(work: Path, check: Check = TINY) -> dict[str, str]:
    return run_check("tiny", check, Runner(work), (0,), 8, 1, lambda *_: None)


def logs(work: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (work / "tiny" / "logs").iterdir()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a finished check."""
    work = tmp_path_factory.mktemp("methods")
    assert run(work) == {}
    return work


@pytest.fixture
def work(made: Path, tmp_path: Path) -> Iterator[Path]:
    """The folder, restored after the test; its name is part of the commands."""
    kept = tmp_path / "kept"
    shutil.copytree(made, kept)
    yield made
    shutil.rmtree(made)
    shutil.move(kept, made)


# ---- table of checks --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", list(checks))
def test_check_names_valid_tasks_flags_and_inputs(name: str) -> None:
    check = checks[name]
    info = describe(check.task)
    assert info.reports_success or "success" not in check.figure
    assert check.claim and check.method != check.control and check.method.recipe != EXPERT
    for arm in filter(None, (check.method, check.control, check.second, check.base)):
        if arm.recipe != EXPERT:
            parse(Train[recipes.get(arm.recipe)], [check.task, *arm.flags], "train")  # type: ignore[misc]
            needs = required_inputs(arm)
            assert "demonstrations" not in needs or check.data, f"{arm.recipe} needs data"
            assert "base" not in needs or check.base, f"{arm.recipe} needs a base"
    from robot_rl.cli.collect import Collect

    for data in (check.data, check.base_data):
        parse(Collect, list(check.collected(data)), "collect")


def test_order_and_inputs_of_the_commands(tmp_path: Path) -> None:
    check = replace(checks["resfit"], second=None)
    parts = [(step.part, step.words[0]) for step in steps("resfit", check, tmp_path, 4, 20)]
    assert parts == [
        ("data", "collect"), ("control", "train"), ("control", "evaluate"), ("method", "train"), ("method", "evaluate")
    ], "a control that is also the base is trained once"  # fmt: skip
    other = replace(check, control=Arm("resfit", ("--residual.scale", "0")))
    found = list(steps("resfit", other, tmp_path, 4, 20))
    assert [step.part for step in found] == ["data", "base", "control", "control", "method", "method"]
    words = found[4].words
    assert words[words.index("--base") + 1] == str(tmp_path / "resfit" / "base" / "seed-4")
    assert words[words.index("--dataset") + 1] == str(tmp_path / "resfit" / "data" / "seed-4")
    scripted = replace(TINY, control=Arm(EXPERT, ("--skill", "WEAK")))
    (one,) = [step for step in steps("x", scripted, tmp_path, 0, 20) if step.part == "control"]
    assert one.words[:4] == ("evaluate", "expert:testbed:fork", "--skill", "WEAK")
    gorl = [step.words for step in steps("gorl", checks["gorl"], tmp_path, 0, 20) if step.part == "method"]
    assert gorl[0][gorl[0].index("--base") + 1] == str(tmp_path / "gorl" / "control" / "seed-0"), "an optional base"
    assert all("--base" not in step.words for step in steps("hil-serl", checks["hil-serl"], tmp_path, 0, 20))
    for published, first in ((False, DEVELOPMENT), (True, HELD_OUT)):
        found = list(steps("resfit", check, tmp_path, 4, 20, published))
        seeds = [step.words[step.words.index("--seed") + 1] for step in found if step.words[0] == "evaluate"]
        assert seeds == [str(first)] * 2
    assert DEVELOPMENT >= HELD_OUT + 1_000_000


# ---- running --------------------------------------------------------------------------------------------------------
def test_finished_steps_are_not_run_again(work: Path) -> None:
    before = logs(work)
    assert len(before) == 5 and run(work) == {} and logs(work) == before
    shutil.rmtree(work / "tiny" / "control" / "seed-0" / "bundle")  # as after a kill before the end
    assert run(work) == {}
    assert {name for name, size in logs(work).items() if size != before[name]} == {"control-seed-0.log"}
    record = judge("tiny", TINY, work, (0,), {})
    assert record["verdict"] in ("passed", "failed") and record["method"]["episodes"] == 8
    assert record["difference"]["paired"] and len(record["method"]["per_seed"]) == 1
    assert record["method"]["minutes"] > 0 and record["commit"] and record["machine"]["cores"]
    assert str(work) not in json.dumps(record)
    assert record["unlike"] == {"training.updates": [1, 40]}


def test_verdict_needs_interval_and_threshold(work: Path) -> None:
    file = work / "tiny" / "control" / "seed-0" / "evaluation.json"
    for part, won in (("control", 0), ("method", 1)):
        file = work / "tiny" / part / "seed-0" / "evaluation.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"per_episode": {"success": [won] * 8}}))
    assert judge("tiny", TINY, work, (0,), {})["verdict"] == "passed"
    assert judge("tiny", replace(TINY, at_least=1.1), work, (0,), {})["verdict"] == "failed"
    file = work / "tiny" / "control" / "seed-0" / "evaluation.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"per_episode": {"success": [1] * 4 + [0] * 4}}))
    found = {bar: judge("tiny", replace(TINY, at_least=bar), work, (0,), {}) for bar in (0.4, 0.6)}
    assert all(record["difference"]["low"] > 0 for record in found.values())
    assert [found[bar]["verdict"] for bar in (0.4, 0.6)] == ["failed", "passed"], "the control also reaches 0.4"
    swapped = replace(TINY, figure="return")
    assert judge("tiny", swapped, work, (0,), {})["verdict"] == "error", "the files lack this figure"
    for part, each in (("control", -9.0), ("method", -3.0)):
        file = work / "tiny" / part / "seed-0" / "evaluation.json"
        shown = json.loads(file.read_text())
        file.write_text(json.dumps(shown | {"per_episode": shown["per_episode"] | {"return": [each] * 8}}))
    assert judge("tiny", swapped, work, (0,), {})["verdict"] == "passed", "no threshold, of negative returns"


def test_a_method_passes_both_controls(made: Path, tmp_path: Path) -> None:
    """With a second control, which is trained and judged like the first."""
    check = replace(TINY, second=Arm("bc", (*SMALL, "--training.updates", "2")), figure="return")
    parts = [step.part for step in steps("tiny", check, tmp_path, 0, 8)]
    assert parts == ["data", "control", "control", "second", "second", "method", "method"]
    shutil.copytree(made / "tiny", tmp_path / "tiny")
    shutil.copytree(made / "tiny" / "control", tmp_path / "tiny" / "second")

    def judged(**returns: float) -> dict[str, Any]:
        for part, each in returns.items():
            file = tmp_path / "tiny" / part / "seed-0" / "evaluation.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | {"per_episode": {"return": [each] * 8}}))
        return judge("tiny", check, tmp_path, (0,), {})

    assert judged(control=-9.0, second=-5.0, method=-3.0)["verdict"] == "passed"
    record = judged(control=-9.0, second=-2.0, method=-3.0)
    assert record["verdict"] == "failed" and record["difference"]["low"] > 0 > record["second_difference"]["high"]
    line = docs_table({"tiny": record}).splitlines()[2]
    assert "`bc` `--training.updates 1`; `bc` `--training.updates 2`" in line
    assert line.removesuffix(" |").rstrip("*").endswith("| **failed"), "and no reason that is not so"


def test_verdict_needs_nearly_every_seed_and_the_whole_interval() -> None:
    def record(per_seed: list[float], low: float, bar: float = 0.6) -> dict[str, Any]:
        arm = {"mean": sum(per_seed) / len(per_seed), "low": low, "per_seed": per_seed}
        return {"at_least": bar, "method": arm, "control": {"mean": 0.5}, "difference": {"low": 0.1}}

    good = [0.9] * 9 + [0.45]
    assert passes(record(good, 0.7)) and not passes(record(good, 0.55)), "the interval must be above the bar"
    assert not passes(record([0.9] * 8 + [0.45] * 2, 0.7)), "two of ten seeds are no better than the control"
    worse = record(good, 0.7) | {"second": {"mean": 0.65}, "second_difference": {"low": 0.05}}
    assert not passes(worse), "the second control passes the bar as well"


def test_a_figure_of_training_is_the_mean_over_its_steps(work: Path) -> None:
    for part, values in (("control", (0.0, 0.0, 1.0)), ("method", (0.0, 1.0, 1.0))):
        rows = [{"step": 10 * k, "seconds": k, "train/return": value} for k, value in enumerate(values)]
        (work / "tiny" / part / "seed-0" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = judge("tiny", replace(TINY, figure="training return"), work, (0,), {})
    assert (record["control"]["mean"], record["method"]["mean"]) == (0.25, 0.75)
    missing = judge("tiny", replace(TINY, figure="training success"), work, (0,), {})
    assert missing["verdict"] == "error" and "logged no success while training" in missing["method"]["error"]


def test_changed_command_raises(work: Path) -> None:
    other = replace(TINY, method=Arm("bc", (*SMALL, "--training.updates", "41")))
    with pytest.raises(ConfigError, match="method/seed-0 was made by another command .*--training.updates 40"):
        run(work, other)


def test_failing_arm_is_an_error_and_other_steps_continue(work: Path) -> None:
    shutil.rmtree(work / "tiny" / "method")
    broken = replace(TINY, method=Arm("bc", ("--training.updates", "0")))
    errors = run(work, broken)
    assert list(errors) == ["method"] and "seed 0, status 2" in errors["method"] and "updates is 0" in errors["method"]
    record = judge("tiny", broken, work, (0,), errors)
    assert record["verdict"] == "error" and record["method"]["error"] == errors["method"]
    assert "error" not in record["control"] and (work / "tiny" / "control" / "seed-0" / "evaluation.json").exists()


LONG = """
import sys
from pathlib import Path
from robot_rl.bench.checks import Arm, Check
from robot_rl.bench.methods import Runner, interrupted_by_signals, run_check
long = Arm("bc", ("--policy.hidden", "16", "--training.updates", "1000000", "--training.log-every", "10"))
check = Check("", "testbed:fork", long, CONTROL, ("--episodes", "4", "--skill", "STEADY"))
with interrupted_by_signals():
    run_check("tiny", check, Runner(Path(sys.argv[1])), [0], 8, 1, lambda *_: None)
"""


@pytest.fixture
def running(work: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A runner during a step, with SIGINT ignored as in a background job of a shell script."""
    shutil.rmtree(work / "tiny" / "method")
    command = [sys.executable, "-c", LONG.replace("CONTROL", repr(TINY.control)), str(work)]
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    signal.signal(signal.SIGINT, ignored)
    metrics, end = work / "tiny" / "method" / "seed-0" / "metrics.jsonl", time.monotonic() + 200
    try:
        while not (metrics.exists() and metrics.stat().st_size):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def test_commands_end_with_a_killed_runner(running: subprocess.Popen[bytes]) -> None:
    process, end = running, time.monotonic() + 100
    children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    threads = Path(f"/proc/{process.pid}/task").iterdir()
    children += [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]
    assert children
    process.send_signal(signal.SIGKILL)
    process.wait()
    while any(alive(pid) for pid in children):
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_signal_lets_the_running_command_save(work: Path, running: subprocess.Popen[bytes]) -> None:
    running.send_signal(signal.SIGINT)
    running.wait(100)
    assert (work / "tiny" / "method" / "seed-0" / "checkpoint.safetensors").exists()
    assert "stopped by SIGTERM at step" in (work / "tiny" / "logs" / "method-seed-0.log").read_text()


# ---- results --------------------------------------------------------------------------------------------------------
def test_steps_to_80_percent(tmp_path: Path) -> None:
    curves = {
        "seed-0": [(100, 60, 0.1), (200, 120, 0.85), (300, 180, 0.7)],
        "seed-1": [(100, 60, 0.2), (200, 120, 0.3)],
        "seed-2": [(100, 30, 0.8)],
    }
    for name, rows in curves.items():
        (tmp_path / name).mkdir()
        lines = ({"step": 50 + a, "seconds": b, "train/steps": a, "train/success": c} for a, b, c in rows)
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    found = learning([tmp_path / name for name in curves])
    assert found == {"minutes": pytest.approx(330 / 180), "reached": 2, "steps_to_80": 150, "minutes_to_80": 1.25}
    assert learning([tmp_path / "none"]) == {}
    row = {"step": 9, "seconds": 60, "train/success": 0.9, "train/corrected_share": 0.4}
    (tmp_path / "seed-2" / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert learning([tmp_path / "seed-2"]) == {"minutes": 1.0}, "success includes the operator's corrections"


def records() -> dict[str, Any]:
    arm = {"recipe": "iql", "flags": ["--a", "1"], "seeds": ["0", "1"], "episodes": 400, "mean": 0.75, "low": 0.7}
    arm |= {"high": 0.8, "per_seed": [0.7, 0.8], "reached": 1, "steps_to_80": 12_340.0, "minutes_to_80": 1.25}
    other = {"recipe": "bc", "flags": ["--a", "1", "--b", "2"], "mean": 0.5, "low": 0.45, "high": 0.55}
    gap = {"mean": 0.25, "low": 0.15, "high": 0.35}
    check = {"task": "testbed:push", "figure": "success", "method": arm, "control": other, "difference": gap}
    check |= {"at_least": 0.6, "commit": "abc"}
    broken = {"recipe": "bc", "flags": [], "error": "status 1"}
    bad = {"figure": "return", "method": broken, "control": broken, "verdict": "error"}
    return {"iql": check | {"verdict": "passed"}, "bad": check | bad}


def test_table_has_a_row_per_check_and_marks_errors() -> None:
    lines = docs_table(records()).splitlines()
    assert len(lines) == 4 and len({line.count("|") for line in lines}) == 1
    assert "**error**" in lines[2] and lines[2].startswith("| `bad` |")
    for part in ("`bc` `--b 2`", "75", "70–80", "| 60\u202f% |", "passed", "80", "(1 of 2 seeds)"):
        assert part in lines[3], lines[3]
    record = records()["iql"]
    record["base"] = {"recipe": "bc", "flags": ["--a", "1", "--b", "2"]}
    assert "| `bc`, its base |" in docs_table({"iql": record})


def test_table_names_the_paper_and_marks_changed_checks() -> None:
    now = json.loads(json.dumps(asdict(checks["iql"])))
    record = records()["iql"] | {key: now[key] for key in ("task", "figure", "at_least", "data", "base", "evaluate")}
    record |= {"second": dict(record["control"]), "second_difference": record["difference"]}
    record |= {arm: record[arm] | now[arm] for arm in ("method", "control", "second")}
    record["method"] |= {"mean": -200.0, "low": -300.0, "per_seed": [-250.0, -150.0]}
    record["control"]["mean"] = record["second"]["mean"] = -1000.0
    table = docs_table({"iql": record})
    assert "Kostrikov et al. 2022, arXiv 2110.06169" in table and table.endswith("| passed |")
    for other in ({"data": []}, {"evaluate": ["--interval", "8"]}):
        assert docs_table({"iql": record | other}).endswith("| passed, of an earlier form of the check |")
    assert "`testbed:swing`, return, `--interval 8` |" in docs_table({"iql": record | other})
    assert docs_table({"iql": record | {"commit": "abc-dirty"}}).endswith("| passed* |")
    less = record | {"method": record["method"] | {"recipe": "mr-q"}}
    assert f"| {recipes.get('mr-q').reduced} |" in docs_table({"iql": less})
    assert "Farebrother et al. 2024" in docs_table({"hl-gauss": records()["iql"]}), "the check's own paper"
    assert all(re.search(r"\d", results.paper(name)) for name in recipes.entries), "every recipe has a paper"


def test_merge_by_check(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    merge(file, {"b": {"x": 1}, "a": {"x": 1}})
    merge(file, {"b": {"x": 2}})
    assert read_results(file) == {"a": {"x": 1}, "b": {"x": 2}} and list(read_results(file)) == ["a", "b"]


def test_smaller_results_are_not_published() -> None:
    results.check_size(["iql"], 3, 200, METHODS.published)
    for seeds, episodes in ((2, 400), (3, 100)):
        with pytest.raises(ConfigError, match="published iql has 3 seeds and 600 episodes"):
            results.check_size(["iql"], seeds, episodes, METHODS.published)


def test_changed_files_are_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "commit_of", lambda folder: "abc-dirty")
    with pytest.raises(ConfigError, match="commit or stash the changes, or leave out --publish"):
        Methods(only=("iql",), publish=True).run()


def test_table_in_the_docs_equals_the_results() -> None:
    for series in (METHODS, PEERS):
        text = checkout(series.page).read_text()
        written = text.partition(results.BEGIN)[2].partition(results.END)[0].strip()
        assert written == series.table(read_results(checkout(series.published))), "run the command with --table"
