"""Compare gradient steps per second of SAC with stable-baselines3's, in one process and thread, alternating.

    python -m benchmarks.sac_speed

Both agents have 2x256 networks, 2 critics, batch size 256, and observations and actions of HalfCheetah's size. A step
includes sampling from the replay buffer.
"""

import argparse
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch

from policies.actor import GaussianPolicy
from policies.base import Size
from robot_rl.data.replay import Replay
from robot_rl.data.sources import sample_batches
from robot_rl.learning.algorithms.actor_critic import ActorCritic
from robot_rl.recipes.sac import SAC
from robot_rl.training.run import learning_floats, provenance, write_json

RESULTS = Path(__file__).parent / "results" / "sac_speed.json"
OBSERVATION, ACTION, ROWS, BATCH = 17, 6, 50_000, 256


class Blank(gym.Env):  # type: ignore[type-arg]
    """Environment that defines only spaces, because SAC trains on a given replay buffer."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (ACTION,), np.float32)


def ours() -> tuple[ActorCritic, Replay, torch.Generator]:
    """Return robot-rl's SAC agent and a replay buffer of random transitions."""
    recipe, rng = SAC(), torch.Generator().manual_seed(0)
    agent = ActorCritic(GaussianPolicy(Size(OBSERVATION, ACTION), recipe.policy), recipe.agent)
    replay = Replay(ROWS + 100, 1, agent.columns)
    for _ in range(ROWS // 1000):
        replay.add_episode(
            {
                "observation.state": torch.randn(1001, OBSERVATION, generator=rng),
                "action": 2 * torch.rand(1000, ACTION, generator=rng) - 1,
                "reward": torch.randn(1000, generator=rng),
                "terminated": torch.zeros(1000, dtype=torch.bool),
            }
        )
    return agent, replay, rng


def theirs() -> object:
    """Return stable-baselines3's SAC with a replay buffer of random transitions."""
    import stable_baselines3
    from stable_baselines3.common.logger import configure

    model = stable_baselines3.SAC("MlpPolicy", Blank(), batch_size=BATCH, buffer_size=ROWS, device="cpu", seed=0)
    model.set_logger(configure(None, []))
    buffer, rng = model.replay_buffer, np.random.default_rng(0)
    assert buffer is not None
    shape = buffer.observations.shape
    buffer.observations[:], buffer.next_observations[:] = rng.normal(size=shape), rng.normal(size=shape)
    buffer.actions[:], buffer.rewards[:] = rng.uniform(-1, 1, buffer.actions.shape), rng.normal(size=(ROWS, 1))
    buffer.full, buffer.pos = True, 0
    return model


def main() -> int:
    """Time the gradient steps of both libraries in turns and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="turns of each")
    parser.add_argument("--steps", type=int, default=200, help="gradient steps per turn")
    a = parser.parse_args()
    torch.set_num_threads(1)
    (agent, replay, rng), peer = ours(), theirs()
    seconds: dict[str, list[float]] = {"robot-rl": [], "stable-baselines3": []}
    with learning_floats():
        for _ in range(a.rounds + 1):
            start = time.perf_counter()
            for _ in range(a.steps):
                agent.update(sample_batches([(replay, BATCH)], 1, agent.sampling, rng)[0])
            middle = time.perf_counter()
            peer.train(gradient_steps=a.steps, batch_size=BATCH)  # type: ignore[attr-defined]
            seconds["robot-rl"].append(middle - start)
            seconds["stable-baselines3"].append(time.perf_counter() - middle)
    speed = {name: a.steps / float(np.median(times[1:])) for name, times in seconds.items()}  # the first one warms up
    ratio = speed["robot-rl"] / speed["stable-baselines3"]
    write_json(RESULTS, {"steps_per_second": speed, "ratio": ratio, "provenance": provenance()})
    sys.stdout.write(f"{speed}, ratio {ratio:.2f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
