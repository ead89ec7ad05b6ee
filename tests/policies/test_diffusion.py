"""Diffusion policy: deterministic sampling, loss and time grid; `test_cloning` has its multimodal data."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from policies.base import Size
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from policies.flow import FlowConfig, FlowPolicy

Build = Callable[..., Any]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def see(rows: int, size: int = 3) -> dict[str, torch.Tensor]:
    return {"observation.state": torch.randn(rows, size, generator=rng(5))}


def test_base_depends_only_on_observation_and_noise(diffusion: Build) -> None:
    policy = diffusion()
    first = policy.base(see(6), policy.noise(6, rng()))
    torch.manual_seed(99)
    assert torch.equal(policy.base(see(6), policy.noise(6, rng())), first) and first.abs().max() <= 1
    assert torch.equal(policy.act(see(6), rng()), first), "act draws its noise from the given generator"
    assert not torch.equal(policy.base(see(6), policy.noise(6, rng(1))), first)


def test_rows_are_independent(diffusion: Build) -> None:
    policy = diffusion()
    noise = policy.noise(5, rng())
    together, states = policy.base(see(5), noise), see(5)["observation.state"].split(1)
    alone = [policy.base({"observation.state": s}, z) for s, z in zip(states, noise.split(1), strict=True)]
    assert torch.allclose(together, torch.cat(alone), atol=1e-5)
    changed = see(5)
    changed["observation.state"][0] += 1
    assert torch.allclose(policy.base(changed, noise)[1:], together[1:], atol=1e-6)


def test_observations_are_normalized(diffusion: Build) -> None:
    policy = diffusion()
    data = 100 + 10 * torch.randn(200, 3)
    noise = policy.noise(200, rng())
    plain = policy.base({"observation.state": (data - data.mean(0)) / data.std(0)}, noise)
    policy.normalizer.fit(data)
    assert torch.allclose(policy.base({"observation.state": data}, noise), plain, atol=1e-4)


def test_loss_is_the_squared_error_of_the_prediction(diffusion: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = diffusion(prediction="sample")
    chunk = torch.rand(7, 4, 2)
    monkeypatch.setattr(policy, "_predict", lambda *_: chunk)
    assert policy.loss(see(7), chunk, rng()).tolist() == [0.0] * 7
    monkeypatch.setattr(policy, "_predict", lambda *_: chunk + torch.arange(7.0)[:, None, None])
    assert policy.loss(see(7), chunk, rng()).tolist() == pytest.approx([k * k for k in range(7)], rel=1e-4)


def test_perfect_denoiser_recovers_the_clean_chunk(diffusion: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """An off-by-one in the time grid would leave noise."""
    clean = torch.rand(3, 4, 2) - 0.5
    policy = diffusion(prediction="sample")
    monkeypatch.setattr(policy, "_predict", lambda *_: clean)
    assert torch.allclose(policy.base(see(3), policy.noise(3, rng())), clean, atol=1e-5)


@pytest.mark.parametrize(("train", "sample"), [(100, 10), (20, 20), (20, 4)])
def test_denoising_times_are_evenly_spaced_from_the_noisiest(diffusion: Build, train: int, sample: int) -> None:
    policy = diffusion(train_steps=train, sample_steps=sample)
    policy.base(see(1), policy.noise(1, rng()))
    times = policy.scheduler.timesteps.tolist()
    assert times[0] == train - 1 and len(times) == sample
    assert len({a - b for a, b in zip(times[:-1], times[1:], strict=True)}) <= 1


@pytest.mark.parametrize(("field", "value"), [
    ("prediction", "v_prediction"), ("sample_steps", 0), ("train_steps", 0), ("execute", 17), ("sample_steps", 7)
])  # fmt: skip
def test_invalid_settings_are_refused_by_name(diffusion: Build, field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        diffusion(**{field: value})


def test_only_learners_import_the_compiler() -> None:
    """Its import would take longer than the rest of a deployment's start."""
    code = (
        "import sys, torch\n"
        "from policies.base import Size\n"
        "from policies.diffusion import DiffusionPolicy\n"
        "policy = DiffusionPolicy(Size(3, 2))\n"
        "policy.act({'observation.state': torch.zeros(1, 3)}, torch.Generator())\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "torch.optim.Adam(policy.parameters())\n"
        "DiffusionPolicy(Size(3, 2))\n"
        "assert sys.modules['torch._dynamo']\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", [(DiffusionPolicy, DiffusionConfig), (FlowPolicy, FlowConfig)])
def test_regression_adds_a_loss_on_the_features_only(kind: Any) -> None:
    """The denoiser's error and the samples do not change."""
    policy, config = kind
    plain, both = (policy(Size(3, 2), config(hidden=16, layers=1, regression=weight)) for weight in (0.0, 0.5))
    assert plain.guess is None and both.guess is not None
    plain.load_state_dict({k: v for k, v in both.state_dict().items() if not k.startswith("guess")})
    observation, chunk = {"observation.state": torch.randn(5, 3)}, torch.rand(5, 16, 2)
    errors = [p.loss(observation, chunk, torch.Generator().manual_seed(1)) for p in (plain, both)]
    guessed = (both.guess(both.condition(observation)) - chunk.flatten(1)).square().mean(1)
    assert torch.allclose(errors[1], errors[0] + 0.5 * guessed)
    acts = [p.act(observation, torch.Generator().manual_seed(1)) for p in (plain, both)]
    assert torch.equal(*acts)
