"""Fit a success classifier to a dataset's marked frames, and measure it on episodes that it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from policies.base import Observation, Size
from policies.networks.encoder import augmented
from robot_rl.data.dataset import Dataset
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import IMAGES, LANGUAGE, LANGUAGE_FIELD, STATE, ObservationSpec, picture_field
from robot_rl.rewards.classifier import Bar, Classifier, Measured, NetworkConfig, SuccessNetwork
from robot_rl.rewards.marked import MarkedEpisode, held_out, marked_episodes
from robot_rl.util.errors import ConfigError, nearest
from robot_rl.util.limits import Interval, NonNegativeFloat, PositiveFloat, PositiveInt, Seed

THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99)
"""Those that are tried."""
NEAR = 1.0
"""Time before the margin whose frames are a quarter of each batch, s: they look most like success, and are few."""


@dataclass(frozen=True)
class FitConfig:
    """How a classifier is fitted."""

    cameras: tuple[str, ...] = ()
    """Cameras to judge by; none named: all that the dataset has."""
    state: bool = False
    """Judge by observation.state as well."""
    hold: PositiveInt = 3
    """Frames in a row that must show success before it counts. As many before a mark are taken to show it."""
    margin: NonNegativeFloat = 0.5
    """Time before a mark of which nothing is said, s: earlier frames show no success, and a claim is wrong there."""
    held_out: Annotated[float, Interval(ge=0.05, le=0.9)] = 0.3
    """Share of the episodes to measure on."""
    at_least: Bar = 0.95
    """The bar: precision and recall on held-out episodes below which it may not pay rewards."""
    steps: PositiveInt = 1_000
    """Gradient steps."""
    batch: PositiveInt = 32
    """Frames per step: half show success, and a quarter are from the second before the margin."""
    negatives: PositiveInt = 4_000
    """Most frames without success to learn from, drawn at random; all are kept in memory."""
    lr: PositiveFloat = 1e-3
    """Learning rate, which falls to 0 along a cosine."""
    weight_decay: NonNegativeFloat = 0.1
    """Weight decay of AdamW."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    seed: Seed = 0
    """Seed of the split, the weights and the batches."""


