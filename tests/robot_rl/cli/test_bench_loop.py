"""`robot-rl bench loop` with real processes over loopback: consistent figures, and no process left running."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from robot_rl.cli.bench.loop import acting
from robot_rl.cli.main import main
from robot_rl.robots import robots
from sim.tasks import tasks

PROGRAM = [sys.executable, "-m", "robot_rl.cli.main", "bench", "loop"]
WAIT = 200.0
"""Timeout for the start of all processes on a busy machine, s."""
pytestmark = pytest.mark.timeout(400)


class Bench:
    """The command in a separate process; its temporary folder identifies its child processes."""

    def __init__(self, folder: Path, *words: str):
        self.folder = folder
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ROS_")} | {"TMPDIR": str(folder)}
        self.process = subprocess.Popen(
            [*PROGRAM, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )  # fmt: skip

    def running(self) -> dict[int, str]:
        """Return pid and command line of each process with the folder in its environment, including the command."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if f"TMPDIR={self.folder}\0".encode() in (process / "environ").read_bytes():
                    found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
            except OSError:  # it has just ended, or belongs to another user
                continue
        return found

    def child(self, command: str) -> int:
        """Wait for the child process that runs `command`; return its pid."""
        end = time.monotonic() + WAIT
        while time.monotonic() < end and self.process.poll() is None:
            for number, line in self.running().items():
                if f"robot_rl.cli.main {command} " in line:
                    return number
            time.sleep(0.05)
        raise AssertionError(f"{command} was never started: {self.process.communicate()}")

    def waits(self) -> int:
        """Return the number of voluntary context switches of the command's threads."""
        waits = 0
        for thread in Path(f"/proc/{self.process.pid}/task").glob("*/status"):
            with suppress(OSError):  # it has just ended
                waits += int(re.findall(r"\nvoluntary_ctxt_switches:\s*(\d+)", thread.read_text())[0])
        return waits

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=WAIT)
        return self.process.returncode, out, err

    def nothing_left(self) -> bool:
        return not self.running() and not list(self.folder.iterdir())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    started: list[Bench] = []

    def build(*words: str) -> Bench:
        started.append(Bench(tmp_path, *words))
        return started[-1]

    yield build
    for one in started:
        one.process.kill()
        one.process.communicate()


def check_loops(result: dict[str, Any], rate: float, seconds: float) -> None:
    """Check that every row is complete and consistent."""
    bare = result["loops"]["bare loop"]
    assert bare["ticks"] + bare["missed"] >= rate * seconds
    assert set(result["p99_above_bare_us"]) == set(result["loops"]) - {"bare loop"}
    for name, row in result["loops"].items():
        late = row["lateness_us"]
        assert row["rate"] == pytest.approx(rate)
        assert row["ticks"] + row["missed"] >= rate * seconds, name
        assert 0 <= late["p50"] <= late["p99"] <= late["p999"] <= late["max"] and 0 <= row["late_share"] <= 1
        assert abs(row["drift_us"]) <= 1.5 * late["max"]
        if name != "bare loop":
            assert result["p99_above_bare_us"][name] == pytest.approx(late["p99"] - bare["lateness_us"]["p99"])


def test_legged_robot_reports_command_loop_and_guard(bench: Callable[..., Bench]) -> None:
    one = bench("go2", "--seconds", "2", "--json")
    code, out, err = one.end()
    assert code == 0, err
    result = json.loads(out)
    assert list(result["loops"]) == ["command loop", "guard", "bare loop"] and result["policy"] == "zero actions"
    check_loops(result, 500, 2)
    assert result["loops"]["guard"]["ticks"] > result["loops"]["command loop"]["ticks"], "the guard runs longest"
    assert result["provenance"]["command"][1:] == ["bench", "loop", "go2", "--seconds", "2", "--json"]
    assert one.nothing_left()


def test_arm_has_no_guard_and_the_table_has_a_row_per_loop(bench: Callable[..., Bench], tmp_path: Path) -> None:
    from policies.bundle import save_bundle

    save_bundle(acting(robots.get("panda"), None), tmp_path / "policy")
    one = bench("panda", "--policy", str(tmp_path / "policy"), "--seconds", "2")
    code, out, err = one.end()
    assert code == 0, err
    rows = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["command loop", "bare loop"], out
    assert all(row[1] == "200" and int(row[2]) + int(row[3]) >= 400 for row in rows), out


def test_signal_leaves_no_process(bench: Callable[..., Bench]) -> None:
    one = bench("go2", "--seconds", "2")
    one.child("deploy")
    assert {"twin", "guard"} <= {line.split("robot_rl.cli.main ")[1].split()[0] for line in one.running().values()}
    one.process.send_signal(signal.SIGTERM)
    code, out, err = one.end()
    assert code == 128 + signal.SIGTERM and not out, (out, err)
    assert err.splitlines()[-1] == "robot-rl: interrupted; nothing was measured, and nothing is left running"
    assert one.nothing_left()


def test_ctrl_c_interrupts_the_bare_loop(bench: Callable[..., Bench]) -> None:
    one = bench("go2", "--seconds", "1000")
    assert one.process.stderr is not None and "bare loop at 500 Hz" in one.process.stderr.readline()
    begun = one.waits()
    while one.waits() < begun + 100:  # until the loop runs
        assert one.process.poll() is None
    one.process.send_signal(signal.SIGINT)
    assert one.end()[0] == 130 and one.nothing_left()


def test_killed_twin_gives_one_sentence(bench: Callable[..., Bench]) -> None:
    one = bench("go2", "--seconds", "2")
    twin = one.child("twin")
    one.child("deploy")
    os.kill(twin, signal.SIGKILL)
    code, out, err = one.end()
    assert code == 1 and not out and "Traceback" not in err
    assert err.splitlines()[-1] == "robot-rl: nothing was measured: twin was killed by SIGKILL", err
    assert one.nothing_left()


def test_default_policy_gives_zero_actions_for_every_robot_with_a_task() -> None:
    import torch

    with_task = sorted({tasks.get(name).interface.robot for name in tasks})
    assert with_task
    for name in with_task:
        robot = robots.get(name)
        bundle = acting(robot, None)
        size = bundle.policy.size
        state = torch.randn(1, size.observation, generator=torch.Generator().manual_seed(0))
        action = bundle.policy.act({"observation.state": state}, torch.Generator())
        assert action.shape == (1, 1, size.action) and not action.any()
        assert bundle.interface.robot == name and not bundle.interface.success
        bundle.check_robot(robot)


def test_robot_without_a_task_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The error comes before the bare loop; docs/add-a-robot.md reaches this state."""
    monkeypatch.setitem(robots.entries, "idle", (f"{__name__}:IDLE", "no task is for it"))
    monkeypatch.setattr(sys.modules[__name__], "IDLE", replace(robots.get("panda"), name="idle"), raising=False)
    assert main(["bench", "loop", "idle", "--seconds", "100"]) == 2
    out, err = capsys.readouterr()
    assert err == "robot-rl: no task is for robot 'idle', so it has no twin; `robot-rl tasks` lists the tasks\n"
    assert not out
