"""CrossQ of sbx-rl (stable-baselines3 in JAX) as a recipe: Bhatt et al. 2024, arXiv 1902.05605."""

import os
from dataclasses import dataclass
from typing import Any

# One thread, as the other learners have with --threads 1; JAX reads it when it is imported.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
import jax  # noqa: E402
import numpy as np
import torch
from sbx import CrossQ
from sbx.crossq.policies import CrossQPolicy
from torch import Tensor

from policies.base import Size
from robot_rl.bench.peers.recipe import PeerConfig, PeerPolicy
from robot_rl.bench.peers.sb3 import SB3SAC, spaces
from robot_rl.recipes.job import Job

LR = 1e-3


def network(size: Size, hidden: tuple[int, ...]) -> CrossQPolicy:
    """Return a policy with fresh weights."""
    policy = CrossQPolicy(*spaces(size), lambda _: LR, net_arch=list(hidden))
    policy.build(jax.random.PRNGKey(0), lambda _: LR, LR)
    return policy


def weights(policy: CrossQPolicy) -> dict[str, np.ndarray]:
    """Return the actor's weights and statistics by name."""
    state = policy.actor_state
    leaves, _ = jax.tree_util.tree_flatten_with_path({"params": state.params, "batch_stats": state.batch_stats})
    return {"-".join(str(part.key) for part in path): np.asarray(leaf) for path, leaf in leaves}


class CrossQActor(PeerPolicy):
    """Actor of sbx-rl, which JAX runs; the bundle keeps its weights."""

    class_name = "robot_rl.bench.peers.sbx:CrossQActor"

    def __init__(self, size: Size, config: PeerConfig):
        super().__init__()
        self.size, self.config = size, config
        self.net = network(size, config.hidden)
        self.names = list(weights(self.net))
        for name, value in weights(self.net).items():
            self.register_buffer(name, torch.from_numpy(value.copy()))

    def mean(self, state: Tensor) -> Tensor:
        leaves = [getattr(self, name).numpy() for name in self.names]
        actor = self.net.actor_state
        structure = jax.tree_util.tree_structure({"params": actor.params, "batch_stats": actor.batch_stats})
        found = actor.apply_fn(jax.tree_util.tree_unflatten(structure, leaves), state.numpy(), train=False).mode()
        return torch.from_numpy(np.array(found))


@dataclass(frozen=True)
class SBXCrossQ(SB3SAC):
    """CrossQ of sbx-rl, with critics as wide as the actor."""

    algorithm = "crossq"

    def build(self, job: Job, env: Any = None) -> CrossQ:
        networks = {"net_arch": list(self.hidden)}
        return CrossQ("MlpPolicy", env, policy_kwargs=networks, seed=job.seed, **self.options(job))

    def policy_of(self, size: Size, model: Any) -> CrossQActor:  # type: ignore[override]
        """Return the learner's actor."""
        actor = CrossQActor(size, PeerConfig(self.algorithm, self.hidden))
        for name, value in weights(model.policy).items():
            getattr(actor, name).copy_(torch.from_numpy(value.copy()))
        return actor.eval()
