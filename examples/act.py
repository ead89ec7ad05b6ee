"""Load a bundle and act with it."""

import torch

from policies.bundle import load_bundle
from policies.execution import ChunkExecutor
from sim.make import make

bundle = load_bundle("runs/clone")
env, rng = make(bundle.interface.task, 4), torch.Generator().manual_seed(0)
executor = ChunkExecutor(bundle.policy, 4)
observation, _ = env.reset(seed=0)
for _ in range(100):
    observation, reward, terminated, truncated, infos = env.step(executor.act(observation, rng))
    executor.reset((terminated | truncated).nonzero()[:, 0])
env.close()
