"""A reward from demonstrations alone: Sermanet et al. 2017, "Unsupervised Perceptual Rewards for Imitation Learning"
(arXiv 1612.06699).

Each demonstration is split into stages, between which its features change most. A state's stage is estimated by naive
Bayes on the features that separate the stages best. The reward is the gain in the expected potential of the stage,
written as code that a person can read, and vetted like a language model's. Features are the numbers of the observed
state and the norms of its vectors, in place of the paper's features of pictures; actions, rewards and success are not
read. The state after a demonstration's last step, where the task is done, is a stage of its own. Datasets lack it: it
is extrapolated from the last two steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from robot_rl.interface.spec import VectorSpec
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import PositiveInt

GROWTH = 1.5
"""Factor of what a stage adds to the potential, over the stage before: the last steps of a task need the most care."""
LEAST = 0.05
"""Least standard deviation of a feature within a stage, relative to that in all demonstrations."""


@dataclass(frozen=True)
class StagesConfig:
    """Stages of a task and their features."""

    stages: PositiveInt = 8
    """Number of stages of each demonstration; the last is the state after its last step."""
    features: PositiveInt = 2
    """Number of features: those that separate each stage best from the others, on average over the stages."""


def features_of(state: Tensor, spec: VectorSpec) -> tuple[Tensor, list[str]]:
    """Return features (T, F) of states (T, D), and the code of each feature as the reward reads it, with NOW as the
    observation: each number, and the norm of each field of several numbers."""
    columns, codes = [], []
    for field, part in zip(spec.fields, state.split([len(f.dims) for f in spec.fields], 1), strict=True):
        view = f'NOW["{field.name}"]'
        columns += list(part.unbind(1))
        codes += [f"{view}[:, {k}]" for k in range(part.shape[1])]
        if part.shape[1] > 1:
            columns.append(part.norm(dim=1))
            codes.append(f"{view}.norm(dim=1)")
    return torch.stack(columns, 1), codes


def boundaries(features: Tensor, stages: int) -> list[int]:
    """Return the first steps of the stages after the first, which minimize the sum of squared distances of features
    (T, F) from their stage's mean. Found by dynamic programming over all splits."""
    zero = features.new_zeros(1, features.shape[1], dtype=torch.float64)
    sums = torch.cat([zero, features.double().cumsum(0)])
    squares = torch.cat([zero[:, 0], features.double().square().sum(1).cumsum(0)])
    length = torch.arange(len(sums))[None] - torch.arange(len(sums))[:, None]
    spread = (squares[None] - squares[:, None]) - (sums[None] - sums[:, None]).square().sum(2) / length.clamp_min(1)
    cost = torch.where(length > 0, spread, torch.inf)  # [i, j]: of a stage of the steps from i to j - 1
    best, choices = cost[0], []
    for _ in range(stages - 1):
        best, chosen = (best[:, None] + cost).min(0)
        choices.append(chosen)
    at, found = len(features), []
    for chosen in reversed(choices):
        at = int(chosen[at])
        found.append(at)
    return found[::-1]


def write_stages(demonstrations: Sequence[Tensor], spec: VectorSpec, config: StagesConfig) -> str:
    """Return the source of a reward from the states (T, D) of at least two demonstrations.

    Raises ConfigError for too few or too short demonstrations, or a state without names.
    """
    if not spec.fields or spec.fields[0].name == "state":
        raise ConfigError("the task's state has no named fields, by which a written reward reads it")
    k, given = config.stages, len(demonstrations)
    demonstrations = [each for each in demonstrations if len(each) >= 2 * k]
    if len(demonstrations) < 2 or k < 2:
        raise ConfigError(
            f"{len(demonstrations)} of {given} demonstrations have two steps for each of {k} stages; it takes two "
            "demonstrations and two stages: record more, or change --stages"
        )
    shown = [features_of(torch.cat([each, 2 * each[-1:] - each[-2:-1]]), spec)[0] for each in demonstrations]
    codes, every = features_of(demonstrations[0], spec)[1], torch.cat(shown)
    centre, scale = every.mean(0), every.std(0).clamp_min(1e-6)
    cuts = [[*boundaries((each[:-1] - centre) / scale, k - 1), len(each) - 1] for each in shown]
    stage = torch.cat([
        torch.bucketize(torch.arange(len(each)), torch.tensor(cut), right=True)
        for each, cut in zip(shown, cuts, strict=True)
    ])  # fmt: skip
    apart = torch.zeros_like(scale)
    for number in range(k):
        inside, outside = every[stage == number], every[stage != number]
        apart += (inside.mean(0) - outside.mean(0)).abs() / (inside.std(0) + outside.std(0) + 1e-6 * scale)
    chosen = sorted(apart.argsort(descending=True)[: config.features].tolist())
    means = torch.stack([every[stage == number].mean(0) for number in range(k)])
    stds = torch.stack([every[stage == number].std(0).nan_to_num() for number in range(k)])
    stds = torch.maximum(stds, LEAST * scale)
    return _source([codes[c] for c in chosen], means[:, chosen], stds[:, chosen], len(demonstrations))


def worth(stage: int, stages: int) -> float:
    """Return the potential of a stage, from 0 of the first to 1 of the last; each further stage adds more."""
    return float((GROWTH**stage - 1) / (GROWTH ** (stages - 1) - 1))


def _source(codes: list[str], means: Tensor, stds: Tensor, count: int) -> str:
    k = len(means)
    says = f'"""Gain in the expected stage, of {k}, from {count} demonstrations."""'
    lines = ["def reward(now, before, action):", f"    {says}"]
    for view, mark in (("now", "a"), ("before", "b")):
        lines += [f"    {mark}{c} = {code.replace('NOW', view)}" for c, code in enumerate(codes)]
        for number in range(k):
            parts = [
                f"((({mark}{c} - {float(means[number, c]):.4g}) / {float(stds[number, c]):.4g}) ** 2 / 2"
                f" + {float(stds[number, c].log()):.4g})"
                for c in range(len(codes))
            ]
            lines.append(f"    {mark}_{number} = -({' + '.join(parts)})")
        lines.append(f"    {mark} = torch.stack([{', '.join(f'{mark}_{n}' for n in range(k))}], 1)")
        lines.append(f"    {mark} = torch.exp({mark} - {mark}.amax(1, keepdim=True))")
        weights = " + ".join(f"{worth(n, k):.4g} * {mark}[:, {n}]" for n in range(1, k))
        lines.append(f"    {mark}_stage = ({weights}) / {mark}.sum(1)")
    return "\n".join([*lines, "    return a_stage - b_stage"]) + "\n"
