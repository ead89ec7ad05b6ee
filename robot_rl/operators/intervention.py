"""Wrapper of a simulated robot whose operator overrides the policy, and a judge of actions for scripted operators."""

from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from policies.actor import GaussianPolicy
from policies.base import Observation
from policies.bundle import Bundle
from robot_rl.interface.environment import EnvWrapper, VectorEnv
from robot_rl.learning.parts.critics import Critic
from robot_rl.learning.parts.heads import build_head
from robot_rl.operators.hand_back import hand_back_of
from robot_rl.operators.scripted import Judge, OperatorView, Rule, arm_view
from robot_rl.util.errors import ConfigError


class OperatorPolicy(Protocol):
    """Operator who may take over from the policy in any step."""

    def reset(self) -> None:
        """Begin an episode in which the operator does not have control yet."""

    def __call__(self, view: OperatorView, step: float) -> tuple[bool, Tensor]:
        """Return whether the operator has control in this step of the episode, and the operator's action (1, A)."""


class InterventionWrapper(EnvWrapper):
    """Single environment in which an operator overrides the policy. A robot's actions are handed back as by `HandBack`.

    Infos as in `RobotEnv`: `executed`, the executed action (1, A); `intervention`, whether the operator acted;
    `takeover` and `handed_back`, whether control changed in this step; each (1,) bool.
    """

    def __init__(self, env: VectorEnv, operator: OperatorPolicy):
        if env.num_envs != 1:
            raise ValueError(f"an operator watches one environment, not {env.num_envs}")
        super().__init__(env)
        self.operator = operator
        self.steps, self.held = 0, False
        self.hand_back = hand_back_of(env.pipeline.controller) if hasattr(env, "pipeline") else None
        self.observation: Observation = {}
        """Newest observation of the environment."""

    def reset(self, **kwargs: Any) -> Any:
        first = self.env.reset(**kwargs)
        self.observation = first[0]
        self._begin()
        return first

    def _begin(self) -> None:
        self.steps, self.held = 0, False
        if self.hand_back:
            self.hand_back.reset()
        self.operator.reset()

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Return the takeover rules of a scripted operator that this environment supports."""
        lifts = hasattr(self.env, "pipeline") and bool(self.task.scene.objects and self.pipeline.robot.tool)
        stalls: tuple[Rule, ...] = ("stall", "miss") if lifts else ("stall",) if hasattr(self.env, "progress") else ()
        stalls += ("true-gap",) if hasattr(self.env, "true_values") and self.env.info.reports_success else ()
        return (*stalls, "value-gap", "random", "none")

    def view(self, action: Tensor) -> OperatorView:
        """Return the operator's view before the policy's action (1, A). For a robot, it has the objects' true
        positions."""
        env = self.env
        if not hasattr(env, "pipeline"):
            return OperatorView(
                self.observation, action, lambda: float(env.progress()[0]), true_values=lambda: env.true_values(action)
            )
        true, state = env.true.objects, env.state
        objects = {name: torch.cat([true[name][:, :3], pose[:, 3:]], 1) for name, pose in state.objects.items()}
        return arm_view(env.pipeline, replace(state, objects=objects), action)

    def step(self, action: Tensor) -> tuple[Any, ...]:
        """Execute the operator's action if the operator has control, else the policy's `action` (1, A), blended after a
        correction."""
        before = self.held
        self.held, correction = self.operator(self.view(action), self.steps)
        executed = correction if self.held else action
        if self.hand_back and before and not self.held:
            self.hand_back.begin()
            executed = self.env.hold_action()
        elif self.hand_back and not self.held:
            executed = self.hand_back(action)
        self.steps += 1
        self.observation, reward, terminated, truncated, infos = self.env.step(executed)
        flags = {
            "intervention": self.held, "takeover": self.held and not before, "handed_back": before and not self.held,
        }  # fmt: skip
        infos |= {"executed": executed} | {name: torch.tensor([value]) for name, value in flags.items()}
        if bool(terminated | truncated):
            self._begin()
        return self.observation, reward, terminated, truncated, infos


def judge_of(bundle: Bundle) -> Judge:
    """Return a judge that values actions by the mean of a bundle's critics. Its best known action is the action of the
    bundle's policy.

    Raises:
        ConfigError: the bundle has no critics of single actions.
    """
    policy, saved = bundle.policy, bundle.agent
    unsuitable = ConfigError(
        f"{bundle.label} cannot judge actions: rule value-gap takes a policy with critics of single actions as "
        "--base, for example one of rlpd"
    )
    if not isinstance(policy, GaussianPolicy) or policy.horizon > 1 or not bundle.critic or "critics" not in saved:
        raise unsuitable
    head = build_head(saved["head"], 0.0, 1.0, saved["bins"])  # the reward of success is 1
    hidden = tuple(saved["hidden"])
    critic = Critic(policy.encoder.size, policy.size.action, saved["critics"], hidden, head, saved["layer_norm"])
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
