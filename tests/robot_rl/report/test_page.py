"""The report page: correct figures, escaped text, self-contained, robust to damaged files."""

import base64
import errno
import gzip
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from robot_rl.cli.report import Report
from robot_rl.report import write_report
from robot_rl.report.charts import POINTS, thinned
from robot_rl.report.figures import ABSENT
from robot_rl.report.folders import RunFolder
from robot_rl.report.page import DARK, LIGHT, render
from robot_rl.report.results import groups_section, measures_section, stages
from robot_rl.util.errors import UserError
from robot_rl.util.statistics import wilson


class Page(HTMLParser):
    """Parsed page; parsing fails on tags that are not closed in order."""

    def __init__(self, source: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len(dict(attrs)), f"an attribute of {tag} is given twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append((self.tags[-1][1], data))
        elif self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def charts(self) -> dict[str, dict[str, Any]]:
        """Plotly figures by their text alternatives."""
        alts = [str(a["aria-label"]) for a in self.all("div") if a.get("class") == "plot"]
        figures = [json.loads(s) for a, s in self.scripts if a.get("type") == "application/json" and "id" not in a]
        return dict(zip(alts, figures, strict=True))

    def chart(self, start: str) -> dict[str, Any]:
        (found,) = (figure for alt, figure in self.charts.items() if alt.startswith(start))
        return found

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def read(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def page_of(*runs: RunFolder) -> Page:
    return Page(render(runs, stages(runs), "title"))


@pytest.fixture(scope="session")
def page(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Page:
    out = tmp_path_factory.mktemp("report") / "report.html"
    write_report([demo], out)
    return read(out)


def test_figures_of_the_demo_are_on_the_page(page: Page) -> None:
    for figure in (
        "panda-lift", "6 runs · 2026-11-20 14:01", "AMD EPYC", "58.5 %", "99.5 %", "72.5 %", "92.5 %",
        "97.2–99.9 %", "200 episodes · improve", "running beside", "finetune, bare loop", "880 µs", "4 100 µs",
        "19.2 ms", "9 (0.25 %)", "On the twin: the operator takes over as the policy stalls.", "object mass",
        "0.002", "control periods", "66.4–84.9 %, 78 attempts", "4 min 21 s", "4d2df976a1c0-dirty",
        "1000000000",
        "residual on diffusion", "robot-rl finetune runs/demo/improve/bundle --robot panda --recipe hil-serl",
        '"discount": 0.97', "2.9.1",
    ):  # fmt: skip
        assert " ".join(figure.split()) in page.text, figure
    headings = [name for name, _ in page.tags if re.fullmatch(r"h\d", name)]
    assert headings[0] == "h1" and headings.count("h1") == 1 and headings.count("h2") == 11
    assert "Not recorded" not in page.text


def test_session_on_a_robot_shows_the_metrics_of_its_learner(tmp_path: Path) -> None:
    rows = [{"step": s, "seconds": s / 20, "critic/loss": 1 / s, "robot/corrected_share": 10 / s} for s in (100, 200)]
    (tmp_path / "tuned" / "learner").mkdir(parents=True)
    (tmp_path / "tuned" / "config.json").write_text('{"task": "panda-lift", "recipe": "hil-serl"}')
    (tmp_path / "tuned" / "metrics.jsonl").touch()  # empty: the learner writes the metrics
    (tmp_path / "tuned" / "learner" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_report([tmp_path], tmp_path / "report.html")
    found = read(tmp_path / "report.html")
    assert found.chart("Critic loss")["data"][0]["y"] == [0.01, 0.005]
    assert found.chart("Steps executed by a person")["data"][0]["y"] == [0.1, 0.05]


def test_curves_show_metrics_against_steps_and_minutes(page: Page, demo: Path) -> None:
    rows = [json.loads(line) for line in (demo / "improve" / "metrics.jsonl").read_text().splitlines()]
    chart = page.chart("Q value")
    for trace, name in zip(chart["data"], ("critic/q", "actor/q"), strict=True):
        assert trace["y"] == pytest.approx([row[name] for row in rows], rel=1e-4)
        assert trace["clocks"]["steps"] == [row["step"] for row in rows]
        assert trace["clocks"]["minutes"] == pytest.approx([row["seconds"] / 60 for row in rows], abs=1e-3)
    assert page.chart("Behaviour cloning loss")["layout"]["yaxis"]["type"] == "log"
    assert page.chart("Success while training")["layout"]["yaxis"]["tickformat"] == ".0%"
    assert page.chart("actor/entropy")["data"], "unknown metrics are drawn too"
    for alt, figure in page.charts.items():
        assert figure["data"] and all(len(trace["y"]) > 0 for trace in figure["data"]), f"{alt} is empty"


@given(st.integers(2, 30_000))
@settings(max_examples=25, deadline=None)
def test_long_curve_is_averaged_and_keeps_its_last_point(n: int) -> None:
    points = [(float(k), k / n) for k in range(n)]
    kept = thinned([*points])
    assert len(kept) <= POINTS and kept[-1] == points[-1]
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    if n <= POINTS:
        assert kept == points


def test_whiskers_span_the_interval(page: Page) -> None:
    simulation, twin = page.chart("cloned policy, simulation: 58.5")["data"]
    assert (simulation["name"], twin["name"]) == ("simulation", "twin")
    assert simulation["marker"]["symbol"] != twin["marker"]["symbol"], "distinguishable in black and white"
    for trace, successes, episodes in ((simulation, (117, 199), 200), (twin, (29, 37), 40)):
        for k, success in enumerate(successes):
            low, high = wilson(success, episodes)
            x, error = trace["x"][k], trace["error_x"]
            span = x, x - error["arrayminus"][k], x + error["array"][k]
            assert span == pytest.approx((success / episodes, low, high))


def test_every_tick_of_the_loop_is_in_its_histogram(page: Page, demo: Path) -> None:
    counts = json.loads((demo / "finetune" / "loop.json").read_text())["histogram"]["counts"]
    bars, bare = page.chart(f"Histogram of the lateness of {sum(counts):,.0f} ticks".replace(",", "\u202f"))["data"]
    assert bars["y"] == pytest.approx([count / sum(counts) for count in counts])
    assert bars["x"] == bare["x"] and sum(bare["y"]) == pytest.approx(1)


def test_interventions_and_outcomes_of_all_episodes_are_drawn(page: Page, demo: Path) -> None:
    rows = [json.loads(line) for line in (demo / "finetune" / "episodes.jsonl").read_text().splitlines()]
    mean, episodes = page.chart("Steps executed by the operator")["data"]
    assert episodes["y"] == pytest.approx([row["intervention_steps"] / row["steps"] for row in rows])
    assert mean["y"][-1] == pytest.approx(sum(episodes["y"][-10:]) / 10)
    signs = page.chart("Success, moving average")["data"][1:]
    assert sum(len(trace["x"]) for trace in signs) == len(rows)


def test_stages_are_sorted_by_start_time(demo: Path, tmp_path: Path) -> None:
    report = write_report([demo], tmp_path / "out" / "report.html")  # makes the folder
    assert [stage["run"] for stage in report["stages"]] == ["imitate", "improve", "deploy-before", "deploy-after"]
    assert report["stages"][0]["success_low"] == pytest.approx(0.5157, abs=1e-4)
    assert report["notes"] == []
    named_twice = write_report([demo / "deploy-after", demo, demo / "improve"], tmp_path / "report.html")
    assert [stage["run"] for stage in named_twice["stages"]][0] == "deploy-after"
    assert len(named_twice["stages"]) == 4


def test_page_is_self_contained(page: Page, demo: Path) -> None:
    for name in ("link", "iframe", "object", "embed", "base", "form"):
        assert not page.all(name)
    for name, attributes in page.tags:
        for key in ("src", "href", "poster", "srcset", "xlink:href", "action", "data"):
            if key in attributes:
                assert str(attributes[key]).startswith(("data:", "#")), (name, key)
        assert not [key for key in attributes if key.startswith("on")]
    videos = [base64.b64decode(str(a["src"]).partition(",")[2]) for a in page.all("video")]
    assert videos == [(demo / p).read_bytes() for p in (
        "imitate/videos/before.mp4", "improve/videos/after.mp4", "finetune/videos/correction.mp4")]  # fmt: skip
    assert all(a.get("alt") for a in page.all("img")) and all(a.get("aria-label") for a in page.all("video"))
    assert len(page.all("table")) == len(page.all("caption")) > 5


def test_content_security_policy_allows_only_our_two_scripts(page: Page) -> None:
    (policy,) = (str(a["content"]) for a in page.all("meta") if a.get("http-equiv"))
    assert policy.startswith("default-src 'none';")
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    (packed,) = (text for a, text in page.scripts if a.get("id") == "plotly")
    (ours,) = (text for a, text in page.scripts if "type" not in a)
    scripts = (gzip.decompress(base64.b64decode(packed)), ours.encode())
    assert {base64.b64encode(hashlib.sha256(script).digest()).decode() for script in scripts} == allowed


_TEXT = st.text(st.characters(codec=None), min_size=1, max_size=12) | st.sampled_from(
    ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</style><b>", "&lt;b&gt;", "' onload='x", "-->",
     "\x00\x1b[31m", "\ud800", "</pre></details>", "javascript:alert(1)"]
)  # fmt: skip


def _folder(word: str) -> RunFolder:
    """A run folder with `word` in every text field."""
    return RunFolder(
        Path("run"), f"run {word}",
        config={"task": f"a{word}", "recipe": f"b{word}", f"k{word}": [word]},
        provenance={"commit": word, "command": [word], "machine": {"cpu": word}, "versions": {f"v{word}": word}},
        metrics=[{"step": i, "seconds": i, f"m{word}": i} for i in (1, 2)],
        evaluations=[{"label": f"l{word}", "where": f"w{word}", "success": 0.5, "episodes": 8, "success_low": 0.2,
                      "success_high": 0.8}],
        dataset={"path": f"p{word}", f"d{word}": word}, randomization=[{"parameter": word, "unit": word}],
        loop={"learner": f"n{word}", "shield": {f"s{word}": 3}, "ticks": 9}, episodes=[{"success": True, "steps": 4}],
        bundle={"policy": {"class": word}, "robot": {"name": word}}, notes=[f"note {word}"],
    )  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(_TEXT)
def test_no_text_becomes_markup(word: str) -> None:
    assume(word != ABSENT)  # a fact that is not recorded is left out
    source = render([_folder(word)], stages([_folder(word)]), word)
    source.encode("utf-8")
    hostile, tame = Page(source), page_of(_folder("x"))
    assert [name for name, _ in hostile.tags] == [name for name, _ in tame.tags]
    assert [set(a) for _, a in hostile.tags] == [set(a) for _, a in tame.tags]
    for figure in hostile.charts.values():  # plotly takes tags in its labels for markup
        labels = [trace["name"] for trace in figure["data"]]
        labels += [text for trace in figure["data"] for text in trace.get("text", ())]
        labels += [annotation["text"] for annotation in figure["layout"].get("annotations", ())]
        assert not [label for label in labels if "<" in label]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([10**400, 5e-324, 1e308, -1, 0, 1, 0.5])
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


@pytest.mark.parametrize(("ticks", "shown"), [(400, False), (4000, True)])
def test_p999_is_hidden_below_a_thousand_ticks(ticks: int, shown: bool) -> None:
    late = {"p50": 31.0, "p99": 52.0, "p999": 777.0, "max": 888.0}
    loop = {"ticks": 9000, "lateness_us": late | {"p999": 666.0}, "bare": {"ticks": ticks, "lateness_us": late}}
    loop |= {name: {"p50": 1.0, "p99": 2.0, "max": 3.0} for name in ("inference_ms", "state_age_ms")}
    page = page_of(RunFolder(Path("run"), "run", loop=loop)).text
    assert "666" in page and "888" in page and ("777" in page) == shown
    assert "Times of policy and command loop" in page and "command loop: age of the joint state" in page


def _rows(*names: str) -> st.SearchStrategy[Any]:
    return st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(names, _JSON)), max_size=4)


def _row(*names: str) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, _JSON))


