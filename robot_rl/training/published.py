"""Weights that a learner publishes for the robot that acts with them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from policies.actor import ActorPolicy
from policies.base import Policy
from robot_rl.learning.algorithms.actor_critic import ActorCritic
from robot_rl.learning.algorithms.cloning import Cloning
from robot_rl.training.checkpoint import load_state, save_state

WEIGHTS = "weights.safetensors"
"""File in the run folder, which the learner replaces and the robot reads between episodes."""


def acting_weights(agent: ActorCritic | Cloning) -> dict[str, Any]:
    """Return the weights for acting: the averaged actor and the encoder, which is trained by the critics' loss; or all
    averaged weights of a cloned policy."""
    if isinstance(agent, Cloning):
        return {"policy": agent.averaged()}
    return {"actor": agent.average.state_dict(), "encoder": agent.policy.encoder.state_dict()}


def load_acting_weights(policy: Policy, weights: Mapping[str, Any]) -> None:
    """Load the weights of `acting_weights` into a policy; frozen weights stay."""
    for part in ("actor", "encoder"):
        if part in weights:
            getattr(policy, part).load_state_dict(weights[part])
    if "policy" in weights:
        policy.load_state_dict(weights["policy"], strict=False)


def publish(folder: Path, agent: ActorCritic | Cloning, version: int, episodes: int = 0) -> None:
    """Publish the weights for acting, whose version is the number of updates. `episodes`: number of the robot's
    episodes of which nothing is left to learn.

    Newer published weights are kept until a learner that restarted from an older checkpoint has caught up.
    """
    if (folder / WEIGHTS).exists():
        before = load_state(folder / WEIGHTS)
        if (before["version"], before.get("episodes", 0)) >= (version, episodes):
            return
    save_state({"version": version, "episodes": episodes} | acting_weights(agent), folder / WEIGHTS)


def fetch(folder: Path, policy: ActorPolicy, version: int) -> int:
    """Load published weights if they are finite and newer than `version`; return the version in use."""
    if not (folder / WEIGHTS).exists():
        return version
    published = load_state(folder / WEIGHTS)
    if published["version"] <= version:
        return version
    parts = {name: part for name, part in published.items() if isinstance(part, dict)}
    if not all(value.isfinite().all() for part in parts.values() for value in part.values()):
        return version
    load_acting_weights(policy, parts)
    return int(published["version"])


def episodes_learned(folder: Path) -> int:
    """Return the number of the robot's episodes of which the learner has nothing left to learn; -1 if it has not
    started."""
    return int(load_state(folder / WEIGHTS).get("episodes", 0)) if (folder / WEIGHTS).exists() else -1
