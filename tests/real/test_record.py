"""Demonstrations by a person: recorded and omitted periods, the command, a robot."""

import errno
import json
import termios
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from real.control.timing import Ticker
from real.drivers.state import NotReady
from real.episode.rehearsal import RehearsalEnv
from real.recording.recorder import Recorder, RobotCameras
from real.sessions.recording import Progress, Recording
from real.teleop import RELEASED, DeviceInput, Finished, Operator, OperatorInput
from robot_rl.cli.main import main
from robot_rl.data import Dataset, DatasetWriter, verify
from robot_rl.util.seeds import training_seed
from robot_rl.view.simulation import RecordingView
from sim.collect import collect
from sim.env import TaskEnv
from sim.tasks import tasks

Build = Callable[..., Any]
LIFT = tasks.get("panda-lift")
HELD = Operator(held=True)
MOVE = Operator(held=True, motion=(0.0, 1.0, 0.0))
WON, LOST, AGAIN = (Operator(held=True, **{name: True}) for name in ("success", "failure", "reset"))


class Script(OperatorInput):
    """Input from a list; then the person quits."""

    help = ""

    def __init__(self, *readings: Operator):
        super().__init__(None)
        self.readings = list(readings)

    def read(self, now: float | None = None) -> Operator:
        if not self.readings:
            raise Finished
        return self.readings.pop(0)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate faster than real time."""
    monkeypatch.setattr(Ticker, "wait", lambda self: 0.0)


@pytest.fixture
def record(hurried: None, tmp_path: Path) -> Iterator[Build]:
    """Record a script in simulation until it ends."""
    opened: list[Any] = []

    def build(*readings: Operator, episodes: int = 9, name: str = "data", **options: Any) -> Recording:
        task = replace(LIFT, interface=replace(LIFT.interface, horizon=200))
        env = RehearsalEnv(TaskEnv(task, 1, threads=1), Script(*readings))
        recorder = Recorder(tmp_path / name, env.pipeline, {})
        opened.extend([recorder, env])
        recording = Recording(env, recorder, env.look, episodes, **options)
        with suppress(Finished):
            recording.run()
        return recording

    yield build
    for one in opened:
        with suppress(OSError):  # the writer's, raised before
            one.close()


# ---- episodes ----------------------------------------------------------------------------------------------------
def test_placement_repeats_after_a_discarded_episode_and_changes_after_a_failure(record: Build, tmp_path: Path) -> None:
    cubes: list[float] = []
    on_disk: list[tuple[int, int]] = []
    begin = [RELEASED, MOVE, MOVE]

    def show(progress: Progress) -> None:
        if progress.phase == "resetting":
            on_disk.append((Dataset(tmp_path / "data").num_episodes, progress.saved))

    recording = record(
        *[*begin, AGAIN], *[*begin, LOST], *[*begin, WON], *begin, show=show,
        on_step=lambda env: cubes.append(float(env.true.objects["cube"][0, 0])),
    )  # fmt: skip
    assert on_disk == [(0, 0), (0, 0), (0, 0), (1, 1)], "an episode is on disk before the next begins"
    progress = recording.progress
    assert (progress.saved, progress.successes, progress.failures, progress.discarded) == (1, 1, 1, 1)
    starts = list(dict.fromkeys(round(x, 4) for x in cubes))
    assert len(starts) == 3, "discarded and failed at one place, saved at the second, then a third"
    data = Dataset(tmp_path / "data")
    assert verify(data.root) == [] and data.episodes[0].record["success"]
    assert data.episodes[0].record["randomization/cube.x"] == pytest.approx(starts[1], abs=2e-3)


def test_episode_begins_at_new_input(record: Build, tmp_path: Path) -> None:
    """Keys still down from the previous episode do not count."""
    record(MOVE, MOVE, RELEASED, RELEASED, MOVE, MOVE, WON, MOVE, MOVE, MOVE)
    data = Dataset(tmp_path / "data")
    assert [e.length for e in data.episodes] == [2], "the first row is the takeover"
    assert float(data.columns(["action"])["action"][0, 1]) > 0.03


def test_only_pauses_are_omitted(record: Build, tmp_path: Path) -> None:
    inputs = [RELEASED, MOVE, MOVE, MOVE, MOVE, *[RELEASED] * 25, MOVE, replace(MOVE, gripper=-1.0), *[HELD] * 25, WON]
    omitting, whole = record(*inputs), record(*inputs, keep_pauses=True, name="whole")
    a, b = Dataset(tmp_path / "data"), Dataset(tmp_path / "whole")
    assert b.num_frames == len(inputs) - 2 and whole.progress.paused == 0
    assert a.num_frames == b.num_frames - omitting.progress.paused and omitting.progress.paused > 15
    moved = [(d.columns(["action"])["action"][:, 1].abs() > 1e-6).sum() for d in (a, b)]
    assert moved[0] == moved[1] == 5
    widths = [d.columns(["observation.state"])["observation.state"][:, 10] for d in (a, b)]
    assert widths[0].min() == pytest.approx(float(widths[1].min()), abs=1e-3), "the fingers close completely"
    assert bool(a.columns(["next.done"])["next.done"][-1])


def test_full_disk_keeps_earlier_episodes(record: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = DatasetWriter.add_episode

    def full(self: DatasetWriter, *arguments: Any) -> None:
        if self.num_episodes:
            raise OSError(errno.ENOSPC, "No space left on device", "data")
        add(self, *arguments)

    monkeypatch.setattr(DatasetWriter, "add_episode", full)
    with pytest.raises(OSError, match="No space"):
        record(*[RELEASED, MOVE, MOVE, WON] * 3)
    assert verify(tmp_path / "data") == [] and Dataset(tmp_path / "data").num_episodes == 1


# ---- the command -------------------------------------------------------------------------------------------------
class Demonstrator:
    """Device of the task's expert, released between episodes."""

    help = "an expert"
    env: Any = None

    def __init__(self) -> None:
        self.steps = -1

    def read(self) -> Operator:
        env = Demonstrator.env
        steps, before = int(env.steps[0]), self.steps
        self.steps = steps
        if before < 0 or steps < before:  # another episode
            self.expert = env.task.make_expert(env.pipeline, 1, "STEADY", 0)
            return RELEASED
        action = self.expert.act({"observation.state": env.pipeline.observer(env.state)})
        twist, gripper = env.pipeline.controller.to_twist(action)
        x, y, z = twist[0, :3].tolist()
        return Operator(held=True, motion=(x, y, z), gripper=float(gripper))

    def close(self) -> None:
        pass


