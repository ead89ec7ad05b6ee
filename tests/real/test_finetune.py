"""A session on the robot: weights between episodes, corrections on disk, a learner that may die."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from real import finetune
from real.bus import make, open_node, qos
from real.episode.env import RobotEnv
from real.finetune import FinetuneSession, LearnerProcess
from real.recording.session import VideoRecorder, stop_on_signals
from real.teleop.commands import RELEASED, Operator
from robot_rl.data import Dataset, verify
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.pipeline import Pipeline
from robot_rl.training.human_in_the_loop import corrections, fetch, publish
from robot_rl.training.run import Run
from robot_rl.util.errors import UserError
from sim.tasks import tasks

Build = Callable[..., Any]
LIFT = replace(tasks.get("panda-lift").interface, horizon=8)
SIZE = Pipeline(LIFT).observer.spec.size
SLEEPER = [sys.executable, "-c", "import signal; print('up', flush=True); signal.pause()"]
NOWHERE = Path("/nonexistent/weights")


# ---- the learner process -----------------------------------------------------------------------------------------
@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    clock = SimpleNamespace(now=10.0)
    monkeypatch.setattr(finetune, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_a_learner_that_dies_is_started_again_but_not_at_once(clock: Any, tmp_path: Path) -> None:
    code = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text('weights'); raise SystemExit(3)"
    weights = tmp_path / "weights"
    with LearnerProcess([sys.executable, "-c", code, str(weights)], weights) as learner:
        first = learner._process
        assert first is not None and first.wait(30) == 3
        learner.tend()
        assert learner.restarts == 0, "one that dies at its start is not restarted in a circle"
        clock.now += 5.1
        learner.tend()
        second = learner._process
        assert learner.restarts == 1 and second is not first and second is not None
        second.wait(30)
        clock.now += 4.0
        learner.tend()
        assert learner.restarts == 1
        clock.now += 2.0
        learner.tend()
        assert learner.restarts == 2


def test_a_learner_that_dies_twice_before_it_published_is_given_up(clock: Any, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.write_text("of the session before")
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    said = pytest.raises(UserError, match="before it had published any weights")
    with said as error, LearnerProcess(command, weights) as learner:
        for _ in range(2):
            assert learner._process is not None and learner._process.wait(30) == 3
            clock.now += 5.1
            learner.tend()
    assert learner.restarts == 1 and error.value.code == 1


def test_weights_of_an_earlier_start_are_no_sign_of_life(clock: Any, tmp_path: Path) -> None:
    """A learner publishes when it first starts, and then, say, runs out of memory at each start."""
    weights = tmp_path / "weights"
    code = "import sys, pathlib; p = pathlib.Path(sys.argv[1]); p.exists() or p.touch(); raise SystemExit(3)"
    said = pytest.raises(UserError, match="before it had published any weights")
    with said, LearnerProcess([sys.executable, "-c", code, str(weights)], weights) as learner:
        for _ in range(2):
            assert learner._process is not None and learner._process.wait(30) == 3 and weights.exists()
            clock.now += 5.1
            learner.tend()
    assert learner.restarts == 1


@pytest.mark.parametrize("tended", [True, False])
def test_a_learner_that_would_end_the_same_again_is_given_up_at_once(clock: Any, tmp_path: Path, tended: bool) -> None:
    """It has published, as every learner does when it starts: that alone is no hope."""
    weights = tmp_path / "weights"
    code = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text('weights'); raise SystemExit(2)"
    said = pytest.raises(UserError, match="would end so again")
    with said as error, LearnerProcess([sys.executable, "-c", code, str(weights)], weights) as learner:
        assert learner._process is not None and learner._process.wait(30) == 2
        clock.now += 5.1
        if tended:
            learner.tend()
    assert learner.restarts == 0 and error.value.code == 1


@pytest.mark.parametrize("published", [True, False])
def test_a_session_shorter_than_its_learners_death_does_not_pass_for_learning(tmp_path: Path, published: bool) -> None:
    weights = tmp_path / "weights"
    code = f"import pathlib, sys; {published} and pathlib.Path(sys.argv[1]).write_text('new'); raise SystemExit(3)"
    said = nullcontext() if published else pytest.raises(UserError, match="before it had published")
    with said, LearnerProcess([sys.executable, "-c", code, str(weights)], weights) as learner:
        assert learner._process is not None and learner._process.wait(30) == 3


def test_a_learner_that_lives_is_left_alone_and_ended_in_order(clock: Any) -> None:
    with LearnerProcess(SLEEPER, NOWHERE) as learner:
        clock.now += 100
        learner.tend()
        assert learner.restarts == 0
        process = learner._process
    assert process is not None and process.returncode == -signal.SIGTERM


def test_after_an_interrupt_a_learner_has_time_to_save_what_it_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    with pytest.raises(KeyboardInterrupt), LearnerProcess(SLEEPER, NOWHERE) as learner:
        process: Any = learner._process
        wait = process.wait
        monkeypatch.setattr(process, "wait", lambda timeout: waited.append(timeout) or wait(timeout))
        raise KeyboardInterrupt
    assert waited == [20] and process.returncode == -signal.SIGTERM


def test_the_first_signal_interrupts_and_a_launchers_sigterm_after_it_does_not(stopping: None) -> None:
    for first in (signal.SIGINT, signal.SIGTERM):
        stop_on_signals()
        with pytest.raises(KeyboardInterrupt) as error:
            os.kill(os.getpid(), first)
        assert error.value.args == (first,)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_learner_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    with LearnerProcess([sys.executable, "-c", code], NOWHERE) as learner:
        process: Any = learner._process
        waited = []
        wait = process.wait

        def patient(timeout: float | None = None) -> int:
            if timeout is not None:  # the grace is over
                waited.append(timeout)
                raise subprocess.TimeoutExpired("learner", timeout)
            return int(wait())

        monkeypatch.setattr(process, "wait", patient)
    assert waited == [20] and process.returncode in (-signal.SIGKILL, -signal.SIGTERM)


# ---- a session ---------------------------------------------------------------------------------------------------
class NoLearner:
    """Stands for the process: the test publishes weights itself."""

    restarts = 0

    def __init__(self, then: Callable[[int], None]):
        self.calls, self.then = 0, then

    def tend(self) -> None:
        self.calls += 1
        self.then(self.calls)


@pytest.fixture
def session(private_domain: int, topic_robot: Build, residual: Build, steady: Any, tmp_path: Path) -> Iterator[Build]:
    opened: list[Any] = []
    robots: list[Any] = []

    def build(hands: Any, resume: bool = False, camera: bool = False, interface: Any = LIFT) -> FinetuneSession:
        robots[:] = robots or [topic_robot()]  # a session that resumes finds the robot of the first
        robot = robots[0]
        if camera:
            images = robot.node.publisher("sensor_msgs/msg/Image", "front/image_raw", qos.SENSOR)
            picture = np.full(16 * 16 * 3, 90, np.uint8)
            message = make("sensor_msgs/msg/Image", height=16, width=16, encoding="rgb8", step=48, data=picture)

            def send() -> None:
                """One picture, as soon as somebody listens; the robot waits for it."""
                if robot.node.wait_for(lambda: images.matched == 1, 30):
                    images.publish(message)

        node = open_node("policy")
        opened.append(node)
        if camera:
            sending = threading.Thread(target=send)
            sending.start()
        cameras = ("front",) if camera else ()
        env = RobotEnv(node, interface, cameras=cameras, operator=hands, safety=steady)
        if camera:
            sending.join()
        hands.only_in_decisions(env.arbiter)
        torch.manual_seed(0)
        policy = residual(SIZE, 4, std=None, zero_init=False)
        run = Run(tmp_path / "run", {"test": True}, resume)
        opened.extend([run, env])
        return FinetuneSession(env, policy, run, 0, VideoRecorder(1, corrected_only=True))

    yield build
    for one in reversed(opened):
        one.close()


def seconds_until(monkeypatch: pytest.MonkeyPatch, over: Callable[[], bool]) -> None:
    """`learn` runs whole episodes until its time is up; here until `over()`."""
    monkeypatch.setattr(finetune, "time", SimpleNamespace(monotonic=lambda: 1e9 if over() else 0.0))


def test_episodes_are_recorded_labelled_and_counted(
    session: Build, hands: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held = Operator(held=True, motion=(0.0, 0.3, 0.0), gripper=0.0)
    # Eight steps under the policy; then two corrected, and the operator's mark.
    operator = hands(*[RELEASED] * 8, *[RELEASED] * 3, held, held, RELEASED, Operator(success=True))
    s = session(operator, camera=True)
    seconds_until(monkeypatch, lambda: len(s.episodes) >= 2)
    said: list[str] = []
    s.learn(NoLearner(lambda k: None), 60.0, lambda done, total, text: said.append(text))  # type: ignore[arg-type]
    s.close()
    assert said == ["s, 1 episodes: 0/1 won, 0 helped, v-1", "s, 2 episodes: 1/2 won, 1 helped, v-1"]
    root = tmp_path / "run" / "dataset"
    assert verify(root) == []
    data = Dataset(root)
    assert [e.length for e in data.episodes] == [8, 7]
    columns = data.columns(["action", "action.policy", "intervention", "next.success", "next.done"])
    flags = columns["intervention"].flatten().tolist()
    assert flags == [False] * 8 + [False] * 3 + [True] * 2 + [False] * 2
    physical = s.env.pipeline.actions.to_physical(torch.tensor([[0.0, 0.3, 0.0, 0.0]]))[0]
    assert torch.allclose(columns["action"][11, :3], physical[:3], atol=1e-6)
    assert not torch.allclose(columns["action"][11], columns["action.policy"][11])
    assert torch.allclose(columns["action"][:8], columns["action.policy"][:8])
    assert columns["next.success"].flatten().nonzero().flatten().tolist() == [14]
    assert columns["next.done"].flatten().nonzero().flatten().tolist() == [7, 14]
    assert "observation.images.front" in data.features
    rows = [json.loads(line) for line in (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()]
    assert [(r["index"], r["success"], r["takeovers"], r["intervention_steps"]) for r in rows] == [
        (0, False, 0, 0), (1, True, 1, 2),
    ]  # fmt: skip
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [e["what"] for e in events if e["event"] == "phase"] == ["resetting", "running", "failure"] + [
        "resetting", "running", "success",
    ]  # fmt: skip
    assert "correcting" in [e["what"] for e in events if e["event"] == "operator" and e["episode"] == 1]
    summary = s.summary()
    assert summary["episodes"] == 2 and summary["success"] == 0.5 and summary["corrected_episodes"] == 1
    assert summary["autonomous_success"] == 0.0, "the other episode was corrected"
    assert summary["intervention_share"] == pytest.approx(2 / 15)


def test_an_episode_that_the_tasks_failure_test_ends_is_no_success(
    session: Build, hands: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    s = session(hands(), interface=replace(LIFT, success="", failure="reached:cube:2"))  # it always is
    seconds_until(monkeypatch, lambda: len(s.episodes) >= 1)
    s.learn(NoLearner(lambda k: None), 60.0, lambda *_: None)  # type: ignore[arg-type]
    s.close()
    assert s.episodes[0]["steps"] == 1 and s.episodes[0]["success"] is False and s.summary()["success"] == 0


@pytest.mark.parametrize(("timeout", "stale"), [(1000.0, 0), (0.01, 8)])
def test_a_camera_that_falls_silent_is_not_recorded_as_if_it_went_on(
    session: Build, hands: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, timeout: float, stale: int
) -> None:
    """It sent one picture, long before the episode: every row of the video repeats it, and the record says so."""
    s = session(hands(), camera=True)
    s.env.loop.safety = replace(s.env.loop.safety, picture_timeout=timeout)
    seconds_until(monkeypatch, lambda: len(s.episodes) >= 1)
    s.learn(NoLearner(lambda k: None), 60.0, lambda *_: None)  # type: ignore[arg-type]
    s.close()
    assert s.episodes[0]["steps"] == 8 and s.episodes[0]["stale_pictures"] == stale
    assert s.env.summary()["shield"].get("stale picture", 0) == stale
    row = json.loads((tmp_path / "run" / "episodes.jsonl").read_text())
    data = Dataset(tmp_path / "run" / "dataset")
    assert verify(data.root) == [] and data.episodes[0].length == 8
    assert row["stale_pictures"] == data.episodes[0].record["stale_pictures"] == stale
    frames = data.frames("observation.images.front", range(8)).float()
    assert (frames - 90).abs().max() <= 3, "the last picture, not black"


def test_a_row_has_the_pictures_that_belong_to_its_state(
    session: Build, hands: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in demonstrations of a simulation: not those of what came of the action."""
    s = session(hands(), camera=True)
    monkeypatch.setattr(s.env.driver, "image", lambda name: np.full((16, 16, 3), 20 * s.env.steps, np.uint8))
    seconds_until(monkeypatch, lambda: len(s.episodes) >= 2)
    s.learn(NoLearner(lambda k: None), 60.0, lambda *_: None)  # type: ignore[arg-type]
    s.close()
    frames = Dataset(tmp_path / "run" / "dataset").frames("observation.images.front", range(16)).float()
    assert (frames.flatten(1).mean(1) - 20 * (torch.arange(16) % 8)).abs().max() < 5


