"""Environment whose success is decided by a classifier of its camera images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from policies.base import Observation
from robot_rl.interface.environment import EnvInfo, EnvWrapper
from robot_rl.interface.observation_spec import ObservationSpec
from robot_rl.interface.success import SuccessHold
from robot_rl.rewards.classifier import Classifier
from robot_rl.util.errors import ConfigError


def judged_info(info: EnvInfo, classifier: Classifier) -> EnvInfo:
    """Return a task's facts with a classifier's success; ConfigError if the classifier does not fit the task."""
    if info.interface is None:
        raise ConfigError(
            f"{info.task} ends its episodes by itself, so no classifier can judge them: take a robot's task"
        )
    classifier.require_fit(ObservationSpec.from_vector(info.state) | info.extra_inputs, info.rate, info.interface)
    return replace(info, rewards=(), reports_success=True, success_terminates=True)


class ClassifierWrapper(EnvWrapper):
    """Vector environment in which a classifier decides success. Success in enough frames ends an episode with reward 1.

    The simulator's own success test does not end episodes; infos["true_success"] (n,) reports, for comparison, whether
    the episode has passed that test so far. Failures and time limits end episodes as usual.

    `env` is a `TaskEnv` with `success_ends` False.
    """

    request_images = None
    """Render every picture, since the classifier reads each one."""

    def __init__(self, env: Any, classifier: Classifier):
        """Raise ConfigError if the classifier was fitted to other pictures or instructions."""
        super().__init__(env)
        self.classifier = classifier
        self.info = judged_info(env.info, classifier)
        classifier.network.to(env.device)
        self.success = SuccessHold(classifier.hold, env.num_envs, env.device)
        self.passed = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        """(n,) whether the running episode has passed the simulator's own success test."""

    def reset(self, **kwargs: Any) -> Any:
        first = self.env.reset(**kwargs)
        self.success.reset()
        self.passed = torch.zeros_like(self.passed)
        return first

    def step(self, actions: Tensor) -> tuple[Observation, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Execute actions (n, A) for one control period."""
        observation, _, terminated, truncated, infos = self.env.step(actions)
        ended = terminated | truncated
        last = infos.get("final_obs", observation)
        broken = infos.get("diverged", torch.zeros_like(ended))
        success = self.success(self.classifier.sees_success(last)) & ~terminated & ~broken
        self.passed |= infos["success"]
        infos.pop("rewards", None)
        infos |= {"success": success, "true_success": self.passed.clone()}
        done = ended | success
        if bool(done.any()):
            if "final_obs" not in infos:
                infos["final_obs"] = observation
            infos["_final_obs"] = done
            if len(ids := (success & ~ended).nonzero()[:, 0]):
                observation = self.env.restart(ids, observation)
            self.success.reset(done.nonzero()[:, 0])
            self.passed[done] = False
        return observation, success.float(), terminated | success, truncated & ~success, infos

    def wrapper_state(self) -> dict[str, Any]:
        """Return the success counters and the passed tests."""
        return {"success": self.success.state_dict(), "passed": self.passed.clone()}

    def load_wrapper_state(self, state: dict[str, Any]) -> None:
        self.success.load_state_dict(state["success"])
        self.passed = state["passed"].to(self.passed.device, copy=True)
