"""A robot as a Gymnasium vector environment of size one, in real time, with the interface of the simulation."""

import gc
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from real import clock
from real.bus import Node, qos
from real.control.stop import OPERATOR
from real.control.timing import Histogram, Ticker
from real.drivers.names import frames
from real.drivers.state import NotReady
from real.episode.diagnostics import Diagnostics
from real.episode.homing import Homing
from real.episode.intervention import Phase
from real.episode.judge import Judge
from real.episode.plan import Plan
from real.episode.rig import Rig
from real.episode.standing import Standing
from real.episode.steering import Schedule, Steering
from real.episode.stream import StepRecord
from real.teleop.commands import Operator, OperatorInput
from real.topics import EPISODE_TOPIC, STATUS, Episode
from robot_rl.interface.driver import SafetyConfig
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.pipeline import Interface
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.shield import REASONS
from robot_rl.rewards.classifier import Classifier

HELD = 1 << REASONS.index("held")


class RobotEnv(Rig, VectorEnv):
    """One robot behind its topics. `step` returns one control period after the previous `step` returned.

    Building it connects and checks; nothing moves before `activate`.

    Unlike in `sim.env.TaskEnv`, `reset` moves an arm home through the shield and waits until the objects are placed, or
    stands a legged robot up. Autoreset is disabled: a robot must not start to move by itself.
    """

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012
    num_envs = 1

    def __init__(
        self, node: Node, interface: Interface, *, cameras: tuple[str, ...] = (), operator: OperatorInput | None = None,
        dry_run: bool = False, safety: SafetyConfig | None = None, schedule: Schedule | None = None,
        instruction: str = "", classifier: Classifier | None = None, words: tuple[str, ...] = (),
        robot: RobotSpec | None = None,
    ):  # fmt: skip
        """Args: `cameras`: cameras recorded in addition to the policy's. `schedule`: velocity commands while neither a
        person nor `cmd_vel` gives any. `instruction`: the first instruction. `words`: words that the policy knows; ():
        any. `classifier`: success test in place of the task's. `robot`: spec with another driver than the registered
        one's."""
        super().__init__(node, interface, cameras, operator, dry_run, safety, instruction, classifier, words, robot)
        self.steering: Steering | None = None
        self.info = EnvInfo.of(self.pipeline)
        if (command := self.pipeline.command).fields:
            self.steering = Steering(node, command, self.period, schedule, frames(node, self.pipeline.robot))
        self.reset_procedure: Homing | Standing = Standing(self) if self.loop.sinks else Homing(self)
        self.judge = Judge(self, self.reset_procedure)
        self.warmups.append(self._rehearse)
        self._noted: dict[str, Any] = {}
        self.single_action_space = gym.spaces.Box(-1.0, 1.0, (self.pipeline.actions.size,), np.float32)
        self.single_observation_space = self.pipeline.observation_spec.gymnasium_space()
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, 1)
        self.observation_space = self.pipeline.observation_spec.gymnasium_space(1)
        self.announcer = node.publisher(STATUS, EPISODE_TOPIC, qos.LATCHED)
        self.inference = Histogram()
        """Time from the observation to the policy's action in each control period, s."""
        self.picture_ages = Histogram()
        """Time from the stamp of the oldest picture in the observation to the goal that followed it, s."""
        self.episode = -1
        self._tally = {"ended": 0, "won": 0, "takeovers": 0}
        self._damped: dict[str, int] | None = None
        self.diagnostics, self.show_plan = Diagnostics(self), Plan(self)
        self.driver.preflight.wait_ready()
        self.pictures.check()

    def activate(self) -> None:
        """Start sending commands: an arm holds where it is, a legged robot stays damped, until `reset` moves it."""
        clock.join()
        self.note("active", True)
        self.loop.arm()

    def deactivate(self) -> None:
        """Brake and hold an arm, or lay a legged robot down and damp it. Then stop sending commands."""
        if not self.loop.armed:
            return
        try:
            self.reset_procedure.end()
        finally:
            self._damped = self.driver.damped  # before the guard damps once more for silence
            self.loop.close()
            self.note("active", False)
            clock.leave()

    # ---- gymnasium ---------------------------------------------------------------------------------------------
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Prepare the robot (see `Homing` and `Standing`) and return the first observation. With options
        {"await_operator": True} an arm then waits at home until the person takes control."""
        if not self.loop.armed:
            self.loop.check()
            raise NotReady("the robot gets no commands yet: call activate() first")
        self.driver.preflight.check_single_publisher()
        self.episode += 1
        gc.collect(1)
        self._announce("resetting")
        self.seed = self.episode if seed is None else seed
        self.reset_procedure.begin(self.seed)
        if (options or {}).get("await_operator"):
            self._announce("waiting")
            assert isinstance(self.reset_procedure, Homing)
            self.reset_procedure.await_operator()
        self.loop.resting = False
        self.arbiter.reset()
        self.begin()
        self.judge.reset()
        self.ticker = Ticker(self.period)
        self._steer(None)
        self.state = self.read()
        self._announce("running")
        self._observed = clock.now()
        return self._observe(), {}

    def step(self, actions: Tensor | np.ndarray) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Execute the policy's action (1, A), or the person's action in its place, for one control period."""
        wanted = torch.as_tensor(actions, dtype=torch.float32)
        self.inference.add(clock.now() - self._observed)
        decision = self.arbiter.decide(wanted, self.hold_action())
        self._tally["takeovers"] += decision.takeover
        if self._note_change("operator", decision.phase.value):
            self._publish("running")
        if decision.operator is not None or self._noted.get("teleop") == "heard":
            self._note_change("teleop", "silent" if decision.operator is None else "heard")
        action = decision.action
        if decision.phase is Phase.STOPPED:
            self.loop.stop(OPERATOR)
        if not action.isfinite().all():  # the shield will reject it and hold
            self.loop.events.add("nonfinite action")
        target = self.pipeline.target(self.state, action)
        posted, changed = False, 0
        if decision.phase is Phase.PAUSED:
            self.loop.events.add("operator lost")
        elif self._fresh():
            posted = self.loop.set_goal(target.command.values, float(target.gripper), self.period)
            self.reference, changed = target.reference if posted else self.reference, self.loop.changed
            if posted and self.pictures.pictures:
                self.picture_ages.add(1e-9 * clock.ros_time() - self.pictures.used)
        changed |= 0 if posted else HELD
        self.note_grip()
        before, age = self.state, self.state_age
        self.last_action = action.clamp(-1, 1) if posted else self.hold_action()
        self.ticker.wait()
        self.steps += 1
        self._steer(decision.operator)
        self.state = self.read()
        if self._note_change("instruction", self.instruction()) and self.instructions:
            self._publish("running")
        self._observed = clock.now()
        if self.loop.sinks:
            self._note_change("guard", self.driver.objection(self._observed) or "passes commands on")
        outcome = self.judge(self.state, decision)
        truncated = outcome.done and not outcome.terminated
        operator = decision.operator
        infos = {
            "success": torch.tensor([outcome.success]),
            "executed": self.last_action,
            "policy_action": wanted,
            "intervention": torch.tensor([decision.phase is Phase.CORRECTING and posted]),
            "takeover": torch.tensor([decision.takeover]),
            "marked": torch.tensor([operator is not None and (operator.success or operator.failure)]),
            "discarded": torch.tensor([outcome.by_person or (operator is not None and operator.discards)]),
            "handed_back": decision.phase is Phase.HANDING_BACK,
            "episode_steps": torch.tensor([self.steps]),
        }
        if self.instructions:
            infos["instruction"] = [self.judge.judged_instruction]
        if metrics := self.judge.tracking(before):
            infos["metrics"] = metrics
        instruction, observation = self._observed_instruction, self._observe()
        self.stream.step(
            StepRecord(
                self.pipeline.observer(before), wanted, self.last_action, float(outcome.success), outcome.success,
                outcome.done, truncated, bool(infos["intervention"]), decision.takeover, bool(infos["marked"]),
                bool(infos["discarded"]), self.steps, instruction, changed, age,
            )
        )  # fmt: skip
        if outcome.done:
            self.loop.resting = True
            self._tally["ended"], self._tally["won"] = self._tally["ended"] + 1, self._tally["won"] + outcome.success
            self._announce("success" if outcome.success else "failure")
            infos["final_obs"], infos["_final_obs"] = observation, torch.tensor([True])
        flags = torch.tensor([outcome.terminated]), torch.tensor([truncated])
        return observation, torch.tensor([float(outcome.success)]), *flags, infos

    def abandon(self) -> None:
        """End the running episode without a result; the robot holds until `reset`."""
        self.loop.resting = True

    def close(self, **kwargs: Any) -> None:
        """Deactivate the robot."""
        self.deactivate()

    # ---- parts -------------------------------------------------------------------------------------------------
    def _rehearse(self) -> None:
        """Compute a control period without the policy and discard the result, because first calls are slow."""
        state = self.read()
        if self.steering is not None and self.steering.schedule is not None:
            self.steering.schedule(self.seed, self.interface.horizon)
        self.pipeline.observer(state)
        self.pipeline.target(state, self.hold_action())
        self.judge.rehearse(state)

    def _steer(self, operator: Operator | None) -> None:
        """Update the velocity command: zero in an episode's last second, as lying down needs all feet on the ground."""
        if self.steering is not None:
            length, elapsed = self.interface.horizon * self.period, self.steps * self.period
            self.command = self.steering(operator, self.seed, self.steps, length - elapsed < min(1.0, 0.1 * length))
            target = [round(value, 3) for value in self.steering.target[0].tolist()]
            self._note_change("command", {"from": self.steering.command_source, "asked": target})

    def _observe(self) -> dict[str, Tensor]:
        state = {"observation.state": self.pipeline.observer(self.state)}
        state |= self.instructions.read() if self.instructions else {}
        self._observed_instruction = self.instructions.text if self.instructions else ""
        pictures = self.pictures.read(self.loop.safety.lost_timeout)
        return state | {picture.key: pictures[picture.key] for picture in self.interface.pictures}

    def _note_change(self, event: str, what: Any) -> bool:
        """Note an event's value if it differs from the event's last value; return whether it differs."""
        if self._noted.get(event) == what:
            return False
        self._noted[event] = what
        self.note(event, what)
        return True

    def _announce(self, phase: str) -> None:
        self.note("phase", phase)
        self._publish(phase)

    def _publish(self, phase: str) -> None:
        control = self.arbiter.phase.value
        self.announcer.publish(Episode(self.episode, phase, self.instruction(), control, **self._tally).message())

    def summary(self) -> dict[str, Any]:
        """Return loop timing, inference latency, shield events, rejected messages and guard counts."""
        guard = {"guard": self.driver.damped if self._damped is None else self._damped} if self.loop.sinks else {}
        heard = self.instructions
        instructions = {"instructions": {"changed": heard.changes, "refused": heard.refused}} if heard else {}
        own: dict[str, Any] = {"inference_ms": self.inference.milliseconds(), "rejected": self.driver.rejected}
        if self.pictures.pictures:
            own["picture_age_ms"] = self.picture_ages.milliseconds()
        return self.loop.summary() | own | instructions | guard
