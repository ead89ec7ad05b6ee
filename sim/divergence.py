"""Episodes whose physics diverged: kept as they happen, replayed one at a time.

An episode follows from its seed, its number and its actions alone, whatever ran beside it. So a file of a few KB holds
it, and the running ones cost one copy of the actions per step and num_envs x horizon x A floats: 12 MB for 256 Go2s.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from robot_rl.util.errors import UserError
from robot_rl.util.files import replace_file, sync_folder

if TYPE_CHECKING:
    from sim.env import TaskEnv
    from sim.tasks.base import Task

MOST = 8
"""Files that one process writes: a task that always diverges does not fill the disk. All are counted."""
_FORMAT = 1
_ENGINES = {"mujoco": "mujoco", "genesis": "genesis-world"}
"""Whose version decides about the floats."""


def quiet() -> None:
    """Keep MuJoCo from telling of every divergence on stderr and in MUJOCO_LOG.TXT; they are detected and counted."""
    from sim.gl import mujoco

    def tell(message: str) -> None:
        if "simulation is unstable" not in message:
            sys.stderr.write(f"mujoco: {message}\n")

    mujoco.set_mju_user_warning(tell)


class Recorder:
    """Keeps the actions of the running episodes and writes those of one that diverges to a folder."""

    def __init__(self, env: TaskEnv, folder: Path, mjcf: str, randomize: bool):
        self.env, self.folder = env, folder
        model = str(Path(mjcf).resolve()) if mjcf else ""
        self.settings = {"task": env.task.name, "mjcf": model, "randomize": randomize} | env.simulation
        horizon, actions = env.task.interface.horizon, env.pipeline.actions.size
        self.actions = torch.zeros(env.num_envs, horizon, actions)
        self.length = torch.zeros(env.num_envs, dtype=torch.long)
        """Actions of each running episode so far."""
        self.whole = np.zeros(env.num_envs, bool)
        """All of them: no resume fell into it."""
        self.kept = 0
        self._rows = torch.arange(env.num_envs)

    def begin(self, ids: np.ndarray) -> None:
        """Environments `ids` begin an episode."""
        self.length[ids], self.whole[ids] = 0, True

    def forget(self) -> None:
        """The running episodes are others than those that were begun."""
        self.length[:], self.whole[:] = 0, False

    def step(self, actions: Tensor, broken: Tensor) -> None:
        """Actions (n, A) were executed; the physics of environments `broken` (n,) diverged."""
        self.actions[self._rows, self.length] = actions
        self.length += 1
        for i in broken.nonzero().squeeze(-1).tolist():
            if self.whole[i] and self.kept < MOST:
                self._keep(i)
                self.kept += 1

    def _keep(self, i: int) -> None:
        env, length = self.env, int(self.length[i])
        seed, episode = env.seed + i, env.episode_number(i)
        file = self.folder / f"{env.task.name}-seed{seed}-episode{episode}.safetensors"
        head = self.settings | {
            "format": _FORMAT,
            "seed": seed,
            "episode": episode,
            "begun": int(env.steps[i]) - length,
            "drawn": env.episode_record(i),
            "version": _version(str(env.simulation["engine"])),
        }
        content = save({"actions": self.actions[i, :length].clone()}, {"episode": json.dumps(head)})
        try:
            replace_file(file, content)
            sync_folder(self.folder)
        except OSError as error:
            raise UserError(
                f"cannot keep an episode that diverged: {file}: {error.strerror}; free some space"
            ) from None


def _version(engine: str) -> str:
    package = _ENGINES[engine]
    return f"{package} {metadata.version(package)}"


def report(folder: Path) -> dict[str, str]:
    """What a command's result says of episodes that were kept in a folder: nothing where there are none."""
    return {"diverged": str(folder)} if any(folder.glob("*.safetensors")) else {}


def read(file: Path) -> tuple[dict[str, Any], Tensor]:
    """What is known about a kept episode, and its actions (T, A)."""
    if file.is_dir():
        inside = sorted(p.name for p in (*file.glob("*.safetensors"), *file.glob("diverged/*.safetensors")))
        raise UserError(f"{file} is a folder; name one of its files: {', '.join(inside) or 'it has none'}")
    try:
        with safe_open(file, "pt") as content:
            head = json.loads((content.metadata() or {})["episode"])
            actions = content.get_tensor("actions")
    except FileNotFoundError:
        raise UserError(f"{file} does not exist; runs keep episodes that diverged in RUN/diverged/") from None
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise UserError(f"{file} is damaged or no episode that diverged ({error})") from None
    if head.get("format") != _FORMAT:
        raise UserError(f"{file}: format {head.get('format')}, but this robot-rl reads {_FORMAT}; update robot-rl")
    return head, actions


