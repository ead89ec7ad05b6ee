"""Environment protocol of learners: a batch of simulations, one robot, or any Gymnasium environment."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from robot_rl.interface.observation_spec import ObservationSpec
from robot_rl.interface.pipeline import Interface, Pipeline
from robot_rl.interface.spec import VectorSpec
from robot_rl.interface.symmetry import Mirror
from robot_rl.util.devices import move
from robot_rl.util.errors import ConfigError


@dataclass(frozen=True)
class EnvInfo:
    """Description of a task's environment, independent of the number of parallel copies."""

    task: str
    state: VectorSpec
    """Spec of observation.state."""
    actions: VectorSpec
    """Actions in physical units, as in datasets."""
    rate: float = 30.0
    """Control rate, Hz; for environments without a control rate, the frame rate of their datasets."""
    extra_inputs: ObservationSpec = ObservationSpec(())
    """Spec of the observations besides observation.state."""
    interface: Interface | None = None
    """Contract with a robot; None for an environment without a robot."""
    robot: dict[str, Any] = field(default_factory=dict)
    """The robot's fingerprint, see `RobotSpec.fingerprint`."""
    demonstrator: bool = False
    """Whether the task has a scripted demonstrator."""
    reports_success: bool = True
    """Whether the environment reports infos["success"]."""
    success_terminates: bool = True
    """Whether success ends the episode."""
    rewards: tuple[str, ...] = ()
    """Names of the reward terms that infos["rewards"] reports at every step."""
    horizon: int | None = None
    """Longest episode, control periods; None: no limit."""

    @classmethod
    def of(cls, pipeline: Pipeline, demonstrator: bool = False, rewards: tuple[str, ...] = ()) -> EnvInfo:
        """Return the description of an environment with a robot, from the pipeline of its contract."""
        interface, robot = pipeline.interface, pipeline.robot.fingerprint()
        return cls(
            interface.task, pipeline.observer.spec, pipeline.actions, interface.controller.rate, pipeline.extra_inputs,
            interface, robot, demonstrator, rewards=rewards, horizon=interface.horizon,
        )  # fmt: skip

    def require_end(self) -> None:
        """Raise ConfigError if episodes have no time limit, so they may never end."""
        if self.horizon is None:
            raise ConfigError(f"{self.task} has no time limit: give one with --episode-steps N")

    def to_json(self) -> dict[str, Any]:
        """Return the control rate and the specs of observations and actions as JSON."""
        state, actions = self.state.to_json(), self.actions.to_json()
        return {"rate": self.rate, "state": state, "others": self.extra_inputs.to_json(), "actions": actions}

    @classmethod
    def from_json(cls, task: str, data: dict[str, Any]) -> EnvInfo:
        """Restore the result of `to_json`; ValueError for infinite action limits or a rate that is not positive."""
        state, actions = VectorSpec.from_json(data["state"]), VectorSpec.from_json(data["actions"])
        if not (0 < data["rate"] < math.inf and actions.low.isfinite().all() and actions.high.isfinite().all()):
            raise ValueError(f"the rate is {data['rate']}, and actions are from {actions.low} to {actions.high}")
        return cls(task, state, actions, data["rate"], ObservationSpec.from_json(data["others"]))

    @property
    def observation(self) -> int:
        """Return the size of observation.state."""
        return self.state.size

    @property
    def action(self) -> int:
        """Return the number of action dimensions."""
        return self.actions.size


class Demonstrator(Protocol):
    """Scripted expert, or a policy in the role of an expert, that acts in all copies of an environment."""

    def reset(self, ids: Tensor) -> None:
        """Start new episodes in environments `ids`."""

    def act(self, observation: dict[str, Tensor]) -> Tensor:
        """Return the expert's actions (n, A) in [-1, 1] at the current observations."""


class VectorEnv(Protocol):
    """n parallel environments; arrays are torch tensors with leading dimension `num_envs`.

    A finished environment is reset in the same step; infos["final_obs"] has the finished episode's last observation.
    Optional methods: `state_dict` and `load_state_dict` make resumed runs bit-identical; `request_images` selects the
    environments to render next.
    """

    @property
    def num_envs(self) -> int:
        """Return the number of parallel environments n."""

    @property
    def info(self) -> EnvInfo:
        """Return the description of the environment."""

    @property
    def privileged_size(self) -> int:
        """Return the size of observation.environment_state, which only critics read; 0 if the task has none."""

    @property
    def mirror(self) -> Mirror | None:
        """Return the reflections of observations and actions; None if the task is not symmetric."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Start new episodes in all environments; environment i gets seed + i."""

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Return observation, reward (n,), terminated (n,), truncated (n,) and infos for actions (n, A) in [-1, 1]."""

    def hold_action(self) -> Tensor:
        """Return actions (n, A) in [-1, 1] that hold position, for executors that have no action yet."""

    def close(self) -> None:
        """Release the environments' resources."""


class EnvWrapper:
    """Wrapper of an environment; attributes that the wrapper does not define are those of the environment. Wrappers
    with a state of their own override `wrapper_state` and `load_wrapper_state`."""

    def __init__(self, env: Any):
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not set yet while the wrapper is being copied
            raise AttributeError(name)
        return getattr(self.env, name)

    def wrapper_state(self) -> dict[str, Any]:
        """Return the wrapper's own state: tensors, numbers and lists."""
        return {}

    def load_wrapper_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `wrapper_state`."""

    @property
    def state_dict(self) -> Callable[[], dict[str, Any]]:
        """Return a function that returns the state of environment and wrapper; AttributeError if the environment has no
        `state_dict`."""
        save = self.env.state_dict
        return lambda: {"env": save(), "wrapper": self.wrapper_state()}

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Restore a result of the function `state_dict`; return the current observation."""
        self.load_wrapper_state(state["wrapper"])
        return self.env.load_state_dict(state["env"])


class DeviceWrapper(EnvWrapper):
    """Wrapper that moves observations, rewards and infos to `device`, and actions to `physics`, the engine's device."""

    def __init__(self, env: Any, device: torch.device, physics: torch.device):
        super().__init__(env)
        self.device, self.physics = device, physics

    def reset(self, **kwargs: Any) -> Any:
        return move(self.env.reset(**kwargs)[0], self.device), {}

    def step(self, actions: Tensor) -> Any:
        return move(self.env.step(actions.to(self.physics)), self.device)

    def hold_action(self) -> Any:
        return self.env.hold_action().to(self.device)

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        return move(super().load_state_dict(state), self.device)


def on_device(env: Any, device: torch.device | str) -> Any:
    """Return the environment with observations, rewards and infos on `device`. The physics is on `env.device`; on the
    CPU if the environment has no such attribute."""
    device, physics = torch.device(device), torch.device(getattr(env, "device", "cpu"))
    same = (device.type, device.index or 0) == (physics.type, physics.index or 0)  # cuda is cuda:0
    return env if same else DeviceWrapper(env, device, physics)


EnvFactory = Callable[[int], VectorEnv]
"""Function that builds the given number of parallel environments."""
