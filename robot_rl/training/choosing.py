"""Instruction curriculum: draw instructions with a success rate near 0.5 more often.

Lu et al. 2025, "VLA-RL" (arXiv 2505.18719): a task that always or never succeeds teaches a policy nothing.

    probability of instruction k ~ exp(-|success rate of k - 0.5| / temperature)
"""

from typing import Any

import torch
from torch import Tensor

from robot_rl.interface.environment import EnvWrapper
from robot_rl.util.errors import ConfigError

RECENT = 0.05
"""Weight of the newest episode in the moving average of an instruction's success rate."""


class InstructionCurriculum(EnvWrapper):
    """An environment whose episodes draw instructions by their success rates.

    >>> env = InstructionCurriculum(TaskEnv("tabletop", 64), temperature=0.2)
    """

    def __init__(self, env: Any, temperature: float):
        """Raises ConfigError for an environment that cannot choose between instructions."""
        if not hasattr(env, "set_instruction_weights") or len(env.instruction_weights) < 2:
            env.close()
            raise ConfigError(f"{env.info.task} has no instructions that can be chosen; leave out --choose")
        super().__init__(env)
        self.temperature, self.ended = temperature, 0
        self.begun: list[bool] = [True] * env.num_envs
        """Whether each environment's running episode began at its first step; staggered episodes are not counted."""
        self.rate = torch.full((len(env.instruction_weights),), 0.5, dtype=torch.double)
        """(K,) Moving average of the success rate of every instruction."""
        env.set_instruction_weights(self.instruction_weights)

    def reset(self, *, options: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        self.begun = [not (options or {}).get("stagger", False)] * self.env.num_envs
        return self.env.reset(options=options, **kwargs)

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        """Step the environment and count successes; update the instruction weights after every `num_envs` episodes."""
        current = self.env.instruction_positions()
        result: tuple[Any, ...] = self.env.step(actions)
        _, _, terminated, truncated, infos = result
        for i in (terminated | truncated).nonzero().flatten().tolist():
            if self.begun[i]:
                self.rate[current[i]] += RECENT * (float(infos["success"][i]) - self.rate[current[i]])
            self.begun[i] = True
            self.ended += 1
            if self.ended % self.env.num_envs == 0:
                self.env.set_instruction_weights(self.instruction_weights)
        return result

    @property
    def instruction_weights(self) -> Tensor:
        """Return the probability (K,) of every instruction."""
        return (-(self.rate - 0.5).abs() / self.temperature).softmax(0)

    def wrapper_state(self) -> dict[str, Any]:
        """Return the instructions' success rates; the environment saves their present probabilities."""
        return {"rate": self.rate.clone(), "ended": self.ended, "begun": list(self.begun)}

    def load_wrapper_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `wrapper_state`."""
        self.rate, self.ended, self.begun = state["rate"].clone(), state["ended"], list(state["begun"])
