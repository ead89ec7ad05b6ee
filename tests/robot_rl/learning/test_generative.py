"""Agents with generative actors: limits at which a method equals a simpler one, and known answers."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from policies.actor import EmbeddedPolicy, GaussianPolicy, gaussian_from
from policies.base import Size, build_policy
from policies.best_of import BestOfConfig, BestOfPolicy, CriticSize
from policies.flow import FlowConfig, FlowPolicy
from policies.generative import FlowActor, GenerativeConfig, GenerativePolicy, MeanFlowActor
from policies.networks.gaussian import GaussianConfig
from policies.steered import SteeredConfig, SteeredPolicy
from robot_rl.learning.algorithms.actor_critic import ActorCriticConfig
from robot_rl.learning.algorithms.best_of import BestOf
from robot_rl.learning.algorithms.cal_ql import CalQL, CalQLConfig
from robot_rl.learning.algorithms.dsrl import DSRL, DSRLConfig
from robot_rl.learning.algorithms.fql import FQL, OFQL, FQLConfig, OFQLConfig
from robot_rl.learning.algorithms.iql import CFGRL, CFGRLConfig
from robot_rl.learning.parts.explore import ExplorationConfig
from robot_rl.util.errors import ConfigError
from tests.robot_rl.learning.conftest import check_resumes, equal, rng, two_modes

COMMON: dict[str, Any] = dict(
    hidden=(32, 32), n_step=1, l2=0.0, actor_delay=1, critic_lr=1e-3, actor_lr=1e-3, ema_decay=0.9,
    exploration=ExplorationConfig(warmup_noise=None, noise_memory=0.0),
)  # fmt: skip
SIZE, HIDDEN = Size(2, 1), (32, 32)
SEEN = {"observation.state": torch.randn(10, 2, generator=rng(4))}


def actions(agent: Any, updates: int = 500) -> Tensor:
    """Train on two modes; return the policy's actions."""
    source = rng(1)
    for _ in range(updates):
        agent.update(two_modes(128, source))
    agent.finish()
    return agent.policy.act({"observation.state": torch.randn(500, 2, generator=source)}, source).flatten()


def generative(kind: Any, **changes: Any) -> GenerativePolicy:
    torch.manual_seed(0)
    return GenerativePolicy(SIZE, GenerativeConfig(**{"kind": kind, "hidden": HIDDEN} | changes))


def best_of(**changes: Any) -> BestOf:
    torch.manual_seed(0)
    flow, actor = GenerativeConfig(hidden=HIDDEN), GaussianConfig(HIDDEN)
    policy = BestOfPolicy(SIZE, BestOfConfig(flow=flow, actor=actor, **changes), CriticSize(2, HIDDEN))
    return BestOf(policy, ActorCriticConfig(**COMMON), 0, (0.0, 1.0))


def flow_base() -> FlowPolicy:
    torch.manual_seed(0)
    return FlowPolicy(SIZE, FlowConfig(horizon=1, execute=1, hidden=32, layers=1, sample_steps=3))


def build(name: str) -> Any:
    if name == "fql":
        return FQL(generative("one-step"), FQLConfig(**COMMON, alpha=1.0), 0, (0.0, 1.0))
    if name == "ofql":
        return OFQL(generative("mean-flow"), OFQLConfig(**COMMON, eta=1.0), 0, (0.0, 1.0))
    if name == "cfgrl":
        return CFGRL(generative("flow", guided=True, guidance=2.0), CFGRLConfig(**COMMON), 0, (0.0, 1.0))
    if name == "cal-ql":
        return CalQL(GaussianPolicy(SIZE, GaussianConfig(HIDDEN)), CalQLConfig(**COMMON, entropy=True), 0, (0.0, 1.0))
    if name == "dsrl":
        policy = SteeredPolicy(flow_base(), SteeredConfig(actor=GaussianConfig(HIDDEN)))
        return DSRL(policy, DSRLConfig(**COMMON, entropy=True), 0, (0.0, 1.0))
    return best_of(candidates=8, scale=0.2 if name == "expo" else 0.0)


@pytest.mark.parametrize("name", ["fql", "ofql", "cfgrl", "qc", "expo"])
def test_better_of_two_modes_is_learned(name: str) -> None:
    learned = actions(build(name), 300 if name == "fql" else 400)
    assert (learned > 0.2).float().mean() > 0.8, "half of the data are at -0.5"
    assert learned.abs().max() <= 1


