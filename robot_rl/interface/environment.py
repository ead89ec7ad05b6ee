"""The environment protocol of learners: a batch of simulations, one robot, or any Gymnasium environment."""

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
    """Facts about a task's environment that do not depend on how many copies run."""

    task: str
    state: VectorSpec
    """observation.state"""
    actions: VectorSpec
    """Actions in physical units, as datasets hold them."""
    rate: float = 30.0
    """Control rate, Hz; where an environment has none, the frame rate of its datasets."""
    extra_inputs: ObservationSpec = ObservationSpec(())
    """What a policy observes besides observation.state."""
    interface: Interface | None = None
    """The contract with a robot; None for an environment without a robot."""
    robot: dict[str, Any] = field(default_factory=dict)
    """The robot's fingerprint."""
    demonstrator: bool = False
    """The task has a scripted demonstrator."""
    reports_success: bool = True
    """infos["success"] is reported."""
    success_terminates: bool = True
    """Success ends the episode."""
    rewards: tuple[str, ...] = ()
    """Terms of the reward, in infos["rewards"] at every step."""
    horizon: int | None = None
    """Longest episode, control periods; None: the environment sets no limit."""

    @classmethod
    def of(cls, pipeline: Pipeline, demonstrator: bool = False, rewards: tuple[str, ...] = ()) -> EnvInfo:
        """Return the facts of a contract with a robot."""
        interface, robot = pipeline.interface, pipeline.robot.fingerprint()
        return cls(
            interface.task, pipeline.observer.spec, pipeline.actions, interface.controller.rate, pipeline.extra_inputs,
            interface, robot, demonstrator, rewards=rewards, horizon=interface.horizon,
        )  # fmt: skip

    def require_end(self) -> None:
        """Raise ConfigError where waiting for the end of an episode may take forever."""
        if self.horizon is None:
            raise ConfigError(f"{self.task} has no time limit: give one with --episode-steps N")

    def to_json(self) -> dict[str, Any]:
        """Return what a policy reads and writes, by its names, units and ranges."""
        return {
            "rate": self.rate,
            "state": self.state.to_json(),
            "others": self.extra_inputs.to_json(),
            "actions": self.actions.to_json(),
        }

    @classmethod
    def from_json(cls, task: str, data: dict[str, Any]) -> EnvInfo:
        """Restore what `to_json` returned; ValueError where actions have no limits or time does not pass."""
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
    """A scripted expert, or a policy in its place, that acts in all copies of an environment at once."""

    def reset(self, ids: Tensor) -> None:
        """Begin new episodes in environments `ids`."""

    def act(self, observation: dict[str, Tensor]) -> Tensor:
        """Return actions (n, A) in [-1, 1]."""


class VectorEnv(Protocol):
    """n parallel environments; arrays are torch tensors, `num_envs` first.

    A finished environment is reset in the same step: its last observation is in infos["final_obs"]. Further methods are
    optional: with `state_dict` and `load_state_dict` a resumed run has the same floats; `request_images` names the
    environments whose pictures are read next, so that no others are rendered.
    """

    @property
    def num_envs(self) -> int:
        """Return the number of copies."""

    @property
    def info(self) -> EnvInfo:
        """Return facts about the task."""

    @property
    def privileged_size(self) -> int:
        """Return the size of observation.environment_state, for critics only; 0 if there is none."""

    @property
    def mirror(self) -> Mirror | None:
        """Return how observations and actions are mirrored; None if the task is not symmetric."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Start episodes everywhere; environment i gets seed + i."""

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Return observation, reward (n,), terminated (n,), truncated (n,) and infos for actions (n, A) in [-1, 1]."""

    def hold_action(self) -> Tensor:
        """Return the actions (n, A) in [-1, 1] that hold position, for an executor with nothing else to execute."""

    def close(self) -> None:
        """Release what the environments hold."""


class EnvWrapper:
    """An environment around another one, whose methods and attributes it passes on unless it has its own.

    A wrapper with state overrides `wrapper_state` and `load_wrapper_state`; it is saved beside that of the environment.
    """

    def __init__(self, env: Any):
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not set yet, as in a copy that is being made
            raise AttributeError(name)
        return getattr(self.env, name)

    def wrapper_state(self) -> dict[str, Any]:
        """Return the wrapper's own tensors, numbers and lists."""
        return {}

    def load_wrapper_state(self, state: dict[str, Any]) -> None:
        """Restore `wrapper_state`."""

    @property
    def state_dict(self) -> Callable[[], dict[str, Any]]:
        """Return the function that saves the environment and the wrapper; AttributeError if it cannot be saved."""
        save = self.env.state_dict
        return lambda: {"env": save(), "wrapper": self.wrapper_state()}

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Restore what `state_dict` saved; return the current observation."""
        self.load_wrapper_state(state["wrapper"])
        return self.env.load_state_dict(state["env"])


class DeviceWrapper(EnvWrapper):
    """An environment whose results are on `device`, while its physics is on another one."""

    def __init__(self, env: Any, device: torch.device, physics: torch.device):
        super().__init__(env)
        self.device, self.physics = device, physics

    def reset(self, **kwargs: Any) -> Any:
        """Reset the environment."""
        return move(self.env.reset(**kwargs)[0], self.device), {}

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        """Step the environment with actions of any device."""
        stepped: tuple[Any, ...] = move(self.env.step(actions.to(self.physics)), self.device)
        return stepped

    def hold_action(self) -> Tensor:
        """Return the environment's actions that hold."""
        held: Tensor = self.env.hold_action().to(self.device)
        return held

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Restore the environment; return the current observation."""
        return move(super().load_state_dict(state), self.device)


def on_device(env: Any, device: torch.device | str) -> Any:
    """Return the environment with results on `device`; one that does not say where its physics is has it on the CPU."""
    device, physics = torch.device(device), torch.device(getattr(env, "device", "cpu"))
    return env if device == physics else DeviceWrapper(env, device, physics)


EnvFactory = Callable[[int], VectorEnv]
"""Make a number of environments."""
