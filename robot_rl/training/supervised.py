"""Supervised learning of chunked policies from demonstrations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from policies.diffusion import DiffusionPolicy
from robot_rl.training.metrics import Progress, check_finite, report
from robot_rl.training.run import Run
from robot_rl.util.limits import Count, NonNegative, Positive, Whole


@dataclass(frozen=True)
class SupervisedConfig:
    """Numbers of behaviour cloning."""

    updates: Count = 2000
    """Gradient steps."""
    batch: Count = 256
    """Chunks per gradient step."""
    lr: Positive = 1e-3
    """Peak learning rate, after which it follows half a cosine to 0."""
    warmup: Whole = 100
    """Gradient steps of linear warm-up."""
    weight_decay: NonNegative = 1e-4
    """Decay of the weights beside the gradient (AdamW)."""
    checkpoint_every: Count = 1000
    """Gradient steps between checkpoints."""
    log_every: Count = 100
    """Gradient steps between rows of metrics."""


@dataclass
class Demonstrations:
    """Episodes side by side: rows of states and of actions in [-1, 1], and where episodes begin and end."""

    state: Tensor
    """(N, D)"""
    action: Tensor
    """(N, A)"""
    starts: Tensor
    """(E,) first row of each episode"""
    lengths: Tensor
    """(E,)"""

    def chunks(self, horizon: int) -> Tensor:
        """Rows (N, horizon) of the actions that follow each row; beyond the end the last action is held."""
        episode = torch.repeat_interleave(torch.arange(len(self.starts)), self.lengths)
        last = (self.starts + self.lengths - 1)[episode]
        rows = torch.arange(len(self.state))[:, None] + torch.arange(horizon)
        return torch.minimum(rows, last[:, None])


def clone(
    policy: DiffusionPolicy,
    data: Demonstrations,
    config: SupervisedConfig,
    run: Run,
    seed: int,
    progress: Progress,
) -> None:
    """Fit `policy` to demonstrations in place; resumes from the run's checkpoint, leaves averaged weights behind."""
    from diffusers.optimization import get_scheduler
    from diffusers.training_utils import EMAModel

    rng = torch.Generator().manual_seed(seed)
    policy.normalizer.fit(data.state)
    parameters = list(policy.denoiser.parameters())
    optimizer = torch.optim.AdamW(parameters, config.lr, weight_decay=config.weight_decay, fused=True)
    schedule = get_scheduler("cosine", optimizer, num_warmup_steps=config.warmup, num_training_steps=config.updates)
    average = EMAModel(parameters, decay=0.999, use_ema_warmup=True, power=0.75, foreach=True)
    rows = data.chunks(policy.horizon)
    step = 0
    saved = run.load()
    if saved is not None:
        step = saved["step"]
        policy.load_state_dict(saved["policy"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        average.load_state_dict(saved["average"])
        rng.set_state(saved["rng"])

    def state() -> dict[str, Any]:
        return {
            "step": step,
            "policy": policy.state_dict(),
            "optimizer": optimizer.state_dict(),
            "schedule": {k: v for k, v in schedule.state_dict().items() if isinstance(v, int | float | list)},
            "average": average.state_dict(),
            "rng": rng.get_state(),
        }

    policy.train()
    while step < config.updates:
        pick = torch.randint(0, len(rows), (config.batch,), generator=rng)
        loss = policy.loss({"observation.state": data.state[pick]}, data.action[rows[pick]], rng).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        average.step(parameters)
        step += 1
        if step % config.log_every == 0 or step == config.updates:
            report(run, step, {"bc/loss": float(loss.detach()), "bc/lr": schedule.get_last_lr()[0]}, progress)
        if step % config.checkpoint_every == 0 or run.asked:
            check_finite(run, step, {"bc/loss": float(loss.detach())})
            run.save(step, state())
            run.end_if_asked(step)
    run.save(step, state())
    average.copy_to(parameters)
    policy.eval()
