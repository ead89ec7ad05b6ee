"""Recorded episodes: loading datasets of other programs for training, and episodes as an environment."""

import json
import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from robot_rl.data import DatasetWriter, EpisodeData, Feature
from robot_rl.data.lerobot import DatasetError, WrongDataset
from robot_rl.data.recorded import RecordedEnv
from robot_rl.data.recording import INTERVENTIONS, load_episodes
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.observation_spec import ObservationSpec, picture_field
from robot_rl.interface.spec import Field, VectorSpec, numbered

INFO = EnvInfo("apart", numbered("state", [-1.0] * 3, [1.0] * 3), numbered("action", [-2.0] * 2, [2.0] * 2), 10.0)
FRONT = "observation.images.front"


def write(root: Path, lengths: tuple[int, ...] = (4, 6), fps: float = 10, **more: Any) -> Path:
    """Write episodes with states 0 and actions 1; `more` adds or replaces columns, (sum of lengths, ...)."""
    total = sum(lengths)
    columns = {"observation.state": np.zeros((total, 3), np.float32), "action": np.ones((total, 2), np.float32)}
    named = {name if name in INTERVENTIONS else name.replace("_", "."): values for name, values in more.items()}
    columns |= {name: np.asarray(values) for name, values in named.items()}
    features = {key: Feature(values.dtype.name, values.shape[1:] or (1,)) for key, values in columns.items()}
    with DatasetWriter.create(root, fps=10, features=features, robot_type="so100") as writer:
        ends = np.cumsum(lengths)
        for start, end in zip(ends - lengths, ends, strict=True):
            writer.add_episodes([EpisodeData({k: v[start:end] for k, v in columns.items()}, "put the cup down")])
    if fps != 10:
        info = json.loads((root / "meta/info.json").read_text())
        (root / "meta/info.json").write_text(json.dumps(info | {"fps": fps}))
    return root


def test_unmarked_episodes_succeed_in_their_last_frame_with_a_warning(tmp_path: Path, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        episodes = load_episodes(write(tmp_path / "data"), INFO)
    assert [each["reward"].tolist() for each in episodes] == [[0, 0, 0, 1], [0, 0, 0, 0, 0, 1]]
    assert all(torch.equal(each["terminated"], each["reward"] > 0) for each in episodes)
    assert all(not each["intervention"].any() and (each["action"] == 0.5).all() for each in episodes)
    dense = write(tmp_path / "dense", next_reward=np.linspace(-3, 0.5, 10, dtype=np.float32))
    with caplog.at_level(logging.WARNING):
        assert len(load_episodes(dense, INFO)) == 2, "a dense reward marks nothing"
    assert len(caplog.messages) == 2 and all("all 2 episodes" in message for message in caplog.messages)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool])
def test_a_reward_of_0_and_1_marks_successes(tmp_path: Path, caplog, dtype: type) -> None:
    rewards = np.array([0, 0, 0, 1, *[0] * 6]).astype(dtype)
    root = write(tmp_path / "data", next_reward=rewards, next_done=np.ones(10, bool))
    with caplog.at_level(logging.WARNING):
        kept, both = load_episodes(root, INFO), load_episodes(root, INFO, successes=False)
    assert [each["reward"].tolist() for each in kept] == [[0, 0, 0, 1]]
    assert [each["terminated"].any().item() for each in both] == [True, False]
    assert caplog.messages == []
    with pytest.raises(WrongDataset, match=r"no successful episode.*next\.reward"):
        load_episodes(write(tmp_path / "failures", next_reward=rewards * 0), INFO)


def test_a_non_finite_reward_is_refused(tmp_path: Path) -> None:
    root = write(tmp_path / "data", next_reward=np.zeros(10, np.float32), next_success=np.ones(10, bool))
    path = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    at = table.column_names.index("next.reward")
    pq.write_table(table.set_column(at, "next.reward", pa.array([float("nan")] * 4, pa.float32())), path)
    with pytest.raises(DatasetError, match="next.reward of episode 0, frame 0, is not finite"):
        load_episodes(root, INFO, "task")


@pytest.mark.parametrize("name", ["intervention", "complementary_info.is_intervention", "is_intervention"])
def test_intervention_columns_of_other_programs_are_read(tmp_path: Path, name: str) -> None:
    marks = np.arange(10, dtype=np.float32) % 2
    root = write(tmp_path / "data", (10,), **{name: marks})
    assert load_episodes(root, INFO)[0]["intervention"].tolist() == [bool(m) for m in marks]


def test_a_truncation_column_without_next_done_terminates_nothing(tmp_path: Path) -> None:
    root = write(tmp_path / "data", next_truncated=np.zeros(10, bool), next_success=np.zeros(10, np.int8))
    assert all(not each["terminated"].any() for each in load_episodes(root, INFO, successes=False))


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "uint8"])
def test_states_and_actions_of_any_number_type_become_float32(tmp_path: Path, dtype: str) -> None:
    columns = {"observation_state": np.ones((10, 3), dtype), "action": np.ones((10, 2), dtype)}
    for each in load_episodes(write(tmp_path / "data", **columns), INFO):
        assert each["observation.state"].dtype == each["action"].dtype == each["reward"].dtype == torch.float32
        assert (each["observation.state"] == 1).all() and (each["action"] == 0.5).all()


@pytest.mark.parametrize(("fps", "rate", "fits"), [(29.97, 30.0, True), (29.97, 29.97, True), (30, 30000 / 1001, True),
                                                   (20.9, 20.0, False), (10, 10.5, False)])  # fmt: skip
