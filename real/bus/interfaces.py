"""Definitions of services and actions, which rosbags lacks, and the types that ROS derives from them.

ROS has no type of its own for a service's request: `pkg/srv/Name` stands for `pkg/srv/Name_Request` and
`pkg/srv/Name_Response`. An action is three services and two topics, see `real.bus.action`.
"""

import re
from typing import Any

from rosbags.interfaces import Nodetype
from rosbags.typesys import get_types_from_msg

from real.bus.names import BusError

_PARTS = {"msg": ("",), "srv": ("_Request", "_Response"), "action": ("_Goal", "_Result", "_Feedback")}
_TRAJECTORY = "trajectory_msgs/JointTrajectory"
_POINT, _MULTI = f"{_TRAJECTORY}Point", "trajectory_msgs/MultiDOFJointTrajectoryPoint"
_GRIPPER = "float64 position\nfloat64 effort\nbool stalled\nbool reached_goal"
_DONE = "bool success\nstring message"

SERVICES = {
    "std_srvs/srv/Empty": "---",
    "std_srvs/srv/SetBool": f"bool data\n---\n{_DONE}",
    "std_srvs/srv/Trigger": f"---\n{_DONE}",
    "rcl_interfaces/srv/DescribeParameters": "string[] names\n---\nParameterDescriptor[] descriptors",
    "rcl_interfaces/srv/GetParameterTypes": "string[] names\n---\nuint8[] types",
    "rcl_interfaces/srv/GetParameters": "string[] names\n---\nParameterValue[] values",
    "rcl_interfaces/srv/ListParameters": "uint64 DEPTH_RECURSIVE=0\nstring[] prefixes\nuint64 depth\n---\n"
    "ListParametersResult result",
    "rcl_interfaces/srv/SetParameters": "Parameter[] parameters\n---\nSetParametersResult[] results",
    "rcl_interfaces/srv/SetParametersAtomically": "Parameter[] parameters\n---\nSetParametersResult result",
    "lifecycle_msgs/srv/ChangeState": "Transition transition\n---\nbool success",
    "lifecycle_msgs/srv/GetAvailableStates": "---\nState[] available_states",
    "lifecycle_msgs/srv/GetAvailableTransitions": "---\nTransitionDescription[] available_transitions",
    "lifecycle_msgs/srv/GetState": "---\nState current_state",
    "action_msgs/srv/CancelGoal": "GoalInfo goal_info\n---\nint8 ERROR_NONE=0\nint8 ERROR_REJECTED=1\n"
    "int8 ERROR_UNKNOWN_GOAL_ID=2\nint8 ERROR_GOAL_TERMINATED=3\nint8 return_code\nGoalInfo[] goals_canceling",
    "controller_manager_msgs/srv/ListControllers": "---\nControllerState[] controller",
    "controller_manager_msgs/srv/SwitchController": "int32 BEST_EFFORT=1\nint32 STRICT=2\nint32 AUTO=3\n"
    "int32 FORCE_AUTO=4\nstring[] activate_controllers\nstring[] deactivate_controllers\nint32 strictness\n"
    "bool activate_asap\nbuiltin_interfaces/Duration timeout\n---\nbool ok\nstring message",
    "example_interfaces/srv/AddTwoInts": "int64 a\nint64 b\n---\nint64 sum",
}

ACTIONS = {
    "control_msgs/action/FollowJointTrajectory": f"{_TRAJECTORY} trajectory\n"
    "trajectory_msgs/MultiDOFJointTrajectory multi_dof_trajectory\nJointTolerance[] path_tolerance\n"
    "JointComponentTolerance[] component_path_tolerance\nJointTolerance[] goal_tolerance\n"
    "JointComponentTolerance[] component_goal_tolerance\nbuiltin_interfaces/Duration goal_time_tolerance\n---\n"
    "int32 SUCCESSFUL=0\nint32 INVALID_GOAL=-1\nint32 INVALID_JOINTS=-2\nint32 OLD_HEADER_TIMESTAMP=-3\n"
    "int32 PATH_TOLERANCE_VIOLATED=-4\nint32 GOAL_TOLERANCE_VIOLATED=-5\nint32 error_code\nstring error_string\n---\n"
    f"std_msgs/Header header\nstring[] joint_names\n{_POINT} desired\n{_POINT} actual\n{_POINT} error\n"
    f"string[] multi_dof_joint_names\n{_MULTI} multi_dof_desired\n{_MULTI} multi_dof_actual\n{_MULTI} multi_dof_error",
    "control_msgs/action/GripperCommand": f"GripperCommand command\n---\n{_GRIPPER}\n---\n{_GRIPPER}",
    "control_msgs/action/ParallelGripperCommand": "sensor_msgs/JointState command\n---\n"
    "sensor_msgs/JointState state\nbool stalled\nbool reached_goal\n---\nsensor_msgs/JointState state",
    "example_interfaces/action/Fibonacci": "int32 order\n---\nint32[] sequence\n---\nint32[] sequence",
}


def parse(type_name: str, text: str) -> dict[str, Any]:
    """Return the field definitions of all types that a `.msg`, `.srv` or `.action` text defines, as rosbags has them.

    ``pkg/action/Name`` also defines the types of the action's services and of its feedback topic.
    """
    try:
        package, kind, name = type_name.split("/")
        parts = _PARTS[kind]
    except (ValueError, KeyError):
        raise BusError(f"type {type_name!r} is not valid: use pkg/msg/Name, pkg/srv/Name or pkg/action/Name") from None
    sections = re.split(r"^---\s*$", text, flags=re.MULTILINE)
    if len(sections) != len(parts):
        raise BusError(f"{type_name} has {len(sections)} sections, must have {len(parts)}; lines '---' part them")
    types: dict[str, Any] = {}
    for part, section in zip(parts, sections, strict=True):
        # Under `pkg/msg/`, because a name without a package means a message of the same package.
        (types[type_name + part],) = get_types_from_msg(section, f"{package}/msg/{name}{part}").values()
    if kind == "action":
        goal_id = ("goal_id", _named("unique_identifier_msgs/msg/UUID"))
        derived = {
            "_SendGoal_Request": [goal_id, ("goal", _named(f"{type_name}_Goal"))],
            "_SendGoal_Response": [("accepted", _base("bool")), ("stamp", _named("builtin_interfaces/msg/Time"))],
            "_GetResult_Request": [goal_id],
            "_GetResult_Response": [("status", _base("int8")), ("result", _named(f"{type_name}_Result"))],
            "_FeedbackMessage": [goal_id, ("feedback", _named(f"{type_name}_Feedback"))],
        }
        types |= {type_name + part: ([], fields) for part, fields in derived.items()}
    return types


def _named(type_name: str) -> Any:
    return (Nodetype.NAME, type_name)


def _base(name: str) -> Any:
    return (Nodetype.BASE, (name, 0))