@pytest.mark.parametrize("name", ["ofql", "cfgrl", "qc"])
def test_without_weight_on_values_both_modes_are_cloned(name: str) -> None:
    """OFQL with eta 0, guidance 0, one candidate: about half of the actions are near each mode, few between."""
    if name == "ofql":
        agent: Any = OFQL(generative("mean-flow", hidden=(64, 64)), OFQLConfig(**COMMON | {"actor_lr": 2e-3}, eta=0.0))
    elif name == "cfgrl":
        policy = generative("flow", guided=True, guidance=0.0)
        agent = CFGRL(policy, CFGRLConfig(**COMMON, unconditional=1.0), 0, (0.0, 1.0))
    else:
        agent = best_of(candidates=1, scale=0.0)
    learned = actions(agent, 600)
    assert 0.25 < (learned > 0.2).float().mean() < 0.75
    assert 0.25 < (learned < -0.2).float().mean() < 0.75


def test_ofql_without_values_equals_cloning() -> None:
    agent, clone = OFQL(generative("mean-flow"), OFQLConfig(**COMMON, eta=0.0)), generative("mean-flow")
    optimizer, source = torch.optim.Adam(clone.actor.parameters(), 1e-3, fused=True), rng(0)
    for seed in range(3):
        batch, before = two_modes(64, rng(seed)), agent.rng.get_state()
        agent._update_critic(batch)
        source.set_state(agent.rng.get_state())
        agent.rng.set_state(before)
        agent.update(batch)
        loss = clone.actor.loss(clone.features(batch), batch["action"], source).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(clone.actor.parameters(), agent.config.grad_clip or 0)
        optimizer.step()
        assert equal(agent.policy.actor, clone.actor)


