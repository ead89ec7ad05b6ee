"""Recorded columns, and errors of the writer's thread."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from real.episode.stream import StepRecord
from real.recording.recorder import WAITING, Recorder
from robot_rl.data import Dataset, DatasetError, DatasetWriter, verify
from robot_rl.data.recording import SHIELD, STATE_AGE, features, load_episodes
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.shield import REASONS
from sim.tasks import tasks

PIPELINE = Pipeline(tasks.get("panda-lift").interface)
SIZE = PIPELINE.observer.spec.size


def step(k: int, corrected: bool = False, done: bool = False, policy: Any = None) -> StepRecord:
    executed = torch.tensor([[0.1 * k, 0.0, -0.1 * k, 1.0]])
    wanted = executed if policy is None else policy
    nothing = {"truncated": False, "takeover": False, "marked": False, "discarded": False}
    return StepRecord(
        torch.full((1, SIZE), k / 64), wanted, executed, float(done), done, done, intervention=corrected, steps=k + 1,
        **nothing,
    )


@pytest.fixture
def recorder(tmp_path: Path) -> Callable[..., Recorder]:
    return lambda **images: Recorder(tmp_path / "dataset", PIPELINE, images)


def test_executed_and_policy_actions_are_recorded(recorder: Callable[..., Recorder]) -> None:
    r = recorder()
    wanted = torch.tensor([[-0.5, 0.5, 0.5, -1.0]])
    r.add(step(0), {})
    r.add(step(1, corrected=True, policy=wanted), {})
    r.add(step(2, done=True, policy=torch.tensor([[float("nan"), float("inf"), 0.0, 0.0]])), {})
    r.end_episode({"success": True, "policy_version": 7})
    r.close()
    data = Dataset(root := r.writer.root)
    assert verify(root) == []
    columns = data.columns(["action", "action.policy", "intervention", "next.reward", "next.done", "next.success"])
    physical = PIPELINE.actions.to_physical
    executed = torch.cat([step(k).executed for k in range(3)])
    assert torch.allclose(columns["action"], physical(executed))
    assert torch.allclose(columns["action.policy"][1], physical(wanted)[0])
    assert columns["action.policy"].isfinite().all()
    assert columns["intervention"].flatten().tolist() == [False, True, False]
    for name in ("next.reward", "next.done", "next.success"):
        assert columns[name].flatten().tolist() == [0, 0, 1]
    (episode,) = load_episodes(root, EnvInfo.of(PIPELINE))
    assert torch.allclose(episode["action"], executed, atol=1e-6), "learners read executed actions"
    assert episode["observation.state"][:, 0].tolist() == [0, 1 / 64, 2 / 64]
    assert data.robot_type == "panda" and data.fps == 20


def test_changes_of_the_shield_and_ages_of_states_are_recorded(recorder: Callable[..., Recorder]) -> None:
    r = recorder()
    bits = [0, 1 << REASONS.index("workspace"), 1 << REASONS.index("nonfinite") | 1 << REASONS.index("held")]
    for k, bit in enumerate(bits):
        r.add(replace(step(k, done=k == 2), shield=bit, state_age=0.004 * k), {})
    r.end_episode({})
    r.close()
    columns = Dataset(r.writer.root).columns([SHIELD, STATE_AGE])
    assert columns[SHIELD].flatten().tolist() == bits == [0, 4, 33]
    assert columns[STATE_AGE].flatten().tolist() == pytest.approx([0.0, 0.004, 0.008])


def test_datasets_without_these_columns_grow_and_mix_with_new_ones(
    recorder: Callable[..., Recorder], tmp_path: Path
) -> None:
    info = EnvInfo.of(PIPELINE)
    old = {k: v for k, v in features(info).items() if k not in (SHIELD, STATE_AGE)}  # nor next.truncated
    DatasetWriter.create(tmp_path / "dataset", fps=20, features=old).close()
    for root in (tmp_path / "dataset", tmp_path / "new"):
        r = Recorder(root, PIPELINE, {})
        for k in range(3):
            r.add(replace(step(k, done=k == 2), shield=4, state_age=0.01), {})
        r.end_episode({"success": True})
        r.close()
        assert verify(root) == [] and (SHIELD in Dataset(root).features) == (root.name == "new")
    mixed = [load_episodes(tmp_path / name, info) for name in ("dataset", "new")]
    assert mixed[0][0].keys() == mixed[1][0].keys()
    assert all(torch.equal(mixed[0][0][key], mixed[1][0][key]) for key in ("observation.state", "action", "reward"))


@pytest.mark.parametrize("key", ["observation.state", "action"])
def test_non_finite_values_are_refused_by_learners(recorder: Callable[..., Recorder], key: str) -> None:
    r = recorder()
    for k in range(3):
        r.add(step(k, done=k == 2), {})
    r.end_episode({"success": True, "policy_version": 7})
    r.close()
    (file,) = r.writer.root.glob("data/*/*.parquet")  # other programs' writers may not refuse such values
    table = pq.read_table(file)
    rows = table[key].to_pylist()
    rows[1][0] = float("inf")
    column = pa.array(rows, table[key].type)
    pq.write_table(table.set_column(table.column_names.index(key), table.schema.field(key), column), file)
    with pytest.raises(DatasetError, match=f"{key} of episode 0, frame 1, is not finite"):
        load_episodes(r.writer.root, EnvInfo.of(PIPELINE))


def test_pictures_are_copied_and_missing_ones_black(recorder: Callable[..., Recorder]) -> None:
    r = recorder(front=(16, 16))
    live = np.full((16, 16, 3), 200, np.uint8)
    r.add(step(0), {})
    r.add(step(1), {"front": live})
    live[:] = 0  # the driver reuses its buffer
    r.end_episode({})
    r.close()
    stored = Dataset(r.writer.root).frames("observation.images.front", [0, 1])
    assert stored[0].max() < 10 and stored[1].min() > 190, "within the loss of the video codec"
    assert verify(r.writer.root) == []


def test_close_writes_episodes_and_the_next_recorder_appends(recorder: Callable[..., Recorder]) -> None:
    for expected in (3, 6):
        r = recorder()
        with pytest.raises(DatasetError):
            recorder()  # a second one at the same time
        for _ in range(3):
            r.add(step(1, done=True), {})
            r.end_episode({})
            r.end_episode({})  # an empty episode
        r.add(step(2), {})  # an interrupted episode
        r.close()
        assert Dataset(r.writer.root).num_episodes == expected and verify(r.writer.root) == []


def test_only_a_bounded_number_of_episodes_waits_in_memory(recorder: Any, monkeypatch: Any, eventually: Any) -> None:
    """`end_episode` returns while the writer works, until the queue is full."""
    resume, ended = threading.Event(), []
    monkeypatch.setattr(DatasetWriter, "add_episode", lambda *_: resume.wait(30))
    r = recorder()

    def work() -> None:
        for k in range(WAITING + 3):
            r.add(step(k), {})
            r.end_episode({})
            ended.append(k)

    thread = threading.Thread(target=work)
    thread.start()
    eventually(lambda: len(ended) == WAITING + 1)
    thread.join(0.2)
    assert len(ended) == WAITING + 1, "one is being written, the others wait, and the next blocks"
    resume.set()
    thread.join(30)
    r.close()
    assert len(ended) == WAITING + 3


def test_errors_of_the_writer_are_raised(recorder: Any, monkeypatch: Any, eventually: Callable[..., Any]) -> None:
    full = OSError(28, "No space left on device", "dataset/data")
    monkeypatch.setattr(DatasetWriter, "add_episode", Mock(side_effect=full))
    r = recorder()
    r.add(step(1, done=True), {})
    r.end_episode({})
    eventually(lambda: r.error)
    r.add(step(1, done=True), {})
    with pytest.raises(OSError, match="No space left"):
        r.end_episode({})
    with pytest.raises(OSError, match="No space left"):
        r.close()
    monkeypatch.undo()
    again = recorder()  # the lock is released, the dataset valid
    again.close()
    assert verify(again.writer.root) == []
