"""A robot as a vector environment of one: the same contract as simulation, at the pace of the clock."""

from __future__ import annotations

import gc
import json
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from real.bus import Node, make, qos
from real.clock import Ticker
from real.intervention import Arbiter, Phase
from real.loop import CommandLoop, SafetyConfig
from real.robots.arm import ArmDriver, NotReady
from real.teleop.commands import Operator
from robot_rl.interface import Interface, Pipeline
from robot_rl.state import RobotState

logger = logging.getLogger(__name__)
RESET_TOPIC = "twin/reset"
EPISODE_TOPIC = "episode"
"""std_msgs/String, JSON: phase and number of the running episode, for operators and recorders."""


class RobotEnv(VectorEnv):
    """One robot behind its topics. `step` returns one control period after the last one returned.

    Differences from `sim.env.TaskEnv` that follow from there being one real robot: `reset` moves the arm home through
    the shield and waits for the object; a finished episode is reset by the next `step`'s caller through `reset`
    (autoreset is disabled), since nobody wants a robot to start moving by itself.
    """

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012
    num_envs = 1

    def __init__(
        self,
        node: Node,
        interface: Interface,
        *,
        cameras: tuple[str, ...] = (),
        arbiter: Arbiter | None = None,
        dry_run: bool = False,
        safety: SafetyConfig | None = None,
        on_step: Callable[[dict[str, Any]], None] | None = None,
    ):
        self.node, self.pipeline = node, Pipeline(interface)
        self.interface = interface
        self.driver = ArmDriver(node, self.pipeline.robot, self.pipeline.observer.objects, cameras, dry_run)
        self.arbiter = arbiter or Arbiter(None)
        self.loop = CommandLoop(self.driver, self.pipeline, safety)
        self.on_step = on_step
        size = self.pipeline.observer.spec.size
        self.single_action_space = gym.spaces.Box(-1.0, 1.0, (self.pipeline.actions.size,), np.float32)
        self.single_observation_space = gym.spaces.Dict(
            {"observation.state": gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)}
        )
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, 1)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, 1)
        self.period = 1 / interface.controller.rate
        self.last_action = torch.zeros(1, self.pipeline.actions.size)
        self.placer = node.publisher("std_msgs/msg/String", RESET_TOPIC, qos.DEFAULT)
        self.announcer = node.publisher("std_msgs/msg/String", EPISODE_TOPIC, qos.LATCHED)
        self.inference: list[float] = []
        """Seconds from observation to action of each control period."""
        self.episode = -1
        self.loop.arm()

    # ---- gymnasium ---------------------------------------------------------------------------------------------
    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Open the gripper, go home, have the objects placed, and return the first observation."""
        self.episode += 1
        gc.collect(1)
        self._announce("resetting")
        if self.loop.stopped:
            self._await_release()
        if not self.driver.dry_run:
            self._go_home()
            self._place(self.episode if seed is None else seed)
        self.arbiter.reset()
        self.last_action = torch.zeros_like(self.last_action)
        self.steps = self.held = 0
        self.ticker = Ticker(self.period)
        self.state = self._read()
        self._announce("running")
        self._observed = time.monotonic()
        return self._observe(), {}

    def step(self, actions: Tensor | np.ndarray) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """Execute the policy's action (1, A), or the person's in its place, for one control period."""
        wanted = torch.as_tensor(actions, dtype=torch.float32)
        self.inference.append(time.monotonic() - self._observed)
        decision = self.arbiter.decide(wanted, self.last_action)
        action = decision.action
        if decision.phase is Phase.STOPPED:
            self.loop.stop("operator")
        # An action that is not finite stays so up to the shield, which refuses it, holds, and counts.
        finite = bool(action.isfinite().all())
        if not finite:
            self.loop.events.add("nonfinite action")
        target = self.pipeline.controller(self.state, self.pipeline.actions.to_physical(action))
        if decision.phase is Phase.PAUSED:
            self.loop.events.add("operator lost")
        elif self._fresh():
            self.loop.set_goal(target.position, float(target.gripper), self.period)
        before = self.state
        self.last_action = action.clamp(-1, 1) if finite else self.last_action
        self.ticker.wait()
        self.state = self._read()
        self._observed = time.monotonic()
        self.steps += 1
        operator = decision.operator
        self.held = self.held + 1 if bool(self.pipeline.success(self.state)) else 0
        marked = operator is not None and operator.success
        success = self.held >= self.interface.success_hold or marked
        failed = operator is not None and operator.failure
        correcting = decision.phase is Phase.CORRECTING
        # The clock does not cut a correction off, within reason.
        late = self.steps >= self.interface.horizon * (2 if correcting else 1)
        over = late or failed or decision.phase is Phase.STOPPED
        infos = {
            "success": torch.tensor([success]),
            "executed": self.last_action,
            "policy_action": wanted,
            "intervention": torch.tensor([correcting]),
            "takeover": torch.tensor([decision.takeover]),
            "handed_back": decision.phase is Phase.HANDING_BACK,
            "episode_steps": torch.tensor([self.steps]),
        }
        observation = self._observe()
        terminated, truncated = torch.tensor([success]), torch.tensor([over and not success])
        if self.on_step is not None:
            row = {"state": self.pipeline.observer(before), "reward": float(success), "done": bool(success or over)}
            self.on_step(infos | row)
        if success or over:
            self._announce("success" if success else "failure")
            infos["final_obs"], infos["_final_obs"] = observation, torch.tensor([True])
        return observation, terminated.float(), terminated, truncated, infos

    def close(self, **kwargs: Any) -> None:
        """Brake, hold and stop sending."""
        self.loop.close()

    def _await_release(self, timeout: float = 600.0) -> None:
        """A latched stop ends when the operator presses reset, with the dead-man and the stop released."""
        operator = self.arbiter.operator
        if operator is None:
            raise NotReady(f"the robot is stopped ({self.loop.stopped}); start again once it is safe")
        logger.warning("stopped (%s): press reset on the teleop device to go on", self.loop.stopped)
        deadline = time.monotonic() + timeout
        rate = Ticker(self.period)
        while time.monotonic() < deadline:
            rate.wait()
            self._read()
            hands = operator.read()
            if hands is not None and hands.reset and not hands.stop and not hands.held:
                self.loop.reset_stop()
                return
        raise NotReady(f"the robot is stopped ({self.loop.stopped}) and nobody pressed reset within {timeout:g} s")

    # ---- parts -------------------------------------------------------------------------------------------------
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

    def _heed_stop(self) -> Operator | None:
        """Read the operator's hands; the stop counts between episodes too, when the arm moves fastest."""
        hands = self.arbiter.operator.read() if self.arbiter.operator else None
        if hands is not None and hands.stop:
            self.loop.stop("operator")
            raise NotReady("the operator pressed stop")
        return hands

    def _read(self) -> RobotState:
        self.loop.check()
        reading = self.driver.reading()
        if reading is not None and time.monotonic() - reading.received > self.loop.safety.lost_timeout:
            raise NotReady(
                f"no joint state for {self.loop.safety.lost_timeout:g} s: the robot holds; is its driver still running?"
            )
        state = self.driver.state(self.last_action)
        if state is None:
            raise NotReady("the robot's state is incomplete; is its driver still running?")
        return state

    def _observe(self) -> dict[str, Tensor]:
        return {"observation.state": self.pipeline.observer(self.state)}

    def _go_home(self, timeout: float = 8.0) -> None:
        robot = self.pipeline.robot
        home = torch.tensor(robot.home)[None]
        width = robot.gripper.width if robot.gripper else 0.0
        # A short way up first, so that an object in the open fingers is left behind and not dragged along.
        deadline = time.monotonic() + timeout
        rate = Ticker(self.period)
        settled = 0
        while settled < 3:
            if time.monotonic() > deadline:
                raise NotReady(
                    f"the robot did not reach its home position within {timeout:g} s; is something in its way?"
                )
            self._heed_stop()
            state = self._read()
            error = home - state.joint_position
            reach = 0.15 / error.abs().max().clamp_min(0.15)
            # Limits of the shield shape the speed; the goal leads the measured posture by at most 0.15 rad.
            self.loop.set_goal(state.joint_position + reach * error, width, self.period)
            settled = settled + 1 if float(error.abs().max()) < 0.03 else 0
            rate.wait()

    def _place(self, seed: int, timeout: float = 5.0) -> None:
        """Ask the twin to put the objects back; on a robot, ask the operator, who answers with the reset button."""
        if self.node.wait_for(lambda: self.placer.matched > 0, 0.5):
            before = {name: s.latest.count if s.latest else 0 for name, s in self.driver.poses.items()}
            self.placer.publish(make("std_msgs/msg/String", data=json.dumps({"seed": seed})))

            def placed(hands: Operator | None) -> bool:
                # Poses that are on their way are of before; the sixth one is not.
                poses = self.driver.poses.items()
                return all(s.latest is not None and s.latest.count >= before[name] + 6 for name, s in poses)

            self._hold_until(placed, timeout, "object pose")
        else:
            logger.warning("place the object and press reset on the teleop device")
            operator = self.arbiter.operator
            if operator is None:
                raise NotReady("nobody can place the object: start the twin, or a teleop device with a reset button")
            self._hold_until(lambda hands: hands is not None and hands.reset, 600.0, "reset button")

    def _hold_until(self, ready: Callable[[Operator | None], bool], timeout: float, what: str) -> None:
        """Keep the goal fresh at home while waiting."""
        rate = Ticker(self.period)
        deadline = time.monotonic() + timeout
        home = torch.tensor(self.pipeline.robot.home)[None]
        width = self.pipeline.robot.gripper.width if self.pipeline.robot.gripper else 0.0
        while not ready(self._heed_stop()):  # one reader: a press is told only once
            if time.monotonic() > deadline:
                raise NotReady(f"waited {timeout:g} s for the {what}")
            self._read()
            self.loop.set_goal(home, width, self.period)
            rate.wait()

    def _announce(self, phase: str) -> None:
        self.announcer.publish(make("std_msgs/msg/String", data=json.dumps({"episode": self.episode, "phase": phase})))

    def summary(self) -> dict[str, Any]:
        """Loop timing, inference latency and shield events for the report."""
        ms = np.array(self.inference or [0.0]) * 1e3
        inference = {"p50": float(np.percentile(ms, 50)), "p99": float(np.percentile(ms, 99)), "max": float(ms.max())}
        return self.loop.summary() | {"inference_ms": inference}
