"""Success classifier: probability that the task is done, from pictures. It is fitted to marked frames as in Luo et al.
2024, "Precise and Dexterous Robotic Manipulation via Human-in-the-Loop Reinforcement Learning" (arXiv 2410.21845).

A classifier is saved as a folder. Reading the folder runs no pickled code.

classifier.json          inputs, threshold, held-out metrics, sha256 of the weights
classifier.safetensors   weights and normalization
"""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from policies.base import Normalizer, Observation, Size, from_json, mlp
from policies.errors import BundleError
from policies.networks.encoder import EncoderConfig
from policies.weights import read_weights, require_fit, sha256
from robot_rl.interface.environment import EnvInfo, EnvWrapper
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import LANGUAGE, STATE, ObservationSpec
from robot_rl.interface.pipeline import Interface
from robot_rl.interface.success import SuccessHold
from robot_rl.util import strict_json
from robot_rl.util.errors import ConfigError, UserError
from robot_rl.util.files import leaks, replacing_folder
from robot_rl.util.limits import Fraction, Interval, NonNegativeInt, PositiveFloat, PositiveInt, validate
from robot_rl.util.statistics import wilson

Bar = Annotated[float, Interval(ge=0.8, le=1)]
"""Least precision and least recall of a classifier that may give rewards."""
FORMAT = 1
DESCRIPTION, WEIGHTS = "classifier.json", "classifier.safetensors"
_THING = "classifier"


@dataclass(frozen=True)
class NetworkConfig:
    """Network of a success classifier."""

    encoder: EncoderConfig = field(default_factory=lambda: EncoderConfig(embedding=16))
    hidden: PositiveInt = 64
    """Number of units of the layer between the encoder's features and the output."""
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.5
    """Dropout rate of the picture features while fitting; without dropout the network memorizes the few successes."""


class SuccessNetwork(nn.Module):
    """Map observations (B, ...) to the logits (B,) of success."""

    def __init__(self, reads: Size, config: NetworkConfig):
        super().__init__()
        self.reads, self.config = reads, config
        self.normalizer = Normalizer(reads.observation)
        self.encoder = config.encoder.build(reads)
        self.dropout = nn.Dropout(config.dropout)
        self.head = mlp([self.encoder.size, config.hidden, 1])

    def forward(self, observation: Observation) -> Tensor:
        picture, size = observation[next(iter(self.reads.pictures))], self.reads.observation
        state = observation[STATE] if size else picture.new_zeros(len(picture), 0, dtype=torch.float32)
        features = self.encoder(self.normalizer(state), observation)
        features = torch.cat([features[:, :size], self.dropout(features[:, size:])], 1)
        logits: Tensor = self.head(features)
        return logits[:, 0]


@dataclass(frozen=True)
class Measured:
    """Confusion counts of a classifier on held-out episodes."""

    episodes: NonNegativeInt
    successes: NonNegativeInt
    """Number of episodes that are marked as successes."""
    claims: NonNegativeInt
    """Number of episodes in which the classifier claims a success."""
    right: NonNegativeInt
    """True positives: claims in successful episodes, made at most the margin before the success mark."""

    def __post_init__(self) -> None:
        validate(self)
        if not self.right <= min(self.claims, self.successes) <= max(self.claims, self.successes) <= self.episodes:
            raise ValueError(f"these counts contradict each other: {asdict(self)}")

    @property
    def precision(self) -> dict[str, float | None]:
        """Precision of the claims with its 95 % interval; the mean is None if there are no claims."""
        return _rate(self.right, self.claims)

    @property
    def recall(self) -> dict[str, float | None]:
        """Recall of the successes with its 95 % interval."""
        return _rate(self.right, self.successes)

    def clears(self, bar: float) -> bool:
        """Return whether both precision and recall reach `bar`."""
        return all(bar <= (rate["mean"] or 0.0) for rate in (self.precision, self.recall))


def _rate(count: int, trials: int) -> dict[str, float | None]:
    low, high = wilson(count, trials)
    return {"mean": count / trials if trials else None, "low": low, "high": high}


