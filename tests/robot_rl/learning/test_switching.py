"""Two agents on one replay: each gets the samples of its own sampling, and the first hands over to the second."""

import copy
from dataclasses import replace

import pytest
import torch

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.networks.gaussian import GaussianConfig
from robot_rl.data.replay import Replay, Sampling
from robot_rl.learning.agent import LearningPhase
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from robot_rl.learning.algorithms.switching import Switching, SwitchingConfig
from robot_rl.recipes.chunks_to_steps import ChunksToSteps
from robot_rl.util.errors import ConfigError
from tests.robot_rl.learning.conftest import Batch, floats, rng

CONFIG = ActorCriticConfig(hidden=(16,), n_step=1, discount=0.9, entropy=True)


def agent(horizon: int = 3, **changes: int) -> Switching:
    torch.manual_seed(0)
    chunk, step = (GaussianPolicy(Size(1, 2), GaussianConfig((16,), h)) for h in (horizon, 1))
    config = SwitchingConfig(CONFIG, CONFIG, **changes)
    return Switching(ActorCritic(chunk, CONFIG), ActorCritic(step, CONFIG), config)


def recorded(learner: Switching) -> Replay:
    """Return three episodes of 2, 5 and 9 steps, the second truncated."""
    replay, source = Replay(60, 1, learner.columns), rng()
    for k, steps in enumerate((2, 5, 9)):
        terminated = torch.arange(steps) == (steps - 1 if k != 1 else -1)
        state, reward = torch.rand(steps + 1, 1, generator=source), torch.rand(steps, generator=source)
        episode = {"observation.state": state, "reward": reward, "terminated": terminated}
        episode |= {"action": torch.rand(steps, 2, generator=source), "intervention": torch.arange(steps) % 3 == 1}
        replay.add_episode(episode)
    return replay


def same(ours: Batch, theirs: Batch) -> None:
    for name, value in theirs.items():
        if name == "action" and "valid" in theirs:  # actions after the end are arbitrary
            value, ours[name] = (x * theirs["valid"][..., None] for x in (value, ours[name]))
        assert torch.allclose(ours[name].float(), value.float(), atol=1e-6), name


@pytest.mark.parametrize("horizon", [2, 3, 5])
def test_each_agent_gets_its_own_samples(horizon: int) -> None:
    learner = agent(horizon)
    replay = recorded(learner)
    sequences = replay.sample(200, learner.sampling, rng(1))
    for samples, how in (
        (learner.stepped(sequences), Sampling(1, 0.9)),
        (learner.chunked(sequences), Sampling(horizon, 0.9, horizon)),
    ):
        same(samples, replay.sample(200, how, rng(1)))  # the same generator draws the same rows


def test_chunks_act_first_and_single_steps_last() -> None:
    learner = agent(first=8, last=16)
    seen, source, singles = {"observation.state": torch.zeros(4, 1)}, rng(), []
    for _ in range(6):
        action, _ = learner.act(seen, source, LearningPhase.LEARN)
        assert action.shape == (4, 2)
        singles.append(int(learner.single.sum()))
        learner.reset(torch.arange(4))
    assert singles[:2] == [0, 0] and singles[-1] == 4 and learner.share == 1
    assert learner.policy is learner.steps.policy and agent().policy is not agent().steps.policy
    learner = agent(first=0, last=4)
    for _ in range(2):
        learner.act(seen, source, LearningPhase.LEARN)
    assert not learner.single.any(), "the acting agent is constant during an episode"


def test_resumed_to_the_bit() -> None:
    first, second = agent(first=0, last=100), agent(first=0, last=100)
    replay, source, seen = recorded(first), rng(2), {"observation.state": torch.zeros(3, 1)}
    first.act(seen, source, LearningPhase.LEARN)
    first.update(replay.sample(16, first.sampling, source), LearningPhase.LEARN)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    second.load_memory(copy.deepcopy(first.memory()), seen)
    batch, results = replay.sample(16, first.sampling, source), []
    for learner in (first, second):
        learner.reset(torch.tensor([1]))
        metrics = learner.update(dict(batch), LearningPhase.LEARN)
        results.append((learner.act(seen, rng(3), LearningPhase.LEARN)[0].tolist(), floats(metrics)))
    assert results[0] == results[1]


def test_single_steps_need_an_n_step_of_1_and_a_run_that_reaches_them() -> None:
    policy = GaussianPolicy(Size(1, 2), GaussianConfig((16,)))
    three = ActorCriticConfig(hidden=(16,), n_step=3, discount=0.9)
    with pytest.raises(ConfigError, match="n-step 1"):
        Switching(ActorCritic(policy, CONFIG), ActorCritic(policy, three), SwitchingConfig(CONFIG, CONFIG))
    with pytest.raises(ValueError, match="last"):
        SwitchingConfig(CONFIG, CONFIG, first=10, last=5)
    recipe = ChunksToSteps()
    short = replace(recipe, training=replace(recipe.training, steps=recipe.agent.first))
    with pytest.raises(ConfigError, match=r"ends before single steps act, .* lower --agent\.first"):
        short.build(None)  # raises before it reads the job