def test_weights_are_adopted_between_episodes_and_the_session_resumes(
    session: Build, hands: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, residual: Build, same: Build
) -> None:
    s = session(hands())
    newer = residual(SIZE, 4, std=None, zero_init=False)

    def learn(call: int) -> None:
        publish(
            tmp_path / "run", SimpleNamespace(updates=SimpleNamespace(critic=call), average=newer.actor, policy=newer)
        )

    seconds_until(monkeypatch, lambda: len(s.episodes) >= 3)
    s.learn(NoLearner(learn), 60.0, lambda *_: None)  # type: ignore[arg-type]
    assert [e["policy_version"] for e in s.episodes] == [-1, 1, 2], "published in episode k, used from k + 1 on"
    assert same(s.policy.actor.state_dict(), newer.actor.state_dict())
    s.close()
    s.run.close()
    s.env.close()
    s.env.node.close()

    again = session(hands(), resume=True)
    assert again.recorder.writer.num_episodes == 3
    seconds_until(monkeypatch, lambda: len(again.episodes) >= 1)
    again.learn(NoLearner(lambda k: None), 60.0, lambda *_: None)  # type: ignore[arg-type]
    again.close()
    assert [e["policy_version"] for e in again.episodes] == [3], "the last published weights"
    rows = [json.loads(line) for line in (tmp_path / "run" / "episodes.jsonl").read_text().splitlines()]
    assert [r["index"] for r in rows] == [0, 1, 2, 3]
    data = Dataset(tmp_path / "run" / "dataset")
    assert data.num_episodes == 4 and verify(data.root) == []


