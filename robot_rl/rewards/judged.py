"""An environment whose episodes succeed when a classifier says so, from what its cameras see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from policies.base import Observation
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.observation_spec import ObservationSpec
from robot_rl.rewards.classifier import Classifier
from robot_rl.util.errors import ConfigError


class Seen:
    """For how many control periods each of n environments has shown success."""

    def __init__(self, classifier: Classifier, n: int):
        self.classifier = classifier
        self.held = torch.zeros(n, dtype=torch.long)

    def __call__(self, observation: Observation) -> Tensor:
        """Return where success has been seen for long enough up to this observation, (n,) bool."""
        shows = self.classifier.sees_success(observation)
        self.held = torch.where(shows, self.held.to(shows.device) + 1, 0)
        return self.held >= self.classifier.hold

    def reset(self, ids: Tensor | None = None) -> None:
        """Begin episodes `ids`, or all."""
        if ids is None:
            self.held = torch.zeros_like(self.held)
        else:
            self.held[ids] = 0


def judged_info(info: EnvInfo, classifier: Classifier) -> EnvInfo:
    """Return the facts of a task that a classifier judges; ConfigError where it cannot."""
    if info.interface is None:
        raise ConfigError(
            f"{info.task} ends its episodes by itself, so no classifier can judge them: take a robot's task"
        )
    classifier.require_fit(ObservationSpec.from_vector(info.state) | info.others, info.rate, info.interface)
    return replace(info, rewards=(), reports_success=True, success_terminates=True)


class JudgedEnv:
    """Copies of a task that end in success, and pay 1, when a classifier has seen it for long enough; else they pay 0.

    The simulator's own test ends nothing: infos["true_success"] (n,) says whether the episode has passed it by now, for
    a comparison. Failures and time limits end episodes as ever. Everything else is delegated.

    `env` is a `TaskEnv` that was made with `success_ends` False.
    """

    look_next = None
    """No picture is left out: the classifier looks at every one."""

    def __init__(self, env: Any, classifier: Classifier):
        """ConfigError where the classifier was fitted to other pictures or instructions."""
        self.env, self.classifier = env, classifier
        self.info = judged_info(env.info, classifier)
        classifier.network.to(env.device)
        self.seen = Seen(classifier, env.num_envs)
        self.passed = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        """Where the simulator's own test has been passed in the running episode."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **kwargs: Any) -> Any:
        """Start episodes everywhere."""
        first = self.env.reset(**kwargs)
        self.seen.reset()
        self.passed = torch.zeros_like(self.passed)
        return first

    def step(self, actions: Tensor) -> tuple[Observation, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Act for one control period; see the class for the results."""
        observation, _, terminated, truncated, infos = self.env.step(actions)
        ended = terminated | truncated
        last = infos.get("final_obs", observation)
        success = self.seen(last) & ~terminated & ~infos.get("diverged", torch.zeros_like(ended))
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
            over = done.nonzero()[:, 0]
            self.seen.reset(over)
            self.passed[over] = False
        return observation, success.float(), terminated | success, truncated & ~success, infos

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs."""
        return {"env": self.env.state_dict(), "held": self.seen.held.clone(), "passed": self.passed.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Restore `state_dict`; return its observation."""
        self.seen.held = state["held"].to(self.passed.device, copy=True)
        self.passed = state["passed"].to(self.passed.device, copy=True)
        return self.env.load_state_dict(state["env"])
