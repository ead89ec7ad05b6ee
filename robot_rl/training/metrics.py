"""Metrics of the training loops: rows of metrics, and returns, lengths and success of episodes."""

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from robot_rl.training.checkpoint import save_state
from robot_rl.training.run import Run
from robot_rl.util.errors import UserError
from robot_rl.util.ranks import from_all

Progress = Callable[[int, dict[str, float]], None]
"""Callback with the loop's counter (steps or updates) and the latest metrics."""


class Diverged(UserError, FloatingPointError):  # noqa: N818
    """Training produced NaN or infinity, most often because of the learning rate."""

    code = 2  # as for bad input: a restart would fail again


_REMEDY = "start again with a smaller learning rate and another --out"


def diverged(run: Run, step: int, what: str, remedy: str = _REMEDY) -> Diverged:
    """Return the error that `what` happened at `step`. Its message tells if a checkpoint is left, and the remedy."""
    left = "the last checkpoint is intact" if run.checkpoint_file.exists() else "no checkpoint had been written"
    return Diverged(f"{what} at step {step}; {left}; {remedy}")


def check_update(run: Run, step: int, metrics: dict[str, Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return an update's metrics; if a metric is not finite, save the batch in the run folder and raise `Diverged`.

    The checkpoint is not changed. The saved batch shows whether the data or the settings are the cause.
    """
    if bool(torch.stack([value.detach().float() for value in metrics.values()]).isfinite().all()):  # one GPU wait
        return metrics
    for name, value in metrics.items():
        if not math.isfinite(value):
            kept = run.folder / "diverged-batch.safetensors"
            save_state(batch, kept)
            wrong = [k for k, v in batch.items() if v.is_floating_point() and not v.isfinite().all()]
            cause = f"its batch, {kept}, is finite; {_REMEDY}"
            if wrong:
                cause = f"its batch, {kept}, is not finite ({', '.join(wrong)}): mend what these come from"
            raise diverged(run, step, f"{name} became {'NaN' if math.isnan(value) else 'infinite'}", cause)
    return metrics


def check_finite(run: Run, step: int, row: dict[str, float], remedy: str = _REMEDY) -> None:
    """Raise `Diverged` for a metric that is not finite, before the checkpoint is written."""
    for name, value in row.items():
        if not math.isfinite(value):
            raise diverged(run, step, f"{name} became {'NaN' if math.isnan(value) else 'infinite'}", remedy)


def report(run: Run, step: int, row: dict[str, float], progress: Progress) -> None:
    """Log a row of finite metrics and report progress."""
    check_finite(run, step, row)
    run.log(step, row)
    progress(step, row)


def counts(env: Any, step: int) -> dict[str, float]:
    """Return metrics: environment steps so far, those of a curriculum and, in simulation, the number of episodes with
    diverged physics."""
    row = {"train/steps": float(step)} | getattr(env, "curriculum_metrics", {})
    return row | ({"train/divergences": float(sum(from_all(env.divergences)))} if hasattr(env, "divergences") else {})


class EpisodeMetrics:
    """Returns and lengths of running episodes, and means over the last `window` episodes that ended.

    Successes are shorter than failures, so early means are biased. With `first_of_each`, nothing is reported until the
    first episodes of all environments have ended, and only first episodes count until then.
    """

    def __init__(
        self, num_envs: int, device: torch.device | str = "cpu", window: int = 200, first_of_each: bool = False
    ):
        self.total = torch.zeros(num_envs, device=device)  # return (N,) of the running episodes so far
        self.length = torch.zeros(num_envs, device=device)  # steps (N,) of the running episodes so far
        self.ended = torch.full((num_envs,), not first_of_each, device=device)
        """(N,) bool, whether the first episode of each environment has ended."""
        window = max(window, num_envs)
        names = ("return", "length", "success", "true_success")
        self.recent: dict[str, deque[float]] = {name: deque(maxlen=window) for name in names}

    def add(self, reward: Tensor, done: Tensor, infos: dict[str, Any]) -> None:
        """Add one step of every environment: reward and done (N,).

        `infos` may have "success", and "true_success" of the simulator if another judge decides success.
        """
        self.total += reward
        self.length += 1
        if done.any():
            counts = done if self.ended.all() else done & ~self.ended
            self.ended |= done
            values = {"return": self.total, "length": self.length}
            values |= {name: infos[name] for name in ("success", "true_success") if name in infos}
            for name, value in values.items():
                self.recent[name].extend(value[counts].float().tolist())
            self.restart(done)

    def restart(self, rows: Tensor | slice = slice(None)) -> None:
        """Forget the running episodes of environments `rows`; default: of all environments."""
        self.total[rows], self.length[rows] = 0.0, 0.0

    def success(self) -> float:
        """Return the success rate over a full window of episodes; 0 before the window is full."""
        recent = self.recent["success"]
        return sum(recent) / len(recent) if len(recent) == recent.maxlen else 0.0

    def summary(self) -> dict[str, float]:
        """Return means over the last `window` episodes; {} before the first episode has ended."""
        if not self.ended.all():
            return {}
        return {f"train/{name}": sum(values) / len(values) for name, values in self.recent.items() if values}

    def state_dict(self) -> dict[str, Any]:
        recent = {name: list(values) for name, values in self.recent.items()}
        return {"total": self.total, "length": self.length, "ended": self.ended, "recent": recent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("total", "length", "ended"):
            getattr(self, name).copy_(state[name])
        for name, values in state["recent"].items():
            self.recent[name].extend(values)