def test_mean_flow_over_no_time_equals_flow_matching(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = generative("mean-flow").actor
    assert isinstance(actor, MeanFlowActor)
    monkeypatch.setattr(MeanFlowActor, "SAME", 1.1)
    features, action = torch.randn(40, 2), torch.rand(40, 1)
    ours, source = actor.loss(features, action, rng(5)), rng(5)
    z = torch.randn(40, 1, generator=source)
    r, t = actor.times(40, source, torch.device("cpu"))
    noisy = (1 - t)[:, None] * action + t[:, None] * z
    assert torch.equal(r, t)
    assert torch.allclose(ours, (actor.velocity(noisy, t, t, features) - (z - action)).square(), atol=1e-6)


def test_guidance_of_0_and_1_equals_the_branches() -> None:
    features, z, decoded = torch.randn(30, 2), torch.randn(30, 1), {}
    for w in (0.0, 1.0, 1.0 + 1e-6, 1e-6):
        actor = generative("flow", guided=True, guidance=w).actor
        assert isinstance(actor, FlowActor)
        decoded[w] = actor.decode(features, z)
        if w in (0.0, 1.0):
            branch, x = actor.velocity(features, torch.full((30,), w)), z
            for k in range(10):
                x = x + branch(x, torch.full((30,), k / 10)) / 10
            assert torch.equal(decoded[w], x)
    assert torch.allclose(decoded[1.0], decoded[1.0 + 1e-6], atol=1e-4)
    assert torch.allclose(decoded[0.0], decoded[1e-6], atol=1e-4)
    assert not torch.allclose(decoded[0.0], decoded[1.0], atol=1e-3)


def test_best_candidate_is_taken() -> None:
    """Edits of no size change no choice; a single candidate without edits is the flow's action."""
    policy, wanted, candidates = best_of(candidates=16, scale=0.3).policy, torch.tensor([0.3]), []

    def value(features: Tensor, action: Tensor) -> Tensor:
        candidates.append(action)
        return -(action - wanted).square().sum(-1).expand(2, -1)

    best = policy.best(torch.zeros(40, 2), rng(), value)
    offered = candidates[0].view(40, 32, 1)
    assert torch.equal(best, offered[torch.arange(40), (offered - wanted).abs()[..., 0].argmin(1)])
    features = torch.randn(20, 2)
    chosen = [best_of(candidates=8, scale=scale).policy.best(features, rng()) for scale in (0.0, 1e-9)]
    assert torch.allclose(*chosen, atol=1e-6)
    single = best_of(candidates=1, scale=0.0).policy
    assert torch.equal(single.best(features, rng()), single.flow.sample(features, rng())[0].clamp(-1, 1))


@pytest.fixture(scope="module")
def cloned_base() -> FlowPolicy:
    base, source = flow_base(), rng(2)
    optimizer = torch.optim.Adam(base.parameters(), 3e-3)
    for _ in range(800):
        batch = two_modes(128, source)
        optimizer.zero_grad()
        base.loss(batch, batch["action"][:, None], source).mean().backward()
        optimizer.step()
    return base


@pytest.mark.parametrize("critic_on", ["latent", "action"])
def test_steering_learns_the_better_mode_with_a_frozen_base(cloned_base: FlowPolicy, critic_on: Any) -> None:
    base, source, before = copy.deepcopy(cloned_base), rng(3), cloned_base
    policy = SteeredPolicy(base, SteeredConfig(actor=GaussianConfig(HIDDEN, initial_std=0.5)))
    agent = DSRL(policy, DSRLConfig(**COMMON, critic_on=critic_on, entropy=True, target_entropy=-1.0), 0, (0.0, 1.0))
    for _ in range(400):
        batch = two_modes(128, source)
        if critic_on == "latent":
            u = 2 * torch.rand(128, 1, generator=source) - 1
            action = policy.transform(u, batch)
            batch |= {"latent": u, "action": action, "reward": (action[:, 0] > 0.2).float()}
        agent.update(batch)
    agent.finish()
    learned = policy.act({"observation.state": torch.randn(300, 2, generator=source)}, source).flatten()
    assert (learned > 0.2).float().mean() > 0.9 and equal(base, before)


def test_steering_of_scale_0_equals_the_base_without_noise() -> None:
    base, actor = flow_base(), GaussianConfig(HIDDEN)
    policy, steered = (SteeredPolicy(base, SteeredConfig(scale=scale, actor=actor)) for scale in (0.0, 1.5))
    assert torch.equal(policy.act(SEEN, rng()), base.base(SEEN, torch.zeros(10, 1, 1)))
    w = base.noise(10, rng(3))
    assert torch.allclose(steered.transform(w.flatten(1) / 1.5, SEEN), base.act(SEEN, rng(3)).flatten(1), atol=1e-6)
    with pytest.raises(ConfigError, match="noise"):
        SteeredPolicy(GaussianPolicy(SIZE))


@pytest.mark.parametrize("name", ["fql", "ofql", "cfgrl", "qc", "expo", "cal-ql", "dsrl"])
def test_resumed_to_the_bit_and_built_from_its_description(name: str) -> None:
    first = build(name)
    batches = [two_modes(64, rng(seed)) | {"latent": torch.rand(64, 1, generator=rng(seed))} for seed in range(4)]
    check_resumes(first, build(name), batches)
    first.finish()
    built = build_policy(first.policy.describe())
    built.load_state_dict(first.policy.state_dict())
    assert torch.equal(built.act(SEEN, rng()), first.policy.act(SEEN, rng()))


def test_gaussian_policy_continues_from_the_mean_of_another() -> None:
    given = GaussianPolicy(SIZE, GaussianConfig(HIDDEN, std=0.1))
    policy = gaussian_from(given, 0.2)
    assert torch.equal(policy.act(SEEN, rng()), given.act(SEEN, rng()))
    _, log_std = policy.actor(policy.features(SEEN))
    assert torch.allclose(log_std.exp(), torch.tensor(0.2)) and policy.actor.std is None
    for other in (flow_base(), EmbeddedPolicy(Size(2, 2))):
        with pytest.raises(ConfigError, match="Gaussian"):
            gaussian_from(other, 0.2)


def test_settings_that_do_not_fit_a_method_are_refused() -> None:
    with pytest.raises(ConfigError, match="--policy.kind mean-flow"):
        OFQL(generative("one-step"), OFQLConfig(**COMMON))
    for policy in (generative("flow"), generative("one-step")):
        with pytest.raises(ConfigError, match="--policy.guided"):
            CFGRL(policy, CFGRLConfig(**COMMON))
    with pytest.raises(ConfigError, match="--agent.head scalar"):
        BestOf(best_of().policy, ActorCriticConfig(**COMMON, head="c51"), 0, (0.0, 1.0))
