"""Replay an episode whose physics diverged, and trace every tick of the joint commands."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from robot_rl.util.errors import ConfigError, UserError
from sim.divergence import FORMAT, engine_version
from sim.env import TaskEnv
from sim.scenes import SCENE
from sim.tasks.base import Task

_AXES = ("x", "y", "z", "roll", "pitch", "yaw")


@dataclass
class EpisodeReplay:
    """The result of a replay."""

    episode: dict[str, Any]
    """Header of the kept episode."""
    recorded: int
    """Step at which the kept episode diverged, counted from 1."""
    version: str
    """Package and version of the replay's engine."""
    diverged: int | None = None
    """Step at which the replay diverged, counted from 1; None if the replay did not diverge."""
    first: str = ""
    """Degree of freedom that moved fastest when the physics diverged."""
    trace: list[dict[str, Any]] = field(default_factory=list)
    """One row per tick of the joint commands."""


def read(file: Path) -> tuple[dict[str, Any], Tensor]:
    """Return the header of a kept episode, and its actions (T, A)."""
    if file.is_dir():
        inside = sorted(p.name for p in (*file.glob("*.safetensors"), *file.glob("diverged/*.safetensors")))
        raise ConfigError(f"{file} is a folder; name one of its files: {', '.join(inside) or 'it has none'}")
    try:
        with safe_open(file, "pt") as content:
            head = json.loads((content.metadata() or {})["episode"])
            actions = content.get_tensor("actions")
    except FileNotFoundError:
        raise ConfigError(f"{file} does not exist; runs keep episodes that diverged in RUN/diverged/") from None
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise UserError(f"{file} is damaged or no episode that diverged ({error})") from None
    if head.get("format") != FORMAT:
        raise UserError(f"{file}: format {head.get('format')}, but this robot-rl reads {FORMAT}; update robot-rl")
    return head, actions


def replay(file: Path, *, device: str = "", mjcf: str = "", task: Task | None = None) -> EpisodeReplay:
    """Replay the diverged episode in `file`, in a single environment. Arguments override the recorded settings."""
    head, actions = read(file)
    env = TaskEnv(
        task or head["task"], 1, engine=head["engine"], seed=head["seed"], threads=1, mjcf=mjcf or head["mjcf"],
        device=device or head["device"], randomize=head["randomize"], without=head["without"],
        ranges=head.get("ranges"),
        success_ends=False,  # the recorded episode did not end by success
    )  # fmt: skip
    try:
        if env.pipeline.actions.size != actions.shape[1]:
            raise UserError(f"{file} holds {actions.shape[1]} actions a step; task {head['task']!r} has changed since")
        if "terrain/level" in head["drawn"]:
            env.set_levels(torch.tensor([int(head["drawn"]["terrain/level"])]))
        env.reset(seed=head["seed"], options={"episode": head["episode"], "stagger": head["begun"] > 0})
        changed = sorted({name for name, _ in head["drawn"].items() ^ env.episode_record(0).items()})
        if changed or int(env.steps[0]) != head["begun"]:
            raise UserError(
                f"{file}: the randomization of task {head['task']!r} has changed since "
                f"({', '.join(changed) or 'horizon'}); replay with the commit that recorded it"
            )
        result = EpisodeReplay(head, len(actions), engine_version(head["engine"]))
        traced = _TracedEngine(env.engine, result.trace)
        env.episodes.engine = traced  # type: ignore[assignment]
        for k, action in enumerate(actions, 1):
            traced.columns = {"step": k, "action": float(action.abs().max())}
            env.step(action[None])
            if env.divergences:
                result.diverged, result.first = k, traced.first
                break
    finally:
        env.close()
    return result


class _TracedEngine:
    """An engine of one environment that records every tick in `trace`."""

    def __init__(self, engine: Any, trace: list[dict[str, Any]]):
        self._engine, self.trace, self.first = engine, trace, ""
        self.columns: dict[str, Any] = {}  # columns of the present control period
        model, self._names = engine.model, []
        for dof, joint in enumerate(model.dof_jntid):
            axis = f".{_AXES[dof - model.jnt_dofadr[joint]]}" if model.jnt_type[joint] == 0 else ""  # a free joint
            self._names.append(model.joint(int(joint)).name.removeprefix(SCENE) + axis)
        self._joints = [int(model.joint(name).qposadr[0]) for name in engine.robot.joint_names]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self, joints: Tensor, gripper: Tensor) -> None:
        engine, self.first = self._engine, ""
        for k in range(joints.shape[1]):
            engine.step(joints[:, k : k + 1], gripper[:, k : k + 1])
            if not self.first:
                row = self._row(joints[0, k].cpu().numpy()) | {"diverged": bool(engine.diverged()[0])}
                self.trace.append(self.columns | {"tick": k + 1} | row)
                self.first = f"velocity of {row['fastest']}" if row["diverged"] else ""
        # Divergence is checked at the end of a control period: a state that is valid again by then continues.
        self.first = self.first if engine.diverged()[0] else ""

    def _row(self, command: np.ndarray) -> dict[str, Any]:
        qpos, qvel, views = self._engine.qpos[0], self._engine.qvel[0], self._engine.views()
        fastest = int(np.argmax(np.where(np.isfinite(qvel), np.abs(qvel), np.inf)))
        row = {"qpos": np.abs(qpos).max(), "qvel": np.abs(qvel).max(), "fastest": self._names[fastest]}
        row |= {"tracking_error": np.abs(qpos[self._joints] - command).max()}
        named = (("torque", "joint_torque"), ("contact_force", "foot_force"))
        row |= {name: views[view].abs().max() for name, view in named if view in views}
        return {name: value if isinstance(value, str) else float(value) for name, value in row.items()}
