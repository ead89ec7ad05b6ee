"""Fit a success classifier: label the frames of marked episodes, fit the network, and measure on held-out episodes."""

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
from robot_rl.data.recording import successes_of
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import IMAGES, LANGUAGE, LANGUAGE_FIELD, STATE, ObservationSpec, picture_field
from robot_rl.rewards.classifier import Bar, Classifier, Measured, NetworkConfig, SuccessNetwork
from robot_rl.util.errors import ConfigError, nearest
from robot_rl.util.limits import Interval, NonNegativeFloat, PositiveFloat, PositiveInt, Seed

THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99)
"""Candidate decision thresholds, as probabilities of success."""
NEAR = 1.0
"""Length of the time span before the margin, s. Its frames look most like success and are few, so they make up a
quarter of each batch."""

LEAST = 5
"""Least number of held-out successes and of held-out failures; rates over fewer episodes are meaningless."""


@dataclass(frozen=True)
class FitConfig:
    """Settings for fitting a success classifier."""

    cameras: tuple[str, ...] = ()
    """Cameras that the classifier reads; empty: all cameras of the dataset."""
    state: bool = False
    """Whether the classifier also reads observation.state."""
    hold: PositiveInt = 3
    """Consecutive frames that must show success. The last `hold` frames up to a mark are labelled as success."""
    margin: NonNegativeFloat = 0.5
    """Unlabelled time before a success mark, s. Earlier frames are labelled as no success: claims there are false."""
    held_out: Annotated[float, Interval(ge=0.05, le=0.9)] = 0.3
    """Share of the episodes that are held out for measuring the classifier."""
    at_least: Bar = 0.95
    """Bar: a classifier may give rewards if its precision and recall on held-out episodes are at least this."""
    steps: PositiveInt = 1_000
    """Gradient steps."""
    batch: PositiveInt = 32
    """Frames per gradient step: one half show success, one quarter come from the last second before the margin."""
    negatives: PositiveInt = 4_000
    """Largest number of frames without success, drawn at random and kept in memory."""
    lr: PositiveFloat = 1e-3
    """Initial learning rate of a cosine schedule to 0."""
    weight_decay: NonNegativeFloat = 0.1
    """Weight decay of AdamW."""
    network: NetworkConfig = field(default_factory=NetworkConfig)
    seed: Seed = 0
    """Random seed of the split into training and held-out episodes, of the initial weights and of the batches."""


