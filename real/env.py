"""A robot as a vector environment of one: the same contract as simulation, at the pace of the clock."""

from __future__ import annotations

import gc
import json
import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from real.bus import Node, make, qos
from real.clock import Ticker
from real.histogram import Histogram
from real.homing import Homing
from real.intervention import Arbiter, Decision, Phase
from real.loop import CommandLoop, SafetyConfig
from real.robots import open_driver
from real.robots.base import NotReady
from real.standing import Standing
from real.steering import Schedule, Steering
from real.teleop.commands import Operator, OperatorInput
from real.topics import EPISODE_TOPIC, RESET_TOPIC, TRUTH_TOPIC
from robot_rl.interface.pipeline import Interface, Pipeline
from robot_rl.interface.state import RobotState

logger = logging.getLogger(__name__)


class RobotEnv(VectorEnv):
    """One robot behind its topics. `step` returns one control period after the last one returned.

    Differences from `sim.env.TaskEnv` that follow from there being one real robot: `reset` moves an arm home through
    the shield and waits for the object, and stands a walking robot up; a finished episode is reset by the next `step`'s
    caller through `reset` (autoreset is disabled), since nobody wants a robot to start moving by itself.
    """

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012
    num_envs = 1

    def __init__(
        self,
        node: Node,
        interface: Interface,
        *,
        cameras: tuple[str, ...] = (),
        operator: OperatorInput | None = None,
        dry_run: bool = False,
        safety: SafetyConfig | None = None,
        schedule: Schedule | None = None,
        on_step: Callable[[dict[str, Any]], None] | None = None,
    ):
        """Args: `operator`: the person who may take over or steer; `schedule`: commands a walking robot while neither
        a person nor `cmd_vel` does."""
        self.node, self.pipeline = node, Pipeline(interface)
        self.interface, self.period = interface, 1 / interface.controller.rate
        robot = self.pipeline.robot
        self.driver = open_driver(node, robot, self.pipeline.observer.objects, cameras, dry_run)
        self.steering: Steering | None = None
        if self.pipeline.command.fields:
            self.steering = Steering(node, self.pipeline.command, self.period, schedule)
        self.arbiter = Arbiter(operator, self.pipeline.controller, steers=self.steering is not None)
        self.truth = node.subscribe("nav_msgs/msg/Odometry", TRUTH_TOPIC, qos.SENSOR) if robot.base else None
        self.loop = CommandLoop(self.driver, self.pipeline, safety)
        self.loop.resting = True
        self.loop.note = lambda event, what: self.note(event, what)
        self.note: Callable[[str, Any], None] = lambda _event, _what: None
        """Hears of what is not the policy's doing: phases, stops, resets, commands, the person's part, the guard."""
        self._noted: dict[str, Any] = {}
        self.stance: Homing | Standing = Standing(self) if robot.base else Homing(self)
        self.on_step = on_step
        size = self.pipeline.observer.spec.size
        self.single_action_space = gym.spaces.Box(-1.0, 1.0, (self.pipeline.actions.size,), np.float32)
        self.single_observation_space = gym.spaces.Dict(
            {"observation.state": gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)}
        )
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, 1)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, 1)
        self.last_action = torch.zeros(1, self.pipeline.actions.size)
        self.command = torch.zeros(1, self.pipeline.command.size)
        self.reference = self.pipeline.controller.reference(1)
        """(1, R) see `RobotState.reference`."""
        self.placer = node.publisher("std_msgs/msg/String", RESET_TOPIC, qos.DEFAULT)
        self.announcer = node.publisher("std_msgs/msg/String", EPISODE_TOPIC, qos.LATCHED)
        self.inference = Histogram()
        """Time from observation to action of the control periods, s."""
        self.gripped_at = math.inf
        """Lowest height of the tool since the gripper was told to shut, m; infinite while it is open."""
        self.episode, self.falls, self.steps = -1, 0, 0
        self._damped: dict[str, int] | None = None
        self.loop.arm()

    # ---- gymnasium ---------------------------------------------------------------------------------------------
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Get the robot ready (see `Homing` and `Standing`) and return the first observation."""
        self.driver.check_alone()
        self.episode += 1
        gc.collect(1)
        self._announce("resetting")
        self.seed = self.episode if seed is None else seed
        self.stance.begin(self.seed)
        self.loop.resting = False
        self.arbiter.reset()
        self.last_action, self.gripped_at = torch.zeros_like(self.last_action), math.inf
        self.reference = self.pipeline.controller.reference(1)
        self.steps = self.held = 0
        self.ticker = Ticker(self.period)
        self._steer(None)
        self.state = self.read()
        self._announce("running")
        self._observed = time.monotonic()
        return self._observe(), {}

    def step(self, actions: Tensor | np.ndarray) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Execute the policy's action (1, A), or the person's in its place, for one control period."""
        wanted = torch.as_tensor(actions, dtype=torch.float32)
        self.inference.add(time.monotonic() - self._observed)
        decision = self.arbiter.decide(wanted, self._still())
        self._note_change("operator", decision.phase.value)
        action = decision.action
        if decision.phase is Phase.STOPPED:
            self.loop.stop("operator")
        # An action that is not finite stays so up to the shield, which refuses it, holds, and counts.
        if not action.isfinite().all():
            self.loop.events.add("nonfinite action")
        target = self.pipeline.target(self.state, action)
        posted = False
        if decision.phase is Phase.PAUSED:
            self.loop.events.add("operator lost")
        elif self._fresh():
            posted = self.loop.set_goal(target.position, float(target.gripper), self.period)
            self.reference = target.reference if posted else self.reference
        self._note_grip()
        before = self.state
        self.last_action = action.clamp(-1, 1) if posted else self._still()
        self.ticker.wait()
        self.steps += 1
        self._steer(decision.operator)
        self.state = self.read()
        self._observed = time.monotonic()
        self._note_change("guard", self.driver.objection(self._observed) or "passes commands on")
        success, terminated, over = self._judge(decision)
        correcting, hands = decision.phase is Phase.CORRECTING, decision.operator
        terminated |= hands is not None and hands.failure  # given up: what could have come is worth nothing
        infos = {
            "success": torch.tensor([success]),
            "executed": self.last_action,
            "policy_action": wanted,
            "intervention": torch.tensor([correcting and posted]),
            "takeover": torch.tensor([decision.takeover]),
            "marked": torch.tensor([hands is not None and (hands.success or hands.failure)]),
            "handed_back": decision.phase is Phase.HANDING_BACK,
            "episode_steps": torch.tensor([self.steps]),
        }
        if metrics := self._tracking(before):
            infos["metrics"] = metrics
        observation = self._observe()
        if self.on_step is not None:
            row = {"state": self.pipeline.observer(before), "reward": float(success), "done": over}
            row["truncated"] = over and not terminated
            self.on_step(infos | row)
        if over:
            self.loop.resting = True
            self._announce("success" if success else "failure")
            infos["final_obs"], infos["_final_obs"] = observation, torch.tensor([True])
        flags = torch.tensor([terminated]), torch.tensor([over and not terminated])
        return observation, torch.tensor([float(success)]), *flags, infos

    def close(self, **kwargs: Any) -> None:
        """Brake and hold, or lie down and damp, and stop sending."""
        try:
            self.stance.end()
        finally:
            self._damped = self.driver.damped  # the guard damps once more, for we fall silent
            self.loop.close()

    # ---- parts -------------------------------------------------------------------------------------------------
    def _judge(self, decision: Decision) -> tuple[bool, bool, bool]:
        """Success, terminated by the task or a person's mark, and over for whatever reason."""
        operator, test = decision.operator, self.pipeline.success
        self.held = self.held + 1 if test and bool(test(self.state)) else 0
        won = (test is not None and self.held >= self.interface.success_hold) or (
            operator is not None and operator.success
        )
        failed, halted, walks = self._failed(), bool(self.loop.stopped), self.loop.walks
        stopped = decision.phase is Phase.STOPPED or (walks and halted)
        unasked = self.loop.stopped != "operator"  # legs that a person let fold have not failed the task
        # Whatever damps a walking robot unasked makes it go down, if only after the episode's last step.
        self.falls += unasked and (failed or (walks and halted))
        marked = operator is not None and operator.failure
        # The clock does not cut a correction off, within reason.
        late = self.steps >= self.interface.horizon * (2 if decision.phase is Phase.CORRECTING else 1)
        bad = failed or stopped or marked
        success = (won or (test is None and late)) and not (bad or halted or (walks and self.loop.limp))
        return success, won or (failed and unasked), won or bad or late

    def _failed(self) -> bool:
        """The task's failure test, which no dry run fails: nothing is its doing there. A robot's own sensors do not
        know its height: a twin's truth and, on a robot, the posture of its legs do."""
        if self.pipeline.failure is None or self.driver.dry_run:
            return False
        state, truth = self.state, self._truth()
        if truth is not None:
            at = truth.pose.pose.position
            state = replace(state, base_position=torch.tensor([[at.x, at.y, at.z]]))
        folded = truth is None and isinstance(self.stance, Standing) and self.stance.folded(state)
        return folded or bool(self.pipeline.failure(state))

    def _truth(self) -> Any | None:
        """The Odometry of a twin's trunk; None on a robot, and where it is old."""
        sample = self.truth.latest if self.truth else None
        if sample is None or time.monotonic() - sample.received > self.loop.safety.state_timeout:
            return None
        return sample.msg

    def _note_grip(self) -> None:
        gripper = self.pipeline.robot.gripper
        if gripper is None or self.loop.width > gripper.width / 2:
            self.gripped_at = math.inf
        else:
            self.gripped_at = min(self.gripped_at, float(self.state.tool_position[0, 2]))

    def _still(self) -> Tensor:
        """Return the action (1, A) that holds, as executed when a goal is refused."""
        return self.pipeline.controller.still(self.last_action, torch.tensor([[self.loop.width]]))

    def _steer(self, hands: Operator | None) -> None:
        """Ask for what the person wants, for nothing in the last second: it lies down well from four feet only."""
        if self.steering is not None:
            left = (self.interface.horizon - self.steps) * self.period
            ends = left < min(1.0, 0.1 * self.interface.horizon * self.period)
            self.command = self.steering(hands, self.seed, self.steps, rest=ends)
            asked = [round(value, 3) for value in self.steering.wanted[0].tolist()]
            self._note_change("command", {"from": self.steering.commander, "asked": asked})

    def _tracking(self, before: RobotState) -> dict[str, Tensor]:
        """How far a twin's trunk is from what was asked, (1,) each, as the simulation measures it; empty elsewhere."""
        truth = self._truth() if self.steering else None
        if truth is None:
            return {}
        linear, angular = truth.twist.twist.linear, truth.twist.twist.angular
        real = torch.tensor([[linear.x, linear.y, angular.z]])
        error = real - before.command
        return {"velocity_error": error[:, :2].norm(dim=1), "yaw_error": error[:, 2].abs()}

    def await_release(self, timeout: float = 600.0) -> None:
        """A latched stop ends when the operator presses reset, with the dead-man and the stop released."""
        operator = self.arbiter.operator
        if operator is None or not self.attended():
            raise NotReady(
                f"the robot is stopped ({self.loop.stopped}) and no teleop device is there to reset it; "
                "start again once it is safe"
            )
        logger.warning("stopped (%s): press reset on the teleop device to go on", self.loop.stopped)
        deadline = time.monotonic() + timeout
        rate = Ticker(self.period)
        while time.monotonic() < deadline:
            rate.wait()
            self.read()
            hands = operator.read()
            if hands is not None and hands.reset and not hands.stop and not hands.held:
                self.loop.reset_stop()
                return
        raise NotReady(f"the robot is stopped ({self.loop.stopped}) and nobody pressed reset within {timeout:g} s")

    @property
    def on_twin(self) -> bool:
        """What reports the joints also puts itself back when asked to: no robot does. Others may listen to that, too,
        who record a bag for instance."""
        return not set(self.driver.joints.writers()).isdisjoint(self.placer.readers())

    def attended(self) -> bool:
        """Whether a teleop device is open; one that has just started is found within half a second."""
        return self.node.wait_for(lambda: self.arbiter.attended, 0.5)

    def look(self) -> Operator | None:
        """Read the operator's hands between episodes; a stop counts there too."""
        hands = self.arbiter.operator.read() if self.arbiter.operator else None
        if hands is not None and hands.stop:
            self.loop.stop("operator")
        return hands

    def read(self) -> RobotState:
        """The robot's newest state and what is asked of it; NotReady if it fell silent or the loop ended."""
        self.loop.check()
        reading, lost = self.driver.reading(), self.loop.safety.lost_timeout
        if reading is not None and time.monotonic() - reading.received > lost:
            reading = self.driver.next_reading(self.loop.safety.state_timeout)
        if reading is not None and time.monotonic() - reading.received > lost:
            kept = "is damped" if self.loop.walks else "holds"
            raise NotReady(f"no joint state for {lost:g} s: the robot {kept}; is its driver still running?")
        state = self.driver.state(self.last_action)
        if state is None:
            raise NotReady("the robot's state is incomplete; is its driver still running?")
        if self.steering is not None:
            state.command = self.command
        state.reference = self.reference
        if self.interface.gait:
            state.phase = self.pipeline.phase(torch.tensor([self.steps]))
        return state

    def _fresh(self) -> bool:
        """The objects were seen lately; if not, no new goal is posted and the loop comes to hold."""
        age = time.monotonic() - self.driver.object_poses()[1]
        if age <= self.loop.safety.object_timeout:
            return True
        self.loop.events.add("stale object")
        return False

    def stale_pictures(self, cameras: Iterable[str]) -> int:
        """How many of these cameras have not sent a picture lately; each is counted as an event."""
        now = time.monotonic()
        stale = sum(now - self.driver.image_received(name) > self.loop.safety.picture_timeout for name in cameras)
        self.loop.events.add("stale picture", stale)
        return stale

    def _observe(self) -> dict[str, Tensor]:
        return {"observation.state": self.pipeline.observer(self.state)}

    def _note_change(self, event: str, what: Any) -> None:
        if self._noted.get(event) != what:
            self._noted[event] = what
            self.note(event, what)

    def _announce(self, phase: str) -> None:
        self.note("phase", phase)
        self.announcer.publish(make("std_msgs/msg/String", data=json.dumps({"episode": self.episode, "phase": phase})))

    def summary(self) -> dict[str, Any]:
        """For the report: loop timing, inference latency, shield events, refused messages, how often a guard damped."""
        rejected = {"states": self.driver.rejected, "poses": self.driver.rejected_poses}
        guard = {"guard": self.driver.damped if self._damped is None else self._damped} if self.loop.walks else {}
        return self.loop.summary() | {"inference_ms": self.inference.milliseconds(), "rejected": rejected} | guard
