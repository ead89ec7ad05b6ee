"""Vet a written reward: it must rank success above failure on episodes of a demonstrator and of worse policies.

All behaviours play the same initial states, so that returns are compared between episodes with equal starts.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from policies.base import Observation
from robot_rl.interface.environment import Demonstrator
from robot_rl.rewards.written.sandbox import Transitions, try_reward
from robot_rl.rewards.written.views import Views, final_observation
from robot_rl.util.errors import ConfigError
from robot_rl.util.seeds import training_seed

BAR = 0.9
"""Least area under the ROC curve (`Vetting.auc`) of a reward that passes vetting."""
LEAST = 200
"""Least number of episodes for vetting."""
FEW = 20
"""Least number of successes, of failures, and of initial states with both outcomes, for vetting."""
STARTS = 48
"""Number of environments, and of initial states, for vetting."""
BEHAVIOURS = ("shown", "again", "careless", "given up", "given up late", "random", "still")
"""Policies, in this order: demonstrator, demonstrator again, demonstrator with noise over the whole action range,
demonstrator that stops midway, demonstrator that stops shortly before its end, uniform actions, no motion."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Vetting:
    """Metrics of a reward on scripted episodes."""

    auc: float
    """Share of (success, failure) pairs with the same initial state in which the success has the larger return. Ties
    count half, and initial states have equal weights."""
    last_auc: float
    """Share of all (success, failure) pairs in which the success has the larger last reward; for information only."""
    successes: int
    failures: int
    starts: int
    """Number of initial states with both outcomes."""
    success_return: float
    """Mean return of successes."""
    failure_return: float
    """Mean return of failures."""

    @property
    def episodes(self) -> int:
        return self.successes + self.failures

    @property
    def enough(self) -> bool:
        """Return whether there are enough successes, failures, and initial states with both outcomes."""
        return self.episodes >= LEAST and min(self.successes, self.failures, self.starts) >= FEW

    @property
    def passed(self) -> bool:
        return self.enough and self.auc >= BAR

    def summary(self) -> dict[str, Any]:
        """Return the metrics, and whether the reward passed as `vetted`."""
        return asdict(self) | {"vetted": self.passed}


@dataclass(frozen=True)
class Played:
    """Transitions of the episodes of all behaviours."""

    transitions: Transitions
    episode: Tensor
    """(M,) episode number of each transition."""
    last: Tensor
    """(M,) bool, whether a transition is the last of its episode."""
    start: Tensor
    """(E,) number of each episode's initial state."""
    success: Tensor
    """(E,) bool success of each episode."""


def play(env: Any, expert: Callable[[int], Demonstrator], seed: int, progress: Progress = lambda *_: None) -> Played:
    """Play one episode of each behaviour from each initial state.

    `env` has `STARTS` environments, and `expert` makes a demonstrator from a seed. ConfigError if too few episodes
    succeed or fail.
    """
    env.info.require_end()
    views, rng, n = Views.of(env), torch.Generator().manual_seed(seed), env.num_envs
    lengths = torch.full((n,), 1.0)
    parts: list[tuple[Transitions, Tensor, Tensor, Tensor]] = []
    for k, name in enumerate(BEHAVIOURS):
        progress(k, len(BEHAVIOURS))
        act = _behaviour(name, env, expert(seed + k), lengths, rng)
        parts.append(_episodes(env, views, act, training_seed(seed)))
        if name == "shown":
            lengths = torch.bincount(parts[0][1], minlength=n).float()
    progress(len(BEHAVIOURS), len(BEHAVIOURS))
    names = parts[0][0]["now"]
    transitions: Transitions = {
        key: {name: torch.cat([t[key][name] for t, *_ in parts]) for name in names} for key in ("now", "before")
    }
    transitions |= {"action": torch.cat([t["action"] for t, *_ in parts])}
    success = torch.cat([each[3] for each in parts])
    start = torch.arange(n).repeat(len(parts))
    both = sum(bool(success[start == i].any() and not success[start == i].all()) for i in range(n))
    if min(int(success.sum()), int((~success).sum()), both) < FEW or len(success) < LEAST:
        raise ConfigError(
            f"{int(success.sum())} of {len(success)} scripted episodes of {env.info.task} succeed, and {both} of {n} "
            f"starts show both outcomes: too few to vet a reward, which takes {LEAST} episodes and {FEW} of each; name "
            "a better or worse demonstrator with --skill or --policy"
        )
    episode = torch.cat([each[1] + k * n for k, each in enumerate(parts)])
    return Played(transitions, episode, torch.cat([each[2] for each in parts]), start, success)


