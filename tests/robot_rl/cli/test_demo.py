"""Stages of the demonstrations are valid commands, and signals let the running stage save its work."""

import importlib
import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from real.launching.launch import describe
from real.teleop.scripted_walker import ROUTE
from robot_rl.cli.demo import JOURNEYS, Demo, Journey, Options, _finish
from robot_rl.cli.finetune import Finetune
from robot_rl.cli.launch import parse
from robot_rl.cli.main import COMMANDS
from robot_rl.cli.main import parse as parse_options
from robot_rl.cli.train import Train
from robot_rl.training.run import write_json
from sim.tasks import tasks

STAGE = """
import os, signal, sys
from pathlib import Path

signals = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
Path(sys.argv[1]).write_text(str(os.getpid()))  # opens when the test reads; signals are now blocked
number = signal.sigwait(signals)
Path(sys.argv[2]).write_text("whole")
sys.exit(128 + number)
"""


@pytest.mark.parametrize("name", JOURNEYS)
def test_every_stage_but_evaluation_gets_the_seed(tmp_path: Path, name: str) -> None:
    for stage, words in JOURNEYS[name].stages(Options(tmp_path, 7, False, True)):
        seeded = "--seed 7" in " ".join(words) or "seed:=7" in words
        assert seeded == (words[0] != "evaluate"), stage


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", JOURNEYS)
def test_every_stage_is_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, quick: bool) -> None:
    """Includes the processes that launch files start."""
    for kind in (Train, Finetune):
        monkeypatch.setattr(kind, "run", lambda self: 0)
    for _, words in JOURNEYS[name].stages(Options(tmp_path, 0, quick, True)):
        nodes = describe(words[1], parse(words[2:])) if words[0] == "launch" else []
        for command, *rest in [node.command for node in nodes if node.condition] or [words]:
            module, attribute = COMMANDS[command][0].split(":")
            found = getattr(importlib.import_module(module), attribute)
            if isinstance(found, type):
                parse_options(found, rest, command)
            else:
                assert found(rest) == 0


def test_vla_demo_changes_between_two_known_instructions(tmp_path: Path) -> None:
    commands = dict(JOURNEYS["vla"].stages(Options(tmp_path, 0, False, True)))
    file, *words = commands["change the instruction on the twin"][1:]
    first, second = next(node for node in describe(file, parse(words)) if node.name == "tell").command[1:3]
    known = [each.text for each in tasks.get("tabletop").interface.instructions]
    assert {first, second} <= set(known) and first != second


def test_quick_vla_demo_must_beat_random_actions(tmp_path: Path) -> None:
    for cloned, learned in ((0.05, False), (0.02, False), (0.1, True)):
        for name, rate in (("random", 0.05), ("imitate", cloned)):
            write_json(tmp_path / name / "evaluation.json", {"success": rate})
        assert JOURNEYS["vla"].check(tmp_path) == learned


def test_scripted_person_steers_and_stops_the_go2(tmp_path: Path) -> None:
    for quick in (True, False):
        commands = dict(JOURNEYS["go2"].stages(Options(tmp_path, 0, quick, True)))
        launch, file, *words = commands["steer, stop and resume on the twin"]
        assert (launch, file) == ("launch", "quadruped")
        teleop = next(node for node in describe(file, parse(words)) if node.name == "teleop")
        assert teleop.condition and teleop.command[:2] == ("teleop", "scripted") and "go2" in teleop.command
        values = parse(words)
        assert values["commands"] == "person" and int(values["episodes"]) > 1, "it continues after the stop"
        assert float(values["seconds"]) > sum(seconds for seconds, _, _ in ROUTE), "it stops in the first episode"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stage_ends_by_itself_after_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    ready, saved = tmp_path / "ready", tmp_path / "saved"
    os.mkfifo(ready)

    def press() -> None:
        stage = int(ready.read_text())
        os.kill(os.getpid(), number)
        if number is signal.SIGINT:  # a terminal sends it to the stage too
            os.kill(stage, number)

    threading.Thread(target=press, daemon=True).start()
    before = signal.getsignal(signal.SIGTERM)
    assert _finish([sys.executable, "-c", STAGE, str(ready), str(saved)], dict(os.environ)) == 128 + number
    assert saved.read_text() == "whole"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_at_the_end_does_not_hide_the_status(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    reap = os.waitpid

    def reap_and_press(pid: int, options: int) -> tuple[int, int]:
        ended = reap(pid, options)
        os.kill(os.getpid(), number)
        return ended

    monkeypatch.setattr(os, "waitpid", reap_and_press)
    assert _finish([sys.executable, "-c", "raise SystemExit(3)"], dict(os.environ)) == 3
    assert _finish([sys.executable, "-c", ""], dict(os.environ)) == 128 + number


def test_signal_during_the_start_ends_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pressed(subprocess.Popen[bytes]):
        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Pressed)
    code = _finish([sys.executable, "-c", "import time; time.sleep(60)"], dict(os.environ))
    assert code == -signal.SIGTERM


def test_printed_commands_can_be_pasted(tmp_path: Path, monkeypatch: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Long lines are not wrapped, and brackets are not interpreted as markup."""
    command = ["lists", "--out", str(tmp_path / "a folder [red]" / ("x" * 200))]
    monkeypatch.setitem(JOURNEYS, "panda-lift", Journey(lambda o: [("one", command)], lambda folder: True))
    monkeypatch.setattr("robot_rl.cli.demo._finish", lambda command, environment: 0)
    monkeypatch.setenv("COLUMNS", "40")
    assert Demo(out=tmp_path / "demo").run() == 0
    shown = next(line for line in capfd.readouterr().err.splitlines() if line.startswith("$ robot-rl lists"))
    assert shlex.split(shown)[2:] == command
