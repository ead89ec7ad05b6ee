"""The policy's plan for viewers: the tool's path that the rest of its chunk asks for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from real.bus import make, qos
from real.bus.stamps import stamp
from real.drivers.names import frames
from real.episode.rig import Rig
from real.topics import PLAN_TOPIC
from robot_rl.interface.control import JointPositionController
from robot_rl.interface.kinematics import Kinematics
from robot_rl.interface.rotation import matrix_to_quat

PATH, POSE = "nav_msgs/msg/Path", "geometry_msgs/msg/PoseStamped"


class Plan:
    """Publisher of an arm's plan, once per chunk; without a subscriber it computes nothing."""

    def __init__(self, rig: Rig):
        robot, controller = rig.pipeline.robot, rig.pipeline.controller
        self._rig, self._publisher = rig, None
        if robot.tool is None or not (controller.twist_limit.any() or isinstance(controller, JointPositionController)):
            return
        self._kinematics = Kinematics(robot)
        self._base = frames(rig.node, robot)[0]
        self._publisher = rig.node.publisher(PATH, PLAN_TOPIC, qos.VIEWER)

    def __call__(self, actions: Tensor) -> None:
        """Publish the plan of a chunk's actions (H, A) in [-1, 1], the next one first."""
        if self._publisher is None or not self._publisher.matched:
            return
        position, rotation = self._path(self._rig.state.joint_position, actions.cpu())
        header: dict[str, Any] = {"frame_id": self._base, "stamp": stamp()}
        poses = []
        for place, quat in zip(position.tolist(), matrix_to_quat(rotation).tolist(), strict=True):
            at, turned = dict(zip("xyz", place, strict=True)), dict(zip("wxyz", quat, strict=True))
            poses.append(make(POSE, header=header, pose={"position": at, "orientation": turned}))
        self._publisher.publish(make(PATH, header=header, poses=poses))

    def _path(self, joints: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tool's positions (H + 1, 3) and rotations (H + 1, 3, 3) from the measured `joints` (1, J) on."""
        controller = self._rig.pipeline.controller
        if isinstance(controller, JointPositionController):
            asked = controller.actions.to_physical(actions)[:, : controller.joints]
            moved = joints + asked.cumsum(0) if controller.config.step else asked
            return self._kinematics.forward(torch.cat([joints, moved]))
        position, rotation = self._kinematics.forward(joints)
        steps = controller.to_twist(actions)[0][:, :3].clamp(-1, 1) * controller.twist_limit[:3]
        position = torch.cat([position, position + steps.cumsum(0)])
        return position, rotation.expand(len(position), 3, 3)  # the tool's turns are not drawn