@settings(max_examples=40, deadline=None)
@given(
    _rows("step", "seconds", "bc/loss", "train/success", "critic/q", "other"),
    _rows("seconds", "success", "steps", "intervention_steps", "takeovers", "policy_version"),
    _rows("label", "where", "seed", "episodes", "success", "success_low", "success_high"),
    _row("rate", "ticks", "late_share", "lateness_us", "histogram", "bare", "shield", "inference_ms", "learner"),
    _row("path", "episodes", "frames", "new_episodes", "new_attempts", "success_of_demonstrator", "fps"),
    _row("commit", "command", "machine", "python", "versions", "started"),
    _row("policy", "robot", "interface"),
)
def test_arbitrary_json_does_not_break_the_page(
    metrics: Any, episodes: Any, evaluations: Any, loop: Any, dataset: Any, provenance: Any, bundle: Any
) -> None:
    page_of(RunFolder(
        Path("run"), "run", metrics=metrics, episodes=episodes, evaluations=evaluations, loop=loop, dataset=dataset,
        provenance=provenance, bundle=bundle, randomization=[dataset, loop], config=provenance | loop,
    ))  # fmt: skip


@pytest.mark.parametrize("part", ["metrics.jsonl", "evaluation.json", "loop.json", "dataset.json", "config.json"])
def test_folder_with_a_single_part_is_reported(demo: Path, tmp_path: Path, part: str) -> None:
    source = next(demo.glob(f"*/{part}"))
    (tmp_path / "run").mkdir()
    shutil.copy(source, tmp_path / "run" / part)
    write_report([tmp_path / "run"], tmp_path / "report.html")
    found = read(tmp_path / "report.html")
    assert "Not recorded in these runs: " in found.text
    assert len(found.all("h2")) == (2 if part in ("loop.json", "evaluation.json") else 1)


