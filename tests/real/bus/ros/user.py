"""Nodes as ROS users write them, with rclpy and message packages alone; tests run them in a process of their own."""

import atexit
import contextlib
import importlib
import threading
import time
from functools import partial

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import Transition, TransitionEvent
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import DescribeParameters, GetParameters, SetParameters
from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter, parameter_value_to_python
from rclpy.qos import QoSProfile, qos_profile_sensor_data
from sensor_msgs.msg import JointState, Joy
from std_msgs.msg import Bool, Float64MultiArray, String
from std_srvs.srv import SetBool

rclpy.init()
executor = SingleThreadedExecutor()


def spin():
    with contextlib.suppress(ExternalShutdownException):
        executor.spin()


thread = threading.Thread(target=spin, daemon=True)
thread.start()


@atexit.register
def shut_down():
    executor.shutdown(timeout_sec=2.0)
    rclpy.try_shutdown()
    thread.join(2.0)


def start(node):
    executor.add_node(node)
    return node


def stop(*nodes):
    for node in nodes:
        executor.remove_node(node)
        node.destroy_node()


def until(holds, seconds=20.0):
    """Poll until `holds()` is true, and return its last value."""
    end = time.monotonic() + seconds
    while not (value := holds()) and time.monotonic() < end:
        time.sleep(0.002)
    return value


def load(type_name):
    package, kind, name = type_name.split("/")
    return getattr(importlib.import_module(f"{package}.{kind}"), name)


class StateListener(Node):
    """Subscriber of joint states."""

    def __init__(self, namespace="/arm", qos=10):
        super().__init__("state_listener", namespace=namespace)
        self.states = []
        self.mismatches = []
        events = SubscriptionEventCallbacks(incompatible_qos=self.mismatches.append)
        self.create_subscription(JointState, "joint_states", self.states.append, qos, event_callbacks=events)


class Commander(Node):
    """Sender of joint positions."""

    def __init__(self, namespace="/arm", qos=10, topic="commands"):
        super().__init__("commander", namespace=namespace)
        self.mismatches = []
        events = PublisherEventCallbacks(incompatible_qos=self.mismatches.append)
        self.publisher = self.create_publisher(Float64MultiArray, topic, qos, event_callbacks=events)

    def send(self, values):
        self.publisher.publish(Float64MultiArray(data=values))


class Joystick(Node):
    """Driver of a joystick that reports 100 times a second, with best effort."""

    def __init__(self, namespace="/arm"):
        super().__init__("joy_node", namespace=namespace)
        self.sent = 0
        self.publisher = self.create_publisher(Joy, "joy", qos_profile_sensor_data)
        self.create_timer(0.01, self.report)

    def report(self):
        self.sent += 1
        message = Joy(axes=[0.25, -1.0, float(self.sent)], buttons=[0, 1])
        message.header.stamp = self.get_clock().now().to_msg()
        self.publisher.publish(message)


class Recorder(Node):
    """Counter of the messages on every topic: it looks for new topics ten times a second, as `ros2 bag record -a`."""

    def __init__(self):
        super().__init__("recorder")
        self.counts = {}
        self.create_timer(0.1, self.look)

    def look(self):
        for topic, types in self.get_topic_names_and_types():
            if topic not in self.counts:
                self.counts[topic] = 0
                self.create_subscription(load(types[0]), topic, partial(self.count, topic), qos_profile_sensor_data)

    def count(self, topic, message):
        self.counts[topic] += 1


class Echo(Node):
    """Sender of each message on topic `in<k>` back on topic `out<k>`."""

    def __init__(self, type_names):
        super().__init__("echo", namespace="/arm")
        self.ends = []
        for k, kind in enumerate(map(load, type_names)):
            back = self.create_publisher(kind, f"out{k}", 10)
            self.ends += [(back, self.create_subscription(kind, f"in{k}", back.publish, 10))]

    def connected(self):
        return all(pub.get_subscription_count() and self.count_publishers(sub.topic_name) for pub, sub in self.ends)


