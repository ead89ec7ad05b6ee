"""Value-based agents: limits at which a loss equals a simpler one, known answers, and exact resumption."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.autoregressive import AutoregressiveConfig, AutoregressivePolicy
from policies.base import Size
from policies.coarse_to_fine import Atoms, CoarseToFinePolicy
from policies.networks.bins import BinsConfig
from robot_rl.data.replay import DEMONSTRATION, NEXT
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.arsq import ARSQ, ARSQConfig
from robot_rl.learning.algorithms.cqn import CQN, CQNConfig
from robot_rl.learning.algorithms.value_based import ValueBased
from robot_rl.learning.parts.heads import C51
from tests.robot_rl.learning.conftest import Batch, check_resumes, close, equal, rng

ATOMS = Atoms(11, -1.0, 1.0)


def cqn(levels: int = 2, bins: int = 3, actions: int = 2, **changes: Any) -> CQN:
    torch.manual_seed(0)
    policy = CoarseToFinePolicy(Size(2, actions), BinsConfig(levels, bins, hidden=(32, 32)), ATOMS)
    return CQN(policy, CQNConfig(**({"lr": 3e-3} | changes)))


def batch_of(count: int = 64, seed: int = 0, actions: int = 2) -> Batch:
    """Return one-step episodes, half of them demonstrated, with reward 1 - |first action - 0.6|."""
    generator = rng(seed)
    state, action = torch.randn(count, 2, generator=generator), 2 * torch.rand(count, actions, generator=generator) - 1
    return {
        "observation.state": state, NEXT + "observation.state": state, "action": action,
        "reward": 1 - (action[:, 0] - 0.6).abs(), "discount": torch.zeros(count),
        DEMONSTRATION: torch.arange(count) % 2 == 0,
    }  # fmt: skip


def acted(agent: ValueBased, rows: int = 50) -> Tensor:
    """Return the deployed actions (rows, A)."""
    agent.finish()
    return agent.policy.act({"observation.state": torch.randn(rows, 2, generator=rng(9))}, rng())[:, 0]


def arsq(conditional: bool = True, actions: int = 2, **changes: Any) -> ARSQ:
    torch.manual_seed(0)
    shape = AutoregressiveConfig(2, 3, hidden=(32, 32), temperature=0.05, conditional=conditional)
    return ARSQ(AutoregressivePolicy(Size(2, actions), shape), ARSQConfig(**({"lr": 3e-3, "noise": 0.0} | changes)))


@pytest.mark.parametrize("low", [-1.0, 0.0])
def test_initial_values_are_0(low: float) -> None:
    policy = CoarseToFinePolicy(Size(2, 2), BinsConfig(2, 3, hidden=(32, 32)), Atoms(11, low, 1.0))
    agent, seen = CQN(policy, CQNConfig()), torch.randn(9, 2, generator=rng())
    bins = policy.codec.encode(torch.rand(9, 2, generator=rng()))
    for network in (policy.network, agent.online):
        values = policy.atoms.mean(policy.logits(network, seen, bins))  # type: ignore[arg-type]
        assert values.abs().max() < (1 - low) / 10


def test_best_action_of_a_bandit_without_demonstrations() -> None:
    agent = cqn(imitation=0.0, td_weight=1.0)
    for seed in range(300):
        agent.update(batch_of(seed=seed))
    assert (acted(agent)[:, 0] - 0.6).abs().mean() < agent.policy.codec.width


def test_imitation_alone_reproduces_the_demonstrations() -> None:
    agent = cqn(td_weight=0.0)
    for seed in range(200):
        batch = batch_of(seed=seed)
        batch["action"][batch[DEMONSTRATION]] = torch.tensor([-0.6, 0.3])
        agent.update(batch)
    assert (acted(agent) - torch.tensor([-0.6, 0.3])).abs().max() <= agent.policy.codec.width


def test_one_level_without_imitation_equals_c51() -> None:
    """The update equals one step of AdamW on the cross-entropy with the double target, written in plain torch."""
    agent, batch = cqn(levels=1, actions=1, imitation=0.0, td_weight=1.0, grad_clip=None), batch_of(actions=1)
    batch["discount"] = torch.full_like(batch["discount"], 0.9)
    plain, head = copy.deepcopy(agent.online), C51(ATOMS.low, ATOMS.high, ATOMS.count)
    optimizer = torch.optim.AdamW(plain.parameters(), 3e-3, weight_decay=0.0, fused=True)
    middle, first, rows = torch.zeros(64, 1), torch.zeros(64, dtype=torch.long), torch.arange(64)
    with torch.no_grad():
        after = [net(batch["next.observation.state"], middle, first)[:, 0] for net in (plain, agent.policy.network)]
        best = head.mean(after[0]).argmax(-1)
        target = head.target(batch["reward"], batch["discount"], after[1][rows, best])
    chosen = ((batch["action"][:, 0] + 1) * 1.5).long()
    loss = head.loss(plain(batch["observation.state"], middle, first)[rows, 0, chosen], target).mean()
    loss.backward()
    optimizer.step()
    metrics = agent.update(batch)
    assert float(metrics["values/loss"]) == pytest.approx(float(loss.detach()), rel=1e-5)
    close(agent.online, plain)


@pytest.mark.parametrize("build", [cqn, arsq])
def test_imitation_has_no_effect_without_demonstrations(build: Callable[..., ValueBased]) -> None:
    one, other = (build(imitation=weight) for weight in (0.0, 1.0))
    for seed in range(3):
        for agent in (one, other):
            agent.update(batch_of(seed=seed) | {DEMONSTRATION: torch.zeros(64, dtype=torch.bool)})
    assert equal(one.online, other.online)


def test_executed_action_is_a_bin_and_without_noise_the_policys() -> None:
    agent, seen = cqn(noise=0.3), {"observation.state": torch.randn(30, 2)}
    for phase in LearningPhase:
        action, kept = agent.act(seen, rng(), phase)
        assert kept == {} and torch.equal(agent.policy.codec.snap(action), action)
    calm = cqn(noise=0.0)
    calm.update(batch_of())
    assert torch.equal(calm.act(seen, rng(), LearningPhase.LEARN)[0], calm.policy.act(seen, rng())[:, 0])


@pytest.mark.parametrize("build", [cqn, arsq])
def test_resumed_to_the_bit(build: Callable[[], ValueBased]) -> None:
    first, second, seen = build(), build(), {"observation.state": torch.randn(3, 2)}
    check_resumes(first, second, [batch_of(seed=seed) for seed in range(4)])
    first.act(seen, rng(), LearningPhase.LEARN)
    second.load_memory(first.memory(), {})
    assert torch.equal(*(agent.act(seen, rng(), LearningPhase.LEARN)[0] for agent in (first, second)))


def pairs(seed: int, count: int = 128) -> Batch:
    """Return one-step episodes with reward 1 if both action dimensions have the same sign, for half of the data."""
    batch, side = batch_of(count, seed), 1 - 2 * torch.randint(0, 2, (count, 2), generator=rng(seed)).float()
    batch["action"] = 0.6 * side
    return batch | {"reward": (side.prod(1) > 0).float(), DEMONSTRATION: torch.zeros(count, dtype=torch.bool)}


@pytest.mark.parametrize(("conditional", "low", "high"), [(True, 0.9, 1.0), (False, 0.0, 0.6)])
def test_only_conditional_bins_learn_dependent_dimensions(conditional: bool, low: float, high: float) -> None:
    """The paper's motivating example (section 3): values of single dimensions average good and bad actions."""
    agent = arsq(conditional)
    for seed in range(400):
        agent.update(pairs(seed))
    seen = torch.randn(500, 2, generator=rng())
    bins = agent.policy.choose(seen, rng(), explore=True)
    centers = agent.policy.codec.centers(bins)[:, 1]
    valid = float(((centers.prod(1) > 0.1) | (centers == 0).all(1)).float().mean())
    assert low <= valid <= high, valid


