"""Any Gymnasium environment as a task: `gym:Pendulum-v1`, or `gym:module:id`, which imports the module first."""

from __future__ import annotations

import math
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import IMAGES, LANGUAGE, LANGUAGE_FIELD, STATE, ObservationSpec, picture_field
from robot_rl.interface.spec import numbered
from robot_rl.interface.symmetry import Mirror
from robot_rl.util.errors import ConfigError, UserError
from sim.foreign import gym_spaces, gym_worker
from sim.step.sampling import TRAINING, chosen
from sim.tasks import FOREIGN


class RemoteEnv:
    """A `gym_worker.Batch` in a process of another Python."""

    def __init__(self, name: str, count: int, steps: int, filmed: bool, python: Path):
        self.python, self.errors = python, tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        script = str(Path(gym_worker.__file__).resolve())
        command = [str(python), script, name, str(count), str(steps), *["filmed"] * filmed]
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
            lines = self.errors.read().decode(errors="replace").strip().splitlines() or ["it said nothing"]
            raise UserError(
                f"the environment's process ({self.python}) ended with status {self.process.returncode}: {lines[-1]}"
            ) from None

    def _ask(self, call: str, *words: Any, **arrays: np.ndarray) -> dict[str, np.ndarray]:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # its error message is read next
            gym_worker.send(self.process.stdin, {"call": call, "words": words}, arrays)  # type: ignore[arg-type]
        return self._receive()[1]

    def reset(self, seeds: np.ndarray | None = None) -> dict[str, np.ndarray]:
        return self._ask("reset", **({} if seeds is None else {"seeds": seeds}))

    def ask(self, *indices: int) -> dict[str, np.ndarray]:
        return self._ask("ask", *indices)

    def step(self, actions: np.ndarray, looks: np.ndarray) -> dict[str, np.ndarray]:
        return self._ask("step", actions=actions, looks=looks)

    def demonstrate(self, seed: int, skill: str) -> dict[str, np.ndarray]:
        return self._ask("demonstrate", seed, skill)

    def act(self) -> dict[str, np.ndarray]:
        return self._ask("act")

    def frame(self) -> dict[str, np.ndarray]:
        return self._ask("frame")

    def close(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already
            self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()


class Script:
    """The environments' own demonstrators, which begin an episode when their environment does."""

    def __init__(self, batch: RemoteEnv | gym_worker.Batch, seed: int, skill: str):
        self.batch = batch
        batch.demonstrate(seed, skill)

    def reset(self, ids: Tensor) -> None:
        """Do nothing: `Batch` knows which episodes begin."""

    def act(self, observation: dict[str, Tensor]) -> Tensor:
        """Return actions (n, A) in [-1, 1] in the environments' present states."""
        return torch.from_numpy(self.batch.act()["actions"].copy())


class GymEnv:
    """n copies of a Gymnasium environment behind the protocol of `robot_rl.interface.environment.VectorEnv`.

    The numbers of an observation are one float32 vector, in order, beside its pictures (`gym_spaces`) and the pictures
    and instructions of environments that offer them (`gym_worker`); actions in [-1, 1] are scaled to the environment's
    limits. It has no state to restore: a resumed run begins new episodes.
    """

    device = torch.device("cpu")
    privileged_size = 0
    mirror: Mirror | None = None

    def __init__(
        self, task: str, num_envs: int = 1, python: Path | None = None, instruction_set: str = TRAINING,
        filmed: bool = False,
        steps: int = 0,
    ):  # fmt: skip
        """`instruction_set`: the instructions that episodes draw, as in `TaskEnv`; `filmed`: for `frame`;
        `steps`: longest episode, 0: the environment's own."""
        self.num_envs, name = num_envs, task.removeprefix(FOREIGN)
        try:
            how = name, num_envs, steps, filmed
            self.batch: RemoteEnv | gym_worker.Batch = RemoteEnv(*how, python) if python else gym_worker.Batch(*how)
        except gym_worker.Unsuitable as error:
            where = f" in {python}" if python else ""
            raise ConfigError(f"task {task}{where}: {error}") from None
        facts: dict[str, Any] = self.batch.facts
        self._largest = np.array(facts["largest"])
        limits = [math.inf] * len(self._largest)
        state = numbered("state", [-limit for limit in limits], limits)
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
        """Settings of this simulation, to report with its results."""
        if instruction_set != TRAINING:
            try:
                self.batch.ask(*chosen(task, [(text, False) for text in self.instructions], instruction_set))
            except ConfigError:
                self.batch.close()
                raise
        self._told = torch.zeros(num_envs, dtype=torch.long)
        """Index of every running episode's instruction."""
        self._seen: dict[str, Tensor] = {}
        self._looks_at: Tensor | None = None
        self._steps = 0
        """Steps since it was made."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Start episodes everywhere; environment i gets seed + i, or with options {"group": g} seed + i // g. Other
        options of our own tasks are ignored."""
        group = (options or {}).get("group", 1)
        seeds = None if seed is None else (seed + np.arange(self.num_envs) // group) % 2**31
        answer = self.batch.reset(seeds)
        self._check(answer, {"observation": "first observation"})
        result = _tensors(answer)
        self._told = result.get("instruction", self._told)
        self._seen = {key: result[f"begun {name}"] for key, name in self.pictures.items()}
        return self._observed(result["observation"]), {}

    def request_images(self, rows: Tensor | None) -> None:
        """Name the environments (n,) bool whose next observation must show the present, as in `TaskEnv`; None: all."""
        self._looks_at = rows

    def instruction(self, index: int) -> str:
        """Return what one environment's running episode asks for; the task's name if it is always the same."""
        return self.instructions[int(self._told[index])] if self.instructions else self.info.task

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step every environment; see `VectorEnv`."""
        wanted = (self.num_envs, self.info.action)
        if tuple(actions.shape) != wanted:
            raise ValueError(
                f"actions for {self.num_envs} copies of {self.info.task} are {wanted}, not {tuple(actions.shape)}"
            )
        looks = torch.ones(self.num_envs, dtype=torch.bool) if self._looks_at is None else self._looks_at.cpu()
        answer = self.batch.step(actions.cpu().numpy(), looks.numpy())
        self._steps += 1
        self._check(answer, {"reward": "reward", "final": "observation", "observation": "first observation"})
        result = _tensors(answer)
        done = result["terminated"] | result["truncated"]
        infos: dict[str, Any] = {"success": result["success"]} if self.info.reports_success else {}
        self._show("seen", looks, result)
        if done.any():
            infos |= {"final_obs": self._observed(result["final"]), "_final_obs": done}
            self._show("begun", done, result)
        self._told = result.get("instruction", self._told)
        following = self._observed(result["observation"])
        return following, result["reward"], result["terminated"], result["truncated"], infos

    def _check(self, answer: dict[str, np.ndarray], names: dict[str, str]) -> None:
        """Raise UserError for a number that nothing can be learned from, before anything is."""
        for key, what in names.items():
            values = answer[key].reshape(self.num_envs, -1)
            large = np.abs(values) > (self._largest if key != "reward" else gym_spaces.LARGEST)
            wrong = large | np.isnan(values)
            if not wrong.any():
                continue
            row, column = (int(index) for index in np.unravel_index(wrong.argmax(), wrong.shape))
            value = values[row, column]
            why, remedy = "with NaN or infinity", "mend the environment"
            if np.isfinite(value):
                why = f"with {value:g}, which a float32 does not hold exactly"
                remedy = "scale it, for example with gymnasium.wrappers.TransformObservation"
            raise UserError(
                f"{self.info.task}: copy {row} of {self.num_envs} returned {what} {why} at its step {self._steps}; "
                f"{remedy}. Nothing was learned from it"
            )

    def _show(self, when: str, rows: Tensor, result: dict[str, Tensor]) -> None:
        """Replace the pictures of environments `rows` (n,) bool."""
        at = rows.nonzero().squeeze(-1)
        for key, name in self.pictures.items():
            self._seen[key] = self._seen[key].index_copy(0, at, result[f"{when} {name}"])

    def _observed(self, state: Tensor) -> dict[str, Tensor]:
        """Return the observation of states (n, D), with what is seen and told."""
        told = {LANGUAGE: self.texts[self._told]} if self.instructions else {}
        return {STATE: state} | self._seen | told

    def frame(self) -> np.ndarray:
        """Draw the first environment, (height, width, 3) uint8."""
        return self.batch.frame()["frame"]

    def make_demonstrator(self, seed: int, skill: str) -> Script:
        """Return the environment's own demonstrator."""
        return Script(self.batch, seed, skill)

    def hold_action(self) -> Tensor:
        """Return zero actions (n, A): what holds an unknown environment cannot be told."""
        return torch.zeros(self.num_envs, self.info.action)

    def close(self) -> None:
        self.batch.close()


def _tensors(answer: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Return arrays as tensors of their own, numbers as float32."""
    narrow = {key: np.float32 if values.dtype == np.float64 else values.dtype for key, values in answer.items()}
    return {key: torch.from_numpy(values.astype(narrow[key])) for key, values in answer.items()}
