"""Replay a kept episode whose physics diverged, and inspect every tick."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from robot_rl.util.errors import UserError
from sim.divergence import engine_version, read
from sim.env import TaskEnv
from sim.scenes import SCENE
from sim.tasks.base import Task


@dataclass
class EpisodeReplay:
    """The result of a replay."""

    episode: dict[str, Any]
    """As recorded."""
    recorded: int
    """Recorded step of divergence, counted from 1."""
    diverged: int | None = None
    """The same in the replay."""
    first: str = ""
    """Degree of freedom that diverged first."""
    version: str = ""
    """Version of the engine."""
    trace: list[dict[str, Any]] = field(default_factory=list)
    """One row per tick of the joint commands."""


def replay(
    file: Path,
    *,
    device: str = "",
    mjcf: str = "",
    task: Task | None = None,
) -> EpisodeReplay:
    """Replay the episode alone; the arguments replace recorded settings."""
    head, actions = read(file)
    env = TaskEnv(
        task or head["task"], 1, engine=head["engine"], seed=head["seed"], threads=1, mjcf=mjcf or head["mjcf"],
        device=device or head["device"], randomize=head["randomize"], without=head["without"],
        success_ends=False,  # it went on, whatever it was asked
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
        result = EpisodeReplay(head, len(actions), version=engine_version(head["engine"]))
        traced = _Traced(env.engine)
        env.episodes.engine = traced  # type: ignore[assignment]
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
    """An engine of one environment, inspected at every tick."""

    def __init__(self, engine: Any):
        self._engine, self.first = engine, ""
        self.trace: list[dict[str, Any]] = []
        self.step_number, self.action = 0, 0.0
        model = engine.model
        joints = [int(model.dof_jntid[d]) for d in range(model.nv)]
        nth = [d - int(model.jnt_dofadr[j]) for d, j in enumerate(joints)]
        free = model.jnt_type[joints] == 0
        axes = ("x", "y", "z", "roll", "pitch", "yaw")
        self.names = [_name(model, j) + (f".{axes[k]}" if f else "") for j, k, f in zip(joints, nth, free, strict=True)]
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
        # Divergence is checked at the end of a control period; a state that is valid again by then continues.
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
            "tracking_error": float(np.abs(position - command.cpu().numpy()).max()),
        }
        for name, view in (("torque", "joint_torque"), ("contact_force", "foot_force")):
            if view in views:
                row[name] = float(views[view].abs().max())
        return row

    def _first(self) -> str:
        """Return the degree of freedom in MuJoCo's warning, or else the fastest one."""
        if hasattr(self._engine, "batch"):
            from sim.rendering.gl import mujoco

            model, warning = self._engine.model, self._engine.batch.warning[0]
            for kind, what in (("BADQACC", "acceleration"), ("BADQVEL", "velocity"), ("BADQPOS", "position")):
                index, count = warning[int(getattr(mujoco.mjtWarning, f"mjWARN_{kind}"))]
                if count:
                    if kind == "BADQPOS":
                        joint = max(j for j in range(model.njnt) if model.jnt_qposadr[j] <= index)
                        return f"{what} of {_name(model, joint)}"
                    return f"{what} of {self.names[index]}"
        return f"velocity of {self.trace[-1]['fastest']}"


def _name(model: Any, joint: int) -> str:
    """Return the name of a joint as robot or task have it."""
    return str(model.joint(joint).name).removeprefix(SCENE)
