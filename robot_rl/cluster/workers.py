"""Rollout workers: the environments of one training run, simulated on the nodes of a Ray cluster.

    learner, policy             worker 0                worker 1
    actions (n, A)      -->     actions[:n/2]           actions[n/2:]
    results (n, ...)    <--     step of n/2 copies      step of n/2 copies

Environment i has the same seed on any worker, so results equal those without workers, bit for bit. If a worker is lost,
another restores its last saved state and repeats the calls since then, so nothing is lost.
"""

import logging
import socket
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robot_rl.cluster.remote import Cluster
from robot_rl.util.errors import ConfigError, UserError
from sim.make import make

logger = logging.getLogger(__name__)
SAVE_EVERY = 400
"""Calls between two saved states of a worker."""
DIRECT = {"RAY_max_direct_call_object_size": str(2**26)}
"""Setting of Ray in workers: results up to this size, bytes, come straight to the learner, not by the object stores of
two nodes."""
SHARED = (
    "info", "privileged_size", "mirror", "rate", "disturbance", "terrain", "true_spec", "nominal_values", "simulation",
)  # fmt: skip
"""Attributes of an environment that are equal on all workers."""
PRESENT = ("randomization", "instruction_weights")
"""Attributes that are equal on all workers, and change."""
GATHERED = ("pinned", "tiles")
"""Tensors (n, ...) of the running episodes."""
ROWS = ("step", "request_images", "set_levels", "disturb")
"""Methods whose argument has a row per environment."""
UNANSWERED = ROWS[1:]
"""Methods without a result: they are called with the next one."""
METHODS = (
    *ROWS, "reset", "hold_action", "set_ranges", "pin", "set_instruction_weights", "instruction_positions",
    "state_dict", "load_state_dict",
)  # fmt: skip
"""Methods of an environment; an environment need not have all."""
Call = tuple[str, tuple[Any, ...], dict[str, Any]]
"""Name, arguments and keywords of a call of an environment's method."""


class Worker:
    """Actor on a node of the cluster: it simulates some of the environments."""

    def begin(self, ours: str, task: str, count: int, *arguments: Any, **simulation: Any) -> dict[str, Any]:
        """Build the environments; return the shared attributes, and under "has" the names of what else there is.
        `ours`: the learner's version of robot-rl, which must be the same here."""
        if (theirs := version("robot-rl")) != ours:
            raise UserError(f"{socket.gethostname()} has robot-rl {theirs}, not {ours} as here; make them equal")
        torch.set_num_threads(1)
        self.env: Any = make(task, count, *arguments, **simulation)
        shared = {name: getattr(self.env, name) for name in SHARED if hasattr(self.env, name)}
        others = (*PRESENT, *GATHERED, *METHODS, "divergences")
        return shared | {"has": [name for name in others if hasattr(self.env, name)]}

    def call(self, calls: Sequence[Call], state: Any = None) -> Any:
        """Call methods, or read other attributes, and return the result of the last one; first restore a state."""
        if state is not None:
            self.env.load_state_dict(state)
        for name, arguments, keywords in calls:
            found = getattr(self.env, name)
            result = found(*arguments, **keywords) if callable(found) else found
        return result if name == "state_dict" else packed(result)


class Part:
    """The environments of one worker, which is replaced when it is lost."""

    def __init__(self, cluster: Cluster, gpus: float, task: str, count: int, *arguments: Any, **simulation: Any):
        self.ray, self.task = cluster.ray, task
        self.kind = self.ray.remote(Worker).options(
            num_cpus=1, num_gpus=gpus, scheduling_strategy="SPREAD", runtime_env={"env_vars": DIRECT}
        )
        self.made = (version("robot-rl"), task, count, *arguments), simulation
        self.state: Any = None
        """Saved state; None: that of new environments."""
        self.calls: list[Call] = []
        """Calls since the saved state that the worker has got."""
        self.queue: list[Call] = []
        """Calls that it gets with the next one."""
        self.saving: tuple[Any, int] | None = None
        """Next saved state, which is on its way, and the number of `calls` before it."""
        self._start()

    def _start(self) -> None:
        arguments, simulation = self.made
        self.actor = self.kind.remote()
        self.pending = [self.actor.begin.remote(*arguments, **simulation)]

    def facts(self) -> dict[str, Any]:
        """Return what the worker said of its environments."""
        try:
            facts: dict[str, Any] = self.ray.get(self.pending[0])
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self.ray.exceptions.RayError as error:
            raise UserError(f"a worker was lost as it began: {str(error).splitlines()[0]}") from None
        self.saves = "state_dict" in facts["has"]
        return facts

    def send(self, name: str, *arguments: Any, **keywords: Any) -> None:
        """Begin a call; `receive` returns its result, unless it has none."""
        self.queue.append((name, arguments, keywords))
        if name not in UNANSWERED:
            self.pending = [self.actor.call.remote(self.queue)]
            self.calls += self.queue
            self.queue = []

    def receive(self) -> Any:
        """Return the result of the last call. Raise the worker's error, or UserError if the worker is lost and its
        environments cannot be restored."""
        errors = self.ray.exceptions
        while True:
            try:
                result = self.ray.get(self.pending)[-1]
                if self.saving is not None:
                    sent, before = self.saving
                    self.state, self.saving = self.ray.get(sent), None
                    del self.calls[:before]
                elif self.saves and len(self.calls) >= SAVE_EVERY:
                    self.saving = self.actor.call.remote([("state_dict", (), {})]), len(self.calls)
                return result
            except errors.RayTaskError as error:
                raise error.cause from None
            except errors.RayError as error:
                said = str(error).splitlines()[0]
            if not self.saves:
                raise UserError(f"a worker was lost ({said}), and {self.task} cannot be restored; go on with --resume")
            logger.warning("a worker was lost (%s); another takes over as soon as a node has room", said)
            self.close()
            self._start()
            self.pending.append(self.actor.call.remote(self.calls, self.state))
            self.saving = None

    def close(self) -> None:
        """End the worker."""
        self.ray.kill(self.actor)


