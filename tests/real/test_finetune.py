"""A session on the robot: newer weights between episodes, recorded corrections, and a learner that may die."""

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

from real.bus import make, open_node, qos
from real.episode.env import RobotEnv
from real.episode.stream import StepRecord, Stream
from real.recording.session import VideoRecorder, stop_on_signals
from real.sessions import finetune
from real.sessions.finetune import FinetuneSession, LearnerProcess
from real.teleop.commands import RELEASED, Operator
from robot_rl.data import Dataset, verify
from robot_rl.data.recording import episodes_of
from robot_rl.data.replay import Sampling
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.pipeline import Pipeline
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from robot_rl.training.learner import corrections
from robot_rl.training.off_policy import demo_replay
from robot_rl.training.published import publish
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


def learner_that(status: int, weights: Path, before: str = "pass") -> LearnerProcess:
    """Return a learner that runs a statement about its weights' path `p` and exits with a status."""
    code = f"import sys, pathlib; p = pathlib.Path(sys.argv[1]); {before}; raise SystemExit({status})"
    return LearnerProcess([sys.executable, "-c", code, str(weights)], weights)


PUBLISH = "p.write_text('weights')"


def test_dead_learner_is_restarted_after_five_seconds(clock: Any, tmp_path: Path) -> None:
    with learner_that(3, tmp_path / "weights", PUBLISH) as learner:
        for pause, restarts in ((0.0, 0), (5.1, 1), (4.0, 1), (2.0, 2)):
            assert learner.process.wait(30) == 3
            clock.now += pause
            learner.tend()
            assert learner.restarts == restarts


@pytest.mark.parametrize("publish", ["pass", "p.exists() or p.touch()"])
def test_learner_that_dies_twice_without_newer_weights_is_given_up(clock: Any, tmp_path: Path, publish: str) -> None:
    """It may publish at its first start only, and then run out of memory at each start."""
    weights = tmp_path / "weights"
    if publish == "pass":
        weights.write_text("of the previous session")
    refused = pytest.raises(UserError, match="before it had published any weights")
    with refused as error, learner_that(3, weights, publish) as learner:
        for _ in range(2):
            assert learner.process.wait(30) == 3
            clock.now += 5.1
            learner.tend()
    assert learner.restarts == 1 and error.value.code == 1


def test_a_learner_elsewhere_is_tried_again_until_it_comes_back(clock: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "robot_rl.cli.learner", str(tmp_path), "--ray", "127.0.0.1:1"]
    with LearnerProcess(command, tmp_path / "weights", elsewhere=True) as learner:
        for restarts in (1, 2):
            assert learner.process.wait(60) == 1
            clock.now += 5.1
            learner.tend()
            assert learner.restarts == restarts


@pytest.mark.parametrize("tended", [True, False])
def test_permanent_failure_of_the_learner_is_given_up_at_once(clock: Any, tmp_path: Path, tended: bool) -> None:
    refused = pytest.raises(UserError, match="would end so again")
    with refused as error, learner_that(2, tmp_path / "weights", PUBLISH) as learner:
        assert learner.process.wait(30) == 2
        clock.now += 5.1
        if tended:
            learner.tend()
    assert learner.restarts == 0 and error.value.code == 1


@pytest.mark.parametrize("published", [True, False])
def test_learner_that_died_without_weights_fails_a_short_session(tmp_path: Path, published: bool) -> None:
    result = nullcontext() if published else pytest.raises(UserError, match="before it had published")
    with result, learner_that(3, tmp_path / "weights", PUBLISH if published else "pass") as learner:
        assert learner.process.wait(30) == 3


