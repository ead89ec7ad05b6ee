"""A Go2 by Unitree's own SDK: it sends LowState, judges LowCmd, and serves the motion switcher and sport mode.

In another process and environment than the project: `sdk_robot.py DOMAIN`. Lines of JSON in replace faults, lines of
JSON out say what arrived: `{"command": …}` at every change, `{"request": [service, api, parameter]}`.
"""

import json
import sys
import threading
import time
from typing import Any

from unitree_sdk2py.core.channel import ChannelFactoryInitialize, ChannelPublisher, ChannelSubscriber
from unitree_sdk2py.idl.default import unitree_go_msg_dds__LowState_
from unitree_sdk2py.idl.unitree_go.msg.dds_ import LowCmd_, LowState_
from unitree_sdk2py.rpc.server import Server
from unitree_sdk2py.utils.crc import CRC

RATE = 100
"""States per second: packing by the SDK takes longer than 2 ms on a busy machine."""
GAINS = ("q", "dq", "tau", "kp", "kd")
NAMES = {"motion_switcher": (1001, 1002, 1003), "sport": (1003, 1005, 1008)}


_writing = threading.Lock()


def say(**fields: Any) -> None:
    with _writing:  # of three threads
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()


class Service(Server):
    """Server side of Unitree's request and response topics, which says what it is asked for."""

    def __init__(self, name: str, robot: "Robot"):
        super().__init__(name)
        self.robot, self.name = robot, name
        for api in NAMES[name]:
            self._RegistHandler(api, lambda parameter, api=api: self.answer(api, parameter), False)

    def answer(self, api: int, parameter: str) -> tuple[int, str]:
        say(request=[self.name, api, json.loads(parameter)])
        robot = self.robot
        if self.name == "sport":
            return 0, ""
        if "code" in robot.faults:
            return robot.faults["code"], ""
        if api == 1003 and not robot.faults.get("keeps"):
            robot.mode = ""
        return 0, json.dumps({"form": "0", "name": robot.mode}) if api == 1001 else ""


class Robot:
    """State of the robot and the faults in it: `motor` and `state` replace fields, `flip` a bit of the checksum."""

    def __init__(self) -> None:
        self.faults: dict[str, Any] = {}
        self.mode, self.seen = "", ""
        self.crc, self.lock = CRC(), threading.Lock()
        self.states = ChannelPublisher("rt/lowstate", LowState_)
        self.states.Init()
        self.commands = ChannelSubscriber("rt/lowcmd", LowCmd_)
        self.commands.Init(self.judge, 10)
        self.services = [Service(name, self) for name in NAMES]
        for service in self.services:
            service.Start()

    def judge(self, command: LowCmd_) -> None:
        """Say what the SDK reads in a command, and whether its checksum is the SDK's."""
        motors = command.motor_cmd
        told = {"crc": command.crc == self.crc.Crc(command), "head": list(command.head), "level": command.level_flag}
        told["mode"] = [m.mode for m in motors]
        told |= {name: [getattr(m, name) for m in motors] for name in GAINS}
        told["off"] = command.bms_cmd.off
        if (text := json.dumps(told)) != self.seen:
            self.seen = text
            say(command=told)

    def state(self, tick: int) -> LowState_:
        """Return a state as the robot fills it: head, level, tick in ms, checksum."""
        state, faults = unitree_go_msg_dds__LowState_(), self.faults
        state.head, state.level_flag, state.tick = [0xFE, 0xEF], 0xFF, tick
        state.imu_state.quaternion = [1.0, 0.0, 0.0, 0.0]
        state.power_v, state.foot_force = 29.6, [10, 20, 30, 40]
        state.bms_state.soc, state.bms_state.cell_vol = 80, [3700] * 8 + [0] * 7
        for k, motor in enumerate(state.motor_state):
            motor.mode, motor.q, motor.dq = 1, 0.01 * k, -0.01 * k
            motor.temperature = 35
            for name, values in faults.get("motor", {}).items():
                setattr(motor, name, values.get(str(k), getattr(motor, name)))
        state.bms_state.soc = faults.get("soc", state.bms_state.soc)
        state.crc = self.crc.Crc(state) ^ faults.get("flip", 0)
        return state

    def run(self) -> None:
        begin = time.monotonic()
        while True:
            with self.lock:
                self.states.Write(self.state(round(1000 * (time.monotonic() - begin))))
            time.sleep(1 / RATE)


def main() -> None:
    ChannelFactoryInitialize(int(sys.argv[1]), "lo")
    robot = Robot()
    threading.Thread(target=robot.run, daemon=True).start()
    say(up=True)
    for line in sys.stdin:
        with robot.lock:
            robot.faults = json.loads(line)
            robot.mode = robot.faults.get("mode", robot.mode)


if __name__ == "__main__":
    main()
