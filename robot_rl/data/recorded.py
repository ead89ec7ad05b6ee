"""Recorded episodes as an environment: what a policy would have done, beside what was done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from robot_rl.data.recording import ACTION
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.language import decode
from robot_rl.interface.observation_spec import LANGUAGE, STATE
from robot_rl.interface.symmetry import Mirror

Episode = dict[str, Tensor]
CONTROLS = ("hold", "mean")
"""What a policy has to beat: the action before the decision (where there is none, the state if it has the same names),
and the mean action of these episodes."""


class RecordedEnv:
    """n recorded episodes that go on as they did, whatever is done.

    infos["metrics"] has the absolute errors (n,) of the policy's actions and of the `CONTROLS`: `action/NAME`,
    `hold/NAME`, `mean/NAME` of each number in physical units, and `action_error`, `hold_error`, `mean_error`, means
    over all numbers as shares of their ranges.
    """

    privileged_size = 0
    mirror: Mirror | None = None

    def __init__(self, episodes: Sequence[Episode], info: EnvInfo, num_envs: int, decides: int = 1, seed: int = 0):
        """Play episode k with seed `seed` + k.

        Args:
            episodes: observations (T, ...) and `action` (T, A) in physical units.
            decides: control periods from one decision to the next, for `hold`.
        """
        self.info = replace(info, horizon=max(len(episode[ACTION]) for episode in episodes))
        self.episodes, self.num_envs, self.decides, self.seed = episodes, num_envs, decides, seed
        self.mean = torch.cat([episode[ACTION] for episode in episodes]).mean(0)
        self._follows = info.state.names == info.actions.names
        self._at = [(0, 0)] * num_envs
        """Episode and row of each environment."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Begin episodes everywhere; after the last one comes the first."""
        first = 0 if seed is None else seed - self.seed
        self._at = [((first + k) % len(self.episodes), 0) for k in range(self.num_envs)]
        return self._observation(), {}

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Compare actions (n, A) in [-1, 1] with the recorded ones; an episode that ends begins again."""
        spec, said = self.info.actions, self._rows(ACTION)
        tried = {"action": spec.to_physical(actions), "hold": self._held(), "mean": self.mean.expand_as(said)}
        metrics: dict[str, Tensor] = {}
        for name, values in tried.items():
            error = (values - said).abs()
            metrics[f"{name}_error"] = (error / (spec.high - spec.low)).mean(1)
            metrics |= {f"{name}/{number}": error[:, k] for k, number in enumerate(spec.names)}
        ends = [t + 1 == len(self.episodes[k][ACTION]) for k, t in self._at]
        final = self._observation()
        self._at = [(k, 0 if end else t + 1) for (k, t), end in zip(self._at, ends, strict=True)]
        done, none = torch.tensor(ends), torch.zeros(self.num_envs)
        infos = {"metrics": metrics, "final_obs": final, "_final_obs": done}
        return self._observation(), none, none.bool(), done, infos

    def instruction(self, index: int) -> str:
        """Return what one environment's episode asks for."""
        return decode(self._rows(LANGUAGE)[index : index + 1])[0]

    def close(self) -> None:
        """Do nothing: tensors need no release."""

    def _observation(self) -> dict[str, Tensor]:
        return {key: self._rows(key) for key in (STATE, *self.info.extra_inputs)}

    def _rows(self, key: str) -> Tensor:
        return torch.stack([self.episodes[k][key][t] for k, t in self._at])

    def _held(self) -> Tensor:
        """Return the actions (n, A) of `hold`."""
        rows = []
        for k, t in self._at:
            episode, decided = self.episodes[k], t - t % self.decides
            begin = episode[STATE][0] if self._follows else self.mean
            rows.append(episode[ACTION][decided - 1] if decided else begin)
        return torch.stack(rows)
