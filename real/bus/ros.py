"""rclpy backend, which publishes and receives messages as CDR bytes."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import rclpy
import rclpy.subscription
from rclpy.context import Context
from rclpy.duration import Duration
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy, qos_policy_name_from_kind

from real.backends import BACKEND, distribution
from real.bus.domain import domain_id
from real.bus.names import BusError, qualified
from real.bus.node import Node, OnSample, Publisher, Subscription
from real.bus.parameters import Parameters
from real.bus.qos import QoS
from real.bus.ros_parameters import RosParameters
from real.bus.ros_service import RosClient, RosService
from real.bus.rosargs import RosArgs
from real.bus.service import Client, Handler, Service

try:
    from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
except ImportError:  # Humble
    from rclpy.qos_event import PublisherEventCallbacks, SubscriptionEventCallbacks


class _Shared:
    """rclpy context (one DDS participant) and executor thread that a process's nodes in one domain share."""

    def __init__(self, domain: int) -> None:
        if found := distribution():  # as setup.bash does; wheels do not
            os.environ.setdefault("ROS_DISTRO", found)
        self.users = 0
        self.context = Context()
        try:
            # Without arguments: `rosargs` has applied them; sys.argv would remap again.
            rclpy.init(args=[], context=self.context, domain_id=domain)
        except Exception as error:
            raise BusError(f"rclpy failed: {error}. Check RMW_IMPLEMENTATION, ROS_LOG_DIR and ROS_HOME.") from error
        self.executor = SingleThreadedExecutor(context=self.context)
        self.thread = threading.Thread(target=self._spin, name="bus-rclpy", daemon=True)
        self.thread.start()

    def _spin(self) -> None:
        with contextlib.suppress(ExternalShutdownException):
            self.executor.spin()

    def close(self) -> None:
        self.executor.shutdown(timeout_sec=2.0)
        rclpy.try_shutdown(context=self.context)
        if threading.current_thread() is not self.thread:
            self.thread.join(2.0)


_shared: dict[int, _Shared] = {}
_lock = threading.Lock()


_UNKNOWN = "_NODE_NAME_UNKNOWN_"
"""rclpy's name for the node of an unannounced endpoint."""


def _profile(qos: QoS) -> Any:
    return QoSProfile(
        depth=qos.depth,
        reliability=ReliabilityPolicy.RELIABLE if qos.reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if qos.transient_local else DurabilityPolicy.VOLATILE,
        **({} if qos.lifespan is None else {"lifespan": Duration(seconds=qos.lifespan)}),
    )


_IMPL = {"SendGoal": "SendGoalService", "GetResult": "GetResultService"}
"""rclpy's names for parts of an action."""


def _ros_type(type_name: str) -> Any:
    package, kind, name = type_name.split("/")
    name, _, part = name.partition("_") if kind == "action" else (name, "", "")
    try:
        cls = getattr(importlib.import_module(f"{package}.{kind}"), name)
        return getattr(cls.Impl, _IMPL.get(part, part)) if part else cls
    except (ImportError, AttributeError) as error:
        raise BusError(
            f"rclpy has no {type_name} ({error}): install {package} in the sourced ROS 2 (the wheels of robot-rl[ros2] "
            f"have common_interfaces only), or use bus:=dds ({BACKEND}=dds), which knows it"
        ) from error


def _names(endpoints: Sequence[Any], process: bool = False) -> list[str]:
    """Return the full node name of each endpoint, or its participant's GUID if the node is not announced. `process`
    adds the GUID to all names, because rclpy knows neither process nor host."""

    def name(endpoint: Any) -> str:
        if _UNKNOWN in endpoint.node_name:
            return f"an unnamed DDS participant ({bytes(endpoint.endpoint_gid)[:12].hex()})"
        guid = f" (GUID {bytes(endpoint.endpoint_gid)[:12].hex()})" if process else ""
        return qualified(endpoint.node_name, endpoint.node_namespace) + guid

    return sorted(map(name, endpoints))


class RosPublisher(Publisher):
    """Publisher of CDR bytes with rclpy."""

    def __init__(self, owner: RosNode, type_name: str, topic: str, qos: QoS) -> None:
        super().__init__(type_name, topic, qos)
        self._owner = owner
        events = PublisherEventCallbacks(incompatible_qos=owner.on_mismatch("publisher", topic))
        cls = _ros_type(type_name)
        try:
            self._pub = owner.ros.create_publisher(cls, topic, _profile(qos), event_callbacks=events)
        except Exception as error:  # for instance another type on the topic in this process, with Fast DDS
            raise BusError(f"ROS refused a publisher of {type_name} on {topic}: {error}") from error

    @property
    def matched(self) -> int:
        return int(self._pub.get_subscription_count())

    def readers(self) -> list[str]:
        return _names(self._owner.ros.get_subscriptions_info_by_topic(self.topic))

    def other_writers(self, process: bool = False) -> list[str]:
        writers = list(self._owner.ros.get_publishers_info_by_topic(self.topic))
        # One of them is this publisher, identified by name: rclpy does not return its gid.
        own = next((e for e in writers if _names([e]) == [self._owner.full_name]), None)
        return _names([e for e in writers if e is not own], process)

    def close(self) -> None:
        self._owner.ros.destroy_publisher(self._pub)

    def _write(self, raw: bytes | memoryview) -> bool:
        self._pub.publish(bytes(raw))
        return True


