"""SRL: Patel and Siegelmann 2025, "Overcoming Slow Decision Frequencies in Continuous Control: Model-Based Sequence
Reinforcement Learning for Model-Free Control" (arXiv 2410.08979).

Parts are those of `sac`, but a one-step model predicts the states within a sequence. The actor is an MLP; the paper's
actor is a GRU. With --policy.horizon 1 the method is sac."""

from dataclasses import dataclass, replace

from policies.networks.gaussian import GaussianConfig
from robot_rl.learning.algorithms.sequence import SequenceConfig, SequenceRL
from robot_rl.recipes.sac import SAC


@dataclass(frozen=True)
class SequenceSAC(SAC):
    """Learn to plan sequences of actions, for low decision rates."""

    reduced = "the actor is an MLP, not a GRU"
    policy: GaussianConfig = replace(SAC().policy, horizon=8)
    agent: SequenceConfig = SequenceConfig(**vars(SAC().agent))
    agent_class = SequenceRL
