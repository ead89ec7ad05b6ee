"""Distillation into one step: a teacher of one step is copied, one of ten is matched for the same noise."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

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

SIZE = Size(2, 1)
FAST = CloningConfig(lr=5e-3, warmup=20, ema_decay=0.98)


def teacher(kind: str, **changes: Any) -> ChunkPolicy:
    torch.manual_seed(0)
    numbers: dict[str, Any] = {"horizon": 2, "execute": 2, "hidden": 64, "layers": 2} | changes
    if kind == "diffusion":
        return DiffusionPolicy(SIZE, DiffusionConfig(**numbers))
    return FlowPolicy(SIZE, FlowConfig(**{"prediction": "sample"} | numbers))


def batch(rows: int, rng: torch.Generator) -> dict[str, Tensor]:
    """Two ways, at +-0.6, whatever the observation."""
    side = (torch.rand(rows, generator=rng) < 0.5).float() * 2 - 1
    chunk = (0.6 * side)[:, None, None].expand(-1, 2, 1)
    return {"observation.state": torch.randn(rows, 2, generator=rng), "action": chunk}


@pytest.mark.parametrize("kind", ["diffusion", "flow"])
def test_a_teacher_of_one_step_is_copied_exactly(kind: str) -> None:
    base, rng = teacher(kind, sample_steps=1), torch.Generator().manual_seed(1)
    student, seen = student_of(base), batch(50, rng)
    noise = base.noise(50, rng)
    assert torch.equal(student.base(seen, noise), base.base(seen, noise))
    assert torch.allclose(student.one_step(seen, noise).clamp(-1, 1), student.base(seen, noise), atol=1e-6)
    loss = Distillation(student, base, FAST, 5).update(seen, rng)["bc/loss"]
    assert loss < 1e-6 or kind == "diffusion", "what the sampler clips is left to learn"


@pytest.mark.parametrize("kind", ["diffusion", "flow"])
def test_one_step_goes_where_ten_steps_go_from_the_same_noise(kind: str) -> None:
    base, rng = teacher(kind), torch.Generator().manual_seed(1)
    clone = Cloning(base, FAST, 400)
    for _ in range(400):
        clone.update(batch(128, rng), rng)
    clone.finish()
    short, before = student_of(base), copy.deepcopy(base.state_dict())
    agent = Distillation(student_of(base), base, FAST, 400)
    for _ in range(400):
        agent.update(batch(128, rng), rng)
    agent.finish()
    seen, noise = batch(400, rng), base.noise(400, rng)
    aim = base.base(seen, noise)
    apart, unlearned = ((p.base(seen, noise) - aim).abs().mean() for p in (agent.policy, short))
    assert apart < 0.12 < 0.3 < unlearned, "one step without distillation takes the mean of both ways"
    assert agent.policy.config.sample_steps == 1
    assert all(torch.equal(before[k], v) for k, v in base.state_dict().items()), "the teacher is frozen"


def test_a_teacher_with_frozen_steps_has_a_student_without() -> None:
    base = teacher("diffusion")
    steps = base.config.sample_steps
    student = student_of(denoiser_from(base, steps - 1))
    assert isinstance(student, DiffusionPolicy) and student.config.frozen_steps == 0 and student.frozen is None
    seen, noise = batch(10, torch.Generator()), base.noise(10, torch.Generator())
    assert torch.equal(student.base(seen, noise), student_of(base).base(seen, noise))


def test_a_policy_without_noise_is_refused() -> None:
    with pytest.raises(ConfigError, match="a gaussian policy has no steps to distill"):
        student_of(GaussianPolicy(SIZE))


def test_the_recipe_makes_an_ordinary_bundle_of_one_step(tmp_path: Path) -> None:
    data, base, run = (str(tmp_path / name) for name in ("data", "base", "run"))
    few = ("--training.updates", "20", "--training.log-every", "10", "--dataset", data)
    assert main(["collect", "testbed:fork-fast", "--episodes", "4", "--skill", "STEADY", "--out", data]) == 0
    train = ("train", "testbed:fork-fast", *few)
    assert main([*train, "--recipe", "flow-bc", "--policy.hidden", "16", "--out", base]) == 0
    assert main([*train, "--recipe", "consistency", "--out", run]) == 2, "it needs a base"
    assert main([*train, "--recipe", "consistency", "--base", base, "--out", run]) == 0
    policy = load_bundle(run).policy
    assert isinstance(policy, FlowPolicy) and policy.config.sample_steps == 1 and policy.config.hidden == 16
    assert policy.act({"observation.state": torch.zeros(3, 2)}, torch.Generator()).shape == (3, 16, 1)


def test_what_is_learned_most_is_where_the_teacher_chooses_between_ways() -> None:
    base, rng = teacher("flow"), torch.Generator().manual_seed(1)
    clone = Cloning(base, FAST, 400)
    for _ in range(400):  # two ways where the first number is positive, one elsewhere
        drawn = batch(128, rng)
        drawn["action"] = torch.where(drawn["observation.state"][:, :1, None] > 0, drawn["action"], 0.6)
        clone.update(drawn, rng)
    clone.finish()
    columns = {name: values[:, 0] if name == "action" else values for name, values in batch(2000, rng).items()}
    weights = Distillation(student_of(base), base, FAST, 5).weights(columns)
    two = columns["observation.state"][:, 0] > 0.3
    one = columns["observation.state"][:, 0] < -0.3
    assert weights.shape == (2000,) and weights[two].mean() > 3 * weights[one].mean()
    data = Demonstrations(columns, torch.tensor([0]), torch.tensor([2000]))
    drawn_rows = data.draw(5000, rng, weights)
    share = weights[two].sum() / weights.sum()
    assert abs(two[drawn_rows].float().mean() - share) < 0.03
    assert abs(two[data.draw(5000, rng)].float().mean() - two.float().mean()) < 0.03
