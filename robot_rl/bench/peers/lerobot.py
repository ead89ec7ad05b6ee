"""Diffusion policy and ACT of LeRobot (Cadene et al. 2024, github.com/huggingface/lerobot) as recipes.

LeRobot pins other packages, so its trainer and its policies run in its own environment, which `make peers` sets up:
`lerobot_process`. They get the demonstrations as a LeRobot dataset whose state is split into the robot's own fields and
those of objects, since these policies read `observation.environment_state` in place of pictures. Settings that are not
named here have LeRobot's defaults.
"""

import json
import os
import subprocess
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from safetensors.torch import load_file
from torch import Tensor

import robot_rl
from policies.base import Policy, Size
from robot_rl.bench.peers import lerobot_process
from robot_rl.bench.peers.lerobot_process import STATS
from robot_rl.bench.peers.recipe import PeerRecipe, require_state
from robot_rl.data.episode import EpisodeData
from robot_rl.data.lerobot import Feature
from robot_rl.data.writer import DatasetWriter
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.observation_spec import PRIVILEGED, STATE
from robot_rl.recipes.job import Job
from robot_rl.recipes.recipe import Need
from robot_rl.training.metrics import report
from robot_rl.util.errors import ConfigError, Interrupted, UserError
from robot_rl.util.limits import NonNegativeInt, PositiveFloat, PositiveInt, validate

PYTHON = "LEROBOT_PEERS_PYTHON"
"""Variable that names LeRobot's Python. A bundle names none: it must not say which program runs."""
OBJECTS = "object_"
"""Begin of the names of terms that observe objects; the other terms are the robot's own."""
NORMS = ("mean", "std", "min", "max")
"""Statistics by which LeRobot normalizes."""


def find_python() -> Path:
    """Return LeRobot's Python; ConfigError if there is none."""
    path = Path(os.environ.get(PYTHON) or Path(robot_rl.__file__).parents[1] / ".venv-peers" / "bin" / "python")
    if not path.is_file():
        raise ConfigError(f"there is no {path}: LeRobot has its own Python; run `make peers`, or name one by {PYTHON}")
    return path


def own_fields(info: EnvInfo) -> tuple[int, ...]:
    """Return the indices in observation.state of the robot's own fields; the rest is of objects."""
    terms = info.interface.observations if info.interface else ()
    spec = zip(terms, info.state.fields, strict=bool(terms))
    owned = [own for term, field in spec for own in [not term.startswith(OBJECTS)] * len(field.dims)]
    if all(owned) or not any(owned):
        raise ConfigError(f"LeRobot's policies read the robot and its objects apart, and the state of {info.task} does "
                          "not have both; take a task of a robot with objects, such as panda-lift")  # fmt: skip
    return tuple(k for k, own in enumerate(owned) if own)


def split(state: Tensor, own: tuple[int, ...]) -> dict[str, Tensor]:
    """Return states (N, D) as LeRobot's observations: the fields `own`, and the others."""
    rest = [k for k in range(state.shape[1]) if k not in own]
    return {STATE: state[:, list(own)], PRIVILEGED: state[:, rest]}


def write_copy(episodes: list[dict[str, Tensor]], own: tuple[int, ...], info: EnvInfo, folder: Path) -> None:
    """Write a LeRobot dataset of episodes with a split state and actions in [-1, 1]."""
    columns = [split(each[STATE], own) | {"action": each["action"]} for each in episodes]
    features = {name: Feature("float32", (values.shape[1],)) for name, values in columns[0].items()}
    with DatasetWriter.create(folder, fps=round(info.rate), features=features) as writer:
        writer.add_episodes([EpisodeData(each, info.task) for each in columns])


class Process:
    """`lerobot_process` in LeRobot's Python, which ends when this object or this process does."""

    def __init__(self, *words: str, home: str | None = None):
        """`home`: folder for LeRobot's caches."""
        self.python, self.errors = find_python(), tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        extra = {"OMP_NUM_THREADS": str(torch.get_num_threads()), "HF_HUB_OFFLINE": "1"}
        extra |= {"HF_HOME": home} if home else {}
        command = [str(self.python), "-I", str(Path(lerobot_process.__file__).resolve()), *words]
        try:
            self.child = subprocess.Popen(
                command, stdin=-1, stdout=-1, stderr=self.errors, env=os.environ | extra, process_group=0
            )  # in a group of its own: Ctrl-C is for us, and we end it
        except OSError as error:
            raise ConfigError(f"cannot start {self.python}: {error.strerror}; run `make peers`") from None
        self.close = weakref.finalize(self, _end, self.child)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of metrics; UserError if the process fails."""
        assert self.child.stdout is not None
        yield from map(json.loads, self.child.stdout)
        if self.child.wait():
            raise self.failure()

    def tell(self, tensors: dict[str, Tensor]) -> None:
        """Send a message."""
        assert self.child.stdin is not None
        with suppress(BrokenPipeError):  # `ask` reports the error
            lerobot_process.send(self.child.stdin, tensors)  # type: ignore[arg-type]

    def ask(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Send a message and return the answer."""
        self.tell(tensors)
        assert self.child.stdout is not None
        try:
            return lerobot_process.receive(self.child.stdout)  # type: ignore[arg-type]
        except EOFError:
            self.child.wait()
            raise self.failure() from None

    def failure(self) -> UserError:
        """Return the error that the ended process printed last."""
        self.errors.seek(0)
        said = self.errors.read().decode(errors="replace").strip().splitlines() or ["without output"]
        return UserError(f"LeRobot's process ({self.python}) ended with status {self.child.returncode}: {said[-1]}")


