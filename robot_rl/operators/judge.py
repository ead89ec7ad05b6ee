"""Judge for scripted operators: critics of a trained policy evaluate the actions of another policy."""

from __future__ import annotations

import torch
from torch import Tensor

from policies.actor import GaussianPolicy
from policies.base import Observation
from policies.bundle import Bundle
from robot_rl.learning.parts.critics import Critic
from robot_rl.learning.parts.heads import build_head
from robot_rl.operators.scripted import Judge
from robot_rl.util.errors import ConfigError


def judge_of(bundle: Bundle) -> Judge:
    """Return a judge with the mean value of a bundle's critics; ConfigError for a bundle without critics.

    The best known action is the action of the bundle's policy.
    """
    policy, saved = bundle.policy, bundle.agent
    unsuitable = ConfigError(
        f"{bundle.label} cannot judge actions: rule value-gap takes a policy with critics of single actions as "
        "--base, for example one of rlpd"
    )
    if not isinstance(policy, GaussianPolicy) or policy.horizon > 1 or not bundle.critic or "critics" not in saved:
        raise unsuitable
    head = build_head(saved["head"], 0.0, 1.0, saved["bins"])  # the reward of success is 1
    critic = Critic(
        policy.encoder.size, policy.size.action, saved["critics"], tuple(saved["hidden"]), head, saved["layer_norm"]
    )
    try:
        critic.load_state_dict(bundle.critic)
    except RuntimeError:  # other architecture, for example of i-qn
        raise unsuitable from None
    policy.eval()

    @torch.no_grad()
    def judge(observation: Observation, action: Tensor) -> tuple[float, float]:
        features = policy.features(observation)
        both = torch.cat([action, policy.transform(policy.actor.mean(policy.actor_features(observation)), observation)])
        ours, best = critic.value(features.expand(2, -1), both).mean(0).tolist()
        return ours, best

    return judge
