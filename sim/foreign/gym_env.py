"""Gymnasium environments as tasks: `gym:Pendulum-v1`, or `gym:module:id`, which imports the module first."""

import math
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import IMAGES, LANGUAGE, LANGUAGE_FIELD, STATE, ObservationSpec, picture_field
from robot_rl.interface.spec import VectorSpec, numbered
from robot_rl.interface.symmetry import Mirror
from robot_rl.util.errors import ConfigError, UserError
from sim.foreign import gym_worker
from sim.step.sampling import TRAINING, chosen
from sim.tasks import FOREIGN


class RemoteEnv:
    """A `gym_worker.Batch` in a process of another Python; its methods have the same names and arguments."""

    def __init__(self, name: str, count: int, steps: int, filmed: bool, python: Path):
        self.python, self.errors = python, tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        script = Path(gym_worker.__file__).resolve()
        command = [*map(str, (python, script, name, count, steps)), *["filmed"] * filmed]
        try:
            self.process = subprocess.Popen(command, stdin=-1, stdout=-1, stderr=self.errors)
        except OSError as error:
            raise ConfigError(
                f"--env-python {python}: {error.strerror}; name the Python of a virtual environment"
            ) from None
        try:
            header, _ = self._receive()
        except UserError as error:
            raise ConfigError(f"{error}; it needs gymnasium, numpy and the environment's package") from None
        if "error" in header:
            self.close()
            raise gym_worker.Unsuitable(header["error"])
        self.facts = header["facts"]

    def _receive(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        assert self.process.stdout is not None
        try:
            return gym_worker.receive(self.process.stdout)  # type: ignore[arg-type]
        except EOFError:
            self.process.wait()
            self.errors.seek(0)
            lines = self.errors.read().decode(errors="replace").strip().splitlines() or ["without output"]
            raise UserError(
                f"the environment's process ({self.python}) ended with status {self.process.returncode}: {lines[-1]}"
            ) from None

    def __getattr__(self, name: str) -> Callable[..., dict[str, np.ndarray]]:
        """Return a function that calls method `name` of the remote batch."""
        if name.startswith("_") or not hasattr(gym_worker.Batch, name):
            raise AttributeError(name)
        return partial(self._call, name)

    def _call(self, name: str, *arguments: Any) -> dict[str, np.ndarray]:
        assert self.process.stdin is not None
        arrays = {str(k): value for k, value in enumerate(arguments) if isinstance(value, np.ndarray)}
        words = [value for value in arguments if not isinstance(value, np.ndarray)]
        with suppress(BrokenPipeError):  # `_receive` reports the error
            gym_worker.send(self.process.stdin, {"call": name, "words": words}, arrays)  # type: ignore[arg-type]
        return self._receive()[1]

    def close(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended
            self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()


class Script:
    """The scripted demonstrators of a batch of environments."""

    def __init__(self, batch: RemoteEnv | gym_worker.Batch, seed: int, skill: str):
        self.batch = batch
        batch.demonstrate(seed, skill)

    def reset(self, ids: Tensor) -> None:
        """Do nothing: `Batch` detects new episodes."""

    def act(self, observation: dict[str, Tensor]) -> Tensor:
        """Return actions (n, A) in [-1, 1] for the environments' current states."""
        return torch.from_numpy(self.batch.act()["actions"].copy())


class GymEnv:
    """n copies of a Gymnasium environment with the protocol `robot_rl.interface.environment.VectorEnv`.

    An observation has one float32 vector of all numbers in the order of the space, the pictures of the space, and the
    optional pictures and instructions of the environment (see `gym_worker`). Actions in [-1, 1] are scaled to the
    environment's limits. The state cannot be restored: a resumed run begins new episodes.
    """

    device = torch.device("cpu")
    privileged_size = 0
    mirror: Mirror | None = None

    def __init__(
        self, task: str, num_envs: int = 1, python: Path | None = None, instruction_set: str = TRAINING,
        filmed: bool = False, steps: int = 0,
    ):  # fmt: skip
        """`instruction_set`: see `TaskEnv`. `filmed` enables the method `frame`. `steps`: length of an episode; 0: the
        environment's own limit applies."""
        self.num_envs, name = num_envs, task.removeprefix(FOREIGN)
        try:
            made = RemoteEnv(name, num_envs, steps, filmed, python) if python else None
            self.batch: RemoteEnv | gym_worker.Batch = made or gym_worker.Batch(name, num_envs, steps, filmed)
        except gym_worker.Unsuitable as error:
            where = f" in {python}" if python else ""
            raise ConfigError(f"task {task}{where}: {error}") from None
        facts: dict[str, Any] = self.batch.facts
        self._largest = np.array(facts["largest"])
        parts = [numbered(name, [-math.inf] * size, [math.inf] * size) for name, size in facts["fields"]]
        state = VectorSpec(tuple(field for part in parts for field in part.fields))
        actions = numbered("action", facts["low"], facts["high"])
        self.skills = tuple(facts["skills"])
        self.pictures = {f"{IMAGES}{name}": name for name in facts["pictures"]}
        self.instructions: list[str] = facts["instructions"]
        self.texts = encode(self.instructions)
        others = {f"{IMAGES}{name}": picture_field(*size) for name, size in facts["pictures"].items()}
        others |= {LANGUAGE: LANGUAGE_FIELD} if self.instructions else {}
        self.info = EnvInfo(
            task, state, actions, facts["rate"], ObservationSpec.of(**others), demonstrator=bool(self.skills),
            reports_success=bool(facts["success"]), success_terminates=facts["success_terminates"],
            horizon=facts["horizon"] or None,
        )  # fmt: skip
        self.simulation: dict[str, Any] = {"engine": "gymnasium", "without": ()}
        self.simulation |= {} if instruction_set == TRAINING else {"instruction_set": instruction_set}
        self.simulation |= {"episode_steps": steps} if steps else {}
        """Settings of this simulation, reported with its results."""
        if instruction_set != TRAINING:
            try:
                self.batch.ask(*chosen(task, [(text, False) for text in self.instructions], instruction_set))
            except ConfigError:
                self.batch.close()
                raise
        self._instruction_ids = torch.zeros(num_envs, dtype=torch.long)  # instruction index of every running episode
        self._newest: dict[str, Tensor] = {}  # pictures of the last observation
        self._requested: Tensor | None = None  # rows of `request_images`
        self._steps = 0  # number of calls of `step`

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Start new episodes; environment i has seed + i, or seed + i // g with options {"group": g}. Other options of
        `TaskEnv` are ignored."""
        group = (options or {}).get("group", 1)
        seeds = None if seed is None else (seed + np.arange(self.num_envs) // group) % 2**31
        answer = self.batch.reset(seeds)
        self._check(answer, {"observation": "first observation"})
        result = _tensors(answer)
        self._instruction_ids = result.get("instruction", self._instruction_ids)
        self._newest = {key: result[f"begun {name}"] for key, name in self.pictures.items()}
        return self._observed(result["observation"]), {}

    def request_images(self, rows: Tensor | None) -> None:
        """Request new pictures of environments `rows` (n,) bool, as in `TaskEnv`; None: of all environments."""
        self._requested = rows

    def instruction(self, index: int) -> str:
        """Return the instruction of one environment's episode; the task's name in a task without instructions."""
        return self.instructions[int(self._instruction_ids[index])] if self.instructions else self.info.task

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step every environment; see `VectorEnv`."""
        shape = (self.num_envs, self.info.action)
        if tuple(actions.shape) != shape:
            given = tuple(actions.shape)
            raise ValueError(f"actions for {self.num_envs} copies of {self.info.task} are {shape}, not {given}")
        requested = torch.ones(self.num_envs, dtype=torch.bool) if self._requested is None else self._requested.cpu()
        answer = self.batch.step(actions.cpu().numpy(), requested.numpy())
        self._steps += 1
        self._check(answer, {"reward": "reward", "final": "observation", "observation": "first observation"})
        result = _tensors(answer)
        done = result["terminated"] | result["truncated"]
        infos: dict[str, Any] = {"success": result["success"]} if self.info.reports_success else {}
        self._update_pictures("seen", requested, result)
        if done.any():
            infos |= {"final_obs": self._observed(result["final"]), "_final_obs": done}
            self._update_pictures("begun", done, result)
        self._instruction_ids = result.get("instruction", self._instruction_ids)
        following = self._observed(result["observation"])
        return following, result["reward"], result["terminated"], result["truncated"], infos

    def _check(self, answer: dict[str, np.ndarray], names: dict[str, str]) -> None:
        """Raise UserError if an array of `answer` named in `names` has NaN, infinity, or numbers inexact in float32."""
        for key, what in names.items():
            values = answer[key].reshape(self.num_envs, -1)
            large = np.abs(values) > (self._largest if key != "reward" else gym_worker.LARGEST)
            wrong = large | np.isnan(values)
            if not wrong.any():
                continue
            row, column = (int(index) for index in np.unravel_index(wrong.argmax(), wrong.shape))
            value = values[row, column]
            why, remedy = "with NaN or infinity", "fix the environment"
            if np.isfinite(value):
                why = f"with {value:g}, which a float32 does not hold exactly"
                remedy = "scale it, for example with gymnasium.wrappers.TransformObservation"
            raise UserError(
                f"{self.info.task}: copy {row} of {self.num_envs} returned {what} {why} at its step {self._steps}; "
                f"{remedy}. Nothing was learned from it"
            )

    def _update_pictures(self, when: str, rows: Tensor, result: dict[str, Tensor]) -> None:
        """Replace the pictures of environments `rows` (n,) bool by the pictures that `Batch.step` names `when`."""
        at = rows.nonzero().squeeze(-1)
        for key, name in self.pictures.items():
            self._newest[key] = self._newest[key].index_copy(0, at, result[f"{when} {name}"])

    def _observed(self, state: Tensor) -> dict[str, Tensor]:
        """Return the observation of states (n, D), with pictures and instructions."""
        language = {LANGUAGE: self.texts[self._instruction_ids]} if self.instructions else {}
        return {STATE: state} | self._newest | language

    def frame(self) -> np.ndarray:
        """Return a frame (height, width, 3) uint8 of the first environment."""
        return self.batch.frame()["frame"]

    def make_demonstrator(self, seed: int, skill: str) -> Script:
        """Return the environment's scripted demonstrator."""
        return Script(self.batch, seed, skill)

    def hold_action(self) -> Tensor:
        """Return zero actions (n, A): the holding action of a foreign environment is unknown."""
        return torch.zeros(self.num_envs, self.info.action)

    def close(self) -> None:
        self.batch.close()


def _tensors(answer: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Return copies of the arrays as tensors; float64 arrays become float32."""
    narrow = {key: np.float32 if values.dtype == np.float64 else values.dtype for key, values in answer.items()}
    return {key: torch.from_numpy(values.astype(narrow[key])) for key, values in answer.items()}
