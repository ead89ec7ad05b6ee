"""Edited chunks: equal to the base at first, bounded, on a token that keeps what varies most."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from policies.base import Size, build_policy
from policies.edited import EditedConfig, EditedPolicy, Token
from policies.flow import FlowConfig, FlowPolicy
from policies.networks.encoder import FEATURES
from policies.networks.gaussian import GaussianConfig
from policies.residual import BASE
from policies.vla.config import BackboneConfig
from policies.vla.flow import VLAFlowConfig, VLAFlowPolicy
from robot_rl.data.replay import NEXT
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import IMAGES, LANGUAGE, LANGUAGE_FIELD, ObservationSpec, picture_field
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from robot_rl.util.errors import ConfigError

TOP = f"{IMAGES}top"
SIZE = Size(3, 2, ObservationSpec.of(**{TOP: picture_field(16, 16), LANGUAGE: LANGUAGE_FIELD}))
ACTOR = GaussianConfig(hidden=(16,), std=0.1, zero_init=True)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def visual() -> VLAFlowPolicy:
    torch.manual_seed(0)
    encoder = BackboneConfig(width=16, layers=1, channels=(8, 8))
    config = VLAFlowConfig(horizon=4, execute=3, hidden=16, layers=1, sample_steps=2, encoder=encoder)
    return VLAFlowPolicy(SIZE, config)


def blind() -> FlowPolicy:
    torch.manual_seed(0)
    return FlowPolicy(Size(3, 2), FlowConfig(horizon=4, execute=3, hidden=16, layers=1, sample_steps=2))


def observe(n: int = 6) -> dict[str, Tensor]:
    picture = torch.randint(0, 256, (n, 16, 16, 3), generator=rng(), dtype=torch.uint8)
    words = encode([("left", "right")[k % 2] for k in range(n)])
    return {"observation.state": torch.randn(n, 3, generator=rng()), TOP: picture, LANGUAGE: words}


@pytest.mark.parametrize("base", [visual, blind])
def test_starts_as_the_base_and_edits_within_its_bound(base: Callable[[], FlowPolicy]) -> None:
    policy, seen = EditedPolicy(base(), EditedConfig(scale=0.25, token=5, actor=ACTOR)), observe()
    chunk = policy.base.act(seen, rng(1))[:, :3]
    assert torch.equal(policy.act(seen, rng(1)), chunk) and policy.horizon == policy.execute == 3
    torch.nn.init.normal_(policy.actor.trunk[-1].weight, std=5.0)
    edited = policy.act(seen, rng(1))
    assert not torch.equal(edited, chunk) and (edited - chunk).abs().max() <= 0.25 + 1e-6 and edited.abs().max() <= 1
    copy = build_policy(policy.describe())
    copy.load_state_dict(policy.state_dict())
    assert torch.equal(copy.act(seen, rng(1)), edited)


def test_stores_a_token_and_the_chunk_instead_of_pictures() -> None:
    policy, seen = EditedPolicy(visual(), EditedConfig(token=5, actor=ACTOR)), observe()
    assert dict(policy.inputs) == {BASE: 6, FEATURES: 5} and not policy.kept
    inputs = policy.sample_inputs(seen, rng(1))
    assert {name: tuple(values.shape) for name, values in inputs.items()} == {BASE: (6, 6), FEATURES: (6, 5)}
    rows = torch.tensor([True, False, True, False, False, True])
    peeked = policy.peek_inputs(seen, rows, rng(1))
    assert torch.allclose(peeked[FEATURES][rows], inputs[FEATURES][rows], atol=1e-6) and not peeked[BASE][~rows].any()
    recorded = policy.inputs_of_episode(seen, rng(1))
    assert torch.allclose(recorded[FEATURES], inputs[FEATURES], atol=1e-6) and recorded[BASE].shape == (6, 6)


def test_learning_changes_neither_base_nor_token() -> None:
    policy = EditedPolicy(visual(), EditedConfig(token=5, actor=ACTOR))
    policy.fit_token(observe(40))
    agent = ActorCritic(policy, ActorCriticConfig(hidden=(16,), actor_delay=1))
    frozen = {k: v.clone() for k, v in policy.state_dict().items() if not k.startswith("actor.")}
    actor = [p.clone() for p in policy.actor.parameters()]
    batch = {"reward": torch.ones(6), "discount": torch.full((6,), 0.9), "action": torch.zeros(6, 6)}
    for prefix in ("", NEXT):
        shapes = {"observation.state": 3, FEATURES: 5, BASE: 6}
        batch |= {prefix + name: torch.randn(6, size, generator=rng(size)) for name, size in shapes.items()}
    for _ in range(3):
        agent.update(batch)
    after = policy.state_dict()
    assert all(torch.equal(after[name], value) for name, value in frozen.items())
    assert any(not torch.equal(a, b) for a, b in zip(actor, policy.actor.parameters(), strict=True))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 1000))
def test_token_is_white_and_reconstructs_what_varies(rank: int, size: int, seed: int) -> None:
    """Features of `rank` dimensions are reconstructed from a token of as many; a smaller token keeps the largest."""
    mix = torch.randn(rank, 6, generator=rng(seed))
    features = 3 + torch.randn(200, rank, generator=rng(seed + 1)) @ mix
    token = Token(6, size)
    token.fit(features)
    z = token(features)
    kept = min(rank, size)
    assert torch.allclose(z.mean(0), torch.zeros(size), atol=1e-3)
    assert torch.allclose(z.T @ z / 199, torch.diag((torch.arange(size) < kept).float()), atol=1e-2)
    back = torch.linalg.lstsq(z[:, :kept], features - features.mean(0))
    error = (z[:, :kept] @ back.solution - features + features.mean(0)).square().sum()
    least = torch.linalg.svdvals(features - features.mean(0))[kept:].square().sum()
    assert error <= 1.01 * least + 1e-2, "no other token of this size keeps more"


def test_refuses_what_has_no_chunks_or_a_gripper_critic() -> None:
    from policies.actor import GaussianPolicy

    with pytest.raises(ConfigError, match="a gaussian policy has no chunks to edit; take a diffusion or flow policy"):
        EditedPolicy(GaussianPolicy(Size(3, 2)))
    with pytest.raises(ConfigError, match="no gripper critic; see resfit"):
        EditedConfig(actor=GaussianConfig(grasp=True))
