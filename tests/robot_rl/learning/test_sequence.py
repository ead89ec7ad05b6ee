"""Sequences of actions: with one it is the parent; with several, a model tells the states that they lead to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.networks.gaussian import GaussianConfig
from robot_rl.data.replay import NEXT
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.actor_critic import ActorCritic
from robot_rl.learning.algorithms.sequence import SequenceRL
from robot_rl.recipes.sac import SAC
from robot_rl.recipes.srl import SequenceSAC
from robot_rl.util.errors import ConfigError

SMALL = dict(hidden=(32, 32), critic_lr=1e-3, actor_lr=1e-3)


def policy(horizon: int) -> GaussianPolicy:
    torch.manual_seed(0)
    config = GaussianConfig(hidden=(32, 32), horizon=horizon, initial_std=0.3, layer_norm=False)
    return GaussianPolicy(Size(1, 1), config)


def learner(horizon: int, **changes: object) -> SequenceRL:
    return SequenceRL(policy(horizon), replace(SequenceSAC().agent, **(SMALL | changes)))  # type: ignore[arg-type]


def batch(seed: int, rows: int = 128) -> dict[str, Tensor]:
    """A point on a line moves by half its action, and is paid for being near 0; nothing follows."""
    rng = torch.Generator().manual_seed(seed)
    place, action = (2 * torch.rand(rows, 1, generator=rng) - 1 for _ in range(2))
    after = place + 0.5 * action
    return {
        "observation.state": place, NEXT + "observation.state": after, "action": action,
        "reward": -after[:, 0].square(), "discount": torch.zeros(rows),
        "intervention": torch.zeros(rows, dtype=torch.bool),
    }  # fmt: skip


def test_a_sequence_of_one_is_the_parent() -> None:
    """The same metrics and networks to the bit, and the same random numbers."""
    one = ActorCritic(policy(1), replace(SAC().agent, **SMALL))  # type: ignore[arg-type]
    other = learner(1)
    for seed in range(4):
        assert one.update(batch(seed)) == other.update(batch(seed))
    for part in ("policy", "critic", "target"):
        theirs = getattr(other, part).state_dict()
        assert all(torch.equal(v, theirs[k]) for k, v in getattr(one, part).state_dict().items()), part
    seen = {"observation.state": torch.zeros(3, 1)}
    for phase in LearningPhase:
        acted = [a.act(seen, torch.Generator().manual_seed(1), phase)[0] for a in (one, other)]
        assert torch.equal(*acted)


def test_the_actor_counts_the_entropy_of_a_sequence_once_per_action() -> None:
    """As the backup does: where nothing else moves it, its gradient is a fourth of the parent's, whose chunk is one."""
    gradients = []
    for kind, width in ((ActorCritic, 4), (SequenceRL, 1)):
        agent = kind(policy(4), replace(SequenceSAC().agent, **(SMALL | {"critic_lr": 1e-30})))  # type: ignore[arg-type]
        for parameter in agent.critic.parameters():
            torch.nn.init.zeros_(parameter)
        agent.update(batch(0) | {"action": batch(0)["action"].expand(-1, width)})
        moments = agent.actor_optimizer.state_dict()["state"].values()
        gradients.append(torch.cat([each["exp_avg"].flatten() for each in moments]))
    assert gradients[0].abs().max() > 1e-3
    torch.testing.assert_close(gradients[1], gradients[0] / 4)


def test_later_actions_are_right_for_the_states_that_earlier_ones_lead_to() -> None:
    """Two steps of 0.5 reach 0 from 1; then the third has to stay."""
    agent = learner(3, entropy=False, entropy_backup=False)
    for seed in range(1500):
        agent.update(batch(seed))
    agent.finish()
    start = torch.tensor([[0.9], [-0.9], [0.4]])
    plan = agent.policy.act({"observation.state": start}, torch.Generator())[..., 0]
    places = start + 0.5 * plan.cumsum(1)
    assert places[:2, 0].abs().max() < 0.55 and places[:, 1:].abs().max() < 0.15
    known = agent.model(start, torch.full((3, 1), 0.5))
    assert (known - start - 0.25).abs().max() < 0.03


def test_practice_executes_parts_of_all_lengths() -> None:
    agent, rng = learner(4), torch.Generator().manual_seed(0)
    seen, lengths = {"observation.state": torch.zeros(1, 1)}, []
    for _ in range(200):
        agent.act(seen, rng, LearningPhase.LEARN)
        lengths += agent.queue.used.tolist()
    ends = [a for a, b in zip(lengths, lengths[1:], strict=False) if b == 1]
    assert set(ends) == {1, 2, 3, 4}


@pytest.mark.parametrize("wrong", [{"n_step": 3}, {"critic_on": "latent"}])
def test_what_it_cannot_do_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="srl needs"):
        learner(2, **wrong)
