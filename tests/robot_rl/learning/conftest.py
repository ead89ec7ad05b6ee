"""Problems with known answers, and comparisons, for tests of learners."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from robot_rl.data.replay import NEXT

Batch = dict[str, Tensor]


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def chain(generator: torch.Generator, count: int = 64, discount: float = 0.8, cut: bool = True) -> Batch:
    """Transitions along five states; the last step has reward 1 and, with `cut`, terminates. Actions have no effect."""
    place, states = torch.randint(0, 5, (count,), generator=generator), torch.eye(5)
    base = torch.zeros(count, 1)
    return {
        "observation.state": states[place], NEXT + "observation.state": states[(place + 1) % 5],
        "action": 2 * torch.rand(count, 1, generator=generator) - 1, "reward": (place == 4).float(),
        "discount": torch.where((place == 4) & cut, 0.0, discount), "base": base, NEXT + "base": base,
        "intervention": torch.zeros(count, dtype=torch.bool),
    }  # fmt: skip


POWERS = 0.8 ** torch.tensor([4.0, 3, 2, 1, 0])
"""Values of the chain's states at discount 0.8."""


def chain_values(learner: Any) -> Tensor:
    with torch.no_grad():
        return learner.critic.value(torch.eye(5), torch.zeros(5, 1))[-learner.config.critics :].mean(0)


def two_modes(count: int, generator: torch.Generator, share: float = 0.5) -> Batch:
    """One-step episodes: a `share` of the data acts near 0.5 with reward 1, the rest near -0.5 with reward 0."""
    good = torch.rand(count, generator=generator) < share
    action = torch.where(good, 0.5, -0.5) + 0.05 * torch.randn(count, generator=generator)
    state, zero = torch.randn(count, 2, generator=generator), torch.zeros(count)
    return {
        "observation.state": state, NEXT + "observation.state": state, "action": action[:, None],
        "reward": good.float(), "discount": zero, "intervention": zero.bool(), "return_to_go": good.float(),
    }  # fmt: skip


def floats(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def equal(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two modules have bit-identical parameters and buffers."""
    state = other.state_dict()
    return all(torch.equal(value, state[name]) for name, value in one.state_dict().items())


def close(one: nn.Module, other: nn.Module, atol: float = 1e-6) -> None:
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=atol, rtol=0)


def check_resumes(first: Any, second: Any, batches: list[Any]) -> None:
    """Check that `second`, restored from `first` before the last batch, makes the same update."""
    for batch in batches[:-1]:
        first.update(batch)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert floats(first.update(batches[-1])) == floats(second.update(batches[-1]))
    assert equal(first.policy, second.policy)