@pytest.mark.timeout(120)
def test_recorded_demonstrations_train_a_policy(hurried: None, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("real.teleop.open_device", lambda name: Demonstrator())
    monkeypatch.setattr("real.teleop.commands.RELEASE", 0.0)  # simulated time is faster

    class Watched(TaskEnv):
        def __init__(self, *arguments: Any, **options: Any):
            super().__init__(*arguments, **options)
            Demonstrator.env = self

    monkeypatch.setattr("sim.env.TaskEnv", Watched)
    assert main(["record", "panda-lift", "--episodes", "2", "--image-size", "32", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["episodes"] == summary["successes"] == 2 and summary["path"] == "datasets/panda-lift"
    data = Dataset("datasets/panda-lift")
    assert verify(data.root) == [] and data.features["observation.images.front"].shape == (32, 32, 3)
    columns = data.columns(["action", "intervention", "next.success"])
    assert columns["intervention"].float().mean() > 0.9 and int(columns["next.success"].sum()) == 2
    words = ["train", "panda-lift", "--recipe", "diffusion-bc", "--out", "bc", "--training.updates", "2", "--json"]
    assert main(words) == 0, capsys.readouterr().err
    assert (tmp_path / "bc" / "bundle" / "policy.json").exists()


@pytest.mark.timeout(400)
def test_keys_mark_discard_and_quit_and_a_killed_recording_resumes(in_terminal: Build, tmp_path: Path) -> None:
    words = ["record", "panda-lift", "--episodes", "4", "--out", str(tmp_path / "data"), "--keep-failures"]
    first = in_terminal(*words)
    first.until("waiting")
    first.until("RECORDING", hold=b"w")
    first.type(b"n")
    first.until("failed 1")
    first.until("waiting")
    first.until("RECORDING", hold=b"w")
    first.process.kill()
    first.process.wait()
    assert Dataset(tmp_path / "data").num_episodes == 1, "only the running episode is lost"

    second = in_terminal(*words, "--resume", "--json")
    for key, text in ((b"\r", "discarded 1"), (b"y", "saved 1")):
        second.until("waiting")
        second.until("RECORDING", hold=b"w")
        second.type(key)
        second.until(text)
    second.type(b"q")
    assert second.end() == 0, second.shown
    assert termios.tcgetattr(second.slave)[3] == second.before[3], "the terminal echoes"
    data = Dataset(tmp_path / "data")
    assert verify(data.root) == [] and [bool(e.record["success"]) for e in data.episodes] == [False, True]


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    assert main(["record", *map(str, words)]) in (1, 2)
    return capsys.readouterr().err


def test_invalid_recordings_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = ("--out", tmp_path / "data")
    assert "move joints and not a tool (a person steers it" in refused(capsys, "go2-velocity", *out)
    assert "has no robot that a person could move" in refused(capsys, "gym:Pendulum-v1", *out)
    assert "the keyboard needs a terminal" in refused(capsys, "panda-lift", *out)
    assert "is for robot 'panda', not 'ur5e'" in refused(capsys, "panda-lift", "--robot", "ur5e", *out)
    assert "there is no gamepad" in refused(capsys, "panda-lift", "--teleop", "gamepad", *out)
    assert not (tmp_path / "data").exists()


def test_other_datasets_are_not_continued(record: Build, capsys: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("real.teleop.open_device", lambda name: Script())  # quits at once
    monkeypatch.chdir(tmp_path)
    collect(TaskEnv("panda-lift", 1, threads=1), tmp_path / "scripted", 1, seed=0, skill="STEADY", image_size=0)
    assert "holds a dataset already; go on with --resume" in refused(capsys, "panda-lift", "--out", "scripted")
    output = refused(capsys, "panda-lift", "--out", "scripted", "--resume")
    assert "started with different settings" in output and 'skill was "STEADY"' in output
    output = refused(capsys, "panda-turn", "--out", "scripted", "--resume")
    assert "does not fit task 'panda-turn'" in output
    assert "holds the pictures" in refused(capsys, "panda-lift", "--out", "scripted", "--resume", "--image-size", "32")
    assert verify(tmp_path / "scripted") == []
    assert main(["record", "panda-lift", "--out", "mine", "--json"]) == 0, "quitting at once is no error"
    assert main(["record", "panda-lift", "--out", "mine", "--resume", "--json"]) == 0


def test_device_input_of_the_same_process() -> None:
    pressed = replace(HELD, success=True, motion=(0.01, 1.0, 0.0))
    device: Any = SimpleNamespace(readings=[pressed, pressed, RELEASED, RELEASED], close=lambda: None)
    device.read = lambda: device.readings.pop(0)
    inputs = DeviceInput(device)
    assert inputs.devices == 1
    assert inputs.read(10.0) == replace(pressed, motion=(0.0, 1.0, 0.0)), "within the dead band"
    assert inputs.read(10.05) == Operator(held=True, motion=(0.0, 1.0, 0.0)), "one press"
    assert inputs.read(10.06) == HELD and inputs.read(10.2) == RELEASED


# ---- on a robot --------------------------------------------------------------------------------------------------
def test_robot_waits_at_home_and_records_the_person(robot_env: Build, robot: Any, tmp_path: Path) -> None:
    shown: list[Progress] = []
    ends = [AGAIN, WON, WON]

    class Person:
        devices, reads, phase = 1, 0, ""

        def read(self, now: float | None = None) -> Operator:
            phase = shown[-1].phase if shown else ""
            self.reads, self.phase = (self.reads + 1 if phase == self.phase else 1), phase
            if phase == "waiting":
                return RELEASED if self.reads < 5 else HELD
            if phase == "running":
                return MOVE if self.reads < 4 else ends.pop(0)
            return RELEASED

    env = robot_env(replace(LIFT.interface, horizon=100), Person())
    cameras = RobotCameras(env)
    recorder = Recorder(tmp_path / "data", env.pipeline, cameras.sizes)
    waited: list[np.ndarray] = []

    def show(progress: Progress) -> None:
        shown.append(progress)
        if progress.phase == "running" and robot.commands:
            waited.append(robot.commands[-1].copy())

    progress = Recording(env, recorder, cameras.look, 2, show=show).run()
    recorder.close()
    assert (progress.saved, progress.successes, progress.discarded) == (2, 2, 1)
    assert robot.seeds == [training_seed(0), training_seed(0), training_seed(0, 1)], "the discarded placement again"
    assert np.abs(waited[0] - robot.robot.home).max() < 0.03, "at home"
    assert np.abs(np.diff(np.array(robot.commands), axis=0)).max() < 0.05, "no jump at a takeover"
    data = Dataset(tmp_path / "data")
    assert verify(data.root) == [] and [e.length for e in data.episodes] == [4, 4]
    columns = data.columns(["action", "intervention"])
    assert torch.allclose(columns["action"][:3, 1], torch.full((3,), 0.04)) and bool(columns["intervention"].all())


def test_recording_without_a_person_ends(robot_env: Build, robot: Any, hands: Build) -> None:
    nobody = hands()
    nobody.devices = 0
    env = robot_env(LIFT.interface, nobody)
    with pytest.raises(NotReady, match="no teleop device for 0"):
        env.reset_procedure.await_operator(patience=0.2)


def test_view_shows_episode_and_phase(record: Build) -> None:
    pytest.importorskip("viser")
    addresses: list[str] = []
    shown: list[tuple[int, int, str]] = []
    with closing(RecordingView(addresses.append)) as view:

        def watch(env: Any) -> None:
            view(env)
            shown.append((view.view.number, view.view.step, view.view._note))

        record(RELEASED, RELEASED, MOVE, MOVE, WON, RELEASED, MOVE, MOVE, on_step=watch)
    assert len(addresses) == 1 and addresses[0].startswith("http://127.0.0.1:")
    assert shown[0] == (1, 0, "waiting for your first input")
    assert (1, 2, "recording") in shown and (2, 0, "waiting for your first input") in shown
