"""Ask more often for what succeeds in about half of the tries: Lu et al. 2025, "VLA-RL" (arXiv 2505.18719) choose tasks
by their success, as what always or never succeeds teaches a policy nothing.

    chance of k ~ exp(-|success rate of k - 0.5| / temperature)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robot_rl.interface.environment import EnvWrapper
from robot_rl.util.errors import ConfigError

RECENT = 0.05
"""Weight of the last episode in an instruction's success rate."""


class InstructionCurriculum(EnvWrapper):
    """An environment with instructions, whose episodes draw them by their success so far.

    >>> env = InstructionCurriculum(TaskEnv("tabletop", 64), temperature=0.2)
    """

    def __init__(self, env: Any, temperature: float):
        """ConfigError for an environment that cannot choose between instructions."""
        if not hasattr(env, "set_instruction_weights") or len(env.instruction_weights) < 2:
            env.close()
            raise ConfigError(f"{env.info.task} has no instructions that can be chosen; leave out --choose")
        super().__init__(env)
        self.temperature, self.ended = temperature, 0
        self.begun: list[bool] = [True] * env.num_envs
        """Whether the running episode began at its first step; a staggered one does not tell what its policy can do."""
        self.rate = torch.full((len(env.instruction_weights),), 0.5, dtype=torch.double)
        """(K,) success of late of each instruction that is asked."""
        env.set_instruction_weights(self.instruction_weights)

    def reset(self, *, options: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        """Start episodes everywhere."""
        self.begun = [not (options or {}).get("stagger", False)] * self.env.num_envs
        return self.env.reset(options=options, **kwargs)

    def step(self, actions: Tensor) -> tuple[Any, ...]:
        """Step the environment; count what ended, and choose anew whenever as many episodes as environments have."""
        asked = self.env.instruction_positions()
        result: tuple[Any, ...] = self.env.step(actions)
        _, _, terminated, truncated, infos = result
        for i in (terminated | truncated).nonzero().flatten().tolist():
            if self.begun[i]:
                self.rate[asked[i]] += RECENT * (float(infos["success"][i]) - self.rate[asked[i]])
            self.begun[i] = True
            self.ended += 1
            if self.ended % self.env.num_envs == 0:
                self.env.set_instruction_weights(self.instruction_weights)
        return result

    @property
    def instruction_weights(self) -> Tensor:
        """Return the chance (K,) of each instruction."""
        return (-(self.rate - 0.5).abs() / self.temperature).softmax(0)

    def wrapper_state(self) -> dict[str, Any]:
        """Return the success rates, and by which of them instructions are drawn."""
        state = {"rate": self.rate.clone(), "ended": self.ended, "chances": self.env.instruction_weights.clone()}
        return state | {"begun": list(self.begun)}

    def load_wrapper_state(self, state: dict[str, Any]) -> None:
        """Restore `wrapper_state`."""
        self.rate, self.ended, self.begun = state["rate"].clone(), state["ended"], list(state["begun"])
        self.env.set_instruction_weights(state["chances"])
