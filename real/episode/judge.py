"""Outcome of a robot's episode: success, failure, falls, and velocity tracking errors on a twin."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from real import clock
from real.bus import qos
from real.control.stop import BY_PERSON
from real.episode.homing import Homing
from real.episode.intervention import Decision, Phase
from real.episode.rig import Rig
from real.episode.standing import Standing
from real.topics import TRUTH_TOPIC
from robot_rl.interface.observation_spec import STATE
from robot_rl.interface.state import RobotState
from robot_rl.interface.success import SuccessHold


@dataclass(frozen=True)
class Outcome:
    """Outcome of an episode up to a control period."""

    success: bool
    terminated: bool
    """The task's tests or the person's mark ended the episode, not a stop or the time limit."""
    done: bool
    by_person: bool
    """A person stopped the robot."""


class Judge:
    """Apply the success test or classifier, the failure test, the person's marks and the time limit."""

    def __init__(self, rig: Rig, reset_procedure: Homing | Standing):
        self.rig, self.reset_procedure = rig, reset_procedure
        self.hold = SuccessHold(rig.classifier.hold if rig.classifier else rig.interface.success_hold)
        self.judged_instruction = ""
        """Instruction for which `hold` counts control periods of success."""
        self.cause = ""
        """Description of the stall that ended the episode; empty if no stall did."""
        base = rig.pipeline.robot.base
        self.truth = rig.node.subscribe("nav_msgs/msg/Odometry", TRUTH_TOPIC, qos.SENSOR) if base else None

    def reset(self) -> None:
        """Begin an episode."""
        self.cause = ""
        self.hold.reset()

    def __call__(self, state: RobotState, decision: Decision) -> Outcome:
        """Return the outcome of the episode up to this control period."""
        rig, loop = self.rig, self.rig.loop
        operator = decision.operator
        won = self._won(state) or (operator is not None and operator.success)
        failed, halted, legged = self._failed(state), bool(loop.stopped), loop.sinks
        by_person = decision.phase is Phase.STOPPED or loop.stopped in BY_PERSON  # that is not a task failure
        # A legged robot that is damped by anyone but a person falls, possibly after the last step.
        if legged and halted and not self.cause and (cause := rig.stall(0.5)):
            self.cause, rig.stalls = cause, rig.stalls + 1
            loop.explain(cause)
        rig.falls += not by_person and (failed or (legged and halted)) and not self.cause
        # A correction may run past the time limit, up to twice its length.
        timed_out = rig.steps >= rig.interface.horizon * (2 if decision.phase is Phase.CORRECTING else 1)
        marked = operator is not None and operator.failure
        lost = failed or marked or (legged and halted) or by_person
        endures = rig.pipeline.success is None and rig.classifier is None and timed_out
        success = (won or endures) and not (lost or halted or (legged and loop.is_damped))
        return Outcome(success, won or marked or (failed and not by_person), won or lost or timed_out, by_person)

    def _won(self, state: RobotState) -> bool:
        """Return whether the success test, or the classifier in its place, has been true for long enough."""
        instructions = self.rig.instructions
        if instructions and instructions.text != self.judged_instruction:  # a new instruction starts a new count
            self.judged_instruction = instructions.text
            self.hold.reset()
        return bool(self.hold(self._succeeds_now(state)))

    def _succeeds_now(self, state: RobotState) -> Tensor:
        """Return the success test's result now, (1,); false for old pictures and for instructions without a test."""
        rig, safety, nothing = self.rig, self.rig.loop.safety, torch.zeros(1, dtype=torch.bool)
        if rig.classifier is not None:
            known = rig.instructions is None or rig.classifier.knows(rig.instructions.text)
            if not known or rig.pictures.age() > safety.picture_timeout:
                return nothing
            observation = {STATE: rig.pipeline.observer(state)} | rig.pictures.read(safety.lost_timeout)
            return rig.classifier.sees_success(observation | (rig.instructions.read() if rig.instructions else {}))
        if rig.pipeline.success is None or (rig.instructions and rig.instructions.index is None):
            return nothing
        return rig.pipeline.success(state)

    def _failed(self, state: RobotState) -> bool:
        """Return the result of the task's failure test; false in a dry run. A robot does not measure its trunk's
        height: a twin's true height is used; without a twin, folded legs are also a failure."""
        if self.rig.pipeline.failure is None or self.rig.driver.dry_run:
            return False
        truth = self._truth()
        if truth is not None:
            position = truth.pose.pose.position
            state = replace(state, base_position=torch.tensor([[position.x, position.y, position.z]]))
        folded = truth is None and isinstance(self.reset_procedure, Standing) and self.reset_procedure.folded(state)
        return folded or bool(self.rig.pipeline.failure(state))

    def _truth(self) -> Any | None:
        """Return a twin's newest true Odometry; None on a real robot, or if the message is too old."""
        sample = self.truth.latest if self.truth else None
        if sample is None or clock.now() - sample.received > self.rig.loop.safety.state_timeout:
            return None
        return sample.msg

    def rehearse(self, state: RobotState) -> None:
        """Compute everything that depends on the state and discard the result."""
        self._failed(state)
        self.tracking(state)

    def tracking(self, before: RobotState) -> dict[str, Tensor]:
        """Return the errors of a twin's trunk velocity from the command in `before`, (1,) each, as in simulation."""
        truth = self._truth() if self.rig.pipeline.command.fields else None
        if truth is None:
            return {}
        linear, angular = truth.twist.twist.linear, truth.twist.twist.angular
        error = torch.tensor([[linear.x, linear.y, angular.z]]) - before.command
        return {"velocity_error": error[:, :2].norm(dim=1), "yaw_error": error[:, 2].abs()}
