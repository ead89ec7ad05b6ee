"""The documentation against the code: commands parse, cheap commands run, and paths, links and defaults are correct.

A line in a ```bash block that no check supports is an error.
"""

import importlib
import io
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN_FOR_REAL = {"tasks", "robots", "recipes", "dataset info", "dataset verify", "launch"}
"""Commands that run; the others are only parsed. `launch` stops before it starts processes."""
PACKAGES = ("robot_rl", "policies", "sim", "real")


def blocks(page: Path, language: str) -> list[str]:
    """Return the contents of a page's fenced blocks in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


def lines(page: Path) -> list[str]:
    """Return the command lines of a page, with continuation lines joined."""
    text = "\n".join(blocks(page, "bash")).replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


DOCUMENTED = [pytest.param(page, line, id=f"{page.stem}: {line}") for page in PAGES for line in lines(page)]


def robot_rl_name(words: list[str]) -> str:
    """Return the name of the command in a robot-rl line; "" for `robot-rl --version` and the like."""
    two = " ".join(words[:2])
    return two if two in COMMANDS else words[0] if words and not words[0].startswith("-") else ""


@pytest.fixture(scope="session")
def tiny_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from robot_rl.data import DatasetWriter, Feature

    root = tmp_path_factory.mktemp("tiny") / "dataset"
    with DatasetWriter.create(root, fps=20, features={"action": Feature("float32", (2,))}) as writer:
        writer.add_episode({"action": np.zeros((3, 2), np.float32)}, "hold still")
    return root


@pytest.fixture
def robot_rl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_dataset: Path) -> Callable[[list[str]], list[Any]]:
    """Run `robot-rl WORDS` in an empty folder, but stop before the work; return the parsed commands."""
    monkeypatch.chdir(tmp_path)
    parsed: list[Any] = []

    def stop(command: Any) -> int:
        parsed.append(command)
        return 0

    def run(words: list[str]) -> list[Any]:
        parsed.clear()
        name = robot_rl_name(words)
        if name:
            assert name in COMMANDS, f"no command {name!r}; there are {', '.join(COMMANDS)}"
        if name.startswith("dataset ") and "--help" not in words:
            shutil.copytree(tiny_dataset, words[2])
        if name and name not in RUN_FOR_REAL:
            module = importlib.import_module(COMMANDS[name][0].split(":")[0])
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == module.__name__ and hasattr(value, "run"):
                    monkeypatch.setattr(value, "run", stop)
        if name == "launch":
            # The documented policies, tasks and gamepads do not exist here.
            monkeypatch.setattr("robot_rl.cli.launch.require_device", lambda _values: None)
            monkeypatch.setattr("robot_rl.cli.launch._check_known", lambda _values: None)
            monkeypatch.setattr("robot_rl.cli.launch._run", lambda _console, nodes: parsed.extend(nodes) or 0)
        try:
            status = main(words)
        except SystemExit as end:
            status = int(end.code or 0)
        assert status == 0, f"robot-rl {shlex.join(words)}: exit status {status}"
        return list(parsed)

    return run


def known(kind: str, page: Path) -> set[str]:
    """Return registered names, names from the page's entry points, and modules that the page defines."""
    from robot_rl.recipes import recipes
    from robot_rl.robots import robots
    from sim.tasks import tasks

    registry: Any = {"task": tasks, "robot": robots, "recipe": recipes}[kind]
    points: dict[str, Any] = {}
    for block in blocks(page, "toml"):
        points |= tomllib.loads(block)["project"].get("entry-points", {}).get(f"robot_rl.{kind}s", {})
    added = [*points, *re.findall(r"^# ([\w/]+)\.py$", "\n".join(blocks(page, "python")), re.M)]
    return set(registry.entries) | set(added)


