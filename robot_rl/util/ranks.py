"""Data-parallel learning: the processes (ranks) that `torchrun` starts take each gradient step together.

Every rank draws the same global batch and the same noise, from generators with the same seed, and computes the loss of
its own rows. Gradients are averaged over the ranks, so the weights are the same in all of them, and up to rounding
those of one process. A process that torchrun did not start is rank 0 of 1, and none of this costs it anything.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from robot_rl.util.errors import ConfigError

LAUNCHED = int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1
"""Number of processes that torchrun started, this one included."""


@contextmanager
def joined(device: str) -> Iterator[None]:
    """Join the other ranks within the context: over NCCL for a device cuda, else over Gloo."""
    if LAUNCHED == 1:
        yield
        return
    cuda = torch.device(device).type == "cuda"
    if cuda:
        torch.cuda.set_device(torch.device(own_device(device)))
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def count() -> int:
    """Return the number of ranks that learn together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Return this process's number among the ranks; rank 0 writes the run folder."""
    return dist.get_rank() if dist.is_initialized() else 0


def own_device(device: str) -> str:
    """Return the device of this rank: device cuda is a GPU of its own, another name the same device for all."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if LAUNCHED > 1 and device == "cuda" else device


def from_first(value: Any) -> Any:
    """Return rank 0's value of a small object."""
    box = [value]
    if count() > 1:
        dist.broadcast_object_list(box)
    return box[0]


def from_all(value: Any) -> list[Any]:
    """Return every rank's value of a small object."""
    values = [value] * count()
    if count() > 1:
        dist.all_gather_object(values, value)
    return values


def largest(number: int) -> int:
    """Return the largest of all ranks' numbers."""
    return max(from_all(number))


def share(total: int, what: str) -> int:
    """Return each rank's share of `total`; ConfigError if the ranks cannot share it equally."""
    if total % count():
        raise ConfigError(f"{what} is {total}, which {count()} processes cannot share equally; take a multiple of it")
    return total // count()


def own(values: Tensor, dim: int = 0) -> Tensor:
    """Return this rank's part of values along a dimension, whose size is a multiple of the number of ranks."""
    return values.chunk(count(), dim)[rank()] if count() > 1 else values


def own_rows(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return this rank's rows of a global batch, whose number of rows is a multiple of the number of ranks."""
    return {name: own(values) for name, values in batch.items()}


def all_rows(batch: dict[str, Tensor], steps: int) -> dict[str, Tensor]:
    """Return the rows (steps * N, ...) of all ranks' N environments, for rows (steps * n, ...) of this rank's n."""
    if count() == 1:
        return batch
    whole = {}
    for name, values in batch.items():
        parts = [torch.empty_like(values, memory_format=torch.contiguous_format) for _ in range(count())]
        dist.all_gather(parts, values.contiguous())
        whole[name] = torch.cat([part.unflatten(0, (steps, -1)) for part in parts], 1).flatten(0, 1)
    return whole


def extremes(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest of values (N, ...) over N and the ranks."""
    low, high = values.aminmax(dim=0)
    if count() > 1:
        dist.all_reduce(low, dist.ReduceOp.MIN)
        dist.all_reduce(high, dist.ReduceOp.MAX)
    return low, high


def average_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Replace the gradients of an optimizer's parameters by their mean over the ranks."""
    if count() == 1:
        return
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    parts = (flat / count()).split([gradient.numel() for gradient in gradients])
    torch._foreach_copy_(gradients, [part.view_as(g) for part, g in zip(parts, gradients, strict=True)])


def averaged(metrics: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the means over the ranks of metrics, numbers with the same names in each of them."""
    if count() == 1 or not metrics:
        return metrics
    values = torch.stack([value.detach().float() for value in metrics.values()])
    dist.all_reduce(values)
    return dict(zip(metrics, values / count(), strict=True))


def mean_over_ranks(row: dict[str, float]) -> dict[str, float]:
    """Return the means of numbers by name, each over the ranks that have it."""
    if count() == 1:
        return row
    rows = from_all(row)
    names = dict.fromkeys(name for each in rows for name in each)
    found = {name: [each[name] for each in rows if name in each] for name in names}
    return {name: sum(values) / len(values) for name, values in found.items()}


class SharedGenerator(torch.Generator):
    """A generator with the same state in every rank; `drawn` gives each rank its own rows of its draws."""


def generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator for draws with one row per sample of a batch that the ranks share."""
    return (SharedGenerator if count() > 1 else torch.Generator)(device).manual_seed(seed)


def drawn(
    draw: Callable[..., Tensor], shape: tuple[int, ...], rng: torch.Generator, device: torch.device, rows: int = 0
) -> Tensor:  # fmt: skip
    """Return `draw(shape, generator=rng)` on `device`; drawn on the generator's device, so `device` changes no value.

    `rows` is the dimension of the batch. With a `SharedGenerator`, the draw is that of the global batch, of which this
    rank gets its rows.
    """
    if not isinstance(rng, SharedGenerator):
        return draw(shape, generator=rng, device=rng.device).to(device)
    whole = tuple(size * count() if k == rows else size for k, size in enumerate(shape))
    return own(draw(whole, generator=rng, device=rng.device), rows).to(device)
