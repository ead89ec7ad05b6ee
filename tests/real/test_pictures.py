"""Cameras of a robot as a policy sees them: resizing, staleness, and a classifier as the success test."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.base import Observation, Size
from policies.bundle import Bundle, save_bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from real import clock
from real.bus import make, open_node, qos
from real.bus.stamps import stamp
from real.drivers import open_driver
from real.drivers.state import NotReady
from real.episode.env import RobotEnv
from real.episode.pictures import resized
from robot_rl.cli.deploy import Deploy
from robot_rl.interface.driver import SafetyConfig
from robot_rl.interface.pipeline import Interface, Picture, Pipeline
from robot_rl.util.errors import UserError
from sim.tasks import tasks

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
STILL = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
PICTURES = (Picture("front", 12, 16), Picture("wrist", 8, 8))
CAMERAS = tasks.get("panda-lift-cameras")
SEES = replace(CAMERAS.interface, pictures=PICTURES, horizon=100)
Build = Callable[..., Any]


def ago(seconds: float) -> int:
    return clock.ros_time() - round(1e9 * seconds)


class Cameras:
    """Two cameras at 50 Hz, of 32x24 pixels each."""

    repeats_pixels = False  # repeat the same pixels under new stamps
    stamped = True  # increment the stamp of each frame
    aged: float | None = None  # stamp frames this long ago, s; None: by another clock
    encoding = "rgb8"
    count = 0

    def __init__(self, node: Any, frames: dict[str, np.ndarray]):
        self.node, self.frames, self.names = node, dict(frames), set(frames)
        image = "sensor_msgs/msg/Image"
        self.publishers = {name: node.publisher(image, f"{name}/image_raw", qos.SENSOR) for name in frames}
        self._closing = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.wait(0.02):
            self.count += self.stamped
            for name in sorted(self.names):
                frame = self.frames[name].copy()
                height, width = frame.shape[:2]
                # Stands for the noise of a camera.
                frame[height // 2, width // 2] = 0 if self.repeats_pixels else 37 * self.count % 200
                at = {"sec": 1 + self.count, "nanosec": 0} if self.aged is None else stamp(ago(self.aged))
                header = {"stamp": at, "frame_id": name}
                size = {"height": height, "width": width, "step": 3 * width}
                image = {"header": header, "encoding": self.encoding, "data": frame.reshape(-1)} | size
                self.publishers[name].publish(make("sensor_msgs/msg/Image", **image))

    def close(self) -> None:
        self._closing.set()
        self._thread.join()


def picture(height: int = 24, width: int = 32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


@pytest.fixture
def cameras(private_domain: int) -> Iterator[Build]:
    with ExitStack() as made:

        def build(**frames: np.ndarray) -> Cameras:
            node = made.enter_context(open_node("cameras"))
            shown = Cameras(node, frames or {"front": picture(), "wrist": picture(seed=1)})
            return made.enter_context(closing(shown))

        yield build


@pytest.fixture
def env(robot_env: Build) -> Build:
    """Tolerate slow machines, except for the limits that a test sets."""

    def build(interface: Interface = SEES, classifier: Any = None, **limits: float) -> RobotEnv:
        names = ("object_timeout", "picture_timeout", "lost_timeout")
        loop = {"state_timeout": 1.0, "goal_timeout": 1.0, "max_misses": 200, "max_gap": 1.0}
        safety = SafetyConfig(**(loop | dict.fromkeys(names, 5.0) | limits))
        return robot_env(interface, classifier=classifier, safety=safety)

    return build


def test_policy_sees_each_camera_at_its_pictures_size(env: Build, robot: Any, cameras: Build) -> None:
    shown = cameras()
    shown.repeats_pixels = True
    e = env()
    observation, _ = e.reset(seed=0)
    for _ in range(2):
        e.pipeline.observation_spec.check(observation)
        assert e.observation_space[FRONT].shape == (1, 12, 16, 3)
        for name, key, size in (("front", FRONT, (12, 16)), ("wrist", WRIST, (8, 8))):
            frame = shown.frames[name].copy()
            frame[frame.shape[0] // 2, frame.shape[1] // 2] = 0
            assert np.array_equal(observation[key][0].numpy(), resized(frame, *size)), name
        observation, *_ = e.step(STILL)


def test_age_of_the_pictures_that_the_policy_used(env: Build, robot: Any, cameras: Build, eventually: Build) -> None:
    """From the camera's stamp to the goal; from the arrival if the camera's clock is another one."""
    shown = cameras()
    e = env()
    e.reset(seed=0)
    e.step(STILL)
    assert 0 <= e.picture_ages.newest < 5 and len(e.picture_ages) == 1
    shown.aged = 0.6
    eventually(lambda: e.pictures.look() or min(ago(0) / 1e9 - at for at in e.pictures._taken.values()) > 0.6)
    for _ in range(3):
        e.step(STILL)
    assert 0.6 < e.picture_ages.newest < 5
    assert e.summary()["picture_age_ms"]["max"] > 600
    assert 600 < float(e.diagnostics._inferences()["picture age newest ms"]) < 5000


def test_missing_camera_of_the_policy_is_named_at_the_start(robot: Any, cameras: Build) -> None:
    cameras(front=picture())
    driver = open_driver(robot.node, robot.robot, ("cube",), ("front", "wrist"))
    driver.scene.needed = ("front", "wrist")
    with pytest.raises(NotReady, match="no picture on /wrist/image_raw within 0.5 s; the policy sees /wrist/image_raw"):
        driver.preflight.wait_ready(0.5)


@pytest.mark.parametrize(
    ("frame", "encoding", "message"),
    [
        (picture(10, 32), "rgb8", "front/image_raw: camera 'front' sends 32x10 pixels, and the policy sees 16x12"),
        (picture(), "mono8", "camera 'front' sent an invalid image .*mono8"),
    ],
)
def test_unusable_camera_is_refused_at_the_start(
    env: Build, robot: Any, cameras: Build, frame: np.ndarray, encoding: str, message: str
) -> None:
    cameras(front=frame, wrist=picture()).encoding = encoding
    with pytest.raises(NotReady, match=message):
        env()
    assert all(np.abs(c - robot.robot.home).max() < 1e-6 for c in robot.commands)


@pytest.mark.parametrize(
    ("names", "stamped", "message"),
    [
        ({"front"}, True, "for 0.3 s .*wrist/image_raw: camera 'wrist' sends nothing new"),
        ({"front", "wrist"}, False, "for 0.3 s .*camera '(front|wrist)' repeats the frame of"),
    ],
)
def test_failed_camera_stops_the_arm_and_then_the_episode(
    env: Build, robot: Any, cameras: Build, eventually: Build, names: Any, stamped: bool, message: str
) -> None:
    shown = cameras()
    e = env(picture_timeout=60.0)
    e.reset(seed=0)
    e.step(STILL)
    shown.names, shown.stamped = names, stamped
    e.loop.safety = replace(e.loop.safety, picture_timeout=0.1)
    eventually(lambda: e.pictures.age() > 0.1)
    before = e.loop.goals
    e.step(torch.tensor([[1.0, 0.0, 0.0, 1.0]]))
    assert e.loop.goals == before and e.loop.events.counts["stale view"] >= 1
    e.loop.safety = replace(e.loop.safety, state_timeout=0.3, lost_timeout=0.3)
    with pytest.raises(NotReady, match=message):
        for _ in range(40):
            e.step(STILL)


def test_same_picture_is_valid_until_the_arm_moves(env: Any, robot: Any, cameras: Any, eventually: Any) -> None:
    shown = cameras()
    shown.repeats_pixels = True
    e = env()
    e.reset(seed=0)
    count = shown.count
    eventually(lambda: shown.count > count + 10)
    e.step(STILL)
    assert e.pictures.age() < 1.0
    robot.follows, robot.position = False, robot.position + 0.06
    count = shown.count
    eventually(lambda: shown.count > count + 10)
    with pytest.raises(NotReady, match="shows the same although the arm has moved"):
        for _ in range(100):
            e.pictures.read(0.3)
            e.ticker.wait()
    shown.repeats_pixels = False
    eventually(lambda: e.pictures.age() < 0.3)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12), st.integers(1, 12), st.integers(0, 255))
def test_uniform_frame_stays_uniform(height: int, width: int, rows: int, columns: int, value: int) -> None:
    height, width = max(height, rows), max(width, columns)
    frame = np.full((height, width, 3), value, np.uint8)
    assert np.array_equal(resized(frame, rows, columns), np.full((rows, columns, 3), value, np.uint8))


def test_frame_is_cropped_about_its_centre_and_averaged() -> None:
    frame = np.zeros((4, 10, 3), np.uint8)
    frame[:, 3:7] = np.arange(16, dtype=np.uint8).reshape(4, 4, 1) * 8
    small = resized(frame, 2, 2)[..., 0]
    blocks = frame[:, 3:7, 0].reshape(2, 2, 2, 2).mean((1, 3))
    assert np.array_equal(small, blocks.round())
    assert np.array_equal(resized(frame, 4, 10), frame)


# ---- a classifier as the success test ----------------------------------------------------------------------------
def test_classifier_judges_by_pictures(env: Build, robot: Any, cameras: Build, verdict: Build) -> None:
    """It needs no object pose."""
    robot.blind = True
    cameras()
    e = env(classifier=verdict(front=(12, 16), wrist=(8, 8)))
    for _ in range(2):
        e.reset(seed=0)
        ended = [bool(e.step(STILL)[2]) for _ in range(e.classifier.hold)]
        assert ended == [False] * (e.classifier.hold - 1) + [True], "counted anew in each episode"
    e.judge.hold.reset()
    _, reward, terminated, _, infos = e.step(STILL)
    assert not reward and not terminated and not infos["success"]


def test_classifier_may_read_another_camera(env: Build, robot: Any, cameras: Build, verdict: Build) -> None:
    cameras(front=picture())
    blind = replace(tasks.get("panda-lift").interface, horizon=20)
    e = env(blind, classifier=verdict(front=(12, 16)))
    observation, _ = e.reset(seed=0)
    assert set(observation) == {"observation.state"}
    results = [e.step(STILL) for _ in range(e.classifier.hold)]
    assert bool(results[-1][4]["success"]) and not bool(results[-2][4]["success"])
    assert e.pictures.read(1000.0)[FRONT].shape == (1, 12, 16, 3)


@pytest.mark.parametrize(("always", "picture_timeout"), [(False, 60.0), (True, 1e-9)])
def test_no_success_without_the_classifier_or_with_old_pictures(
    env: Build, robot: Any, cameras: Build, verdict: Build, always: bool, picture_timeout: float
) -> None:
    cameras()
    e = env(replace(SEES, horizon=6), verdict(always, front=(12, 16)), picture_timeout=picture_timeout)
    e.reset(seed=0)
    x, y, z = e.state.tool_position[0].tolist()
    robot.cube = np.array([x, y, z])  # lifted, for the task's own test
    results = [e.step(STILL) for _ in range(6)]
    assert not any(bool(infos["success"]) for *_, infos in results) and bool(results[-1][3])


def test_classifier_of_another_picture_size_is_refused(robot_env: Build, robot: Any, verdict: Build) -> None:
    with pytest.raises(UserError, match="front of 24x32 pixels, which is 12x16 pixels here"):
        robot_env(SEES, classifier=verdict(front=(24, 32)))


# ---- on a twin ---------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("stopping", "short_bare_loop", "private_domain")
def test_policy_with_two_cameras_runs_on_a_twin(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    pipeline = Pipeline(CAMERAS.interface)
    config = DiffusionConfig(horizon=8, execute=4, hidden=32, layers=1, train_steps=10, sample_steps=2)
    policy = DiffusionPolicy(Size(pipeline.observer.spec.size, pipeline.actions.size, pipeline.extra_inputs), config)
    save_bundle(Bundle(policy, CAMERAS.interface, pipeline.robot.fingerprint()), tmp_path / "bundle")
    seen: list[Observation] = []
    condition: Callable[..., torch.Tensor] = DiffusionPolicy.condition

    def watched(self: DiffusionPolicy, observation: Observation) -> torch.Tensor:
        seen.append(observation)
        return condition(self, observation)

    monkeypatch.setattr(DiffusionPolicy, "condition", watched)
    options: dict[str, Any] = dict(episodes=1, seconds=2.0, video_episodes=0, out=tmp_path / "run", json=True)
    code = Deploy(tmp_path / "bundle", twin=True, **options).run()
    result = json.loads(capsys.readouterr().out)
    assert code == 0 and result["where"] == "twin" and result["stopped"] == "" and "ended" not in result
    for observation in seen[-5:]:
        pipeline.observation_spec.check(observation)
    fronts = [o["observation.images.front"] for o in seen]
    assert len({bytes(f.numpy().tobytes()) for f in fronts}) > 3, "the pictures show motion"
    events = json.loads((tmp_path / "run" / "loop.json").read_text())["shield"]
    assert events.get("stale view", 0) < 10