def check_names(command: Any, page: Path) -> None:
    """Check that tasks, robots, recipes and devices in a parsed command exist."""
    for kind in ("task", "robot", "recipe"):
        value = getattr(command, kind, None)
        if value == "":  # a dataset alone is cloned without a task
            continue
        if isinstance(value, str) and value.startswith("testbed:"):
            from sim.testbeds import testbeds

            assert value.partition(":")[2] in testbeds, f"no testbed {value!r}"
        elif isinstance(value, str) and not value.startswith("gym:"):
            name = value.partition(":")[0].replace(".", "/")  # the file of an import path
            assert name in known(kind, page) or (ROOT / f"{name}.py").is_file(), f"no {kind} {value!r}"
    for policy in getattr(command, "policies", ()):
        what, _, task = str(policy).partition(":")
        assert what != "random" or task in known("task", page), f"no task {task!r}"
    if getattr(command, "device", ""):
        from robot_rl.cli.teleop import DEVICES
        from robot_rl.util.devices import COMMON

        computes = any(hasattr(command, name) for name in ("engine", "engines", "runtime", "threads"))
        assert command.device in (COMMON if computes else DEVICES)


def check_ros2(words: list[str]) -> None:
    """Check `ros2 launch robot_rl FILE name:=value...` (or a path), or `ros2 topic pub` on one of our topics."""
    import yaml

    from real import topics
    from real.bus import make
    from real.launching.launch import describe
    from robot_rl.cli.launch import parse

    if words[:2] == ["topic", "pub"]:
        name, kind, value = words[-3:]
        assert name.lstrip("/") in vars(topics).values(), f"no topic {name}"
        make(kind, **yaml.safe_load(value))
        return
    assert words[0] == "launch", "only `ros2 launch` and `ros2 topic pub` are checked"
    path = ROOT / "launch" / words[2] if words[1] == "robot_rl" else ROOT / words[1]
    assert path.is_file(), f"no launch file {path.relative_to(ROOT)}"
    describe(path.name.removesuffix(".launch.py"), parse(words[3 if words[1] == "robot_rl" else 2 :]))


def check_make(words: list[str]) -> None:
    """Check that the Makefile has the target and its variables."""
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    makefile = (ROOT / "Makefile").read_text()
    for variable in [word.partition("=")[0] for word in words if "=" in word]:
        assert re.search(rf"^{variable} \?=", makefile, re.M), f"the Makefile has no variable {variable}"


@cache
def module_help(module: str) -> str:
    """Return what `python -m MODULE --help` prints, run in this process, which has imported most of it."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), pytest.raises(SystemExit, match="^0$"):
        patch.setattr(sys, "argv", [module, "--help"])
        runpy.run_module(module, run_name="__main__")
    return printed.getvalue()


def check_module(words: list[str]) -> None:
    """Check that the flags of `python -m MODULE` are in the module's --help."""
    assert words[0] == "-m", "only `python -m` is checked"
    check_flags(module_help(words[1]), words[2:])


def check_flags(help_text: str, words: list[str]) -> None:
    """Check that the flags among `words` are in a program's --help."""
    for flag in [word.partition("=")[0] for word in words if word.startswith("-")]:
        assert re.search(rf"(?<![\w-]){flag}(?![\w-])", help_text), f"no {flag} in: {help_text.splitlines()[0]}"


def check_pip(words: list[str]) -> None:
    """Check that the extras of `pip install -e ".[extra]"` exist, and the file of `-c FILE`."""
    if words[1] == "-c":
        assert (ROOT / words[2]).is_file()
        words = words[:1] + words[3:]
    assert words[:2] == ["install", "-e"] and len(words) == 3
    extras = re.fullmatch(r"\.\[([\w,]+)\]", words[2])
    assert extras is not None
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])


