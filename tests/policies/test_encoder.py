"""Encoder of observation dicts with and without pictures."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from policies.actor import GaussianPolicy
from policies.base import Policy, Size, build_policy
from policies.bundle import Bundle, load_bundle, save_bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from policies.feedforward import FeedforwardPolicy
from policies.flow import FlowConfig, FlowPolicy
from policies.networks.encoder import Encoder, EncoderConfig, scaled, shifted
from policies.networks.gaussian import GaussianConfig
from policies.residual import ResidualConfig, ResidualPolicy
from robot_rl.data.replay import NEXT
from robot_rl.interface.observation_spec import LANGUAGE, LANGUAGE_FIELD, ObservationSpec, picture_field
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from robot_rl.util.errors import ConfigError

Build = Callable[..., Any]
FRONT, WRIST = "observation.images.front", "observation.images.wrist"
SEES = Size(3, 2, ObservationSpec.of(**{FRONT: picture_field(16, 24), WRIST: picture_field(8, 8)}))
SMALL = EncoderConfig(channels=(4, 4), embedding=5, shift=2)
CHUNKS: dict[str, Any] = dict(horizon=4, execute=2, hidden=16, layers=1, sample_steps=5, encoder=SMALL)


def observe(n: int = 6, seed: int = 0) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    shapes = SEES.pictures.items()
    pictures = {k: torch.randint(0, 256, (n, *s), generator=rng, dtype=torch.uint8) for k, s in shapes}
    return {"observation.state": torch.randn(n, 3, generator=rng)} | pictures


def diffusion(size: Size = SEES) -> DiffusionPolicy:
    return DiffusionPolicy(size, DiffusionConfig(train_steps=10, **CHUNKS))


def gaussian(size: Size = SEES) -> GaussianPolicy:
    return GaussianPolicy(size, GaussianConfig(hidden=(16,), encoder=SMALL))


ACTOR = GaussianConfig(hidden=(16,), std=0.1, zero_init=True, encoder=SMALL)
CORRECTION = ResidualConfig(frozen_features=False, actor=ACTOR)
MAKERS: dict[str, Callable[[Size], Policy]] = {
    "diffusion": diffusion,
    "flow": lambda size=SEES: FlowPolicy(size, FlowConfig(**CHUNKS)),
    "gaussian": gaussian,
    "residual": lambda size=SEES: ResidualPolicy(diffusion(size), CORRECTION),
}
each = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@each
def test_encoder_without_pictures_is_the_identity(make: Callable[[Size], Policy]) -> None:
    policy: Any = make(Size(3, 2))
    assert not [name for name in policy.state_dict() if "encoder" in name]
    size = {"observation": 3, "action": 2}
    assert json.loads(json.dumps(policy.describe())).get("size", size) == size
    observation, rng = observe(), torch.Generator().manual_seed(0)
    before = rng.get_state()
    assert policy.encoder.augment(observation, rng) == observation and torch.equal(rng.get_state(), before)
    state = observation["observation.state"]
    assert torch.equal(policy.encoder(state, observation), state)


@each
def test_actions_depend_on_state_and_every_picture(make: Callable[[Size], Policy]) -> None:
    policy, observation = make(SEES).eval(), observe(1)
    if isinstance(policy, ResidualPolicy):  # the correction is 0 at first
        torch.nn.init.normal_(policy.actor.trunk[-1].weight)

    def act(observation: dict[str, Tensor]) -> Tensor:
        policy.reset()
        return policy.act(observation, torch.Generator().manual_seed(1))

    first = act(observation)
    assert torch.equal(act(observation), first), "no shifts outside training"
    for key, value in observation.items():
        other = value + 1.0 if value.is_floating_point() else 255 - value
        assert not torch.equal(act(observation | {key: other}), first), key


@each
def test_bundle_round_trip(make: Callable[[Size], Policy], tmp_path: Path, same: Callable[[Any, Any], bool]) -> None:
    policy = make(SEES).eval()
    save_bundle(Bundle(policy, None, {}, task="gym:one"), tmp_path / "bundle")
    loaded = load_bundle(tmp_path / "bundle").policy
    assert loaded.size == SEES and same(loaded.state_dict(), policy.state_dict())
    acts = [p.act(observe(), torch.Generator().manual_seed(1)) for p in (policy, loaded)]
    assert torch.equal(*acts)


def test_size_survives_json_and_unsupported_inputs_are_refused() -> None:
    size = Size(3, 2, SEES.extra_inputs | {LANGUAGE: LANGUAGE_FIELD})
    assert Size.from_json(json.loads(json.dumps(size.to_json()))) == size and size.pictures == SEES.pictures
    described = diffusion(Size(3, 2)).describe()
    del described["config"]["encoder"]
    assert described["size"] == {"observation": 3, "action": 2} and build_policy(described).size == Size(3, 2)
    smell = SEES.extra_inputs | {"observation.smell": LANGUAGE_FIELD}
    with pytest.raises(ConfigError, match="cannot read 'observation.smell'"):
        Encoder(Size(3, 2, smell), SMALL)
    with pytest.raises(ConfigError, match="feed-forward policy cannot read 'observation.images.front'"):
        FeedforwardPolicy(SEES)
    with pytest.raises(ConfigError, match="wrist is 8x8: too small for 4 convolutions"):
        Encoder(SEES, EncoderConfig())


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 4), st.integers(0, 2**31))
def test_shifted_picture_is_a_window_of_the_padded_picture(height: int, width: int, most: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    pictures = torch.randint(0, 256, (3, height, width, 3), generator=rng, dtype=torch.uint8)
    moved = shifted(pictures, most, rng)
    assert moved.dtype == torch.uint8
    padded = torch.nn.functional.pad(pictures.permute(0, 3, 1, 2).float(), (most,) * 4, mode="replicate")
    starts = range(2 * most + 1)
    for one, whole in zip(moved, padded.permute(0, 2, 3, 1), strict=True):
        places = [whole[y : y + height, x : x + width] for y in starts for x in starts]
        assert any(torch.equal(place, one.float()) for place in places)


def test_pictures_are_scaled_and_shifted_independently_and_repeatably() -> None:
    picture = torch.tensor([0, 51, 255], dtype=torch.uint8).expand(2, 4, 6, 3)
    assert torch.allclose(scaled(picture)[1, :, 3, 5], torch.tensor([-1.0, -0.6, 1.0]))
    same_picture = observe(1)[FRONT].expand(32, -1, -1, -1)
    first, again = (shifted(same_picture, 2, torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(first, again) and len(first.flatten(1).unique(dim=0)) > 10


@pytest.mark.parametrize("name", ["diffusion", "flow", "gaussian"])
def test_cloning_trains_the_encoder(name: str) -> None:
    policy: Any = MAKERS[name](SEES)
    chunk = torch.zeros(6, policy.horizon, 2)
    policy.loss(observe(), chunk, torch.Generator().manual_seed(0)).mean().backward()
    assert all(float(p.grad.abs().sum()) > 0 for p in policy.encoder.parameters())


@pytest.mark.parametrize("name", ["gaussian", "residual"])
def test_only_the_critic_loss_trains_the_encoder(name: str, same: Callable[[Any, Any], bool]) -> None:
    policy: Any = MAKERS[name](SEES)
    agent = ActorCritic(policy, ActorCriticConfig(hidden=(16,), actor_delay=2))
    assert agent.columns[FRONT].dtype == torch.uint8 and agent.columns[FRONT].observed
    batch = observe() | {NEXT + k: v for k, v in observe(seed=1).items()}
    batch |= {k: torch.zeros(6, n) for name, n in policy.inputs.items() for k in (name, NEXT + name)}
    batch |= {"action": torch.zeros(6, 2), "reward": torch.ones(6), "discount": torch.full((6,), 0.9)}
    before = {k: v.clone() for k, v in policy.encoder.state_dict().items()}
    agent.update(batch)
    learned = {k: v.clone() for k, v in policy.encoder.state_dict().items()}
    assert not any(torch.equal(learned[k], v) for k, v in before.items() if k.endswith("0.weight"))
    agent._update_actor(batch)
    assert same(dict(policy.encoder.state_dict()), learned)


def test_pictures_stay_on_their_device(fake_cuda: torch.device) -> None:
    pictures = torch.zeros(6, 16, 24, 3, dtype=torch.uint8, device=fake_cuda)
    moved = scaled(shifted(pictures, 2, torch.Generator().manual_seed(0)))
    assert moved.device == fake_cuda and moved.shape == (6, 3, 16, 24)