def test_values_of_a_bandit_are_soft_values() -> None:
    """With rewards of 0, V = alpha log sum exp(Q / alpha) = alpha log 81 over the 81 actions."""
    agent = arsq(lr=1e-2)
    for seed in range(600):
        batch = batch_of(256, seed) | {"reward": torch.zeros(256)}
        agent.update(batch | {DEMONSTRATION: torch.zeros(256, dtype=torch.bool)})
    with torch.no_grad():
        value = agent.policy.network.value(torch.randn(50, 2, generator=rng()))
    assert float(value.mean()) == pytest.approx(0.05 * math.log(81), abs=0.01)


def test_conditioning_has_no_effect_with_one_dimension() -> None:
    one, other = (arsq(conditional, actions=1) for conditional in (True, False))
    for seed in range(3):
        for agent in (one, other):
            agent.update(batch_of(seed=seed, actions=1))
    assert all(map(torch.equal, one.online.values.parameters(), other.online.values.parameters()))


def test_imitation_of_arsq_stops_at_its_margin() -> None:
    """Demonstrated bins that exceed the others by more than the margin have no gradient."""
    agent, batch = arsq(margin=0.2, imitation=1.0), batch_of()
    batch["action"] = torch.full((64, 2), 0.6)
    for _ in range(200):
        metrics = agent.update(batch)
    assert (acted(agent) - 0.6).abs().max() <= agent.policy.codec.width
    assert float(metrics["values/imitation"]) == pytest.approx(-0.2 * 2 * 2 * 2 * 2), "two other bins, 8 heads"
    without = arsq(margin=0.2, imitation=0.0)
    without.load_state_dict(copy.deepcopy(agent.state_dict()))
    for each in (agent, without):
        each.update(batch)
    close(agent.online, without.online, atol=1e-5)
