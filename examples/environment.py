"""Step sixteen simulated Pandas with random actions."""

import torch

from sim.make import make

env = make("panda-lift", 16)
observation, _ = env.reset(seed=0)
for _ in range(50):
    actions = 2 * torch.rand(16, env.info.action) - 1
    observation, reward, terminated, truncated, infos = env.step(actions)
print(env.info.actions.names, "of", tuple(observation["observation.state"].shape), "numbers observed")
env.close()
