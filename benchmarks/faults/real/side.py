"""The robot's side as a process, whose faults are lines on its stdin: a UR5e behind a mock driver, or a Go2's twin.

    python -m benchmarks.faults.real.side ur5e
"""

import sys
import threading
from typing import Any

from benchmarks.faults.real.messages import JOINT_STATE, Faulty, joints, low_state
from real.bus import encode, open_node
from robot_rl.robots import robots

CONTROLLER = "forward_position_controller"
UR = {
    "robot": "ur5e", "ur": True, "wrench": "force_torque_sensor_broadcaster/wrench",
    "controllers": {CONTROLLER: ("position", "active"), "joint_state_broadcaster": ("broadcaster", "active")},
}  # fmt: skip


def ur5e() -> None:
    """Hold a UR5e as ur_robot_driver does."""
    from tests.real.ros2_control.mock_manager import Manager

    manager = Manager(UR)
    manager.say("robot_program_running", True)
    manager.say("safety_mode", 1)
    publish = manager.states.publish
    faulty = Faulty(publish, joints)
    manager.states.publish = lambda msg: faulty(bytes(encode(msg, JOINT_STATE)))  # type: ignore[assignment,method-assign]

    def obey(word: str) -> None:
        if word == "inactive":
            manager.set(CONTROLLER, "inactive")
        elif word == "reflex":
            manager.say("safety_mode", 3)
        else:
            faulty.fault = word
            if not word:
                manager.set(CONTROLLER, "active")
                manager.say("safety_mode", 1)

    print("ready", flush=True)
    for line in sys.stdin:
        obey(line.strip())


def go2() -> None:
    """Simulate a Go2 in real time."""
    from real.twin import open_twin
    from sim.tasks import tasks

    robot = robots.get("go2")
    with open_node("twin", rate=robot.command_rate) as node:
        twin: Any = open_twin(node, tasks.get("go2-velocity"), cameras=False)
        faulty = Faulty(twin.states.publish, low_state)
        twin.states.publish = lambda raw: faulty(bytes(raw))

        def listen() -> None:
            for line in sys.stdin:
                word = line.strip()
                twin._report["motor_state"]["temperature"] = 90 if word == "reflex" else 30
                faulty.fault = "" if word == "reflex" else word
            twin.close()

        threading.Thread(target=listen, daemon=True).start()
        print("ready", flush=True)
        twin.run(None)


if __name__ == "__main__":
    {"ur5e": ur5e, "go2": go2}[sys.argv[1]]()
