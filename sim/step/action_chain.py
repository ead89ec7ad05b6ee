"""Joint commands of a control period: actions pass through controller and shield."""

from dataclasses import replace

import torch
from torch import Tensor

from robot_rl.interface.pipeline import Pipeline
from robot_rl.interface.shield import JointShield, as_bits
from robot_rl.interface.state import ABSENT, RobotState
from robot_rl.interface.stopping import Motion
from robot_rl.util.rows import Rows

REASONS = ("nonfinite", "position", "workspace", "collision")
"""Reasons for which the shield changes a goal."""


class ActionChain(Rows):
    """Goals and joint commands of n simulations; a real robot's command loop has the same state."""

    ROWS = ("goal", "command", "velocity", "gripper", "last_action", "reference")

    def __init__(self, pipeline: Pipeline, num_envs: int, tick: float, ticks: int):
        """A control period has `ticks` commands, `tick` s apart."""
        self.pipeline, self.tick, self.ticks = pipeline, tick, ticks
        joints, actions, device = len(pipeline.robot.joints), pipeline.actions.size, pipeline.device
        self.goal, self.command, self.velocity = (torch.zeros(num_envs, joints, device=device) for _ in range(3))
        """Last goal that the shield admitted, last joint command, and velocity of that command: (n, J), rad, rad/s."""
        self.gripper = torch.zeros(num_envs, 1, device=device)  # target width of the gripper (n, 1), m
        self.last_action = torch.zeros(num_envs, actions, device=device)  # executed action (n, A) in [-1, 1]
        self.reference = pipeline.controller.reference(num_envs)
        """See `RobotState.reference`; (n, 0) for controllers without a reference."""
        if self.reference is ABSENT:
            self.reference = torch.zeros(num_envs, 0, device=device)
        self.events = torch.zeros(len(REASONS), dtype=torch.long, device=device)
        """Number of goals that the shield changed, per reason in `REASONS`."""
        self._changed = torch.zeros(len(REASONS), num_envs, dtype=torch.bool, device=device)
        """Newest goals that the shield changed, per reason."""

    def reset(self, ids: Tensor) -> None:
        """Clear the last action and open the gripper of robots `ids`."""
        robot = self.pipeline.robot
        self.last_action[ids] = 0.0
        if self.reference.shape[1]:
            self.reference[ids] = self.pipeline.controller.reference(len(ids))
        self.gripper[ids] = robot.gripper.width if robot.gripper else 0.0

    def refer(self, state: RobotState, ids: Tensor | None = None) -> RobotState:
        """Return measured states with the current reference, if the controller has a reference."""
        if not self.reference.shape[1]:
            return state
        return replace(state, reference=self.reference if ids is None else self.reference[ids])

    def hold(self, ids: Tensor, position: Tensor) -> None:
        """Set goal and command of robots `ids` to measured positions (k, J), and the command's velocity to 0."""
        self.goal[ids] = self.command[ids] = position
        self.velocity[ids] = 0.0

    @property
    def changed(self) -> Tensor:
        """Return why the shield changed the newest goals, as bits (n,), see `shield.REASONS`; 0: unchanged."""
        return as_bits(dict(zip(REASONS, self._changed, strict=True)))

    def decide(self, state: RobotState, actions: Tensor) -> Tensor:
        """Return shielded joint commands (n, ticks, J) for actions (n, A) at measured states. A non-finite action
        leaves goal and gripper unchanged; the last action is then the controller's `hold_action`."""
        pipeline = self.pipeline
        target = pipeline.target(state, actions)
        shield, motion = pipeline.shield, Motion(self.command, self.velocity, self.tick, self.ticks)
        assert isinstance(shield, JointShield), "simulated robots take joint positions"
        goal, events, commands, velocity = shield.plan(target.command.values, self.goal, motion)
        refused = events["nonfinite"][:, None]
        gripper = torch.where(refused, self.gripper, target.gripper)
        hold_action = pipeline.controller.hold_action(self.last_action, gripper)
        executed = torch.where(refused, hold_action, actions.clamp(-1, 1))
        if target.reference is not ABSENT:
            self.reference = torch.where(refused, self.reference, target.reference)
        self.goal, self.gripper, self.last_action = goal, gripper, executed
        self.command, self.velocity = commands[-1].clone(), velocity
        never = torch.zeros_like(events["nonfinite"])
        self._changed = torch.stack([events.get(reason, never) for reason in REASONS])
        self.events = self.events + self._changed.sum(1)
        return commands.transpose(0, 1)
