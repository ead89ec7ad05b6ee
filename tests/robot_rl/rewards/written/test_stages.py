"""Rewards from demonstrations: stages are found, the code is allowed, and the expected stage follows the progress."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robot_rl.cli.main import main
from robot_rl.interface.spec import VectorSpec, box, numbered
from robot_rl.rewards.written.code import compile_reward
from robot_rl.rewards.written.file import load_reward
from robot_rl.rewards.written.stages import StagesConfig, boundaries, features_of, worth, write_stages
from robot_rl.rewards.written.views import Views
from robot_rl.util.errors import ConfigError
from sim.make import describe, make

SPEC = VectorSpec((box("place", "x y", "m", -1, 1), box("lid", "angle", "rad", 0, 2)))


@settings(max_examples=30)
@given(st.lists(st.integers(3, 20), min_size=2, max_size=5), st.integers(0, 999))
def test_stages_begin_where_the_features_change(lengths: list[int], seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    levels = torch.stack([torch.full((2,), 3.0 * k) for k in range(len(lengths))])
    features = levels.repeat_interleave(torch.tensor(lengths), 0)
    features = features + 0.1 * torch.randn(features.shape, generator=rng)
    assert boundaries(features, len(lengths)) == torch.tensor(lengths).cumsum(0)[:-1].tolist()


def test_features_are_numbers_and_norms_of_vectors() -> None:
    columns, codes = features_of(torch.tensor([[3.0, 4.0, 1.0]]), SPEC)
    assert columns.tolist() == [[3.0, 4.0, 5.0, 1.0]]
    assert codes == ['NOW["place"][:, 0]', 'NOW["place"][:, 1]', 'NOW["place"].norm(dim=1)', 'NOW["lid"][:, 0]']


def demonstration(rng: torch.Generator) -> Tensor:
    """Go to the origin from anywhere, then open the lid."""
    start = torch.randn(2, generator=rng) + 1
    way = start * torch.linspace(1, 0, 12)[:, None]
    go = torch.cat([way, torch.zeros(12, 1)], 1)
    lift = torch.cat([torch.zeros(12, 2), torch.linspace(0, 2, 12)[:, None]], 1)
    return torch.cat([go, lift]) + 0.01 * torch.randn(24, 3, generator=rng)


def test_the_expected_stage_rises_along_a_new_demonstration() -> None:
    rng = torch.Generator().manual_seed(0)
    source = write_stages([demonstration(rng) for _ in range(8)], SPEC, StagesConfig())
    reward = compile_reward(source)
    for _ in range(10):
        state = demonstration(rng)
        views = {"place": state[:, :2], "lid": state[:, 2:]}
        before, now = ({name: part[rows] for name, part in views.items()} for rows in (slice(0, -1), slice(1, None)))
        gains = reward(now, before, torch.zeros(23, 1))
        ranks = torch.stack([gains.cumsum(0).argsort().argsort().float(), torch.arange(23.0)])
        assert torch.corrcoef(ranks)[0, 1] > 0.8, "Spearman's correlation with time"
        assert worth(5, 8) < float(gains.sum()) <= 1.001, "beyond the sixth of eight stages"
        back = reward(before, now, torch.zeros(23, 1))
        assert torch.allclose(back, -gains, atol=1e-6), "going back and forth pays nothing"


@pytest.mark.parametrize(("spec", "count", "stages", "words"), [
    (SPEC, 1, 5, "record more"), (SPEC, 8, 13, "change --stages"), (SPEC, 8, 1, "two stages"),
    (numbered("state", [-1.0] * 3, [1.0] * 3), 8, 5, "no named fields"),
])  # fmt: skip
def test_what_cannot_be_split_is_refused(spec: VectorSpec, count: int, stages: int, words: str) -> None:
    rng = torch.Generator().manual_seed(0)
    with pytest.raises(ConfigError, match=words):
        write_stages([demonstration(rng) for _ in range(count)], spec, StagesConfig(stages=stages))


def test_by_command_it_is_vetted_and_training_accepts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["collect", "testbed:reach", "--episodes", "20", "--num-envs", "20", "--out", "demos"]) == 0
    command = ["reward", "stages", "testbed:reach", "--dataset", "demos", "--out", "stages.py"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert found["vetted"] and found["auc"] >= 0.9
    reward = load_reward("stages.py")
    assert reward.provenance["stages"] == {"stages": 8, "features": 2}
    reward.require_task("testbed:reach", Views.of(make("testbed:reach", 1)))
    assert main(command) == 2 and "is there already" in capsys.readouterr().err


def test_every_testbed_with_named_fields_can_be_read() -> None:
    for task in ("testbed:push", "testbed:reach", "panda-lift"):
        info = describe(task)
        columns, codes = features_of(torch.randn(4, info.observation), info.state)
        assert columns.shape == (4, len(codes)) and len(set(codes)) == len(codes)
