"""AWAC: cloning weighted by advantages; equal weights for an infinite temperature."""

from dataclasses import replace

import pytest
import torch

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.networks.gaussian import GaussianConfig
from robot_rl.recipes.awac import AWAC, AWACAgent
from robot_rl.util.errors import ConfigError


def agent(temperature: float = 1.0, **changes: object) -> AWACAgent:
    torch.manual_seed(0)
    policy = GaussianPolicy(Size(3, 2), GaussianConfig(hidden=(16,), initial_std=0.3))
    return AWACAgent(policy, replace(AWAC().agent, hidden=(16,), temperature=temperature, **changes))  # type: ignore[arg-type]


def test_weights_are_those_of_the_advantages_and_equal_for_an_infinite_temperature() -> None:
    batch = {"observation.state": torch.randn(64, 3), "action": 1.8 * torch.rand(64, 2) - 0.9}
    for temperature in (0.1, 1e9):
        learner = agent(temperature)
        features = learner.policy.actor_features(batch)
        loss, log_prob, metrics = learner._actor_loss(batch, features, features)
        assert torch.equal(log_prob, learner.policy.actor.log_prob(features, batch["action"]))
        cloning = -log_prob.mean()
        if temperature == 1e9:
            torch.testing.assert_close(loss, cloning)
        else:
            learner = agent(temperature)  # the same noise again
            own = learner.critic.value(features, learner.policy.actor.sample(features, learner.rng)[0]).amin(0)
            advantage = learner.critic.value(features, batch["action"]).amin(0) - own
            weight = (advantage / temperature).exp().clamp_max(100)
            torch.testing.assert_close(loss, -(weight * log_prob).mean())
            torch.testing.assert_close(metrics["actor/weight"], weight.mean())
            assert not torch.isclose(loss, cloning)


@pytest.mark.parametrize("changes", [{"entropy": True}, {"l2": 0.1}, {"imitation": 1.0}])
def test_other_terms_of_the_actor_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="awac's actor only clones"):
        agent(**changes)