@dataclass
class Classifier:
    """Success classifier: network, decision threshold, hold time and held-out metrics."""

    network: SuccessNetwork
    threshold: Fraction
    """Probability above which a frame shows success."""
    hold: PositiveInt
    """Number of consecutive frames that must show success before the classifier claims it."""
    rate: PositiveFloat
    """Frames per second of the training data."""
    instructions: tuple[str, ...]
    """Instructions of the training episodes."""
    at_least: Bar
    measured: Measured
    provenance: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    """Folder that the classifier was read from."""

    def __post_init__(self) -> None:
        validate(self)
        encode(self.instructions)  # raises for an empty or too long instruction

    @property
    def called(self) -> str:
        """Name of this classifier in messages to the user."""
        return f"classifier {self.folder}" if self.folder else "this classifier"

    @property
    def reaches_bar(self) -> bool:
        """Whether precision and recall on held-out episodes reach the bar `at_least`."""
        return self.measured.clears(self.at_least)

    @torch.no_grad()
    def probability(self, observation: Observation) -> Tensor:
        """Return the probability of success (n,) for observations (n, ...)."""
        return torch.sigmoid(self.network(observation))

    def sees_success(self, observation: Observation) -> Tensor:
        """Return whether each observation shows success, (n,) bool."""
        return self.probability(observation) > self.threshold

    @property
    def refusal(self) -> str:
        """Reason why the classifier may not give rewards, with the remedy; empty if it may give rewards."""
        if self.reaches_bar:
            return ""
        shown = [
            f"{name} {'unknown (it claimed nothing)' if rate['mean'] is None else format(rate['mean'], '.3f')}"
            for name, rate in (("precision", self.measured.precision), ("recall", self.measured.recall))
        ]
        return (
            f"{self.called} may not pay rewards: {' and '.join(shown)} on {self.measured.episodes} held-out "
            f"episodes, and its bar is {self.at_least:g} for both; record more episodes, failures too, and fit again"
        )

    def require_fit(self, seen: ObservationSpec, rate: float, interface: Interface | None) -> None:
        """Raise ConfigError unless observations `seen`, `rate` in Hz and the instructions match the training data."""
        reads = self.network.reads
        inputs = {key: field.shape for key, field in reads.extra_inputs.items()}
        inputs |= {STATE: (reads.observation,)} if reads.observation else {}
        for key, shape in inputs.items():
            shown = seen[key].shape if key in seen else None
            if shown != shape:
                there = "is not there" if shown is None else f"is {_size(shown)}"
                remedy = "fit one to a dataset of this task, or take a task that shows it"
                raise ConfigError(f"{self.called} reads {key} of {_size(shape)}, which {there} here; {remedy}")
        if rate != self.rate:
            raise ConfigError(
                f"{self.called} was fitted to {self.rate:g} frames per second, and here are {rate:g}; fit one to a "
                "dataset of this task"
            )
        texts = [each.text for each in interface.instructions if not each.held_out] if interface else []
        texts = texts or ([interface.instruction] if interface else [])
        if unknown := [text for text in texts if text not in self.instructions]:
            raise ConfigError(
                f"{self.called} knows no success of {unknown[0]!r}: it was fitted to {', '.join(self.instructions)}; "
                "fit one to a dataset of this task"
            )

    def knows(self, instruction: str) -> bool:
        """Return whether the classifier's training data has an instruction."""
        return instruction in self.instructions

    def summary(self) -> dict[str, Any]:
        """Return inputs, settings and metrics of the classifier for a table."""
        reads = self.network.reads
        seen = {key: _size(shape) for key, shape in reads.pictures.items()}
        return {
            "reads": ", ".join(f"{key} {size}" for key, size in seen.items())
            + (f", {STATE} of {reads.observation} numbers" if reads.observation else "")
            + (f", {LANGUAGE}" if LANGUAGE in reads.extra_inputs else ""),
            "instructions": list(self.instructions),
            **{name: getattr(self, name) for name in ("threshold", "hold", "rate")},
            "held_out_episodes": self.measured.episodes, "held_out_successes": self.measured.successes,
            "precision": self.measured.precision, "recall": self.measured.recall,
            "at_least": self.at_least, "pays_rewards": self.reaches_bar,
        }  # fmt: skip


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[0]}x{shape[1]} pixels" if len(shape) == 3 else f"{shape[0]} numbers"


def save_classifier(classifier: Classifier, path: Path) -> None:
    """Write a classifier to a folder atomically."""
    network, measured = classifier.network, classifier.measured
    try:
        with replacing_folder(path) as folder:
            save_file({k: v.contiguous().cpu() for k, v in network.state_dict().items()}, folder / WEIGHTS)
            meta = {
                "format": FORMAT, "reads": network.reads.to_json(), "network": asdict(network.config),
                "threshold": classifier.threshold, "hold": classifier.hold, "rate": classifier.rate,
                "instructions": list(classifier.instructions), "at_least": classifier.at_least,
                "measured": asdict(measured), "precision": measured.precision, "recall": measured.recall,
                "provenance": classifier.provenance, "sha256": {WEIGHTS: sha256((folder / WEIGHTS).read_bytes())},
            }  # fmt: skip
            (folder / DESCRIPTION).write_text(strict_json.dumps(meta, 2))
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write the classifier {path} ({error}); free space or choose another --out") from error


