"""Message definitions missing from rosbags, as `.msg` text.

Field order and signedness define the wire format. Unitree's types follow the IDL of its SDK, not its `.msg` files,
because Cyclone compares them with the types that the robot announces.
"""

_POINT = "trajectory_msgs/JointTrajectoryPoint"
_MULTI = "trajectory_msgs/MultiDOFJointTrajectoryPoint"

CONTROL = {
    "JointJog": "std_msgs/Header header\nstring[] joint_names\nfloat64[] displacements\n"
    "float64[] velocities\nfloat64 duration",
    "JointTolerance": "string name\nfloat64 position\nfloat64 velocity\nfloat64 acceleration",
    "JointComponentTolerance": "uint16 X_AXIS=1\nuint16 Y_AXIS=2\nuint16 Z_AXIS=3\nuint16 TRANSLATION=4\n"
    "uint16 ROTATION=5\nstring joint_name\nuint16 component\nfloat64 position\nfloat64 velocity\nfloat64 acceleration",
    "JointTrajectoryControllerState": f"std_msgs/Header header\nstring[] joint_names\n{_POINT} reference\n"
    f"{_POINT} feedback\n{_POINT} error\n{_POINT} output\nstring[] multi_dof_joint_names\n"
    f"{_MULTI} multi_dof_reference\n{_MULTI} multi_dof_feedback\n{_MULTI} multi_dof_error\n"
    f"{_MULTI} multi_dof_output\nfloat64 speed_scaling_factor",
    "GripperCommand": "float64 position\nfloat64 max_effort",
    "InterfaceValue": "string[] interface_names\nfloat64[] values",
    "DynamicJointState": "std_msgs/Header header\nstring[] joint_names\nInterfaceValue[] interface_values",
    "DynamicInterfaceGroupValues": "std_msgs/Header header\nstring[] interface_groups\n"
    "InterfaceValue[] interface_values",
    "SingleDOFState": "string name\nfloat64 reference\nfloat64 feedback\nfloat64 feedback_dot\n"
    "float64 error\nfloat64 error_dot\nfloat64 time_step\nfloat64 output",
}

CONTROLLER_MANAGER = {
    "ChainConnection": "string name\nstring[] reference_interfaces",
    "ControllerState": "string name\nstring state\nstring type\nbool is_async\nuint16 update_rate\n"
    "string[] claimed_interfaces\nstring[] required_command_interfaces\nstring[] required_state_interfaces\n"
    "bool is_chainable\nbool is_chained\nstring[] exported_state_interfaces\nstring[] reference_interfaces\n"
    "ChainConnection[] chain_connections",
    "NamedLifecycleState": "string name\nlifecycle_msgs/State state",
    "ControllerManagerActivity": "std_msgs/Header header\nNamedLifecycleState[] controllers\n"
    "NamedLifecycleState[] hardware_components",
}

UR_DASHBOARD = {
    "SafetyMode": "uint8 NORMAL=1\nuint8 REDUCED=2\nuint8 PROTECTIVE_STOP=3\nuint8 RECOVERY=4\n"
    "uint8 SAFEGUARD_STOP=5\nuint8 SYSTEM_EMERGENCY_STOP=6\nuint8 ROBOT_EMERGENCY_STOP=7\nuint8 VIOLATION=8\n"
    "uint8 FAULT=9\nuint8 VALIDATE_JOINT_ID=10\nuint8 UNDEFINED_SAFETY_MODE=11\n"
    "uint8 AUTOMATIC_MODE_SAFEGUARD_STOP=12\nuint8 SYSTEM_THREE_POSITION_ENABLING_STOP=13\nuint8 mode",
}

