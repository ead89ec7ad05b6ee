"""Real-time simulation under a person's control, with the interface of `RobotEnv`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from real.control.timing import Ticker
from real.episode.intervention import Arbiter, Decision, Phase
from real.episode.stream import StepRecord, Stream
from real.teleop.commands import FirstInput, OperatorInput
from robot_rl.operators.intervention import InterventionWrapper
from robot_rl.operators.scripted import OperatorView


class _DeviceOperator:
    """Operator of an `InterventionWrapper` that turns device input into actions, as on a robot."""

    def __init__(self, env: Any, inputs: OperatorInput):
        self.env, self.arbiter = env, Arbiter(inputs, env.pipeline.controller)
        self.decision: Decision

    def reset(self) -> None:
        self.arbiter.reset()

    def __call__(self, view: OperatorView, step: float) -> tuple[bool, Tensor]:
        hold = self.env.hold_action()
        self.decision = self.arbiter.decide(hold, hold)
        return self.decision.phase is Phase.CORRECTING, self.decision.action


class RehearsalEnv(InterventionWrapper):
    """Simulation of one robot. `step` returns one control period after the previous `step` returned.

    As in `RobotEnv`, marks and the emergency stop end an episode, `stream` carries a record per control period, and the
    caller resets. A simulation slower than real time does not catch up: `ticker.timing` counts the missed periods.
    """

    def __init__(self, env: Any, inputs: OperatorInput, image_size: int = 0):
        """Args: `env`: a `TaskEnv` of size 1. `image_size`: height and width of pictures from cameras that the policy
        does not see, pixels; 0: no such pictures."""
        self.device = _DeviceOperator(env, inputs)
        super().__init__(env, self.device)
        self.inputs, self.period = inputs, 1 / env.rate
        self.stream = Stream()
        """Records of control periods, and events "phase": resetting, let go, waiting or running."""
        self.note = self.stream.note
        self.on_wait: Callable[[], None] = lambda: None
        """Called in each control period before the person's first input."""
        self.ticker = Ticker(self.period)
        self.sizes = {p.camera: (p.height, p.width) for p in env.task.interface.pictures}
        """(height, width) of the recorded pictures by camera."""
        self._unseen = [c.name for c in env.task.scene.cameras if c.name not in self.sizes] if image_size else []
        self.sizes |= dict.fromkeys(self._unseen, (image_size, image_size))
        self.seed = 0
        """Seed of the running episode."""

    def look(self) -> dict[str, np.ndarray]:
        """Return each camera's picture (H, W, 3) of the present state."""
        seen = {p.camera: self.observation[p.key][0].cpu().numpy() for p in self.env.task.interface.pictures}
        for camera in self._unseen:
            seen[camera] = self.env.engine.render_batch(np.zeros(1, int), camera, *self.sizes[camera])[0]
        return seen

    def reset(self, *, options: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        """Start an episode; with options {"await_operator": True} wait until the person takes control."""
        self.note("phase", "resetting")
        first = super().reset(**kwargs)
        self.seed = kwargs.get("seed") or 0
        self.inputs.begin()
        self.ticker.restart()
        if (options or {}).get("await_operator"):
            begins = FirstInput()
            while not begins(self.inputs.read()):
                self.note("phase", begins.phase)
                self.on_wait()
                self.ticker.wait()
        self.note("phase", "running")
        return first

    def step(self, action: Tensor) -> tuple[Any, ...]:
        """Execute the person's action while the person has control, else `action` (1, A)."""
        before, age = self.env.pipeline.observer(self.env.state), float(self.env.state_age)
        observation, reward, terminated, truncated, infos = super().step(action)
        decision = self.device.decision
        operator, stopped = decision.operator, decision.phase is Phase.STOPPED
        won, failed = (bool(operator and getattr(operator, mark)) for mark in ("success", "failure"))
        infos["success"] = (infos["success"] | won) & (not failed)
        terminated = terminated | won | failed
        truncated = (truncated | stopped) & ~terminated
        infos |= {"policy_action": action, "marked": torch.tensor([won or failed])}
        infos["discarded"] = torch.tensor([stopped or bool(operator and operator.discards)])
        self.stream.step(
            StepRecord(
                before, action, infos["executed"], float(reward), bool(infos["success"]), bool(terminated | truncated),
                bool(truncated), bool(infos["intervention"]), bool(infos["takeover"]), won or failed,
                bool(infos["discarded"]), int(infos["episode_steps"]),
                infos["instruction"][0] if "instruction" in infos else "", int(self.env.shield_changes), age,
            )
        )  # fmt: skip
        self.ticker.wait()
        return observation, reward, terminated, truncated, infos

    def abandon(self) -> None:
        """End the running episode without a result; `reset` follows."""
