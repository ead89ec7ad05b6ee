"""Latent actions: the plain action space at one end, a gait cycle and its symmetry at the other."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policies.base import Size
from policies.bundle import load_bundle
from policies.latent import LatentActionConfig, LatentActionPolicy
from robot_rl.cli.main import main
from robot_rl.util.errors import ConfigError
from sim.tasks.go2_velocity import JOINTS

SIZE = Size(3, 12)
ANGLE = torch.arange(24)[:, None] * 2 * math.pi / 24
CYCLE = 0.1 + 0.4 * (ANGLE + torch.tensor([0.0, 0.3, 1.0] * 2 + [3.0, 3.3, 4.0] * 2)).sin()
"""One gait cycle of twelve joints, which two directions contain."""


def policy(latent: int = 2, full: float = 0.1) -> LatentActionPolicy:
    torch.manual_seed(0)
    return LatentActionPolicy(SIZE, LatentActionConfig(hidden=(8,), latent=latent, full=full))


def test_weight_of_one_is_the_plain_action_space() -> None:
    plain, u = policy(full=1.0), torch.randn(50, 14)
    plain.fit_latents(CYCLE)
    assert torch.equal(plain.transform(u, {}), u[:, 2:].clamp(-1, 1))


def test_latents_between_minus_one_and_one_give_the_cycle() -> None:
    fitted = policy(full=0.0)
    fitted.fit_latents(CYCLE)
    latent = (CYCLE - fitted.centre) @ torch.linalg.pinv(fitted.directions)
    assert latent.abs().max() == pytest.approx(1.0, abs=1e-5)
    u = torch.cat([latent, torch.full((24, 12), 5.0)], 1)
    assert torch.allclose(fitted.transform(u, {}), CYCLE, atol=1e-5)


@given(latent=st.integers(1, 12), seed=st.integers(0, 2**31))
def test_mirror_images_of_outputs_give_mirror_images_of_actions(latent: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    fitted = policy(latent)
    reflection = fitted.fit_latents(torch.rand(30, 12, generator=rng) - 0.5, JOINTS)
    u = torch.randn(20, latent + 12, generator=rng)
    assert torch.allclose(fitted.transform(reflection(u), {}), JOINTS(fitted.transform(u, {})), atol=1e-5)


def test_actions_without_directions_are_refused() -> None:
    with pytest.raises(ConfigError, match="move in 0 directions"):
        policy().fit_latents(torch.full((9, 12), 0.3))
    with pytest.raises(ConfigError, match="move in 2 directions"):
        policy(6).fit_latents(CYCLE)
    with pytest.raises(ConfigError, match="only 12 numbers"):
        policy(13)


def test_recipe_learns_resumes_and_exports(tmp_path: Path) -> None:
    data, run, whole = (str(tmp_path / name) for name in ("data", "run", "whole"))
    assert main(["collect", "testbed:reach", "--episodes", "2", "--skill", "STEADY", "--out", data]) == 0
    few = ("train", "testbed:reach", "--recipe", "latent-priors", "--dataset", data, "--policy.latent", "2",
           "--policy.hidden", "8", "--training.num-envs", "4", "--training.rollout", "10")  # fmt: skip
    assert main([*few, "--training.steps", "80", "--out", run]) == 0
    assert main([*few, "--training.steps", "160", "--out", run, "--resume"]) == 0
    assert main([*few, "--training.steps", "160", "--out", whole]) == 0
    ours, same = (load_bundle(folder).policy.state_dict() for folder in (run, whole))
    assert ours["directions"].abs().sum() > 0 and all(torch.equal(value, same[name]) for name, value in ours.items())
    assert main(["export", run]) == 0, "compares ONNX with torch"