@pytest.fixture
def page_code(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the modules in a page's Python blocks importable."""
    for code in blocks(page, "python"):
        if path := re.match(r"# ([\w/]+\.py)\n", code):
            file = tmp_path / "site" / path[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "my_lab"]:
        del sys.modules[name]


@pytest.mark.parametrize(("page", "line"), DOCUMENTED)
@pytest.mark.usefixtures("page_code")
def test_documented_command_is_valid(page: Path, line: str, robot_rl: Callable[[list[str]], list[Any]]) -> None:
    program, *words = shlex.split(line)
    if program == "torchrun":
        from torch.distributed.run import get_args_parser

        at = words.index("--no-python") + 1
        check_flags(get_args_parser().format_help(), words[:at])
        program, *words = words[at:]
    if program == "robot-rl":
        for command in robot_rl(words):
            if hasattr(command, "ros_arguments"):  # a node of a launch file
                for inner in robot_rl(list(command.command)) if command.condition else []:
                    check_names(inner, page)
            else:
                check_names(command, page)
    elif program == "ros2":
        check_ros2(words)
    elif program == "make":
        check_make(words)
    elif program == "python":
        check_module(words)
    elif program == "pip":
        check_pip(words)
    elif program == "export":
        assert all(re.fullmatch(r"[A-Z_]+=\S+", word) for word in words)
    else:
        assert line == "source .venv/bin/activate", f"{page.name}: nothing here can check {line!r}"


def test_every_command_is_documented() -> None:
    used = {robot_rl_name(shlex.split(line)[1:]) for p in PAGES for line in lines(p) if line.startswith("robot-rl ")}
    assert set(COMMANDS) <= used, f"undocumented: {set(COMMANDS) - used}"


def anchors(page: Path) -> set[str]:
    """Return the fragments of a page's headings, as on GitHub."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_paths_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert not target.startswith("http"), f"an external link cannot be checked here: {target}"
        name, _, fragment = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), f"{page.name}: no {target}"
        assert not fragment or fragment in anchors(linked), f"{page.name}: no heading for {target}"
    roots = "|".join([*PACKAGES, "launch", "tests", "benchmarks", "docs", r"\.ci"])
    for path in re.findall(rf"`((?:{roots})/[\w./-]*)`", text):
        assert (ROOT / path).exists(), f"{page.name} names {path}, which does not exist"


def option_tables(page: Path) -> Iterator[tuple[list[str], str, str, str]]:
    """Yield (command words, flag, launch argument, documented default) of each row of the option tables."""
    words: list[str] = []
    header: list[str] = []
    for line in page.read_text().replace("\\\n", "").splitlines():
        if line.startswith("robot-rl ") and robot_rl_name(line.split()[1:]) not in RUN_FOR_REAL | {"report", "doctor"}:
            words = shlex.split(line)[1:]  # a table belongs to the last command before it
        if not line.startswith("|"):
            header = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not header:
            header = cells
            continue
        column = next((header.index(name) for name in ("default", "here") if name in header), None)
        flags = re.findall(r"`(--[\w.-]+)[^`]*`", cells[0])
        if column is None or not flags:
            continue
        named = re.fullmatch(r"`robot-rl ([\w-]+)`", header[0])
        command = [named[1], "runs/x"] if named else words
        launch = header[1].strip("`") if header[1].startswith("`launch") else ""
        defaults = cells[column].split(", ") if len(flags) > 1 else [cells[column]]
        for flag, default in zip(flags, defaults, strict=True):
            yield command, flag, f"{launch} {cells[1]}" if launch else "", default


def test_documented_defaults_are_correct(robot_rl: Callable[[list[str]], list[Any]]) -> None:
    commands: dict[str, Any] = {}
    rows = [(page, *row) for page in PAGES for row in option_tables(page)]
    assert len(rows) > 50
    wrong = []
    for page, words, flag, launch, default in rows:
        positional = [word for k, word in enumerate(words) if not any(w.startswith("-") for w in words[: k + 1])]
        recipe = words[words.index("--recipe") :][:2] if "--recipe" in words else []
        key = shlex.join([*positional, *recipe])
        if key not in commands:
            (commands[key],) = robot_rl(shlex.split(key))
        value = commands[key]
        path = flag[2:].replace("-", "_").split(".")
        for name in path:
            value = getattr(value, name) if hasattr(value, name) else getattr(value.config, name)
        if not agree(default.strip("`"), value):
            wrong.append(f"{page.name}, robot-rl {key}: {flag} is {value!r}, not {default}")
        if match := re.fullmatch(r"launch (\w+) `(\w+):=\w*`", launch):
            from real.launching.launch import arguments

            assert match[2] in {argument.name for argument in arguments(match[1])}, launch
    assert not wrong, "\n".join(wrong)


def agree(text: str, value: Any) -> bool:
    """Return whether a table cell matches a default."""
    if isinstance(value, bool):
        return text == ("on" if value else "off")
    if isinstance(value, int | float):
        number = re.fullmatch(r"-?[\d,.]+", text)
        return number is not None and float(text.replace(",", "")) == value
    # Defaults that are computed later are described in words.
    return text == str(value) if value else not re.fullmatch(r"-?[\d,.]+", text)
