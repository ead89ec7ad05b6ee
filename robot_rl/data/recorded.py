"""Recorded episodes as an environment, to compare a policy's actions with the recorded actions."""

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
"""Baselines of a policy. hold: last recorded action before a decision; at the first decision, the initial state if
state and action have the same names, else the mean action. mean: mean action of the episodes to train on."""


class RecordedEnv:
    """Vector environment of n recorded episodes, whose observations do not depend on the actions.

    infos["metrics"] has the absolute errors (n,) of the policy's actions and of the `CONTROLS`: `action/NAME`,
    `hold/NAME` and `mean/NAME` are errors of a component, in physical units. `action_error`, `hold_error` and
    `mean_error` are means over the components of the error divided by the component's range.
    """

    privileged_size = 0
    mirror: Mirror | None = None

    def __init__(
        self, episodes: Sequence[Episode], info: EnvInfo, num_envs: int, decides: int = 1, seed: int = 0,
        mean: Tensor | None = None,
    ):  # fmt: skip
        """Episode k is played for seed `seed` + k.

        Args:
            episodes: observations (T, ...) and `action` (T, A) in physical units.
            decides: control periods between decisions of the policy, which baseline hold needs.
            mean: action (A,) of baseline mean, in physical units; by default the mean of `episodes`.
        """
        self.info = replace(info, horizon=max(len(episode[ACTION]) for episode in episodes))
        self.episodes, self.num_envs, self.decides, self.seed = episodes, num_envs, decides, seed
        self.mean = torch.cat([episode[ACTION] for episode in episodes]).mean(0) if mean is None else mean
        self._follows = info.state.names == info.actions.names
        self._at = [(0, 0)] * num_envs
        """Episode number and row in the episode of each environment."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Begin consecutive episodes, one per environment; after the last recorded episode comes the first again."""
        first = 0 if seed is None else seed - self.seed
        self._at = [((first + k) % len(self.episodes), 0) for k in range(self.num_envs)]
        return self._observation(), {}

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Compare actions (n, A) in [-1, 1] with the recorded actions; an episode that ends is played again."""
        spec, recorded = self.info.actions, self._rows(ACTION)
        tried = {"action": spec.to_physical(actions), "hold": self._held(), "mean": self.mean.expand_as(recorded)}
        metrics: dict[str, Tensor] = {}
        for name, values in tried.items():
            error = (values - recorded).abs()
            metrics[f"{name}_error"] = (error / (spec.high - spec.low)).mean(1)
            metrics |= {f"{name}/{number}": error[:, k] for k, number in enumerate(spec.names)}
        ends = [t + 1 == len(self.episodes[k][ACTION]) for k, t in self._at]
        final = self._observation()
        self._at = [(k, 0 if end else t + 1) for (k, t), end in zip(self._at, ends, strict=True)]
        done, none = torch.tensor(ends), torch.zeros(self.num_envs)
        infos = {"metrics": metrics, "final_obs": final, "_final_obs": done}
        return self._observation(), none, none.bool(), done, infos

    def instruction(self, index: int) -> str:
        """Return the current instruction of one environment."""
        return decode(self._rows(LANGUAGE)[index : index + 1])[0]

    def close(self) -> None:
        pass

    def _observation(self) -> dict[str, Tensor]:
        return {key: self._rows(key) for key in (STATE, *self.info.extra_inputs)}

    def _rows(self, key: str) -> Tensor:
        return torch.stack([self.episodes[k][key][t] for k, t in self._at])

    def _held(self) -> Tensor:
        """Return the actions (n, A) of baseline hold, in physical units."""
        rows = []
        for k, t in self._at:
            episode, decided = self.episodes[k], t - t % self.decides
            begin = episode[STATE][0] if self._follows else self.mean
            rows.append(episode[ACTION][decided - 1] if decided else begin)
        return torch.stack(rows)