class Describer(Node):
    """Publisher and subscriber of a robot's description, which late joiners get."""

    def __init__(self, text="", qos=None):
        super().__init__("describer", namespace="/arm")
        self.texts = []
        if text:
            self.create_publisher(String, "robot_description", qos).publish(String(data=text))
        else:
            self.create_subscription(String, "robot_description", lambda m: self.texts.append(m.data), qos)


class Health(Node):
    """Viewer of `/diagnostics`."""

    def __init__(self):
        super().__init__("health")
        self.heard = []
        self.create_subscription(DiagnosticArray, "/diagnostics", self.take, 10)

    def take(self, message):
        self.heard += [(status.name, status.level, status.message) for status in message.status]


class Button(Node):
    """Emergency stop button that repeats its level 20 times a second."""

    def __init__(self):
        super().__init__("button", namespace="/arm")
        self.down = False
        self.publisher = self.create_publisher(Bool, "e_stop", 1)
        self.create_timer(0.05, lambda: self.publisher.publish(Bool(data=self.down)))

    def press(self, down):
        self.down = down


class Switch(Node):
    """Server of `switch`, which answers with the state and the number of requests so far."""

    def __init__(self):
        super().__init__("switch", namespace="/arm")
        self.count = 0
        self.create_service(SetBool, "switch", self.turn)

    def turn(self, request, response):
        self.count += 1
        response.success, response.message = request.data, str(self.count)
        return response


class Presser(Node):
    """Client of `switch`."""

    def __init__(self):
        super().__init__("presser", namespace="/arm")
        self.client = self.create_client(SetBool, "switch")
        self.asked = []

    def press(self, data):
        self.asked.append(self.client.call_async(SetBool.Request(data=data)))

    def answers(self):
        return [(f.result().success, f.result().message) if f.done() else None for f in self.asked]


class Manager(Node):
    """Reader and changer of the lifecycle of `/arm/here`, such as a lifecycle manager."""

    def __init__(self):
        super().__init__("manager")
        self.getter = self.create_client(GetState, "/arm/here/get_state")
        self.changer = self.create_client(ChangeState, "/arm/here/change_state")
        self.events = []
        topic = "/arm/here/transition_event"
        self.create_subscription(TransitionEvent, topic, lambda m: self.events.append(m.goal_state.label), 10)

    def state(self):
        call = self.getter.call_async(GetState.Request())
        until(call.done)
        return call.result().current_state.label

    def change(self, transition):
        self.call = self.changer.call_async(ChangeState.Request(transition=Transition(id=transition)))

    def changed(self):
        return until(self.call.done) and self.call.result().success


class Tuner(Node):
    """Client of another node's parameters."""

    def __init__(self, of):
        super().__init__("tuner")
        kinds = (GetParameters, SetParameters, DescribeParameters)
        names = ("get_parameters", "set_parameters", "describe_parameters")
        self.all = [self.create_client(kind, f"{of}/{name}") for kind, name in zip(kinds, names, strict=True)]

    def call(self, k, request):
        assert until(self.all[k].service_is_ready)
        future = self.all[k].call_async(request)
        assert until(future.done)
        return future.result()

    def get(self, *names):
        return [parameter_value_to_python(v) for v in self.call(0, GetParameters.Request(names=names)).values]

    def set(self, **values):
        parameters = [Parameter(name.rstrip("_"), value=value).to_parameter_msg() for name, value in values.items()]
        results = self.call(1, SetParameters.Request(parameters=parameters)).results
        return ["" if result.successful else result.reason for result in results]

    def describe(self, name):
        (found,) = self.call(2, DescribeParameters.Request(names=[name])).descriptors
        return found.description, [(r.from_value, r.to_value) for r in found.floating_point_range], found.read_only


def profile(**policies):
    return QoSProfile(**policies)
