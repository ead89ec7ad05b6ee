"""Agents with generative actors: limits at which a method is another one, and known answers."""

from __future__ import annotations

import copy
import hashlib
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
from robot_rl.data.replay import NEXT
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from robot_rl.learning.algorithms.best_of import BestOf
from robot_rl.learning.algorithms.cal_ql import CalQL, CalQLConfig
from robot_rl.learning.algorithms.cfgrl import CFGRL, CFGRLConfig
from robot_rl.learning.algorithms.dsrl import DSRL, DSRLConfig
from robot_rl.learning.algorithms.fql import FQL, FQLConfig
from robot_rl.learning.algorithms.ofql import OFQL, OFQLConfig
from robot_rl.learning.parts.explore import ExplorationConfig
from robot_rl.util.errors import ConfigError

COMMON: dict[str, Any] = dict(
    hidden=(32, 32), n_step=1, l2=0.0, actor_delay=1, critic_lr=1e-3, actor_lr=1e-3, ema_decay=0.9,
    exploration=ExplorationConfig(warmup_noise=None, noise_memory=0.0),
)  # fmt: skip
SIZE, HIDDEN = Size(2, 1), (32, 32)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bandit(count: int, rng: torch.Generator) -> dict[str, Tensor]:
    """One-step episodes: half the data act at -0.5 for a reward of 0, half at 0.5 for 1."""
    good = torch.rand(count, generator=rng) < 0.5
    action = torch.where(good, 0.5, -0.5) + 0.05 * torch.randn(count, generator=rng)
    state = torch.randn(count, 2, generator=rng)
    zero = torch.zeros(count)
    return {
        "observation.state": state, NEXT + "observation.state": state, "action": action[:, None],
        "reward": good.float(), "discount": zero, "intervention": zero.bool(), "return_to_go": good.float(),
    }  # fmt: skip


def actions(agent: Any, updates: int = 500) -> Tensor:
    """Return what the policy does after updates on the bandit's data."""
    source = rng(1)
    for _ in range(updates):
        agent.update(bandit(128, source))
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


def build(name: str) -> Any:
    if name == "fql":
        return FQL(generative("one-step"), FQLConfig(**COMMON, alpha=1.0), 0, (0.0, 1.0))
    if name == "ofql":
        return OFQL(generative("mean-flow"), OFQLConfig(**COMMON, eta=1.0), 0, (0.0, 1.0))
    if name == "cfgrl":
        return CFGRL(generative("flow", guided=True, guidance=2.0), CFGRLConfig(**COMMON), 0, (0.0, 1.0))
    if name == "cal-ql":
        policy = GaussianPolicy(SIZE, GaussianConfig(HIDDEN))
        return CalQL(policy, CalQLConfig(**COMMON, entropy=True), 0, (0.0, 1.0))
    if name == "dsrl":
        policy = SteeredPolicy(flow_base(), SteeredConfig(actor=GaussianConfig(HIDDEN)))
        return DSRL(policy, DSRLConfig(**COMMON, entropy=True), 0, (0.0, 1.0))
    return best_of(candidates=8, scale=0.2 if name == "expo" else 0.0)


def flow_base() -> FlowPolicy:
    torch.manual_seed(0)
    return FlowPolicy(SIZE, FlowConfig(horizon=1, execute=1, hidden=32, layers=1, sample_steps=3))


@pytest.mark.parametrize("name", ["fql", "ofql", "cfgrl", "qc", "expo"])
def test_the_better_of_two_modes_is_found(name: str) -> None:
    found = actions(build(name))
    assert (found > 0.2).float().mean() > 0.8, "half the data are at -0.5"
    assert found.abs().max() <= 1