def vet(source: str, played: Played) -> Vetting:
    """Try a reward in the sandbox and measure it on played episodes; `BadCode` if the reward cannot be run."""
    return measure(try_reward(source, played.transitions), played)


def measure(reward: Tensor, played: Played) -> Vetting:
    """Return the metrics of a reward from its values (M,) in the played transitions."""
    total = torch.zeros(len(played.success), dtype=torch.float64).index_add(0, played.episode, reward.double())
    last = torch.zeros_like(total)
    last[played.episode[played.last]] = reward[played.last].double()
    won, lost = played.success, ~played.success
    pairs = [(total[won & (played.start == i)], total[lost & (played.start == i)]) for i in played.start.unique()]
    ranked = [auc(good, bad) for good, bad in pairs if len(good) and len(bad)]
    return Vetting(
        sum(ranked) / max(1, len(ranked)), auc(last[won], last[lost]), int(won.sum()), int(lost.sum()), len(ranked),
        float(total[won].mean()), float(total[lost].mean()),
    )  # fmt: skip


def auc(good: Tensor, bad: Tensor) -> float:
    """Return the share of pairs of `good` (G,) and `bad` (B,) with good > bad; ties count half. 0 if there is no pair.

    >>> auc(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 0.0]))
    0.875
    """
    if not len(good) or not len(bad):
        return 0.0
    difference = good[:, None] - bad
    return float(((difference > 0).double() + 0.5 * (difference == 0).double()).mean())


Act = Callable[[Observation, Tensor], Tensor]
"""Function that returns actions (n, A) for an observation and the elapsed steps (n,) of the episodes."""


def _behaviour(name: str, env: Any, expert: Demonstrator, lengths: Tensor, rng: torch.Generator) -> Act:
    """Return the policy of one of `BEHAVIOURS`; `lengths` (n,) are the lengths of the demonstrator's episodes."""
    shape = (env.num_envs, env.info.action)
    expert.reset(torch.arange(env.num_envs))
    share = torch.rand(env.num_envs, generator=rng)
    until = lengths * {"given up": 0.2 + 0.6 * share, "given up late": 0.8 + 0.15 * share}.get(name, torch.inf)

    def act(observation: Observation, steps: Tensor) -> Tensor:
        still = env.hold_action().cpu()
        if name == "still":
            return still
        uniform = 2 * torch.rand(shape, generator=rng) - 1
        if name == "random":
            return uniform
        shown = expert.act(observation).cpu()
        if name == "careless":
            return (shown + uniform).clamp(-1, 1)
        return torch.where((steps < until)[:, None], shown, still)

    return act


def _episodes(env: Any, views: Views, act: Act, seed: int) -> tuple[Transitions, Tensor, Tensor, Tensor]:
    """Play the first episode of every environment.

    Returns the M transitions, their environment numbers (M,), whether each transition is the last of its episode (M,)
    bool, and the success of each environment (n,) bool.
    """
    observation = _host(env.reset(seed=seed)[0])
    n = env.num_envs
    running, success, steps = torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.bool), torch.zeros(n)
    states: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []
    taken: list[tuple[Tensor, Tensor, Tensor]] = []
    while bool(running.any()):
        action = act(observation, steps)
        following, _, terminated, truncated, infos = env.step(action.to(env.device))
        done = (terminated | truncated).cpu()
        final = _host(final_observation(following, terminated | truncated, infos))
        ids = running.nonzero()[:, 0]
        before, now = ({k: v[ids] for k, v in views(o).items()} for o in (observation, final))
        states.append((now, before))
        taken.append((action[ids], ids, done[ids]))
        success |= running & infos["success"].cpu()
        running &= ~done
        observation, steps = _host(following), steps + 1
    now, before = ({key: torch.cat([each[k][key] for each in states]).float() for key in states[0][0]} for k in (0, 1))
    action, ids, last = (torch.cat(parts) for parts in zip(*taken, strict=True))
    return {"now": now, "before": before, "action": action}, ids, last, success


def _host(observation: Observation) -> Observation:
    return {key: value.cpu() for key, value in observation.items()}
