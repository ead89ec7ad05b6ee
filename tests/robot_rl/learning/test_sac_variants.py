"""Variants of soft actor-critic: equal to it at the limit of a setting, and their own known answers.

Iterated critics (i-qn), critics without target networks (flash-sac), sequences of actions (srl)."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.networks.ensemble import EnsembleBatchNorm
from policies.networks.gaussian import GaussianConfig
from robot_rl.data.replay import NEXT
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from robot_rl.learning.algorithms.cross_q import CrossQ
from robot_rl.learning.algorithms.iterated import IteratedQ
from robot_rl.learning.algorithms.sequence import SequenceRL
from robot_rl.recipes.flash_sac import FlashSAC
from robot_rl.recipes.sac import SAC, IteratedSAC
from robot_rl.recipes.srl import SequenceSAC
from robot_rl.util.errors import ConfigError
from tests.robot_rl.learning.conftest import POWERS, chain, chain_values, check_resumes, close, equal, floats, rng

SMALL: dict[str, Any] = dict(hidden=(16, 16))
FAST: dict[str, Any] = dict(hidden=(32, 32), critic_lr=1e-3, actor_lr=1e-3)


def policy(size: int = 5, **config: Any) -> GaussianPolicy:
    torch.manual_seed(0)
    return GaussianPolicy(Size(size, 1), GaussianConfig(**{"hidden": (16, 16), "initial_std": 1.0} | config))


def cross_q(**changes: Any) -> CrossQ:
    return CrossQ(policy(layer_norm=False), replace(FlashSAC().agent, **({"hidden": (32, 32)} | changes)))


def planner(horizon: int) -> GaussianPolicy:
    return policy(1, hidden=(32, 32), horizon=horizon, initial_std=0.3, layer_norm=False)


def sequence(horizon: int, **changes: Any) -> SequenceRL:
    return SequenceRL(planner(horizon), replace(SequenceSAC().agent, model_hidden=(64, 64), **FAST | changes))


def line(seed: int, rows: int = 128) -> dict[str, torch.Tensor]:
    """One-step episodes: a point on a line moves by half its action; the reward is minus its squared position."""
    generator = rng(seed)
    place, action = (2 * torch.rand(rows, 1, generator=generator) - 1 for _ in range(2))
    after, zero = place + 0.5 * action, torch.zeros(rows)
    return {
        "observation.state": place, NEXT + "observation.state": after, "action": action,
        "reward": -after[:, 0].square(), "discount": zero, "intervention": zero.bool(),
    }  # fmt: skip


@pytest.mark.parametrize("head", ["scalar", "hl-gauss", "gaussian"])
def test_one_iterate_equals_sac(head: str) -> None:
    """To the bit, with the same random numbers."""
    numbers = SMALL | dict(critics=3, subset=2, bins=21, head=head, value_low=-5.0, value_high=5.0)
    one = ActorCritic(policy(), replace(SAC().agent, **numbers), 3)
    other = IteratedQ(policy(), replace(IteratedSAC().agent, iterates=1, **numbers), 3)
    for seed in range(4):
        assert one.update(chain(rng(seed))) == other.update(chain(rng(seed)))
    assert all(equal(getattr(one, part), getattr(other, part)) for part in ("policy", "critic", "target"))
    assert torch.equal(one.rng.get_state(), other.rng.get_state())


def test_sequence_of_one_equals_sac() -> None:
    """To the bit, also when acting."""
    other = sequence(1)
    one = ActorCritic(planner(1), replace(SAC().agent, **FAST))
    for seed in range(4):
        assert one.update(line(seed)) == other.update(line(seed))
    assert all(equal(getattr(one, part), getattr(other, part)) for part in ("policy", "critic", "target"))
    for phase in LearningPhase:
        assert torch.equal(*(a.act({"observation.state": torch.zeros(3, 1)}, rng(1), phase)[0] for a in (one, other)))


def test_without_batch_norm_cross_q_is_sac_whose_target_is_the_critic() -> None:
    """One batch of both halves gives the numbers of two batches, up to rounding."""
    joint = cross_q(hidden=(16, 16), batch_norm=False)
    settings = {k: v for k, v in vars(joint.config).items() if k != "batch_norm"} | {"tau": 1.0}
    plain = ActorCritic(policy(layer_norm=False), ActorCriticConfig(**settings))
    for seed in range(6):
        one, other = plain.update(chain(rng(seed))), joint.update(chain(rng(seed)))
        assert floats(one) == pytest.approx(floats(other), rel=1e-3)
    close(plain.critic, joint.critic, atol=1e-4)
    assert torch.equal(plain.rng.get_state(), joint.rng.get_state())


def test_each_iterate_regresses_the_previous_one() -> None:
    config = replace(IteratedSAC().agent, iterates=3, entropy_backup=False, critics=3, subset=3, **SMALL)
    learner, data = IteratedQ(policy(), config), chain(rng(), discount=0.9)
    after, twin = {"observation.state": data[NEXT + "observation.state"]}, copy.deepcopy(learner)
    with torch.no_grad():
        u, _ = twin._next_action(after)
        features, loss = twin.policy.features(after), 0.0
        targets = [twin.target.value(features, u)[:3], *twin.critic.value(features, u).split(3)[:2]]
        q = twin.critic.value(twin.policy.features(data), data["action"]).split(3)
        for own, target in zip(q, targets, strict=True):
            loss += float((own - data["reward"] - data["discount"] * target.amin(0)).square().mean(1).sum())
    assert float(learner.update(data, LearningPhase.WARMUP)["critic/loss"]) == pytest.approx(loss, rel=1e-5)


def test_values_propagate_faster_through_several_iterates() -> None:
    """With an almost constant target, one critic learns one step of the chain, and four learn four."""
    errors = {}
    for iterates in (1, 4):
        small: dict[str, Any] = dict(hidden=(32, 32), critic_lr=3e-3, tau=0.001, entropy_backup=False)
        learner = IteratedQ(policy(), replace(IteratedSAC().agent, iterates=iterates, **small))
        for seed in range(300):
            learner.update(chain(rng(seed)), LearningPhase.WARMUP)
        errors[iterates] = float((chain_values(learner) - POWERS).abs().mean())
    assert errors[4] < 0.5 * errors[1], errors


def test_values_of_a_chain_without_target_network() -> None:
    """With running statistics, as the actor uses them."""
    learner = cross_q(entropy_backup=False)
    for seed in range(500):
        learner.update(chain(rng(seed), 128), LearningPhase.WARMUP)
    assert torch.allclose(chain_values(learner), POWERS, atol=0.08)


def test_batch_statistics_are_of_both_halves_and_in_checkpoints() -> None:
    learner = cross_q()
    check_resumes(learner, cross_q(), [chain(rng(seed)) for seed in (0, 1, 2, 9)])
    assert not learner.critic.training, "actor and bundle use running statistics"
    first = next(m for m in learner.critic.modules() if isinstance(m, EnsembleBatchNorm))
    assert (first.mean.unflatten(0, (2, -1))[:, :5] > 0).all(), "every state is in one half or the other"


def test_entropy_of_a_sequence_counts_once_per_action() -> None:
    """Without other terms, the actor's gradient is a fourth of the parent's, for which a chunk is one action."""
    gradients = []
    for kind, width in ((ActorCritic, 4), (SequenceRL, 1)):
        agent = kind(planner(4), replace(SequenceSAC().agent, **FAST | {"critic_lr": 1e-30}))
        for parameter in agent.critic.parameters():
            torch.nn.init.zeros_(parameter)
        agent.update(line(0) | {"action": line(0)["action"].expand(-1, width)})
        moments = agent.actor_optimizer.state_dict()["state"].values()
        gradients.append(torch.cat([each["exp_avg"].flatten() for each in moments]))
    assert gradients[0].abs().max() > 1e-3
    torch.testing.assert_close(gradients[1], gradients[0] / 4)


def test_later_actions_of_a_sequence_fit_the_predicted_states() -> None:
    """Two steps of 0.5 reach 0 from 1; the third has to stay."""
    agent = sequence(3, entropy=False, entropy_backup=False)
    for seed in range(1500):
        agent.update(line(seed))
    agent.finish()
    start = torch.tensor([[0.9], [-0.9], [0.4]])
    plan = agent.policy.act({"observation.state": start}, rng())[..., 0]
    places = start + 0.5 * plan.cumsum(1)
    assert places[:2, 0].abs().max() < 0.55 and places[:, 1:].abs().max() < 0.15
    assert (agent.model(start, torch.full((3, 1), 0.5)) - start - 0.25).abs().max() < 0.03


def test_exploration_executes_sequences_of_all_lengths() -> None:
    agent, generator, lengths = sequence(4), rng(), []
    for _ in range(200):
        agent.act({"observation.state": torch.zeros(1, 1)}, generator, LearningPhase.LEARN)
        lengths += agent.queue.used.tolist()
    assert {a for a, b in zip(lengths, lengths[1:], strict=False) if b == 1} == {1, 2, 3, 4}


@pytest.mark.parametrize("wrong", [{"n_step": 3}, {"critic_on": "latent"}])
def test_settings_without_a_sequence_form_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="srl needs"):
        sequence(2, **wrong)