def test_without_a_weight_on_values_both_modes_are_cloned() -> None:
    """OFQL with eta 0, guidance 0, one candidate: half the actions are near each mode, few between."""
    clones = [
        OFQL(generative("mean-flow", hidden=(64, 64)), OFQLConfig(**COMMON | {"actor_lr": 2e-3}, eta=0.0)),
        CFGRL(generative("flow", guided=True, guidance=0.0), CFGRLConfig(**COMMON, unconditional=1.0), 0, (0.0, 1.0)),
        best_of(candidates=1, scale=0.0),
    ]
    for agent in clones:
        found = actions(agent, 1500)
        assert 0.25 < (found > 0.2).float().mean() < 0.75
        assert 0.25 < (found < -0.2).float().mean() < 0.75


def test_ofql_without_values_takes_the_steps_of_its_clone() -> None:
    agent, clone = OFQL(generative("mean-flow"), OFQLConfig(**COMMON, eta=0.0)), generative("mean-flow")
    optimizer, source = torch.optim.Adam(clone.actor.parameters(), 1e-3, fused=True), rng(0)
    for seed in range(3):
        batch = bandit(64, rng(seed))
        before = agent.rng.get_state()
        agent._update_critic(batch)
        source.set_state(agent.rng.get_state())
        agent.rng.set_state(before)
        agent.update(batch)
        loss = clone.actor.loss(clone.features(batch), batch["action"], source).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(clone.actor.parameters(), agent.config.grad_clip or 0)
        optimizer.step()
        for ours, theirs in zip(agent.policy.actor.parameters(), clone.actor.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_mean_flow_over_no_time_is_flow_matching(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = generative("mean-flow").actor
    assert isinstance(actor, MeanFlowActor)
    monkeypatch.setattr(MeanFlowActor, "SAME", 1.1)
    features, action = torch.randn(40, 2), torch.rand(40, 1)
    ours = actor.loss(features, action, rng(5))
    source = rng(5)
    z = torch.randn(40, 1, generator=source)
    r, t = actor.times(40, source, torch.device("cpu"))
    noisy = (1 - t)[:, None] * action + t[:, None] * z
    assert torch.equal(r, t)
    assert torch.allclose(ours, (actor.velocity(noisy, t, t, features) - (z - action)).square(), atol=1e-6)


def test_guidance_of_0_and_1_are_the_branches() -> None:
    features, z = torch.randn(30, 2), torch.randn(30, 1)
    decoded = {}
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


def test_one_candidate_without_edits_is_the_flow() -> None:
    policy = best_of(candidates=1, scale=0.0).policy
    features = torch.randn(20, 2)
    assert torch.equal(policy.best(features, rng()), policy.flow.sample(features, rng())[0].clamp(-1, 1))


def test_the_planted_best_candidate_is_taken() -> None:
    policy, wanted = best_of(candidates=16, scale=0.3).policy, torch.tensor([0.3])
    seen: list[Tensor] = []

    def judge(features: Tensor, action: Tensor) -> Tensor:
        seen.append(action)
        return -(action - wanted).square().sum(-1).expand(2, -1)

    best = policy.best(torch.zeros(40, 2), rng(), judge)
    offered = seen[0].view(40, 32, 1)
    assert torch.equal(best, offered[torch.arange(40), (offered - wanted).abs()[..., 0].argmin(1)])


def test_edits_of_no_size_change_no_choice() -> None:
    """Each candidate stands beside its edit, which is itself: the flow's best is taken."""
    features = torch.randn(20, 2)
    found = [best_of(candidates=8, scale=scale).policy.best(features, rng()) for scale in (0.0, 1e-9)]
    assert torch.allclose(*found, atol=1e-6)


@pytest.mark.parametrize("critic_on", ["latent", "action"])
def test_steering_leaves_the_base_alone_and_finds_the_better_mode(critic_on: Any) -> None:
    base = flow_base()
    optimizer, source = torch.optim.Adam(base.parameters(), 3e-3), rng(2)
    for _ in range(800):
        batch = bandit(128, source)
        optimizer.zero_grad()
        base.loss(batch, batch["action"][:, None], source).mean().backward()
        optimizer.step()
    digest = hashlib.sha256(b"".join(v.numpy().tobytes() for v in base.state_dict().values())).hexdigest()
    policy = SteeredPolicy(base, SteeredConfig(actor=GaussianConfig(HIDDEN, initial_std=0.5)))
    agent = DSRL(policy, DSRLConfig(**COMMON, critic_on=critic_on, entropy=True, target_entropy=-1.0), 0, (0.0, 1.0))
    for _ in range(400):
        batch = bandit(128, source)
        u = (2 * torch.rand(128, 1, generator=source) - 1) if critic_on == "latent" else None
        if u is not None:
            action = policy.transform(u, batch)
            batch |= {"latent": u, "action": action, "reward": (action[:, 0] > 0.2).float()}
        agent.update(batch)
    agent.finish()
    found = policy.act({"observation.state": torch.randn(300, 2, generator=source)}, source).flatten()
    assert (found > 0.2).float().mean() > 0.9
    assert digest == hashlib.sha256(b"".join(v.numpy().tobytes() for v in base.state_dict().values())).hexdigest()


def test_steering_of_scale_0_is_the_base_without_noise() -> None:
    base = flow_base()
    policy = SteeredPolicy(base, SteeredConfig(scale=0.0, actor=GaussianConfig(HIDDEN)))
    seen = {"observation.state": torch.randn(10, 2)}
    assert torch.equal(policy.act(seen, rng()), base.base(seen, torch.zeros(10, 1, 1)))
    steered = SteeredPolicy(base, SteeredConfig(scale=1.5, actor=GaussianConfig(HIDDEN)))
    w = base.noise(10, rng(3))
    assert torch.allclose(steered.transform(w.flatten(1) / 1.5, seen), base.act(seen, rng(3)).flatten(1), atol=1e-6)
    with pytest.raises(ConfigError, match="noise"):
        SteeredPolicy(GaussianPolicy(SIZE))


def test_cal_ql_without_conservatism_is_the_actor_critic() -> None:
    config: dict[str, Any] = COMMON | dict(entropy=True)
    agents = []
    for kind, settings in (
        (CalQL, CalQLConfig(**config, conservative=0.0)),
        (ActorCritic, ActorCriticConfig(**config)),
    ):
        torch.manual_seed(0)
        agents.append(kind(GaussianPolicy(SIZE, GaussianConfig(HIDDEN)), settings, 0, (0.0, 1.0)))  # type: ignore[arg-type]
    for seed in range(3):
        for agent in agents:
            agent.update(bandit(64, rng(seed)))
    for one, other in zip(agents[0].critic.parameters(), agents[1].critic.parameters(), strict=True):
        assert torch.equal(one, other)


def test_conservative_values_are_low_outside_the_data_but_not_below_its_return() -> None:
    """At a = 0 there are no data. Calibrated values stay at the data's return, here 0.5 on average, or above."""
    values = {}
    for name, changes in {"plain": {"conservative": 0.0}, "cql": {"calibrated": False}, "cal-ql": {}}.items():
        torch.manual_seed(0)
        settings = CalQLConfig(**COMMON | dict(entropy=True), **{"conservative": 2.0} | changes)  # type: ignore[arg-type]
        agent = CalQL(GaussianPolicy(SIZE, GaussianConfig(HIDDEN)), settings, 0, (0.0, 1.0))
        actions(agent, 400)
        with torch.no_grad():
            values[name] = float(agent.critic.value(torch.zeros(1, 2), torch.zeros(1, 1)).mean())
    assert values["cql"] < values["plain"] - 0.2
    assert values["cal-ql"] > values["cql"] + 0.1


def test_values_are_not_held_up_by_returns_that_nobody_knows() -> None:
    """With a reward that may be negative, steps without a known return must not count as worth 0."""
    after = []
    for calibrated in (True, False):
        torch.manual_seed(0)
        settings = CalQLConfig(**COMMON | dict(entropy=True), conservative=2.0, calibrated=calibrated)  # type: ignore[arg-type]
        agent = CalQL(GaussianPolicy(SIZE, GaussianConfig(HIDDEN)), settings)
        batch = bandit(64, rng())
        recorded = agent.annotate({}, batch["action"], -torch.ones(64), rng())["return_to_go"]
        acted = agent.act({"observation.state": torch.zeros(3, 2)}, rng(), LearningPhase.LEARN)[1]["return_to_go"]
        assert recorded.max() < -1e6 and acted.max() < -1e6 and recorded.isfinite().all()
        agent.update(batch | {"reward": -torch.ones(64), "return_to_go": recorded})
        after.append(torch.cat([p.flatten() for p in agent.critic.parameters()]))
    assert torch.equal(*after), "without a known return it is CQL"
    bounded = CalQL(GaussianPolicy(SIZE, GaussianConfig(HIDDEN)), CalQLConfig(**COMMON, value_low=-20.0))  # type: ignore[arg-type]
    short = bounded.annotate({}, torch.zeros(2, 1), torch.tensor([-1.0, -1.0]), rng())["return_to_go"]
    discount = bounded.config.discount
    assert torch.allclose(short, torch.tensor([-1 - discount - 20 * discount**2, -1 - 20 * discount]))


@pytest.mark.parametrize("name", ["fql", "ofql", "cfgrl", "qc", "expo", "cal-ql", "dsrl"])
def test_resumed_to_the_bit_and_built_from_its_description(name: str) -> None:
    first, second = build(name), build(name)
    batches = [bandit(64, rng(seed)) | {"latent": torch.rand(64, 1, generator=rng(seed))} for seed in range(4)]
    for batch in batches[:3]:
        first.update(batch)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    one, other = first.update(batches[3]), second.update(batches[3])
    assert {k: float(v) for k, v in one.items()} == {k: float(v) for k, v in other.items()}
    first.finish()
    made = build_policy(first.policy.describe())
    made.load_state_dict(first.policy.state_dict())
    seen = {"observation.state": torch.randn(5, 2)}
    assert torch.equal(made.act(seen, rng()), first.policy.act(seen, rng()))


def test_a_policy_goes_on_from_the_mean_of_another() -> None:
    torch.manual_seed(0)
    given = GaussianPolicy(SIZE, GaussianConfig(HIDDEN, std=0.1))
    policy, seen = gaussian_from(given, 0.2), {"observation.state": torch.randn(50, 2)}
    assert torch.equal(policy.act(seen, rng()), given.act(seen, rng()))
    _, log_std = policy.actor(policy.features(seen))
    assert torch.allclose(log_std.exp(), torch.tensor(0.2)) and policy.actor.std is None
    with pytest.raises(ConfigError, match="Gaussian"):
        gaussian_from(flow_base(), 0.2)
    with pytest.raises(ConfigError, match="policy has no Gaussian"):
        gaussian_from(EmbeddedPolicy(Size(2, 2)), 0.2)


def test_settings_that_a_method_cannot_work_with_are_refused() -> None:
    with pytest.raises(ConfigError, match="--policy.kind mean-flow"):
        OFQL(generative("one-step"), OFQLConfig(**COMMON))
    for policy in (generative("flow"), generative("one-step")):
        with pytest.raises(ConfigError, match="--policy.guided"):
            CFGRL(policy, CFGRLConfig(**COMMON))
    with pytest.raises(ConfigError, match="--agent.head scalar"):
        BestOf(best_of().policy, ActorCriticConfig(**COMMON, head="c51"), 0, (0.0, 1.0))


def test_recorded_episodes_have_their_return() -> None:
    agent, reward = build("cal-ql"), torch.tensor([0.0, 0.0, 1.0])
    added = agent.annotate({"observation.state": torch.zeros(4, 2)}, torch.zeros(3, 1), reward, rng())
    discount = agent.config.discount
    assert torch.allclose(added["return_to_go"], torch.tensor([discount**2, discount, 1.0]))