def test_rows_of_episodes_that_never_reached_the_disk_are_dropped_on_resume(
    session: Build, hands: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Episodes are written off the control thread, so a kill can leave a row of an episode that is not on disk."""
    s = session(hands())
    seconds_until(monkeypatch, lambda: len(s.episodes) >= 1)
    s.learn(NoLearner(lambda k: None), 60.0, lambda *_: None)  # type: ignore[arg-type]
    s.close()
    s.run.close()
    s.env.close()
    s.env.node.close()
    rows = tmp_path / "run" / "episodes.jsonl"
    lost = json.loads(rows.read_text()) | {"index": 1}
    rows.write_text(rows.read_text() + json.dumps(lost) + "\n")

    again = session(hands(), resume=True)
    seconds_until(monkeypatch, lambda: len(again.episodes) >= 1)
    again.learn(NoLearner(lambda k: None), 60.0, lambda *_: None)  # type: ignore[arg-type]
    again.close()
    assert [json.loads(line)["index"] for line in rows.read_text().splitlines()] == [0, 1]


def test_an_episode_under_way_is_dropped_and_those_before_are_kept(
    session: Build, hands: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ctrl-C in the second episode: what is on disk are whole episodes."""
    s = session(hands())
    steps = []

    def interrupted(step: dict[str, Any]) -> None:
        steps.append(step)
        if len(steps) == 11:
            raise KeyboardInterrupt

    s.env.observers.append(interrupted)
    with pytest.raises(KeyboardInterrupt):
        s.learn(NoLearner(lambda k: None), 600.0, lambda *_: None)  # type: ignore[arg-type]
    s.close()
    data = Dataset(tmp_path / "run" / "dataset")
    assert [e.length for e in data.episodes] == [8] and verify(data.root) == []


def test_a_signal_at_the_end_of_an_episode_does_not_part_its_row_from_its_record(
    stopping: None, session: Build, hands: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    s = session(hands())
    write = s.journal._write

    def write_and_stop(name: str, row: dict[str, Any]) -> None:
        write(name, row)
        if name == "episodes.jsonl":
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(s.journal, "_write", write_and_stop)
    with pytest.raises(KeyboardInterrupt):
        s.learn(NoLearner(lambda k: None), 600.0, lambda *_: None)  # type: ignore[arg-type]
    s.close()
    data = Dataset(tmp_path / "run" / "dataset")
    assert data.num_episodes == s.summary()["episodes"] == 1 and verify(data.root) == []


def test_a_signal_while_the_last_episode_is_written_waits_for_it(
    stopping: None, session: Build, hands: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    s = session(hands())
    closing, add, close = threading.Event(), s.recorder.writer.add_episode, s.recorder.close

    def add_late(*episode: Any) -> None:
        assert closing.wait(30)
        os.kill(os.getpid(), signal.SIGTERM)
        add(*episode)

    def close_now() -> None:
        closing.set()
        close()

    monkeypatch.setattr(s.recorder.writer, "add_episode", add_late)
    monkeypatch.setattr(s.recorder, "close", close_now)
    seconds_until(monkeypatch, lambda: len(s.episodes) >= 1)
    s.learn(NoLearner(lambda k: None), 60.0, lambda *_: None)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        s.close()
    data = Dataset(tmp_path / "run" / "dataset")
    assert data.num_episodes == s.summary()["episodes"] == 1 and verify(data.root) == []


def test_what_the_learner_reads_of_a_corrected_episode(
    session: Build, hands: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from robot_rl.data.recording import episodes_of

    held = Operator(held=True, motion=(0.5, 0.0, 0.0), gripper=1.0)
    s = session(hands(RELEASED, held, held, RELEASED, held))
    seconds_until(monkeypatch, lambda: len(s.episodes) >= 1)
    s.learn(NoLearner(lambda k: None), 60.0, lambda *_: None)  # type: ignore[arg-type]
    s.close()
    (episode,) = episodes_of(Dataset(tmp_path / "run" / "dataset"), EnvInfo.of(s.env.pipeline), 0, successes=False)
    parts = corrections(episode)
    assert [len(p["action"]) for p in parts] == [2, 1]
    for part in parts:
        assert torch.allclose(part["action"], torch.tensor([0.5, 0.0, 0.0, 1.0]), atol=1e-5)
    assert s.summary()["corrected_episodes"] == 1 and s.episodes[0]["takeovers"] == 2


@pytest.mark.parametrize(("end", "terminated"), [("failure", True), ("stop", False), ("", False)])
def test_a_failure_is_learned_as_the_end_and_a_stop_or_the_clock_is_not(
    session: Build, hands: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str, terminated: bool
) -> None:
    from robot_rl.data.recording import episodes_of
    from robot_rl.data.replay import Sampling
    from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig
    from robot_rl.training.off_policy import demo_replay

    s = session(hands(*[RELEASED] * 3, Operator(**{end: True}) if end else RELEASED))
    seconds_until(monkeypatch, lambda: len(s.episodes) >= 1)
    s.learn(NoLearner(lambda k: None), 60.0, lambda *_: None)  # type: ignore[arg-type]
    s.close()
    (episode,) = episodes_of(Dataset(tmp_path / "run" / "dataset"), EnvInfo.of(s.env.pipeline), 0, successes=False)
    steps = len(episode["action"])
    assert steps == (4 if end else LIFT.horizon) and not episode["reward"].any()
    assert episode["terminated"].tolist() == [False] * (steps - 1) + [terminated]
    replay = demo_replay(ActorCritic(s.policy, ActorCriticConfig()), [episode], torch.Generator().manual_seed(0))
    batch = replay.sample(64, Sampling(3, 0.9), torch.Generator().manual_seed(0))
    assert bool((batch["discount"] == 0).any()) is terminated, "no value is expected after a failure"


def test_no_policy_action_of_the_correction_is_executed_after_it(
    session: Build, hands: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ROS2.md, section 6: the chunk planned meanwhile is flushed, so the base is asked anew after a hand-back."""
    held = Operator(held=True)
    s = session(hands(held, held, RELEASED))
    asked: list[int] = []
    infer = s.policy.base.infer

    def counted(*arguments: Any) -> Any:
        asked.append(s.env.steps)
        return infer(*arguments)

    monkeypatch.setattr(s.policy.base, "infer", counted)
    seconds_until(monkeypatch, lambda: len(s.episodes) >= 1)
    s.learn(NoLearner(lambda k: None), 60.0, lambda *_: None)  # type: ignore[arg-type]
    s.close()
    # execute = 2: asked at 0 and 2 anyway; released at 2, so anew at 3, then 5 and 7.
    assert asked == [0, 2, 3, 5, 7]


def test_filming_keeps_corrected_episodes_and_marks_them(tmp_path: Path) -> None:
    film = VideoRecorder(1, corrected_only=True)
    picture = np.full((16, 16, 3), 50, np.uint8)
    for corrected, done in ((False, False), (False, True), (False, False), (True, False), (False, True)):
        film.add(picture, corrected, done)
    assert film.filmed == 1 and len(film.frames) == 3, "the first episode had no correction"
    assert (film.frames[1][0, 0] == [255, 150, 0]).all() and (film.frames[0] == 50).all()
    film.write(tmp_path, "a caption")
    assert (tmp_path / "videos" / "robot.mp4").stat().st_size > 0
    assert json.loads((tmp_path / "videos" / "captions.json").read_text()) == {"robot.mp4": "a caption"}
    VideoRecorder(1).write(tmp_path / "nothing", "no pictures, no folder")
    assert not (tmp_path / "nothing").exists()


def test_a_film_that_finds_no_room_leaves_the_old_one_and_names_it(tmp_path: Path) -> None:
    film = VideoRecorder(1)
    film.add(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8), False, True)
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "robot.mp4").write_bytes(b"old")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limit[1]))
    try:
        with pytest.raises(OSError, match=r"robot\.mp4"):
            film.write(tmp_path, "a caption")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert [path.name for path in (tmp_path / "videos").iterdir()] == ["robot.mp4"]
    assert (tmp_path / "videos" / "robot.mp4").read_bytes() == b"old"


@pytest.mark.parametrize("cameras", [("wrist", "front"), ()])
def test_filming_takes_the_robots_first_camera_if_there_is_one(cameras: tuple[str, ...]) -> None:
    pictures = {name: np.full((8, 8, 3), k + 1, np.uint8) for k, name in enumerate(cameras)}
    env: Any = SimpleNamespace(driver=SimpleNamespace(images=pictures, image=pictures.get), observers=[], period=0.1)
    film = VideoRecorder(1)
    film.attach(env)
    (observe,) = env.observers
    observe({"intervention": torch.tensor([False]), "done": True})
    assert film.rate == 10 and [int(frame.max()) for frame in film.frames] == [1] * len(cameras[:1])


def test_fetch_is_what_a_session_uses(residual: Build, tmp_path: Path) -> None:
    assert fetch(tmp_path, residual(), -1) == -1