def test_the_frame_rate_must_be_the_tasks(tmp_path: Path, fps: float, rate: float, fits: bool) -> None:
    root = write(tmp_path / "data", fps=fps)
    info = EnvInfo("apart", INFO.state, INFO.actions, rate)
    if fits:
        assert len(load_episodes(root, info)) == 2
    else:
        with pytest.raises(WrongDataset, match=rf"rate +{fps} Hz +{rate:g} Hz"):
            load_episodes(root, info)


def test_a_depth_camera_in_place_of_a_camera_is_shown_as_different(tmp_path: Path) -> None:
    root = write(tmp_path / "data")
    info = json.loads((root / "meta/info.json").read_text())
    info["features"][FRONT] = {"dtype": "image", "shape": [96, 96, 1], "names": ["height", "width", "channels"]}
    (root / "meta/info.json").write_text(json.dumps(info))
    wanted = EnvInfo("apart", INFO.state, INFO.actions, 10.0, ObservationSpec.of(**{FRONT: picture_field(96, 96)}))
    with pytest.raises(WrongDataset) as error:
        load_episodes(root, wanted)
    _, theirs, ours = str(error.value).splitlines()[-1].strip().split("  ", 2)
    assert theirs.strip() != ours.strip()


JOINTS = VectorSpec((Field("joint", ("a", "b", "c"), "rad", (-2.9, -1.7, 0.0), (2.9, 1.7, 3.7)),))
ARM = EnvInfo("arm", JOINTS, VectorSpec((Field("delta", ("x", "y"), "m", (-0.02,) * 2, (0.02,) * 2),)), 10.0)
WAVE = np.linspace(-1, 1, 50)[:, None]
STATE = WAVE * [1.2, 0.6, 0.5] + [0.0, 0.2, 1.5]


@pytest.mark.parametrize(("state", "action", "words"), [
    (STATE * 180 / math.pi, WAVE * [0.01, 0.02], r"observation\.state 'joint\.\w'.* rad.*degrees"),
    (STATE, WAVE * [10, 20], r"action 'delta\.\w'.* m"),
    (STATE, np.where(WAVE > 0.5, 40.0, 0.01) * [1, 1], r"action 'delta\.\w'"),
])  # fmt: skip
def test_numbers_in_other_units_are_refused(tmp_path: Path, state: np.ndarray, action: np.ndarray, words: str) -> None:
    with pytest.raises(WrongDataset, match=words) as error:
        load_episodes(write(tmp_path / "data", (50,), observation_state=state, action=action), ARM)
    assert error.value.code == 2


def test_single_outliers_are_read_and_clipped_actions_give_a_warning(tmp_path: Path, caplog) -> None:
    spike = np.where(np.arange(50)[:, None] == 7, 50.0, 0.0)
    action = WAVE * [0.01, 0.03]
    with caplog.at_level(logging.WARNING):
        root = write(tmp_path / "data", (50,), observation_state=STATE * 2 + spike, action=action)
        episodes = load_episodes(root, ARM)
    assert len(episodes) == 1 and episodes[0]["action"].abs().max() == 1
    assert any("clipped" in message for message in caplog.messages)


# ---- recorded episodes as an environment ---------------------------------------------------------------------------
ACTIONS = torch.tensor([[0.0], [1.0], [2.0], [9.0]])


@pytest.mark.parametrize(("decides", "same_names", "hold"), [
    (1, True, [10, 1, 1, 7]), (2, True, [10, 9, 1, 8]), (2, False, [3, 2, 1, 8]), (4, True, [10, 9, 8, 1])
])  # fmt: skip
def test_errors_of_policy_and_baselines(decides: int, same_names: bool, hold: list[float]) -> None:
    """The recorded action 9 exceeds the limit of 5; the mean action is 3, and the policy's action is 5."""
    actions = numbered("joint", [-5.0], [5.0])
    info = EnvInfo("apart", actions if same_names else numbered("state", [-5.0], [5.0]), actions, 10.0)
    env = RecordedEnv([{"observation.state": ACTIONS + 10, "action": ACTIONS}], info, 2, decides, seed=7)
    observation, _ = env.reset(seed=7)
    errors: dict[str, list[float]] = {}
    for t in range(4):
        assert observation["observation.state"].tolist() == [[10.0 + ACTIONS[t, 0]]] * 2
        observation, _, terminated, truncated, infos = env.step(torch.ones(2, 1))
        assert not terminated.any() and truncated.tolist() == [t == 3] * 2
        for name, values in infos["metrics"].items():
            errors.setdefault(name, []).append(values[1].item())
    assert errors["action/joint.0"] == [5, 4, 3, 4] and errors["hold/joint.0"] == hold
    assert errors["mean/joint.0"] == [3, 2, 1, 6]
    assert errors["action_error"] == pytest.approx([0.5, 0.4, 0.3, 0.4]), "relative to the range of 10"
    assert observation["observation.state"].tolist() == [[10.0]] * 2, "the episode is played again"


def test_the_seed_selects_the_episodes() -> None:
    spec = numbered("joint", [-5.0], [5.0])
    episodes = [{"observation.state": ACTIONS[k : k + 1], "action": ACTIONS[:1]} for k in range(3)]
    env = RecordedEnv(episodes, EnvInfo("apart", spec, spec, 10.0), 2, seed=100)
    states = [env.reset(seed=100 + k)[0]["observation.state"].flatten().tolist() for k in (0, 1, 2)]
    assert states == [[0, 1], [1, 2], [2, 0]]
