"""Offline updates: limits at which a method equals a simpler one, and better actions that are rare in the data."""

from functools import partial
from typing import Any

import pytest
import torch

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.networks.gaussian import GaussianConfig
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from robot_rl.learning.algorithms.cal_ql import CalQL, CalQLConfig
from robot_rl.learning.algorithms.iql import IQL, IQLConfig
from robot_rl.learning.algorithms.td3_bc import TD3BC, TD3BCConfig
from robot_rl.learning.parts.explore import ExplorationConfig
from tests.robot_rl.learning.conftest import check_resumes, equal, rng, two_modes

COMMON: dict[str, Any] = dict(
    layer_norm=False, hidden=(32, 32), n_step=1, l2=0.0, actor_delay=1, critic_lr=1e-3, actor_lr=1e-3, ema_decay=0.9,
    exploration=ExplorationConfig(warmup_noise=None, noise_memory=0.0),
)  # fmt: skip


rare = partial(two_modes, share=0.2)
"""Two modes, of which the better has a share of 0.2."""


def policy(std: float | None = None) -> GaussianPolicy:
    torch.manual_seed(0)
    return GaussianPolicy(Size(2, 1), GaussianConfig(hidden=(32, 32), std=std, layer_norm=False))


def trained(agent: Any, updates: int = 600, data: Any = rare) -> Any:
    generator = rng(1)
    for _ in range(updates):
        agent.update(data(128, generator))
    agent.finish()
    return agent


def mean_action(agent: Any) -> float:
    with torch.no_grad():
        return float(agent.policy.act({"observation.state": torch.randn(200, 2, generator=rng())}, rng()).mean())


def iql(**changes: float) -> IQL:
    return IQL(policy(), IQLConfig(**COMMON | changes), 0, (0.0, 1.0))


def td3_bc(**changes: float) -> TD3BC:
    return TD3BC(policy(0.1), TD3BCConfig(**COMMON | {"pooling": "first"} | changes), 0, (0.0, 1.0))


def cal_ql(limits: tuple[float, float] = (0.0, 1.0), **changes: Any) -> CalQL:
    return CalQL(policy(), CalQLConfig(**COMMON | {"entropy": True} | changes), 0, limits)


def test_better_action_is_learned_where_cloning_takes_the_mean() -> None:
    assert mean_action(trained(iql(expectile=0.7, temperature=10.0))) > 0.35
    assert mean_action(trained(td3_bc(alpha=2.5))) > 0.35
    assert -0.45 < mean_action(trained(td3_bc(alpha=0.0))) < -0.1, "80 % of the data are at -0.5, 20 % at 0.5"
    assert mean_action(trained(iql(expectile=0.7, temperature=0.0))) < 0


def test_without_weight_on_values_the_actor_is_cloned_exactly() -> None:
    """TD3+BC with alpha 0 equals regression, IQL with temperature 0 equals maximum likelihood."""
    for agent, clone in ((td3_bc(alpha=0.0), policy(0.1)), (iql(temperature=0.0), policy())):
        optimizer, generator = torch.optim.Adam(clone.actor.parameters(), 1e-3, fused=True), rng(2)
        for _ in range(5):
            batch = rare(64, generator)
            agent.update(batch)
            features = clone.actor_features(batch)
            if isinstance(agent, TD3BC):
                loss = (clone.actor.mean(features) - batch["action"]).square().mean()
            else:
                loss = -clone.actor.log_prob(features, batch["action"]).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(clone.actor.parameters(), agent.config.grad_clip or 0)
            optimizer.step()
        assert equal(agent.policy.actor, clone.actor)


@pytest.mark.parametrize(("tau", "value", "error"), [(0.5, 0.2, 0.08), (0.9, 0.18 / 0.26, 0.12)])
def test_iql_values_are_an_expectile_of_the_data_and_resume(tau: float, value: float, error: float) -> None:
    """Expectile 0.5 is the mean reward, 0.2; expectile 0.9 is 0.9 * 0.2 / (0.9 * 0.2 + 0.1 * 0.8)."""
    agent = trained(iql(expectile=tau), 400)
    with torch.no_grad():
        assert float(agent.state_value(torch.randn(500, 2, generator=rng())).mean()) == pytest.approx(value, abs=error)
    check_resumes(iql(), iql(), [rare(64, rng(seed)) for seed in range(4)])


def test_cal_ql_without_conservatism_equals_the_actor_critic() -> None:
    one = cal_ql(conservative=0.0)
    other = ActorCritic(policy(), ActorCriticConfig(**COMMON | {"entropy": True}), 0, (0.0, 1.0))
    for seed in range(3):
        for agent in (one, other):
            agent.update(two_modes(64, rng(seed)))
    assert equal(one.critic, other.critic)


def test_conservative_values_are_low_outside_the_data_but_not_below_its_return() -> None:
    """At a = 0 there are no data. Calibrated values stay at the data's return, 0.5 on average, or above."""
    values = {}
    for name, changes in {"plain": {"conservative": 0.0}, "cql": {"calibrated": False}, "cal-ql": {}}.items():
        torch.manual_seed(0)
        settings = COMMON | {"layer_norm": True, "entropy": True, "conservative": 2.0} | changes
        actor = GaussianPolicy(Size(2, 1), GaussianConfig((32, 32)))
        agent = trained(CalQL(actor, CalQLConfig(**settings), 0, (0.0, 1.0)), 400, two_modes)
        with torch.no_grad():
            values[name] = float(agent.critic.value(torch.zeros(1, 2), torch.zeros(1, 1)).mean())
    assert values["cql"] < values["plain"] - 0.2 and values["cal-ql"] > values["cql"] + 0.1


def test_unknown_returns_do_not_bound_values() -> None:
    """If rewards may be negative, steps without a known return must not count as a return of 0."""
    critics = []
    for calibrated in (True, False):
        agent = cal_ql((-float("inf"), float("inf")), conservative=2.0, calibrated=calibrated)
        batch = two_modes(64, rng())
        recorded = agent.annotate({}, batch["action"], -torch.ones(64), rng())["return_to_go"]
        acted = agent.act({"observation.state": torch.zeros(3, 2)}, rng(), LearningPhase.LEARN)[1]["return_to_go"]
        assert recorded.max() < -1e6 and acted.max() < -1e6 and recorded.isfinite().all()
        agent.update(batch | {"reward": -torch.ones(64), "return_to_go": recorded})
        critics.append(agent.critic)
    assert equal(*critics), "without a known return it is CQL"
    bounded = cal_ql((-float("inf"), float("inf")), value_low=-20.0)
    short = bounded.annotate({}, torch.zeros(2, 1), torch.tensor([-1.0, -1.0]), rng())["return_to_go"]
    discount = bounded.config.discount
    assert torch.allclose(short, torch.tensor([-1 - discount - 20 * discount**2, -1 - 20 * discount]))