class WorkerEnv:
    """n copies of a task on several workers, as a `robot_rl.interface.environment.VectorEnv` on the CPU."""

    device = torch.device("cpu")

    def __init__(self, cluster: Cluster, workers: int, task: str, num_envs: int, *arguments: Any, **simulation: Any):
        if num_envs < workers:
            raise ConfigError(f"--workers {workers}: the recipe has only {num_envs} environments; give fewer")
        gpus = float(str(simulation.get("device", "cpu")).startswith("cuda"))
        cluster.require_room(1, gpus)
        if (cpus := cluster.ray.cluster_resources().get("CPU", 0)) < workers:
            raise ConfigError(f"--workers {workers}: each takes a CPU, and the Ray cluster has {cpus:g}; give fewer")
        simulation |= {"diverged": None, "threads": 1}
        ends = np.linspace(0, num_envs, workers + 1).astype(int)
        self.num_envs, self.sizes, self.first = num_envs, np.diff(ends).tolist(), ends[:-1].tolist()
        self.parts = [Part(cluster, gpus, task, count, *arguments, **simulation) for count in self.sizes]
        self.facts = [part.facts() for part in self.parts][0]

    def __getattr__(self, name: str) -> Any:
        facts = vars(self).get("facts", {"has": ()})
        if name in SHARED and name in facts:
            return facts[name]
        if name == "divergences" and name in facts["has"]:
            return sum(self._each(name))
        if name in PRESENT and name in facts["has"]:
            return joined(self._each(name)[:1])
        if name in GATHERED and name in facts["has"]:
            return joined(self._each(name))
        if name in METHODS and name in facts["has"]:
            return getattr(self, f"_{name}", None) or (lambda *words: self._each(name, *words)[0])
        raise AttributeError(f"environments on workers have no {name}", name=name, obj=self)

    def _each(self, name: str, *arguments: Any) -> list[Any]:
        """Call a method of all environments; return the workers' results."""
        cut: list[Sequence[Any]] = [[each] * len(self.parts) for each in arguments]
        if name in ROWS and arguments[0] is not None:
            cut = [[rows.clone() for rows in arguments[0].cpu().split(self.sizes)]]  # a view would be sent whole
        for k, part in enumerate(self.parts):
            part.send(name, *(each[k] for each in cut))
        return [None if name in UNANSWERED else part.receive() for part in self.parts]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start new episodes, see `VectorEnv`."""
        group = (options or {}).get("group", 1)
        if any(first % group for first in self.first):
            raise ConfigError(f"--workers {len(self.parts)} would split groups of {group} environments; give fewer")
        for first, part in zip(self.first, self.parts, strict=True):
            part.send("reset", seed=None if seed is None else seed + first // group, options=options)
        return joined([part.receive()[0] for part in self.parts]), {}

    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
        """Step every environment, see `VectorEnv`."""
        results = self._each("step", actions)
        if any("final_obs" in infos for *_, infos in results):
            for observation, *_, terminated, _, infos in results:
                infos.setdefault("final_obs", observation)
                infos.setdefault("_final_obs", np.zeros_like(terminated))
        stepped: tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]] = joined(results)
        return stepped

    def _hold_action(self) -> Tensor:
        held: Tensor = joined(self._each("hold_action"))
        return held

    def _instruction_positions(self) -> list[int]:
        return [index for part in self._each("instruction_positions") for index in part]

    def _state_dict(self) -> dict[str, Any]:
        return {"workers": self._each("state_dict")}

    def _load_state_dict(self, state: dict[str, Any]) -> Any:
        for part, saved in zip(self.parts, state["workers"], strict=True):
            part.send("load_state_dict", saved)
        return joined([part.receive() for part in self.parts])

    def close(self) -> None:
        """End the workers."""
        for part in self.parts:
            part.close()


def on_workers(cluster: Cluster, workers: int) -> Callable[..., WorkerEnv]:
    """Return a function like `sim.make.make` whose environments are on workers."""
    return lambda task, count, *arguments, **simulation: WorkerEnv(
        cluster, workers, task, count, *arguments, **simulation
    )


def packed(value: Any) -> Any:
    """Return a result with numpy arrays for tensors, which Ray sends faster."""
    if isinstance(value, Tensor):
        return value.cpu().numpy()
    if type(value) is tuple:
        return tuple(packed(each) for each in value)
    return {k: packed(v) for k, v in value.items()} if isinstance(value, dict) else value


def joined(parts: Sequence[Any]) -> Any:
    """Return the results of all workers as one: arrays become tensors, one after the other, and lists one list."""
    first = parts[0]
    if isinstance(first, np.ndarray):
        return torch.from_numpy(np.concatenate(parts))
    if isinstance(first, dict):
        return {name: joined([part[name] for part in parts]) for name in first}
    if isinstance(first, tuple):
        return tuple(joined(each) for each in zip(*parts, strict=True))
    return [each for part in parts for each in part] if isinstance(first, list) else first
