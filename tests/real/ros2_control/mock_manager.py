"""A controller manager with controllers, as a process of its own on our bus, as its packages are in no registry.

It does what the lines on its stdin say, one JSON list each, and answers each with one line. Arguments: a JSON object.
"""

import json
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from mock_controllers import KINDS, PERIOD, TRAJECTORY, Arm  # noqa: E402

from real.bus import make, open_node, qos  # noqa: E402
from robot_rl.robots import robots  # noqa: E402

ENTRY_STATE = "controller_manager_msgs/msg/NamedLifecycleState"
LIST, ACTIVITY = "controller_manager_msgs/srv/ListControllers", "controller_manager_msgs/msg/ControllerManagerActivity"
ENTRY = "controller_manager_msgs/msg/ControllerState"
SAFETY, BOOL, NUMBER = "ur_dashboard_msgs/msg/SafetyMode", "std_msgs/msg/Bool", "std_msgs/msg/Float64"
GRIPPER, WRENCH = "control_msgs/action/GripperCommand", "geometry_msgs/msg/WrenchStamped"
IDS = {"unconfigured": 1, "inactive": 2, "active": 3}


class Manager:
    def __init__(self, config: dict[str, Any]):
        self.node = node = open_node("controller_manager")
        self.robot, self.rate = robots.get(config["robot"]), config.get("rate", 500)
        prefix = config.get("prefix", "")
        self.arm = Arm(self.robot, prefix)
        self.fingers = [prefix + name for name in self.robot.fingers]
        self.width = 0.08
        if {"impedance", "servo"} & {kind for kind, _ in config["controllers"].values()}:
            self.arm.jacobian()  # import torch now
        self.controllers = {
            name: KINDS[kind](node, name, self.arm, state) for name, (kind, state) in config["controllers"].items()
        }
        node.service(LIST, "~/list_controllers", self._list)
        self.activity = node.publisher(ACTIVITY, "~/activity", qos.LATCHED) if config.get("activity", True) else None
        self.states = node.publisher("sensor_msgs/msg/JointState", "joint_states", qos.DEFAULT)
        node.subscribe("std_msgs/msg/Int64", "twin/reset", qos.DEFAULT)  # nobody has to place an object
        self.status: dict[str, Any] = {}
        if config.get("ur"):
            for name, kind in (("robot_program_running", BOOL), ("safety_mode", SAFETY)):
                self.status[name] = node.publisher(kind, f"io_and_status_controller/{name}", qos.LATCHED), kind
            topic = "speed_scaling_state_broadcaster/speed_scaling"
            self.status["speed_scaling"] = node.publisher(NUMBER, topic, qos.DEFAULT), NUMBER
            self.scaling = 100.0
        self.wrench = node.publisher(WRENCH, config["wrench"], qos.SENSOR) if config.get("wrench") else None
        self.force, self.pulses = config.get("force", [8.0, -3.0, 2.0, 0.0, 0.0, 0.5]), 0
        """Force, N, and torque, N m, which a sensor reads with its offset; how many messages have a force on top."""
        self.pulse, self.reports = [0.0] * 6, 0
        self.gripper: list[float] = []
        self.free = threading.Event()
        self.free.set()
        if name := config.get("gripper_action"):
            node.action_server(GRIPPER, name, self._grip, self._accept, parallel=2)
        elif name := config.get("gripper_command"):
            node.subscribe("std_msgs/msg/Float64MultiArray", name, replace(qos.COMMAND, depth=1000), self._on_width)
        self.say("activity")
        self.closing = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _list(self, _: Any) -> Any:
        entries = [make(ENTRY, name=name, state=each.state) for name, each in self.controllers.items()]
        return make(f"{LIST}_Response", controller=entries)

    def _accept(self, goal: Any) -> bool:
        """Accept a goal, once the gripper is free to answer."""
        return self.free.wait(30)

    def _grip(self, goal: Any) -> Any:
        self.gripper.append(float(goal.request.command.position))
        return make(f"{GRIPPER}_Result", position=self.gripper[-1], reached_goal=True)

    def _on_width(self, sample: Any) -> None:
        self.gripper.append(float(sample.msg.data[0]))

    def _run(self) -> None:
        due, sent = time.monotonic(), 0.0
        while not self.closing.is_set():
            for controller in self.controllers.values():
                if controller.state == "active":
                    controller.update()
            if time.monotonic() - sent >= 1 / self.rate - PERIOD / 2:
                sent = time.monotonic()
                self._report()
            due = max(due + PERIOD, time.monotonic() - PERIOD)
            time.sleep(max(0.0, due - time.monotonic()))

    def _report(self) -> None:
        """Publish the joints backwards, among others, as real drivers do."""
        fingers = [self.width / 2] * len(self.fingers)
        names = ["rail_joint", *reversed(self.fingers), *reversed(self.arm.names)]
        position = np.concatenate([[7.0], fingers, self.arm.q[::-1]])
        stamp = {"sec": int(time.time()), "nanosec": int(1e9 * (time.time() % 1))}
        fields = {"name": names, "position": position, "velocity": 0 * position}
        self.states.publish(make("sensor_msgs/msg/JointState", header={"stamp": stamp}, **fields))
        if self.status and self.scaling is not None:
            self.status["speed_scaling"][0].publish(make(NUMBER, data=self.scaling))
        self.reports += 1
        if self.wrench and self.force and self.reports % max(1, self.rate // 100) == 0:  # at most 100 Hz, for speed
            more, self.pulses = (self.pulse, self.pulses - 1) if self.pulses else ([0.0] * 6, 0)
            fx, fy, fz, tx, ty, tz = (float(a + b) for a, b in zip(self.force, more, strict=True))
            wrench = {"force": {"x": fx, "y": fy, "z": fz}, "torque": {"x": tx, "y": ty, "z": tz}}
            self.wrench.publish(make(WRENCH, header={"stamp": stamp}, wrench=wrench))

    # ---- what a test says ----------------------------------------------------------------------------------------
    def say(self, what: str, value: Any = None) -> None:
        """Publish the activity, or one of the robot's reports; the driver does so only when it changes."""
        if what == "activity" and self.activity:
            entries = [
                {"name": name, "state": {"id": IDS[each.state], "label": each.state}}
                for name, each in self.controllers.items()
            ]
            self.activity.publish(make(ACTIVITY, controllers=[make(ENTRY_STATE, **entry) for entry in entries]))
        elif what == "speed_scaling":
            self.scaling = value
        elif what != "activity":
            publisher, kind = self.status[what]
            publisher.publish(make(kind, **{"mode" if kind == SAFETY else "data": value}))

    def set(self, name: str, state: str) -> None:
        self.controllers[name].set(state)
        self.say("activity")

    def press(self, force: list[float], messages: int) -> None:
        """Press on the tool for a number of messages, with force and torque on top of the offset."""
        self.pulse, self.pulses = force, messages

    def pressed(self) -> int:
        return self.pulses

    def read(self, force: list[float] | None) -> None:
        """Set what the sensor reads without contact; None: it is silent."""
        self.force = force

    def hold(self, answers: bool) -> None:
        """Let the gripper answer, or not."""
        self.free.set() if answers else self.free.clear()

    def ask(self, name: str) -> dict[str, Any]:
        each = self.controllers[name]
        counts = {"accepted": each.accepted, "refused": each.refused, "ignored": each.ignored, "why": each.why}
        header = getattr(each.latest[0], "header", None) if each.latest else None
        facts = {"frame": header.frame_id} if header else {}
        if each.kind == TRAJECTORY and each.latest:
            facts |= {"names": list(each.latest[0].joint_names), "ahead": each.ahead.nanosec}
        return counts | facts | {"q": self.arm.q.tolist(), "v": self.arm.v.tolist()}

    def grips(self) -> list[float]:
        return self.gripper


if __name__ == "__main__":
    manager = Manager(json.loads(sys.argv[1]))
    print("ready", flush=True)
    for line in sys.stdin:
        name, *words = json.loads(line)
        print(json.dumps(getattr(manager, name)(*words)), flush=True)
    manager.closing.set()
    manager.thread.join()
    manager.node.close()  # a killed one would be taken for a second robot for 10 s