def fit(
    dataset: Dataset,
    config: FitConfig,
    device: str = "cpu",
    progress: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> Classifier:
    """Return a classifier of a dataset's success with what was measured on held-out episodes.

    The threshold is chosen on the episodes that it was fitted to. ConfigError for a dataset without pictures, or
    without enough episodes of either outcome.
    """
    reads = _reads(dataset, config)
    episodes = marked_episodes(dataset, config.hold, config.margin)
    fitted, measured_on = held_out(episodes, config.held_out, config.seed)
    torch.manual_seed(config.seed)
    network = SuccessNetwork(reads, config.network).to(device)
    if reads.observation:
        states = dataset.column(STATE).float()
        network.normalizer.fit(torch.cat([states[e.start : e.start + e.length] for e in fitted]))
    frames = Frames(dataset, reads, episodes)
    _descend(network, frames, fitted, config, progress)
    network.eval()
    classifier = Classifier(
        network, 0.5, config.hold, float(dataset.fps), tuple(dict.fromkeys(e.instruction for e in fitted)),
        config.at_least, Measured(0, 0, 0, 0),
    )  # fmt: skip
    levels = [level(frames.probabilities(classifier, e), config.hold) for e in fitted]
    classifier.threshold = best_threshold(levels, fitted)
    levels = [level(frames.probabilities(classifier, e), config.hold) for e in measured_on]
    classifier.measured = measure(levels, measured_on, classifier.threshold)
    network.cpu()
    return classifier


def _reads(dataset: Dataset, config: FitConfig) -> Size:
    """Return what a classifier of a dataset reads; its instructions, if it has several."""
    shapes = {key.removeprefix(IMAGES): dataset.features[key].shape for key in dataset.cameras}
    if not shapes:
        raise ConfigError(
            f"{dataset.root} has no pictures; record one with a camera, for example `robot-rl collect TASK "
            "--image-size 96`"
        )
    for camera in config.cameras:
        if camera not in shapes:
            raise ConfigError(f"{dataset.root} has no camera {camera!r}; {nearest(camera, shapes)}")
    fields = {f"{IMAGES}{camera}": picture_field(*shapes[camera][:2]) for camera in config.cameras or shapes}
    fields |= {LANGUAGE: LANGUAGE_FIELD} if len(dataset.tasks) > 1 else {}
    if config.state and STATE not in dataset.features:
        raise ConfigError(f"{dataset.root} has no {STATE}; leave out --state")
    return Size(dataset.features[STATE].shape[0] if config.state else 0, 0, ObservationSpec.of(**fields))


class Frames:
    """Observations of a dataset's rows."""

    def __init__(self, dataset: Dataset, reads: Size, episodes: Sequence[MarkedEpisode]):
        self.dataset, self.reads, self.episodes = dataset, reads, episodes
        self.starts = torch.tensor([e.start for e in episodes])
        self.texts = encode([e.instruction for e in episodes]) if LANGUAGE in reads.extra_inputs else None

    def of(self, rows: Tensor) -> Observation:
        """Return what was seen in rows (n,)."""
        found = {key: self.dataset.frames(key, rows) for key in self.reads.pictures}
        if self.reads.observation:
            found[STATE] = self.dataset.column(STATE)[rows].float()
        if self.texts is not None:
            found[LANGUAGE] = self.texts[torch.searchsorted(self.starts, rows, right=True) - 1]
        return found

    def probabilities(self, classifier: Classifier, episode: MarkedEpisode) -> Tensor:
        """Return the probabilities (T,) of an episode's frames."""
        device = next(classifier.network.parameters()).device
        rows = torch.arange(episode.start, episode.start + episode.length)
        parts = [
            classifier.probability({key: value.to(device) for key, value in self.of(part).items()})
            for part in rows.split(256)
        ]
        return torch.cat(parts).cpu()


def _descend(
    network: SuccessNetwork,
    frames: Frames,
    episodes: Sequence[MarkedEpisode],
    config: FitConfig,
    progress: Callable[[int, int, str], None],
) -> None:
    """Fit the network to the labelled frames of episodes."""
    device, reads = next(network.parameters()).device, network.reads
    rng = torch.Generator().manual_seed(config.seed)
    optimizer = torch.optim.AdamW(network.parameters(), config.lr, weight_decay=config.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.steps)
    for step, (batch, label) in enumerate(_batches(frames, episodes, config, rng)):
        batch = augmented(batch, list(reads.pictures), config.network.encoder.shift, rng)
        logits = network({key: value.to(device) for key, value in batch.items()})
        loss = binary_cross_entropy_with_logits(logits, label.to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 20 == 0:
            progress(step, config.steps, f"steps  loss {float(loss.detach()):.4f}")


def _batches(
    frames: Frames, episodes: Sequence[MarkedEpisode], config: FitConfig, rng: torch.Generator
) -> Iterator[tuple[Observation, Tensor]]:
    """Yield `config.steps` batches of frames with their labels (B,), 1 or 0; the frames are decoded once."""
    shown, not_shown = (torch.cat([e.rows(label) for e in episodes]) for label in (1, 0))
    if not len(not_shown):
        raise ConfigError(f"no frame is further than --margin {config.margin:g} s from a success; give a smaller one")
    not_shown = not_shown[torch.randperm(len(not_shown), generator=rng)[: config.negatives]].sort().values
    near = torch.cat([e.before(round(NEAR * frames.dataset.fps)) for e in episodes])
    near = near if len(near) else not_shown
    kinds = [frames.of(rows) for rows in (shown, not_shown, near)]
    quarter = max(1, config.batch // 4)
    counts = (2 * quarter, quarter, quarter)
    label = torch.cat([torch.ones(counts[0]), torch.zeros(2 * quarter)])
    for _ in range(config.steps):
        parts = []
        for found, count in zip(kinds, counts, strict=True):
            pick = torch.randint(len(next(iter(found.values()))), (count,), generator=rng)
            parts.append({key: values[pick] for key, values in found.items()})
        yield {key: torch.cat([part[key] for part in parts]) for key in parts[0]}, label


def level(probability: Tensor, hold: int) -> Tensor:
    """Return the least probability (T,) of each frame and the `hold` - 1 before it; 0 where there are fewer.

    Above a threshold there, the frames claim success.
    """
    if len(probability) < hold:
        return torch.zeros_like(probability)
    least = probability.unfold(0, hold, 1).amin(1)
    return torch.cat([probability.new_zeros(hold - 1), least])


def measure(levels: Sequence[Tensor], episodes: Sequence[MarkedEpisode], threshold: float) -> Measured:
    """Return how many episodes, whose frames have `levels` (T,) each, are claimed above a threshold, and how rightly.

    The first claim counts: it would have ended the episode.
    """
    claims = right = 0
    for found, episode in zip(levels, episodes, strict=True):
        claimed = (found > threshold).nonzero()[:, 0]
        claims += len(claimed) > 0
        right += len(claimed) > 0 and episode.earliest is not None and int(claimed[0]) >= episode.earliest
    return Measured(len(episodes), sum(e.success for e in episodes), claims, right)


def best_threshold(levels: Sequence[Tensor], episodes: Sequence[MarkedEpisode]) -> float:
    """Return the threshold with the largest sum of precision and recall. Of those that differ from it by no more than
    one episode does, which is chance, it is the middle one.
    """
    found = [measure(levels, episodes, threshold) for threshold in THRESHOLDS]
    scores = [(m.precision["mean"] or 0.0) + (m.recall["mean"] or 0.0) for m in found]
    least = max(scores) - 1 / max(1, found[0].successes)
    best = [threshold for threshold, score in zip(THRESHOLDS, scores, strict=True) if score >= least]
    return best[len(best) // 2]