def fit(
    dataset: Dataset, config: FitConfig, device: str = "cpu",
    progress: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> Classifier:  # fmt: skip
    """Fit a classifier to a dataset and measure it on held-out episodes.

    The threshold is chosen on the training episodes. ConfigError for a dataset without pictures or with too few
    successes or failures.
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
    """Return a classifier's inputs: cameras, the state on request, and the instruction if a dataset has several."""
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
    """Observations of a dataset as the classifier's network reads them."""

    def __init__(self, dataset: Dataset, reads: Size, episodes: Sequence[MarkedEpisode]):
        self.dataset, self.reads, self.episodes = dataset, reads, episodes
        self.starts = torch.tensor([e.start for e in episodes])
        self.texts = encode([e.instruction for e in episodes]) if LANGUAGE in reads.extra_inputs else None

    def of(self, rows: Tensor) -> Observation:
        """Return the observations of dataset rows (n,)."""
        observation = {key: self.dataset.frames(key, rows) for key in self.reads.pictures}
        if self.reads.observation:
            observation[STATE] = self.dataset.column(STATE)[rows].float()
        if self.texts is not None:
            observation[LANGUAGE] = self.texts[torch.searchsorted(self.starts, rows, right=True) - 1]
        return observation

    def probabilities(self, classifier: Classifier, episode: MarkedEpisode) -> Tensor:
        """Return the success probabilities (T,) of an episode's frames."""
        device = next(classifier.network.parameters()).device
        rows = torch.arange(episode.start, episode.start + episode.length)
        blocks = [{key: value.to(device) for key, value in self.of(part).items()} for part in rows.split(256)]
        return torch.cat([classifier.probability(block) for block in blocks]).cpu()


def _descend(
    network: SuccessNetwork, frames: Frames, episodes: Sequence[MarkedEpisode], config: FitConfig,
    progress: Callable[[int, int, str], None],
) -> None:  # fmt: skip
    """Fit the network, by gradient descent, to the labelled frames of episodes."""
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
    """Yield `config.steps` batches of frames with labels (B,), 1 or 0; every frame is decoded once."""
    positive, negative = (torch.cat([e.rows(label) for e in episodes]) for label in (1, 0))
    if not len(negative):
        raise ConfigError(f"no frame is further than --margin {config.margin:g} s from a success; give a smaller one")
    negative = negative[torch.randperm(len(negative), generator=rng)[: config.negatives]].sort().values
    near = torch.cat([e.before(round(NEAR * frames.dataset.fps)) for e in episodes])
    near = near if len(near) else negative
    kinds = [frames.of(rows) for rows in (positive, negative, near)]
    quarter = max(1, config.batch // 4)
    counts = (2 * quarter, quarter, quarter)
    label = torch.cat([torch.ones(counts[0]), torch.zeros(2 * quarter)])
    for _ in range(config.steps):
        parts = []
        for kind, count in zip(kinds, counts, strict=True):
            pick = torch.randint(len(next(iter(kind.values()))), (count,), generator=rng)
            parts.append({key: values[pick] for key, values in kind.items()})
        yield {key: torch.cat([part[key] for part in parts]) for key in parts[0]}, label


def level(probability: Tensor, hold: int) -> Tensor:
    """Return the minimum probability (T,) over the last `hold` frames; 0 in the first `hold` - 1 frames.

    Success is claimed where this level exceeds the threshold.
    """
    if len(probability) < hold:
        return torch.zeros_like(probability)
    least = probability.unfold(0, hold, 1).amin(1)
    return torch.cat([probability.new_zeros(hold - 1), least])


def measure(levels: Sequence[Tensor], episodes: Sequence[MarkedEpisode], threshold: float) -> Measured:
    """Count claims and right claims at a threshold over episodes with `levels` (T,) each.

    Only the first claim of an episode counts, since success ends the episode.
    """
    claims = right = 0
    for each, episode in zip(levels, episodes, strict=True):
        claimed = (each > threshold).nonzero()[:, 0]
        claims += len(claimed) > 0
        right += len(claimed) > 0 and episode.earliest is not None and int(claimed[0]) >= episode.earliest
    return Measured(len(episodes), sum(e.success for e in episodes), claims, right)


def best_threshold(levels: Sequence[Tensor], episodes: Sequence[MarkedEpisode]) -> float:
    """Return the middle one of the thresholds with the best precision + recall; one episode of difference is a tie."""
    measured = [measure(levels, episodes, threshold) for threshold in THRESHOLDS]
    scores = [(m.precision["mean"] or 0.0) + (m.recall["mean"] or 0.0) for m in measured]
    least = max(scores) - 1 / max(1, measured[0].successes)
    best = [threshold for threshold, score in zip(THRESHOLDS, scores, strict=True) if score >= least]
    return best[len(best) // 2]


@dataclass(frozen=True)
class MarkedEpisode:
    """Recorded episode with a label for each frame."""

    start: int
    """Dataset row of the first frame."""
    labels: Tensor
    """(T,) int8: 1 success, 0 no success, -1 unlabelled."""
    earliest: int | None
    """First frame in which a claim of success is right; None for a failed episode."""
    instruction: str

    @property
    def length(self) -> int:
        return len(self.labels)

    @property
    def success(self) -> bool:
        return self.earliest is not None

    def rows(self, label: int) -> Tensor:
        """Return the dataset rows of the episode's frames with a label."""
        return self.start + (self.labels == label).nonzero()[:, 0]

    def before(self, frames: int) -> Tensor:
        """Return the dataset rows of the last `frames` label-0 frames before success; empty if the episode failed."""
        labels = self.labels[: self.earliest or 0]
        return self.start + (labels == 0).nonzero()[-frames:, 0]


def labelled(marks: Tensor, hold: int, margin: int) -> tuple[Tensor, int | None]:
    """Return the labels (T,) of an episode's frames and the first frame in which a claim of success is right.

    Args:
        marks: (T,) bool success marks, see `successes_of`. A row's mark is set after the step, its picture is taken
        before it, and a success test must hold for some frames: frames just before the first mark show success.
        hold: number of frames up to the first mark that are labelled as success.
        margin: number of frames before the first mark that are not labelled as failure.

    >>> labelled(torch.tensor([0, 0, 0, 0, 0, 1]).bool(), hold=2, margin=3)
    (tensor([ 0,  0, -1, -1,  1,  1], dtype=torch.int8), 2)
    """
    labels = torch.zeros(len(marks), dtype=torch.int8)
    marked = marks.nonzero()[:, 0]
    if not len(marked):
        return labels, None
    first = int(marked[0])
    earliest = max(0, first - margin)
    labels[earliest:] = -1
    labels[max(0, first - hold + 1) : first + 1] = 1
    labels[marked] = 1
    return labels, earliest


def marked_episodes(dataset: Dataset, hold: int, margin: float) -> list[MarkedEpisode]:
    """Return a dataset's labelled episodes; `hold` in frames, `margin` in s. ConfigError without success or failure."""
    marks = successes_of(dataset)
    if marks is None:
        raise ConfigError(
            f"{dataset.root} marks no success: it has no next.success, nor a next.reward of 0 and 1; record one with "
            "`robot-rl collect TASK --keep-failures`, or `robot-rl record TASK --keep-failures`"
        )
    episodes = []
    for episode in dataset.episodes:
        rows = marks[episode.start : episode.start + episode.length]
        labels, earliest = labelled(rows, hold, round(margin * dataset.fps))
        if len(episode.tasks) > 1:
            raise ConfigError(
                f"what is asked changes in episode {episode.index} of {dataset.root}, and a classifier judges one "
                "instruction in an episode; record without --changes"
            )
        episodes.append(MarkedEpisode(episode.start, labels, earliest, episode.task))
    won = sum(episode.success for episode in episodes)
    for count, what in ((won, "success"), (len(episodes) - won, "failure")):
        if not count:
            raise ConfigError(
                f"none of the {len(episodes)} episodes of {dataset.root} is a {what}, and a classifier is learned from "
                "both: record some, with --keep-failures"
            )
    return episodes


def held_out(episodes: list[MarkedEpisode], share: float, seed: int) -> tuple[list[MarkedEpisode], list[MarkedEpisode]]:
    """Split episodes at random into training and held-out episodes, with the same share of successes and failures.

    ConfigError if fewer than `LEAST` successes or fewer than `LEAST` failures are held out.
    """
    rng = torch.Generator().manual_seed(seed)
    kept: list[MarkedEpisode] = []
    out: list[MarkedEpisode] = []
    for success, what in ((True, "successes"), (False, "failures")):
        same = [episode for episode in episodes if episode.success == success]
        count = round(share * len(same))
        if count < LEAST or count == len(same):
            needed = max(LEAST + 1, round(LEAST / share)) if 0 < share < 1 else LEAST + 1
            raise ConfigError(
                f"{len(same)} {what} are too few: {count} of them would be held out and {len(same) - count} fitted to, "
                f"and at least {LEAST} must be held out; record {needed}, or change --held-out"
            )
        order = torch.randperm(len(same), generator=rng).tolist()
        out += [same[k] for k in order[:count]]
        kept += [same[k] for k in order[count:]]
    return kept, out