UNITREE_GO = {
    "TimeSpec": "int32 sec\nuint32 nanosec",
    "MotorCmd": "uint8 mode\nfloat32 q\nfloat32 dq\nfloat32 tau\nfloat32 kp\nfloat32 kd\nuint32[3] reserve",
    "BmsCmd": "uint8 off\nuint8[3] reserve",
    "LowCmd": "uint8[2] head\nuint8 level_flag\nuint8 frame_reserve\nuint32[2] sn\nuint32[2] version\n"
    "uint16 bandwidth\nMotorCmd[20] motor_cmd\nBmsCmd bms_cmd\nuint8[40] wireless_remote\nuint8[12] led\n"
    "uint8[2] fan\nuint8 gpio\nuint32 reserve\nuint32 crc",
    "IMUState": "float32[4] quaternion\nfloat32[3] gyroscope\nfloat32[3] accelerometer\nfloat32[3] rpy\n"
    "uint8 temperature",
    "MotorState": "uint8 mode\nfloat32 q\nfloat32 dq\nfloat32 ddq\nfloat32 tau_est\nfloat32 q_raw\n"
    "float32 dq_raw\nfloat32 ddq_raw\nuint8 temperature\nuint32 lost\nuint32[2] reserve",
    "BmsState": "uint8 version_high\nuint8 version_low\nuint8 status\nuint8 soc\nint32 current\n"
    "uint16 cycle\nuint8[2] bq_ntc\nuint8[2] mcu_ntc\nuint16[15] cell_vol",
    "LowState": "uint8[2] head\nuint8 level_flag\nuint8 frame_reserve\nuint32[2] sn\nuint32[2] version\n"
    "uint16 bandwidth\nIMUState imu_state\nMotorState[20] motor_state\nBmsState bms_state\n"
    "int16[4] foot_force\nint16[4] foot_force_est\nuint32 tick\nuint8[40] wireless_remote\nuint8 bit_flag\n"
    "float32 adc_reel\nuint8 temperature_ntc1\nuint8 temperature_ntc2\nfloat32 power_v\nfloat32 power_a\n"
    "uint16[4] fan_frequency\nuint32 reserve\nuint32 crc",
    "SportModeState": "TimeSpec stamp\nuint32 error_code\nIMUState imu_state\nuint8 mode\nfloat32 progress\n"
    "uint8 gait_type\nfloat32 foot_raise_height\nfloat32[3] position\nfloat32 body_height\n"
    "float32[3] velocity\nfloat32 yaw_speed\nfloat32[4] range_obstacle\nint16[4] foot_force\n"
    "float32[12] foot_position_body\nfloat32[12] foot_speed_body",
    "WirelessController": "float32 lx\nfloat32 ly\nfloat32 rx\nfloat32 ry\nuint16 keys",
}

UNITREE_HG = {
    "MotorCmd": "uint8 mode\nfloat32 q\nfloat32 dq\nfloat32 tau\nfloat32 kp\nfloat32 kd\nuint32 reserve",
    "LowCmd": "uint8 mode_pr\nuint8 mode_machine\nMotorCmd[35] motor_cmd\nuint32[4] reserve\nuint32 crc",
    "IMUState": "float32[4] quaternion\nfloat32[3] gyroscope\nfloat32[3] accelerometer\nfloat32[3] rpy\n"
    "int16 temperature",
    "MotorState": "uint8 mode\nfloat32 q\nfloat32 dq\nfloat32 ddq\nfloat32 tau_est\nint16[2] temperature\n"
    "float32 vol\nuint32[2] sensor\nuint32 motorstate\nuint32[4] reserve",
    "LowState": "uint32[2] version\nuint8 mode_pr\nuint8 mode_machine\nuint32 tick\nIMUState imu_state\n"
    "MotorState[35] motor_state\nuint8[40] wireless_remote\nuint32[4] reserve\nuint32 crc",
    "BmsState": "uint8 version_high\nuint8 version_low\nuint8 fn\nuint16[40] cell_vol\nuint32[3] bmsvoltage\n"
    "int32 current\nuint8 soc\nuint8 soh\nint16[12] temperature\nuint16 cycle\nuint16 manufacturer_date\n"
    "uint32[5] bmsstate\nuint32[3] reserve",
    "PressSensorState": "float32[12] pressure\nfloat32[12] temperature\nuint32 lost\nuint32 reserve",
    "HandCmd": "MotorCmd[] motor_cmd\nuint32[4] reserve",
    "HandState": "MotorState[] motor_state\nPressSensorState[] press_sensor_state\nIMUState imu_state\n"
    "float32 power_v\nfloat32 power_a\nfloat32 system_v\nfloat32 device_v\nuint32[2] error\nuint32[2] reserve",
}

UNITREE_API = {
    "RequestIdentity": "int64 id\nint64 api_id",
    "RequestLease": "int64 id",
    "RequestPolicy": "int32 priority\nbool noreply",
    "RequestHeader": "RequestIdentity identity\nRequestLease lease\nRequestPolicy policy",
    "Request": "RequestHeader header\nstring parameter\nuint8[] binary",
    "ResponseStatus": "int32 code",
    "ResponseHeader": "RequestIdentity identity\nResponseStatus status",
    "Response": "ResponseHeader header\nstring data\nuint8[] binary",
}

DEFINITIONS: dict[str, str] = {
    f"{package}/msg/{name}": text
    for package, types in {
        "control_msgs": CONTROL,
        "controller_manager_msgs": CONTROLLER_MANAGER,
        "ur_dashboard_msgs": UR_DASHBOARD,
        "unitree_go": UNITREE_GO,
        "unitree_hg": UNITREE_HG,
        "unitree_api": UNITREE_API,
    }.items()
    for name, text in types.items()
}