def test_interrupted_learner_gets_time_to_save(clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    with pytest.raises(KeyboardInterrupt), LearnerProcess(SLEEPER, NOWHERE) as learner:
        clock.now += 100
        learner.tend()
        assert learner.restarts == 0
        process: Any = learner.process
        wait = process.wait
        monkeypatch.setattr(process, "wait", lambda timeout: waited.append(timeout) or wait(timeout))
        raise KeyboardInterrupt
    assert waited == [20] and process.returncode == -signal.SIGTERM


def test_sigterm_after_the_first_signal_is_ignored(stopping: None) -> None:
    for first in (signal.SIGINT, signal.SIGTERM):
        stop_on_signals()
        with pytest.raises(KeyboardInterrupt) as error:
            os.kill(os.getpid(), first)
        assert error.value.args == (first,)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_learner_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    with LearnerProcess([sys.executable, "-c", code], NOWHERE) as learner:
        process: Any = learner.process
        wait, waited = process.wait, []

        def patient(timeout: float | None = None) -> int:
            if timeout is not None:  # the grace is over
                waited.append(timeout)
                raise subprocess.TimeoutExpired("learner", timeout)
            return int(wait())

        monkeypatch.setattr(process, "wait", patient)
    assert waited == [20] and process.returncode in (-signal.SIGKILL, -signal.SIGTERM)


# ---- a session ---------------------------------------------------------------------------------------------------
class NoLearner:
    """Substitute of the learner's process: calls `then` with the number of calls."""

    restarts = 0

    def __init__(self, then: Callable[[int], None] = lambda calls: None):
        self.calls, self.then = 0, then

    def tend(self) -> None:
        self.calls += 1
        self.then(self.calls)


@pytest.fixture
def session(robot: Any, hands: Build, residual: Build, steady: Any, tmp_path: Path) -> Iterator[Build]:
    """Open a session whose operator follows a script in the arbiter's decisions."""
    opened: list[Any] = []

    def build(*script: Operator, resume: bool = False, camera: bool = False, interface: Any = LIFT) -> FinetuneSession:
        operator = hands(*script)
        if camera:
            images = robot.node.publisher("sensor_msgs/msg/Image", "front/image_raw", qos.SENSOR)
            picture = np.full(16 * 16 * 3, 90, np.uint8)
            message = make("sensor_msgs/msg/Image", height=16, width=16, encoding="rgb8", step=48, data=picture)

            def send() -> None:
                """Send one picture as soon as there is a subscriber."""
                if robot.node.wait_for(lambda: images.matched == 1, 30):
                    images.publish(message)

        node = open_node("policy")
        opened.append(node)
        if camera:
            sending = threading.Thread(target=send)
            sending.start()
        cameras = ("front",) if camera else ()
        env = RobotEnv(node, interface, cameras=cameras, operator=operator, safety=steady)
        env.activate()
        if camera:
            sending.join()
        operator.only_in_decisions(env.arbiter)
        torch.manual_seed(0)
        policy = residual(SIZE, 4, std=None, zero_init=False)
        run = Run(tmp_path / "run", {"test": True}, resume)
        opened.extend([run, env])
        return FinetuneSession(env, policy, run, 0, VideoRecorder(1, corrected_only=True))

    yield build
    for one in reversed(opened):
        one.close()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Folder of the session's run."""
    return tmp_path / "run"


def read_rows(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Run a number of episodes of a session, close it, and return the reported progress."""

    def run(s: FinetuneSession, episodes: int, learner: Any = None) -> list[str]:
        now = lambda: 1e9 if len(s.episodes) >= episodes else 0.0  # noqa: E731
        monkeypatch.setattr(finetune, "clock", SimpleNamespace(now=now, in_lockstep=lambda: False))
        progress: list[str] = []
        s.learn(learner or NoLearner(), 60.0, lambda done, total, text: progress.append(text))
        s.close()
        return progress

    return run


def test_episodes_are_recorded_with_corrections_and_marks(session: Any, play: Any, out: Path) -> None:
    held = Operator(held=True, motion=(0.0, 0.3, 0.0), gripper=1.0)
    # Eight steps under the policy; then two corrections, and the operator's mark.
    s = session(*[RELEASED] * 11, held, held, RELEASED, held, Operator(success=True), camera=True)
    assert play(s, 2) == ["s, 1 episodes: 0/1 won, 0 helped, v-1", "s, 2 episodes: 1/2 won, 1 helped, v-1"]
    data = Dataset(out / "dataset")
    assert verify(data.root) == [] and [e.length for e in data.episodes] == [8, 8]
    columns = data.columns(["action", "action.policy", "intervention", "next.success", "next.done"])
    flags = columns["intervention"].flatten().tolist()
    assert flags == [False] * 8 + [False] * 3 + [True] * 2 + [False, True, False]
    physical = s.env.pipeline.actions.to_physical(torch.tensor([[0.0, 0.3, 0.0, 0.0]]))[0]
    assert torch.allclose(columns["action"][11, :3], physical[:3], atol=1e-6)
    assert not torch.allclose(columns["action"][11], columns["action.policy"][11])
    assert torch.allclose(columns["action"][:8], columns["action.policy"][:8])
    assert columns["next.success"].flatten().nonzero().flatten().tolist() == [15]
    assert columns["next.done"].flatten().nonzero().flatten().tolist() == [7, 15]
    assert "observation.images.front" in data.features
    rows, events = read_rows(out / "episodes.jsonl"), read_rows(out / "events.jsonl")
    figures = [[r[key] for key in ("index", "success", "takeovers", "intervention_steps")] for r in rows]
    assert figures == [[0, False, 0, 0], [1, True, 2, 3]]
    phases = [e["what"] for e in events if e["event"] == "phase"]
    assert phases == ["resetting", "running", "failure", "resetting", "running", "success"]
    assert "correcting" in [e["what"] for e in events if e["event"] == "operator" and e["episode"] == 1]
    summary = s.summary()
    assert summary["episodes"] == 2 and summary["success"] == 0.5 and summary["corrected_episodes"] == 1
    assert summary["autonomous_success"] == 0.0, "the other episode was corrected"
    assert summary["intervention_share"] == pytest.approx(3 / 16)
    parts = corrections(episodes_of(data, EnvInfo.of(s.env.pipeline), 0, successes=False)[1])
    assert [len(p["action"]) for p in parts] == [2, 1], "as the learner reads them"
    for part in parts:
        assert torch.allclose(part["action"], torch.tensor([0.0, 0.3, 0.0, 1.0]), atol=1e-5)


def test_episode_that_ends_by_the_failure_test_is_no_success(session: Build, play: Build) -> None:
    s = session(interface=replace(LIFT, success="", failure="reached:cube:2"))  # always true
    play(s, 1)
    assert s.episodes[0]["steps"] == 1 and s.episodes[0]["success"] is False and s.summary()["success"] == 0


@pytest.mark.parametrize(("timeout", "stale"), [(60.0, 0), (0.01, 8)])
def test_stale_pictures_are_counted(session: Build, play: Build, out: Path, timeout: float, stale: int) -> None:
    """The camera sent one picture, long before the episode: each video frame repeats it."""
    s = session(camera=True)
    s.env.loop.safety = replace(s.env.loop.safety, picture_timeout=timeout)
    play(s, 1)
    assert s.episodes[0]["steps"] == 8 and s.episodes[0]["stale_pictures"] == stale
    assert s.env.summary()["shield"].get("stale picture", 0) == stale
    row = json.loads((out / "episodes.jsonl").read_text())
    data = Dataset(out / "dataset")
    assert verify(data.root) == [] and data.episodes[0].length == 8
    assert row["stale_pictures"] == data.episodes[0].record["stale_pictures"] == stale
    frames = data.frames("observation.images.front", range(8)).float()
    assert (frames - 90).abs().max() <= 3, "the last picture, not black"


def test_recorded_pictures_precede_the_action(session: Build, play: Build, monkeypatch: Any, out: Path) -> None:
    """As in demonstrations in simulation."""
    s = session(camera=True)
    monkeypatch.setattr(s.env.driver.scene, "image", lambda name: np.full((16, 16, 3), 20 * s.env.steps, np.uint8))
    play(s, 2)
    frames = Dataset(out / "dataset").frames("observation.images.front", range(16)).float()
    assert (frames.flatten(1).mean(1) - 20 * (torch.arange(16) % 8)).abs().max() < 5


def test_newer_weights_load_and_sessions_resume(session: Any, play: Any, out: Path, residual: Any, same: Any) -> None:
    """A killed session may leave a row of an episode that was not written: its row is dropped."""
    s = session()
    newer = residual(SIZE, 4, std=None, zero_init=False)

    def learn(call: int) -> None:
        publish(out, SimpleNamespace(average=newer.actor, policy=newer), call)

    play(s, 3, NoLearner(learn))
    assert [e["policy_version"] for e in s.episodes] == [-1, 1, 2], "published in episode k, used from k + 1 on"
    assert same(s.policy.actor.state_dict(), newer.actor.state_dict())
    for part in (s.run, s.env, s.env.node):
        part.close()
    path = out / "episodes.jsonl"
    path.write_text(path.read_text() + json.dumps(s.episodes[-1] | {"index": 3, "lost": True}) + "\n")

    again = session(resume=True)
    assert again.recorder.writer.num_episodes == 3
    play(again, 1)
    assert [e["policy_version"] for e in again.episodes] == [3], "the last published weights"
    rows = read_rows(path)
    assert [r["index"] for r in rows] == [0, 1, 2, 3] and "lost" not in rows[3]
    data = Dataset(out / "dataset")
    assert data.num_episodes == 4 and verify(data.root) == []


def test_interrupted_episode_is_dropped_and_earlier_ones_are_kept(session: Build, play: Build, out: Path) -> None:
    s = session()
    steps = []

    def interrupted(step: Any) -> None:
        steps.append(step)
        if len(steps) == 11:
            raise KeyboardInterrupt

    s.env.stream.on_step(interrupted)
    with pytest.raises(KeyboardInterrupt):
        play(s, 9)
    s.close()
    data = Dataset(out / "dataset")
    assert [e.length for e in data.episodes] == [8] and verify(data.root) == []


def test_signal_after_an_episode_keeps_it(stopping: None, session: Any, play: Any, monkeypatch: Any, out: Path) -> None:
    s = session()
    write = s.journal._write

    def write_and_stop(name: str, row: dict[str, Any]) -> None:
        write(name, row)
        if name == "episodes.jsonl":
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(s.journal, "_write", write_and_stop)
    with pytest.raises(KeyboardInterrupt):
        play(s, 9)
    s.close()
    data = Dataset(out / "dataset")
    assert data.num_episodes == s.summary()["episodes"] == 1 and verify(data.root) == []


def test_signal_waits_for_writing_to_end(stopping: None, session: Any, play: Any, monkeypatch: Any, out: Path) -> None:
    s = session()
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
    with pytest.raises(KeyboardInterrupt):
        play(s, 1)
    data = Dataset(out / "dataset")
    assert data.num_episodes == s.summary()["episodes"] == 1 and verify(data.root) == []


@pytest.mark.parametrize(("end", "terminated"), [("failure", True), ("stop", False), ("", False)])
def test_only_a_failure_is_learned_as_terminal(session: Any, play: Any, out: Path, end: str, terminated: bool) -> None:
    s = session(*[RELEASED] * 3, Operator(**{end: True}) if end else RELEASED)
    play(s, 1)
    (episode,) = episodes_of(Dataset(out / "dataset"), EnvInfo.of(s.env.pipeline), 0, successes=False)
    steps = len(episode["action"])
    assert steps == (4 if end else LIFT.horizon) and not episode["reward"].any()
    assert episode["terminated"].tolist() == [False] * (steps - 1) + [terminated]
    replay = demo_replay(ActorCritic(s.policy, ActorCriticConfig()), [episode], torch.Generator().manual_seed(0))
    batch = replay.sample(64, Sampling(3, 0.9), torch.Generator().manual_seed(0))
    assert bool((batch["discount"] == 0).any()) is terminated, "no bootstrapping after a failure"


def test_policy_plans_a_new_chunk_after_a_correction(session: Any, play: Any, monkeypatch: Any) -> None:
    held = Operator(held=True)
    s = session(held, held, RELEASED)
    planned_at: list[int] = []
    infer = s.policy.base.infer

    def counted(*arguments: Any) -> Any:
        planned_at.append(s.env.steps)
        return infer(*arguments)

    monkeypatch.setattr(s.policy.base, "infer", counted)
    play(s, 1)
    # execute = 2: at 0 and 2 in any case; released at 2, so again at 3, 5 and 7.
    assert planned_at == [0, 2, 3, 5, 7]


def test_video_keeps_corrected_episodes_and_marks_corrected_frames(tmp_path: Path) -> None:
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


def test_full_disk_keeps_the_old_video(tmp_path: Path) -> None:
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
def test_video_shows_the_robots_first_camera(cameras: tuple[str, ...]) -> None:
    pictures = {name: np.full((8, 8, 3), k + 1, np.uint8) for k, name in enumerate(cameras)}
    scene = SimpleNamespace(images=pictures, image=pictures.get)
    env: Any = SimpleNamespace(driver=SimpleNamespace(scene=scene), stream=Stream(), period=0.1)
    film = VideoRecorder(1)
    film.attach(env)
    zero = torch.zeros(1, 1)
    env.stream.step(StepRecord(zero, zero, zero, 0.0, False, True, False, False, False, False, False, 1))
    assert film.rate == 10 and [int(frame.max()) for frame in film.frames] == [1] * len(cameras[:1])