@dataclass
class Replay:
    """What the replay of a kept episode showed."""

    episode: dict[str, Any]
    """As recorded."""
    recorded: int
    """Step in which it diverged, counted from 1."""
    diverged: int | None = None
    """The same in the replay."""
    first: str = ""
    """Which degree of freedom went first."""
    version: str = ""
    """Of the engine, now."""
    trace: list[dict[str, Any]] = field(default_factory=list)
    """A row per tick of the joint commands."""


def replay(
    file: Path,
    *,
    device: str = "",
    mjcf: str = "",
    task: Task | None = None,
) -> Replay:
    """Run the episode again, alone; the arguments replace what was recorded."""
    from sim.env import TaskEnv

    head, actions = read(file)
    env = TaskEnv(
        task or head["task"], 1, engine=head["engine"], seed=head["seed"], threads=1, mjcf=mjcf or head["mjcf"],
        device=device or head["device"], randomize=head["randomize"], without=head["without"],
    )  # fmt: skip
    try:
        if env.pipeline.actions.size != actions.shape[1]:
            raise UserError(f"{file} holds {actions.shape[1]} actions a step; task {head['task']!r} has changed since")
        env.reset(seed=head["seed"], options={"episode": head["episode"], "stagger": head["begun"] > 0})
        changed = {n for n, v in env.episode_record(0).items() if head["drawn"].get(n) != v} | (
            head["drawn"].keys() - env.episode_record(0).keys()
        )
        if changed or int(env.steps[0]) != head["begun"]:
            raise UserError(
                f"{file}: the randomization of task {head['task']!r} has changed since "
                f"({', '.join(sorted(changed)) or 'horizon'}); replay with the commit that recorded it"
            )
        result = Replay(head, len(actions), version=_version(head["engine"]))
        traced = _Traced(env.engine)
        env.engine = traced  # type: ignore[assignment]
        for k, action in enumerate(actions):
            traced.step_number, traced.action = k + 1, float(action.abs().max())
            env.step(action[None])
            if env.divergences:
                result.diverged, result.first = k + 1, traced.first
                break
        result.trace = traced.trace
    finally:
        env.close()
    return result


class _Traced:
    """An engine of one environment that is advanced tick by tick and looked at after each."""

    def __init__(self, engine: Any):
        self._engine, self.first = engine, ""
        self.trace: list[dict[str, Any]] = []
        self.step_number, self.action = 0, 0.0
        model = engine.model
        joints = [int(model.dof_jntid[d]) for d in range(model.nv)]
        nth = [d - int(model.jnt_dofadr[j]) for d, j in enumerate(joints)]
        free = model.jnt_type[joints] == 0
        axes = ("x", "y", "z", "roll", "pitch", "yaw")
        self.names = [
            model.joint(j).name + (f".{axes[k]}" if f else "") for j, k, f in zip(joints, nth, free, strict=True)
        ]
        self._joints = [model.joint(name) for name in engine.robot.joint_names]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self, joints: Tensor, gripper: Tensor) -> None:
        engine, first = self._engine, ""
        for k in range(joints.shape[1]):
            engine.step(joints[:, k : k + 1], gripper[:, k : k + 1])
            if not first:
                broken = bool(engine.diverged()[0])
                self.trace.append(self._look(k + 1, joints[0, k]) | {"diverged": broken})
                first = self._first() if broken else ""
        # An episode ends at the end of its control period; one that is sound again by then goes on.
        self.first = first if engine.diverged()[0] else ""

    def _look(self, tick: int, command: Tensor) -> dict[str, Any]:
        qpos, qvel = self._engine.qpos[0], self._engine.qvel[0]
        position = np.array([qpos[j.qposadr[0]] for j in self._joints])
        fastest = int(np.argmax(np.where(np.isfinite(qvel), np.abs(qvel), np.inf)))
        views = self._engine.views()
        row = {
            "step": self.step_number,
            "tick": tick,
            "action": self.action,
            "qpos": float(np.abs(qpos).max()),
            "qvel": float(np.abs(qvel).max()),
            "fastest": self.names[fastest],
            "tracking_error": float(np.abs(position - command.numpy()).max()),
        }
        for name, view in (("torque", "joint_torque"), ("contact_force", "foot_force")):
            if view in views:
                row[name] = float(views[view].abs().max())
        return row

    def _first(self) -> str:
        """MuJoCo names what was no number; elsewhere, and where it was only too fast, the fastest tells."""
        if hasattr(self._engine, "batch"):
            from sim.gl import mujoco

            model, warning = self._engine.model, self._engine.batch.warning[0]
            for kind, what in (("BADQACC", "acceleration"), ("BADQVEL", "velocity"), ("BADQPOS", "position")):
                index, count = warning[int(getattr(mujoco.mjtWarning, f"mjWARN_{kind}"))]
                if count:
                    if kind == "BADQPOS":
                        joint = max(j for j in range(model.njnt) if model.jnt_qposadr[j] <= index)
                        return f"{what} of {model.joint(joint).name}"
                    return f"{what} of {self.names[index]}"
        return f"velocity of {self.trace[-1]['fastest']}"