def _end(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    with suppress(BrokenPipeError):  # the process has ended
        child.stdin.close()
    try:
        child.wait(timeout=10)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


@dataclass(frozen=True)
class LeRobotConfig:
    """Settings from which LeRobot restores a policy."""

    kind: Literal["diffusion", "act"]
    options: dict[str, Any]
    """Settings of LeRobot's class."""
    own: tuple[NonNegativeInt, ...]
    """Indices of the robot's own fields in observation.state."""
    shapes: dict[str, list[int]]
    """Shape of each weight and statistic, by name."""

    def __post_init__(self) -> None:
        validate(self)


class LeRobotPolicy(Policy):
    """Policy of LeRobot, which acts in a process of its own; the bundle keeps its weights.

    A chunk is what the policy executes of one inference: `n_action_steps` actions."""

    class_name, config_class = "robot_rl.bench.peers.lerobot:LeRobotPolicy", LeRobotConfig

    def __init__(self, size: Size, config: LeRobotConfig):
        super().__init__()
        self.size, self.config = size, config
        self.horizon = self.execute = int(config.options["n_action_steps"])
        self.process: Process | None = None
        for name, shape in config.shapes.items():
            self.register_buffer(_plain(name), torch.zeros(shape))

    def weights(self) -> dict[str, Tensor]:
        """Return weights and statistics by LeRobot's names."""
        return {name: getattr(self, _plain(name)) for name in self.config.shapes}

    def start(self) -> Process:
        """Start LeRobot's process with the weights."""
        c, tensors = self.config, self.weights()
        sizes = {STATE: len(c.own), PRIVILEGED: self.size.observation - len(c.own), "action": self.size.action}
        device = str(next(iter(tensors.values())).device)
        settings = {"kind": c.kind, "options": c.options, "features": sizes, "device": device}
        process = Process("act", json.dumps(settings))
        process.tell({name: tensor.cpu() for name, tensor in tensors.items()})
        return process

    @torch.no_grad()
    def act(self, observation: dict[str, Tensor], rng: torch.Generator) -> Tensor:
        state = observation[STATE]
        self.process = self.process or self.start()
        seed = torch.randint(2**62, (1,), generator=rng, device=rng.device).cpu()
        actions = self.process.ask(split(state.cpu(), self.config.own) | {"seed": seed})["actions"]
        if (shape := tuple(actions.shape)) != (wanted := (len(state), self.horizon, self.size.action)):
            raise UserError(f"LeRobot's actions are {shape}, and not {wanted}; train the policy again")
        if not actions.isfinite().all():
            raise UserError("LeRobot's actions are not finite; train the policy again, with a smaller --learning-rate")
        return actions.clamp(-1, 1).to(state.device)


def _plain(name: str) -> str:
    """Return the name of a buffer."""
    return name.replace(".", "-")


@dataclass(frozen=True)
class LeRobotTraining:
    """Length of LeRobot's training."""

    updates: PositiveInt = 2_000
    batch: PositiveInt = 64
    """Chunks per update."""
    log_every: PositiveInt = 50
    """Updates between two rows of metrics."""


@dataclass(frozen=True)
class LeRobotRecipe(PeerRecipe):
    """Policy of LeRobot, trained by `lerobot-train` on the successful episodes of a dataset."""

    horizon: PositiveInt = 16
    """Number of actions predicted at once."""
    execute: PositiveInt = 8
    """Number of actions executed before the next prediction."""
    training: LeRobotTraining = LeRobotTraining()  # type: ignore[assignment]
    kind: ClassVar[Literal["diffusion", "act"]]

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("demonstrations",)

    def options(self) -> dict[str, Any]:
        """Return the settings of LeRobot's policy."""
        return {"n_obs_steps": 1, "n_action_steps": self.execute}

    def build(self, job: Job, env: Any = None) -> Any:
        raise NotImplementedError("LeRobot's process builds the learner")

    def learn(self, job: Job) -> LeRobotPolicy:  # type: ignore[override]
        require_state(job.info)
        find_python()
        own, run, t = own_fields(job.info), job.opened, self.training
        run.load()
        progress = job.counting("updates", t.updates)
        with tempfile.TemporaryDirectory(dir=run.folder) as folder:
            data, out = Path(folder) / "data", Path(folder) / "out"
            write_copy(job.demonstrations(), own, job.info, data)
            flags = {
                "dataset.repo_id": "robot-rl/demonstrations", "dataset.root": data, "output_dir": out, "seed": job.seed,
                "batch_size": t.batch, "steps": t.updates, "log_freq": t.log_every, "save_freq": t.updates,
                "num_workers": 0, "policy.type": self.kind, "policy.device": job.device, "policy.push_to_hub": "false",
            } | {f"policy.{name}": json.dumps(value) for name, value in self.options().items()}  # fmt: skip
            process = Process("train", *(f"--{name}={value}" for name, value in flags.items()), home=folder)
            for row in process.rows():
                losses = {f"peer/{name}": row[name] for name in ("loss", "grad_norm", "lr", "epochs")}
                report(run, row["steps"], losses, progress)
                if run.stop_signal:
                    process.close()
                    raise Interrupted("stopped; LeRobot's training starts again", run.stop_signal)
            return self.policy_of(job.size, own, out / "checkpoints" / "last" / "pretrained_model")

    def policy_of(self, size: Size, own: tuple[int, ...], folder: Path) -> LeRobotPolicy:
        """Return the policy in a folder that LeRobot saved."""
        tensors = load_file(folder / "model.safetensors")
        (stats,) = folder.glob("policy_preprocessor_step_*_normalizer_processor.safetensors")
        for name, value in load_file(stats).items():
            feature, _, statistic = name.rpartition(".")
            if feature in (STATE, PRIVILEGED, "action") and statistic in NORMS:
                tensors[f"{STATS}{feature}/{statistic}"] = value
        shapes = {name: list(value.shape) for name, value in tensors.items()}
        policy = LeRobotPolicy(size, LeRobotConfig(self.kind, self.options(), own, shapes))
        for name, value in policy.weights().items():
            value.copy_(tensors[name])
        return policy.eval()


@dataclass(frozen=True)
class LeRobotDiffusion(LeRobotRecipe):
    """Diffusion policy of LeRobot: a one-dimensional U-Net (Chi et al. 2023, arXiv 2303.04137)."""

    down_dims: tuple[PositiveInt, ...] = (32, 64)
    """Channels at each level of the U-Net; the horizon must be divisible by 2 to the number of levels."""
    learning_rate: PositiveFloat = 1e-3
    """Highest rate of the cosine schedule, which begins with `warmup` updates; LeRobot's 1e-4 is for 100,000."""
    warmup: NonNegativeInt = 50
    prediction: Literal["sample", "epsilon"] = "sample"
    """Output of the network: the clean chunk, or the noise, which is LeRobot's default."""
    sample_steps: PositiveInt = 10
    """Number of evaluations of the network per chunk, by DDIM."""
    kind = "diffusion"

    def options(self) -> dict[str, Any]:
        return super().options() | {
            "horizon": self.horizon, "down_dims": list(self.down_dims), "optimizer_lr": self.learning_rate,
            "scheduler_warmup_steps": self.warmup, "noise_scheduler_type": "DDIM",
            "num_inference_steps": self.sample_steps, "prediction_type": self.prediction,
        }  # fmt: skip


@dataclass(frozen=True)
class LeRobotACT(LeRobotRecipe):
    """Action chunking transformer of LeRobot, a variational autoencoder (Zhao et al. 2023, arXiv 2304.13705)."""

    dim_model: PositiveInt = 64
    """Width of the transformers; the hidden layers of their feed-forward networks are `dim_feedforward` wide."""
    dim_feedforward: PositiveInt = 128
    layers: PositiveInt = 1
    """Number of layers of the encoder, and of the encoder of the latent."""
    latent: bool = True
    """Whether a latent, inferred from the whole chunk in training and 0 in use, explains what the state does not."""
    learning_rate: PositiveFloat = 1e-3
    """LeRobot's 1e-5 is for wide networks and 100,000 updates."""
    kind = "act"

    def options(self) -> dict[str, Any]:
        return super().options() | {
            "chunk_size": self.horizon, "dim_model": self.dim_model, "dim_feedforward": self.dim_feedforward,
            "n_encoder_layers": self.layers, "n_vae_encoder_layers": self.layers, "optimizer_lr": self.learning_rate,
            "use_vae": self.latent,
        }  # fmt: skip