class RosSubscription(Subscription):
    """Subscription of CDR bytes with rclpy; the executor's thread delivers samples."""

    def __init__(self, owner: RosNode, type_name: str, topic: str, qos: QoS, callback: OnSample) -> None:
        super().__init__(type_name, topic, qos, callback, owner._logger)
        self._owner = owner
        events = SubscriptionEventCallbacks(incompatible_qos=owner.on_mismatch("subscription", topic))

        def without_info(raw: bytes) -> None:
            self._arrive(raw, 0)

        def with_info(raw: bytes, info: Any) -> None:
            source_ns = info.get("source_timestamp", 0) if isinstance(info, dict) else 0
            self._arrive(raw, source_ns)

        # rclpy passes the message info since Iron, to callbacks with two parameters.
        on_bytes = with_info if hasattr(rclpy.subscription.Subscription, "CallbackType") else without_info
        cls = _ros_type(type_name)
        try:
            self._sub = owner.ros.create_subscription(
                cls, topic, on_bytes, _profile(qos), raw=True, event_callbacks=events
            )
        except Exception as error:  # for instance another type on the topic in this process, with Fast DDS
            raise BusError(f"ROS refused a subscription of {type_name} on {topic}: {error}") from error
        owner.subscriptions.append(self)

    @property
    def matched(self) -> int:
        count = getattr(self._sub, "get_publisher_count", None)
        return int(count() if count is not None else self._owner.ros.count_publishers(self.topic))

    def writers(self, process: bool = False) -> list[str]:
        return _names(self._owner.ros.get_publishers_info_by_topic(self.topic), process)

    def types(self) -> set[str]:
        """Return the message types of the topic's publishers."""
        return {e.topic_type for e in self._owner.ros.get_publishers_info_by_topic(self.topic)}

    def close(self) -> None:
        if self in self._owner.subscriptions:
            self._owner.subscriptions.remove(self)
            self._owner.ros.destroy_subscription(self._sub)


class RosNode(Node):
    """Node of the ROS graph, with rclpy."""

    def __init__(self, args: RosArgs, domain: int | None) -> None:
        self._domain, self._closed = domain_id(domain), False  # Fast DDS ends the process for one above 232
        self._mismatches: list[str] = []
        self.subscriptions: list[RosSubscription] = []
        """Open subscriptions of this node."""
        with _lock:
            if self._domain not in _shared:
                _shared[self._domain] = _Shared(self._domain)
            self._ros = _shared[self._domain]
            self._ros.users += 1
        self.ros = rclpy.create_node(
            args.name,
            namespace=args.namespace,
            context=self._ros.context,
            use_global_arguments=False,
            enable_rosout=False,  # `Node.log` publishes /rosout
            parameter_overrides=[Parameter(k, value=v) for k, v in args.parameters.items() if v is not None],
            automatically_declare_parameters_from_overrides=True,
        )
        self._ros.executor.add_node(self.ros)
        super().__init__(args)

    def on_mismatch(self, what: str, topic: str) -> Callable[[Any], None]:
        """Return an rclpy event callback that records a QoS mismatch of a publisher or subscription (`what`)."""

        def note(event: Any) -> None:
            policy = qos_policy_name_from_kind(event.last_policy_kind).lower()
            self._mismatches.append(
                f"{what} on {topic} and a peer disagree on {policy}: nothing passes. To repair, request no"
                " more than the publisher offers, for instance reliable=False (qos.SENSOR)."
            )

        return note

    def _publisher(self, type_name: str, topic: str, qos: QoS) -> Publisher:
        return RosPublisher(self, type_name, topic, qos)

    def _subscribe(self, type_name: str, topic: str, qos: QoS, callback: OnSample) -> Subscription:
        return RosSubscription(self, type_name, topic, qos, callback)

    def _service(self, type_name: str, name: str, handler: Handler, qos: QoS) -> Service:
        return RosService(self, _ros_type(type_name), type_name, name, handler, _profile(qos))

    def _client(self, type_name: str, name: str, qos: QoS) -> Client:
        return RosClient(self, _ros_type(type_name), type_name, name, _profile(qos))

    def _serve_parameters(self, parameters: Parameters) -> Any:
        return RosParameters(self.ros, parameters)

    def delivers(self) -> bool:
        return threading.current_thread() is self._ros.thread

    def wait_for(self, predicate: Callable[[], bool], timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while not (held := predicate()) and time.monotonic() < deadline:
            time.sleep(0.01)  # rclpy has no event for matches that all distros support
        return held

    def incompatible(self) -> list[str]:
        types = [
            f"subscription on {mine.topic} uses {mine.type_name}, but a publisher uses {other}: nothing passes."
            " Use the same type, or another topic."
            for mine in list(self.subscriptions)
            for other in sorted(mine.types() - {s.type_name for s in self.subscriptions if s.topic == mine.topic})
        ]
        return list(dict.fromkeys(self._mismatches + types))

    def close(self) -> None:
        self._stop_serving()
        with _lock:
            if self._closed:
                return
            self._closed = True
            self._ros.executor.remove_node(self.ros)
            self.ros.destroy_node()
            self._ros.users -= 1
            if self._ros.users == 0:
                _shared.pop(self._domain, None)
                self._ros.close()
