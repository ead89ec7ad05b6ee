"""Distillation into one step: exact for a one-step teacher, close for a ten-step teacher with the same noise."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.bundle import load_bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from policies.flow import FlowConfig, FlowPolicy
from policies.networks.chunks import ChunkPolicy
from robot_rl.cli.main import main
from robot_rl.data.sources import Demonstrations
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.learning.algorithms.consistency import Distillation, student_of
from robot_rl.learning.algorithms.dppo import denoiser_from
from robot_rl.util.errors import ConfigError
from tests.robot_rl.learning.conftest import Batch, rng

SIZE = Size(2, 1)
FAST = CloningConfig(lr=5e-3, warmup=20, ema_decay=0.98)


def teacher(kind: str, **changes: Any) -> ChunkPolicy:
    torch.manual_seed(0)
    numbers: dict[str, Any] = {"horizon": 2, "execute": 2, "hidden": 64, "layers": 2} | changes
    if kind == "diffusion":
        return DiffusionPolicy(SIZE, DiffusionConfig(**numbers))
    return FlowPolicy(SIZE, FlowConfig(**{"prediction": "sample"} | numbers))


def two_modes(rows: int, generator: torch.Generator) -> Batch:
    """Chunks at +-0.6, independent of the observation."""
    side = (torch.rand(rows, generator=generator) < 0.5).float() * 2 - 1
    chunk = (0.6 * side)[:, None, None].expand(-1, 2, 1)
    return {"observation.state": torch.randn(rows, 2, generator=generator), "action": chunk}


def mixed(rows: int, generator: torch.Generator) -> Batch:
    """Two modes where the first number is positive, one elsewhere."""
    batch = two_modes(rows, generator)
    return batch | {"action": torch.where(batch["observation.state"][:, :1, None] > 0, batch["action"], 0.6)}


def train(agent: Cloning, data: Callable[[int, torch.Generator], Batch], generator: torch.Generator) -> None:
    for _ in range(400):
        agent.update(data(128, generator), generator)
    agent.finish()


@pytest.mark.parametrize("kind", ["diffusion", "flow"])
def test_one_step_teacher_is_copied_exactly(kind: str) -> None:
    base, generator = teacher(kind, sample_steps=1), rng(1)
    student, seen = student_of(base), two_modes(50, generator)
    noise = base.noise(50, generator)
    assert torch.equal(student.base(seen, noise), base.base(seen, noise))
    assert torch.allclose(student.one_step(seen, noise).clamp(-1, 1), student.base(seen, noise), atol=1e-6)
    loss = Distillation(student, base, FAST, 5).update(seen, generator)["bc/loss"]
    assert loss < 1e-6 or kind == "diffusion", "the diffusion sampler clips, so its loss is not 0"


@pytest.mark.parametrize("kind", ["diffusion", "flow"])
def test_student_matches_ten_steps_for_the_same_noise(kind: str) -> None:
    base, generator = teacher(kind), rng(1)
    train(Cloning(base, FAST, 400), two_modes, generator)
    short, before = student_of(base), copy.deepcopy(base.state_dict())
    agent = Distillation(student_of(base), base, FAST, 400)
    train(agent, two_modes, generator)
    seen, noise = two_modes(400, generator), base.noise(400, generator)
    target = base.base(seen, noise)
    distilled, undistilled = ((p.base(seen, noise) - target).abs().mean() for p in (agent.policy, short))
    assert distilled < 0.12 < 0.3 < undistilled, "one step without distillation gives the mean of both modes"
    assert agent.policy.config.sample_steps == 1
    assert all(torch.equal(before[k], v) for k, v in base.state_dict().items()), "the teacher is frozen"


def test_student_has_no_frozen_steps() -> None:
    base = teacher("diffusion")
    student = student_of(denoiser_from(base, base.config.sample_steps - 1))
    assert isinstance(student, DiffusionPolicy) and student.config.frozen_steps == 0 and student.frozen is None
    seen, noise = two_modes(10, rng()), base.noise(10, rng())
    assert torch.equal(student.base(seen, noise), student_of(base).base(seen, noise))
    with pytest.raises(ConfigError, match="a gaussian policy has no steps to distill"):
        student_of(GaussianPolicy(SIZE))


def test_recipe_makes_a_bundle_of_one_step(tmp_path: Path) -> None:
    data, base, run = (str(tmp_path / name) for name in ("data", "base", "run"))
    few = ("--training.updates", "20", "--training.log-every", "10", "--dataset", data)
    assert main(["collect", "testbed:fork-fast", "--episodes", "4", "--skill", "STEADY", "--out", data]) == 0
    words = ("train", "testbed:fork-fast", *few)
    assert main([*words, "--recipe", "flow-bc", "--policy.hidden", "16", "--out", base]) == 0
    assert main([*words, "--recipe", "consistency", "--out", run]) == 2, "a base is required"
    assert main([*words, "--recipe", "consistency", "--base", base, "--out", run]) == 0
    policy = load_bundle(run).policy
    assert isinstance(policy, FlowPolicy) and policy.config.sample_steps == 1 and policy.config.hidden == 16
    assert policy.act({"observation.state": torch.zeros(3, 2)}, rng()).shape == (3, 16, 1)


def test_observations_with_several_modes_are_drawn_more_often() -> None:
    base, generator = teacher("flow"), rng(1)
    train(Cloning(base, FAST, 400), mixed, generator)
    columns = two_modes(2000, generator)
    columns["action"] = columns["action"][:, 0]
    weights = Distillation(student_of(base), base, FAST, 5).weights(columns)
    two, one = columns["observation.state"][:, 0] > 0.3, columns["observation.state"][:, 0] < -0.3
    assert weights.shape == (2000,) and weights[two].mean() > 3 * weights[one].mean()
    data = Demonstrations(columns, torch.tensor([0]), torch.tensor([2000]))
    drawn = data.draw(5000, generator, weights)
    assert abs(two[drawn].float().mean() - weights[two].sum() / weights.sum()) < 0.03
    assert abs(two[data.draw(5000, generator)].float().mean() - two.float().mean()) < 0.03
