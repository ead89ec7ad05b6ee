"""RL on a frozen visual policy: actor and critic read the base's features."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.actor import ActorPolicy
from policies.base import Size
from policies.networks.encoder import FEATURES, EncoderConfig
from policies.networks.gaussian import GaussianConfig
from policies.residual import BASE, ResidualConfig, ResidualPolicy
from policies.steered import SteeredConfig, SteeredPolicy
from policies.vla.config import BackboneConfig
from policies.vla.flow import VLAFlowConfig, VLAFlowPolicy
from policies.vla.words import words_of
from robot_rl.data.replay import NEXT
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import IMAGES, LANGUAGE, LANGUAGE_FIELD, ObservationSpec, picture_field
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig

FRONT = f"{IMAGES}front"
SIZE = Size(3, 2, ObservationSpec.of(**{FRONT: picture_field(16, 16), LANGUAGE: LANGUAGE_FIELD}))
TEXTS = ["lift the ball", "touch the cube"]
SMALL = BackboneConfig(width=16, heads=2, layers=1, readouts=2, channels=(8,), words=words_of(TEXTS))
ACTOR = GaussianConfig(hidden=(16,), encoder=EncoderConfig(channels=(4, 4), embedding=5))


def base() -> VLAFlowPolicy:
    torch.manual_seed(0)
    config = VLAFlowConfig(horizon=4, execute=2, hidden=16, layers=1, sample_steps=2, encoder=SMALL)
    return VLAFlowPolicy(SIZE, config)


def residual(frozen: bool = True) -> ResidualPolicy:
    return ResidualPolicy(base(), ResidualConfig(frozen_features=frozen, actor=ACTOR))


def steered(frozen: bool = True) -> SteeredPolicy:
    return SteeredPolicy(base(), SteeredConfig(frozen_features=frozen, actor=ACTOR))


def observe(n: int = 6, seed: int = 0) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    picture = torch.randint(0, 256, (n, 16, 16, 3), generator=rng, dtype=torch.uint8)
    texts = encode([TEXTS[k % 2] for k in range(n)])
    return {"observation.state": torch.randn(n, 3, generator=rng), FRONT: picture, LANGUAGE: texts}


both = pytest.mark.parametrize("make", [residual, steered])


@both
def test_features_replace_pictures_and_instruction(make: Callable[..., ActorPolicy]) -> None:
    policy, observation = make(), observe()
    assert policy.inputs[FEATURES] == 2 * 16 and not policy.kept
    inputs = policy.sample_inputs(observation, torch.Generator().manual_seed(0))
    assert inputs[FEATURES].shape == (6, 32)
    state_only = {"observation.state": observation["observation.state"]} | inputs
    features = policy.actor_features(state_only)
    assert torch.equal(features, policy.actor_features(observation | inputs))
    u = torch.zeros(6, policy.latent)
    assert torch.equal(policy.transform(u, state_only), policy.transform(u, observation | inputs))
    rows = torch.tensor([True, False, True, False, False, True])
    peeked = policy.peek_inputs(observation, rows, torch.Generator())[FEATURES]
    assert torch.allclose(peeked[rows], inputs[FEATURES][rows], atol=1e-6) and (peeked[~rows] == 0).all()
    recorded = policy.inputs_of_episode(observation, torch.Generator())[FEATURES]
    assert torch.allclose(recorded, inputs[FEATURES], atol=1e-6)


@both
def test_learning_stores_features_and_does_not_change_the_base(make: Callable[..., ActorPolicy], same: Any) -> None:
    policy = make()
    critic_on = "action" if isinstance(policy, ResidualPolicy) else "latent"
    agent = ActorCritic(policy, ActorCriticConfig(hidden=(16,), critic_on=critic_on, actor_delay=1, n_step=1))  # type: ignore[arg-type]
    assert FRONT not in agent.columns and LANGUAGE not in agent.columns
    assert agent.columns[FEATURES].observed and agent.columns[FEATURES].shape == (32,)
    before = {name: value.clone() for name, value in policy.base.state_dict().items()}  # type: ignore[operator,union-attr]
    actor = [p.clone() for p in policy.actor.parameters()]
    rng = torch.Generator().manual_seed(0)
    batch: dict[str, Tensor] = {"reward": torch.ones(6), "discount": torch.full((6,), 0.9)}
    for prefix in ("", NEXT):
        batch[f"{prefix}observation.state"] = torch.randn(6, 3, generator=rng)
        batch[f"{prefix}{FEATURES}"] = torch.randn(6, 32, generator=rng)
        if isinstance(policy, ResidualPolicy):
            batch[f"{prefix}{BASE}"] = torch.zeros(6, 2)
    batch["action"] = torch.zeros(6, policy.horizon * 2) if policy.horizon > 1 else torch.zeros(6, 2)
    batch["latent"] = torch.zeros(6, policy.latent)
    batch["intervention"] = torch.zeros(6, dtype=torch.bool)
    for _ in range(3):
        agent.update(batch)
    assert same(policy.base.state_dict(), before)  # type: ignore[operator,union-attr]
    assert not all(torch.equal(a, b) for a, b in zip(actor, policy.actor.parameters(), strict=True))