def test_damaged_parts_are_left_out_with_a_note(demo: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(demo / "finetune", run)
    with open(run / "episodes.jsonl", "a") as file:
        file.write('{"index": 44, "succ')
    (run / "loop.json").write_text("{")
    (run / "dataset.json").write_text("[1]")
    (run / "evaluation.json").write_bytes(b"\xff\xfe\x00")
    (run / "videos" / "cut.mp4").write_bytes((run / "videos" / "correction.mp4").read_bytes()[:300])
    report = write_report([run], tmp_path / "report.html")
    assert len(report["notes"]) == 5 and "1 unreadable line of" in " ".join(report["notes"])
    found = read(tmp_path / "report.html")
    assert len(found.all("video")) == 1 and "cut.mp4 cannot be decoded" in found.text
    assert "Control loop" not in found.text and "control loop" in found.text


def test_nan_points_and_single_points_are_not_drawn() -> None:
    nan = float("nan")
    rows: list[dict[str, Any]] = [{"step": i, "seconds": i, "bc/loss": nan if i == 3 else 1 / i} for i in range(1, 6)]
    found = page_of(RunFolder(Path("r"), "r", metrics=rows))
    assert found.chart("Behaviour cloning loss")["data"][0]["clocks"]["steps"] == [1, 2, 4, 5]
    assert "Q value" not in found.text
    assert not page_of(RunFolder(Path("r"), "r", metrics=rows[:1])).charts


def test_restarted_clock_is_replaced_by_episode_numbers() -> None:
    rows = [{"seconds": s, "success": True, "steps": 9, "intervention_steps": 3} for s in (5, 60, 4)]
    whole, resumed = (page_of(RunFolder(Path("r"), "r", episodes=rows[:n])) for n in (2, 3))
    assert whole.chart("Success")["data"][0]["x"] == pytest.approx([5 / 60, 1])
    assert resumed.chart("Success")["data"][0]["x"] == [1, 2, 3] and "33.3 %" in resumed.text


def test_run_without_a_start_time_comes_first(demo: Path, tmp_path: Path) -> None:
    shutil.copytree(demo / "imitate", tmp_path / "demo" / "imitate")
    (tmp_path / "demo" / "random").mkdir()
    row = {"label": "random actions", "where": "simulation", "episodes": 50, "success": 0.0}
    (tmp_path / "demo" / "random" / "evaluation.json").write_text(json.dumps(row))
    found = write_report([tmp_path / "demo"], tmp_path / "report.html")["stages"]
    assert [stage["label"] for stage in found] == ["random actions", "cloned policy"]
    assert found[0]["success_high"] == pytest.approx(0.0713, abs=1e-4)  # computed if the file has no interval
    assert "simulation: 0\u202f% (random actions), then" in (tmp_path / "report.html").read_text()


def test_seeds_of_one_recipe_share_a_chart() -> None:
    rows = [{"step": i, "seconds": 2 * i, "train/success": i / 9} for i in range(9)]
    config = {"task": "panda-lift", "recipe": "resfit"}
    found = page_of(*(RunFolder(Path(f"s{k}"), f"s{k}", config=config, metrics=rows) for k in range(3)))
    assert "resfit, 3 runs" in found.text
    assert [trace["name"] for trace in found.chart("Success while training")["data"]] == ["s0", "s1", "s2"]


def test_failed_write_keeps_the_old_report(demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "report.html"
    write_report([demo / "imitate"], out)
    before = out.read_bytes()

    def full(self: Path, data: bytes) -> int:
        with open(self, "wb") as file:
            file.write(data[:1000])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match=r"report\.html: No space left on device; free space"):
        write_report([demo], out)
    assert out.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_only_a_report_is_overwritten(demo: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.html").write_text("<p>mine")
    with pytest.raises(UserError, match="not written by robot-rl"):
        write_report([demo], tmp_path / "notes.html")
    assert (tmp_path / "notes.html").read_text() == "<p>mine"
    with pytest.raises(UserError, match="is a folder"):
        write_report([demo], tmp_path)
    write_report([demo], tmp_path / "report.html")
    first = (tmp_path / "report.html").read_bytes()
    write_report([demo], tmp_path / "report.html")
    assert (tmp_path / "report.html").read_bytes() == first


def test_command_prints_stages_or_json(demo: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    assert Report((demo,), out=tmp_path / "a.html", json=True).run() == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["report"] == str(tmp_path / "a.html") and len(found["stages"]) == 4
    monkeypatch.chdir(tmp_path)
    assert Report((demo / "imitate", demo / "improve")).run() == 0  # several runs: ./report.html
    shown = capsys.readouterr().out
    assert "cloned policy" in shown and "58.5" in shown and (tmp_path / "report.html").exists()


@pytest.mark.parametrize("colours", [LIGHT, DARK])
def test_contrast_of_text_is_sufficient(colours: dict[str, str]) -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    for name, colour in colours.items():
        if name not in ("paper", "raised", "rule"):
            for ground in ("paper", "raised"):
                a, b = sorted((luminance(colour), luminance(colours[ground])))
                assert (b + 0.05) / (a + 0.05) >= 4.5, (name, ground)


# ---- metrics and instructions ------------------------------------------------------------------------------------
def of(*evaluations: dict[str, object]) -> RunFolder:
    return RunFolder(Path("runs/walk"), "walk", evaluations=list(evaluations))


def test_metrics_have_a_row_per_evaluation_with_intervals_and_units() -> None:
    error = {"mean": 0.1234, "low": 0.11, "high": 0.13}
    rows = [
        {"label": "in MuJoCo", "where": "simulation", "engine": "mujoco", "velocity_error": error, "success": 0.9},
        {"where": "simulation", "engine": "genesis", "power": {"mean": 80.0, "low": None, "high": None}},
    ]
    page = str(measures_section([of(*rows)]))
    for text in ("in MuJoCo", "simulation, mujoco", "walk", "simulation, genesis", "0.123 [0.11, 0.13]"):
        assert text in page, text
    assert "Velocity error, m/s" in page and "Power, W" in page and "Success" not in page
    assert measures_section([of({"label": "lift", "success": 0.9}), of()]) == []


def test_instructions_have_a_row_each_and_evaluations_a_column() -> None:
    before = {"touch it": {"episodes": 40, "success": 0.25}, "lift it": {"episodes": 8, "success": 1.0}}
    after = {"lift it": {"episodes": 5, "success": 0.6}, "drop it": "damaged"}
    rows = [{"label": "before", "by_instruction": before}, {"label": "no words"}, {"by_instruction": after}]
    table, _ = groups_section([of(*rows)], "by_instruction", "Instruction")
    assert list(table.data["head"]) == ["Instruction", "before", "walk"]
    found = [[cell.replace("\u202f", " ") for cell in row] for row in table.data["rows"]]
    assert found == [["drop it", "", ""], ["lift it", "100 % (8)", "60 % (5)"], ["touch it", "25 % (40)", ""]]
    assert groups_section([of({"label": "no words"})], "by_instruction", "Instruction") == []