def read_classifier(path: Path | str) -> Classifier:
    """Read a classifier, also one below its bar, to show or measure it; `load_classifier` is for giving rewards."""
    path = Path(path)
    file = path / DESCRIPTION
    if not file.is_file():
        raise ConfigError(f"{path} is no classifier: no {DESCRIPTION}; name a folder of `robot-rl classifier fit`")
    if fault := next(leaks(path), None):
        raise ConfigError(fault)
    try:
        meta = json.loads(file.read_text())
        if meta["format"] != FORMAT:
            raise ValueError(f"format {meta['format']}, and this robot-rl reads {FORMAT}: fit it again")
        reads, config = Size.from_json(meta["reads"]), from_json(NetworkConfig, meta["network"], "network.")
        if not reads.pictures or reads.observation < 0:
            raise ValueError("it reads no picture")
        with torch.device("meta"):  # allocates nothing before the sizes are checked against the weights
            expected = SuccessNetwork(reads, config).state_dict()
        weights = read_weights(path / WEIGHTS, dict(meta["sha256"]), _THING, _THING)
        require_fit(weights, expected, path / WEIGHTS, _THING, _THING)
        if not all(v.isfinite().all() for v in weights.values()):
            raise ValueError("its weights are not finite: fit it again")
        settings = {name: meta[name] for name in ("threshold", "hold", "rate", "at_least")}
        classifier = Classifier(
            SuccessNetwork(reads, config), **settings, instructions=tuple(meta["instructions"]),
            measured=Measured(**meta["measured"]), provenance=dict(meta["provenance"]), folder=path,
        )  # fmt: skip
    except BundleError:  # already names the weights file
        raise
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, RuntimeError, UserError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise ConfigError(f"{file} is damaged or foreign ({reason}); copy it again, or fit it again") from None
    classifier.network.load_state_dict(weights)
    classifier.network.eval()
    return classifier


def load_classifier(path: Path | str) -> Classifier:
    """Read a classifier that may give rewards; ConfigError if its precision or recall is below its bar."""
    classifier = read_classifier(path)
    if classifier.refusal:
        raise ConfigError(classifier.refusal)
    return classifier


def judged_info(info: EnvInfo, classifier: Classifier) -> EnvInfo:
    """Return a task's `EnvInfo` with success decided by a classifier; ConfigError if the classifier does not fit it."""
    if info.interface is None:
        raise ConfigError(f"{info.task} ends its episodes by itself, so no classifier judges them: take a robot's task")
    classifier.require_fit(ObservationSpec.from_vector(info.state) | info.extra_inputs, info.rate, info.interface)
    return replace(info, rewards=(), reports_success=True, success_terminates=True)


class ClassifierWrapper(EnvWrapper):
    """Vector environment in which a classifier decides success: `hold` success frames end an episode with reward 1.

    The simulator's own success test does not end episodes. For comparison, infos["true_success"] (n,) reports whether
    the episode has passed the simulator's test so far. Failures and time limits end episodes as usual.

    `env` is a `TaskEnv` with `success_ends` False.
    """

    request_images = None
    """None: the environment renders every picture, since the classifier reads each one."""

    def __init__(self, env: Any, classifier: Classifier):
        """Raise ConfigError if the classifier was fitted to other pictures or instructions."""
        super().__init__(env)
        self.classifier = classifier
        self.info = judged_info(env.info, classifier)
        classifier.network.to(env.device)
        self.success = SuccessHold(classifier.hold, env.num_envs, env.device)
        self.passed = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        """(n,) whether the running episode has passed the simulator's own success test."""

    def reset(self, **kwargs: Any) -> Any:
        first = self.env.reset(**kwargs)
        self.success.reset()
        self.passed = torch.zeros_like(self.passed)
        return first

    def step(self, actions: Tensor) -> tuple[Observation, Tensor, Tensor, Tensor, dict[str, Any]]:
        observation, _, terminated, truncated, infos = self.env.step(actions)
        ended = terminated | truncated
        last = infos.get("final_obs", observation)
        broken = infos.get("diverged", torch.zeros_like(ended))
        success = self.success(self.classifier.sees_success(last)) & ~terminated & ~broken
        self.passed |= infos["success"]
        infos.pop("rewards", None)
        infos |= {"success": success, "true_success": self.passed.clone()}
        done = ended | success
        if bool(done.any()):
            if "final_obs" not in infos:
                infos["final_obs"] = observation
            infos["_final_obs"] = done
            if len(ids := (success & ~ended).nonzero()[:, 0]):
                observation = self.env.restart(ids, observation)
            self.success.reset(done.nonzero()[:, 0])
            self.passed[done] = False
        return observation, success.float(), terminated | success, truncated & ~success, infos

    def wrapper_state(self) -> dict[str, Any]:
        """Return the counters of consecutive success frames, and `passed`."""
        return {"success": self.success.state_dict(), "passed": self.passed.clone()}

    def load_wrapper_state(self, state: dict[str, Any]) -> None:
        self.success.load_state_dict(state["success"])
        self.passed = state["passed"].to(self.passed.device, copy=True)
