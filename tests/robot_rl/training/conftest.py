"""A control problem in torch with a known best policy, as a vector environment."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.spec import numbered

STATE, ACTION = numbered("state", [-1.0] * 4, [1.0] * 4), numbered("action", [-1.0] * 2, [1.0] * 2)


class PointMass(VectorEnv):
    """Points in the plane with velocity v must follow a commanded velocity c; actions accelerate them.

        x = v - c,   x' = x + GAIN a + noise,   reward = -|x'|^2 - PRICE |a|^2

    The privileged state is x and, with `clock`, the time as a share of the horizon. `constant`: the reward is 1.
    `frozen`: points do not move. Episodes end after `horizon` steps, by termination if `terminates`.
    """

    GAIN, PRICE, NOISE = 0.3, 0.1, 0.05
    info = EnvInfo("point-mass", STATE, ACTION, horizon=20)
    privileged_size, mirror = 3, None
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self, num_envs: int, horizon: int = 20, terminates: bool = False, constant: bool = False,
        frozen: bool = False, clock: bool = True,
    ):  # fmt: skip
        self.num_envs, self.horizon, self.terminates = num_envs, horizon, terminates
        self.constant, self.moves, self.clock = constant, float(not frozen), clock
        self.single_action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.rng = torch.Generator()
        self.velocity, self.command = torch.zeros(num_envs, 2), torch.zeros(num_envs, 2)
        self.steps = torch.zeros(num_envs)

    def _begin(self, ids: Tensor) -> None:
        self.command[ids] = torch.rand(len(ids), 2, generator=self.rng) - 0.5
        self.velocity[ids] = torch.rand(len(ids), 2, generator=self.rng) - 0.5
        self.steps[ids] = 0

    def _observe(self) -> dict[str, Tensor]:
        share = self.clock * self.steps[:, None] / self.horizon
        return {
            "observation.state": torch.cat([self.velocity, self.command], 1),
            "observation.environment_state": torch.cat([self.velocity - self.command, share], 1),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if seed is not None:
            self.rng.manual_seed(seed)
        self._begin(torch.arange(self.num_envs))
        if options and options.get("spread"):
            self.steps = torch.arange(self.num_envs) % self.horizon + 0.0
        return self._observe(), {}

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        assert actions.shape == (self.num_envs, 2) and actions.abs().max() <= 1
        noise = self.NOISE * torch.randn(self.num_envs, 2, generator=self.rng)
        self.velocity = self.velocity + self.moves * (self.GAIN * actions + noise)
        self.steps = self.steps + 1
        error = (self.velocity - self.command).square().sum(1)
        reward = torch.ones(self.num_envs) if self.constant else -error - self.PRICE * actions.square().sum(1)
        done = self.steps >= self.horizon
        no = torch.zeros_like(done)
        observation, infos = self._observe(), {"success": error < 0.05, "metrics": {"error": error.sqrt().mean()}}
        if done.any():
            infos |= {"final_obs": observation, "_final_obs": done}
            self._begin(done.nonzero().squeeze(-1))
            observation = self._observe()
        return observation, reward, done if self.terminates else no, no if self.terminates else done, infos

    def state_dict(self) -> dict[str, Any]:
        tensors = {name: getattr(self, name).clone() for name in ("velocity", "command", "steps")}
        return tensors | {"rng": self.rng.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> dict[str, Tensor]:
        for name in ("velocity", "command", "steps"):
            setattr(self, name, state[name].clone())
        self.rng.set_state(state["rng"])
        return self._observe()


@pytest.fixture
def point_mass() -> Callable[..., PointMass]:
    return PointMass
