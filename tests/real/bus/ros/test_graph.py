"""Names, endpoints and faults that our nodes and nodes as ROS users write them see of each other."""

from typing import Any

import pytest

from real.bus import BusError, Node, open_node, qos, type_hash

WAIT = 20.0  # longest wait for discovery between two DDS vendors, s, which takes about a second
STATE, FLOATS, STRING = "sensor_msgs/msg/JointState", "std_msgs/msg/Float64MultiArray", "std_msgs/msg/String"


def test_plain_node_sees_our_nodes_and_endpoints(node: Node, user: Any) -> None:
    node.publisher(STATE, "joint_states", qos.COMMAND)
    node.subscribe(FLOATS, "commands", qos.SENSOR)
    user.do("watcher = start(Node('watcher'))")
    assert user.do("until(lambda: ('here', '/arm') in watcher.get_node_names_and_namespaces())")
    assert user.do("watcher.get_node_names().count('here')") == 1
    published = f"('/arm/joint_states', ['{STATE}']) in watcher.get_publisher_names_and_types_by_node('here', '/arm')"
    assert user.do(f"until(lambda: {published})")
    subscribed = f"watcher.get_subscriber_names_and_types_by_node('here', '/arm') == [('/arm/commands', ['{FLOATS}'])]"
    assert user.do(f"until(lambda: {subscribed})")
    assert user.do(f"('/arm/joint_states', ['{STATE}']) in watcher.get_topic_names_and_types()")
    user.do("(state,) = watcher.get_publishers_info_by_topic('/arm/joint_states')")
    user.do("(command,) = watcher.get_subscriptions_info_by_topic('/arm/commands')")
    for name, kind in (("state", STATE), ("command", FLOATS)):
        values = f"{name}.node_namespace, {name}.node_name, {name}.topic_type, str({name}.topic_type_hash)"
        assert user.do(values) == ("/arm", "here", kind, type_hash(kind))
    policies = "[p.qos_profile.reliability.name for p in (state, command)], state.qos_profile.durability.name"
    assert user.do(policies) == (["RELIABLE", "BEST_EFFORT"], "VOLATILE")
    node.close()
    assert user.do("until(lambda: 'here' not in watcher.get_node_names())")
    user.do("stop(watcher)")


def test_our_node_sees_plain_endpoints(node: Node, user: Any) -> None:
    command, listened = node.publisher(FLOATS, "commands"), node.publisher(STATE, "joint_states")
    user.do("rival = start(Commander()); listener = start(StateListener())")
    assert node.wait_for(lambda: command.other_writers() == ["/arm/commander"], WAIT)
    assert "GUID 010f" in command.other_writers(process=True)[0], "Fast DDS's vendor id"
    assert node.wait_for(lambda: listened.readers() == ["/arm/state_listener"] and listened.matched == 1, WAIT)
    user.do("stop(rival)")
    assert node.wait_for(lambda: command.other_writers() == [], WAIT)
    user.do("stop(listener)")
    assert node.wait_for(lambda: listened.matched == 0 and listened.readers() == [], WAIT)


def test_reliability_mismatch_is_reported_on_both_sides(node: Node, user: Any) -> None:
    wanting = node.subscribe(FLOATS, "commands")
    node.publisher(STATE, "joint_states", qos.SENSOR)
    user.do("commander, listener = start(Commander(qos=qos_profile_sensor_data)), start(StateListener())")
    for topic in ("/arm/commands", "/arm/joint_states"):
        assert node.wait_for(lambda t=topic: any(t in m and "reliability" in m for m in node.incompatible()), WAIT)
    assert all("reliable=False" in message for message in node.incompatible())
    assert user.do("until(lambda: bool(commander.mismatches and listener.mismatches))")
    assert wanting.matched == 0 and wanting.latest is None
    user.do("stop(commander, listener)")


def test_durability_mismatch_is_reported(node: Node, user: Any) -> None:
    node.subscribe(STRING, "robot_description", qos.LATCHED)
    user.do("describer = start(Describer('<robot/>', profile(depth=1)))")
    assert node.wait_for(lambda: any("durability" in m for m in node.incompatible()), WAIT)
    user.do("stop(describer)")


def test_type_mismatch_is_reported(node: Node, user: Any) -> None:
    node.subscribe(STATE, "commands")
    user.do("commander = start(Commander())")
    assert node.wait_for(lambda: any("/arm/commands" in m and STATE in m for m in node.incompatible()), WAIT)
    (message,) = node.incompatible()
    assert "Float64MultiArray" in message and "Use the same type" in message
    user.do("stop(commander)")


def test_unknown_and_second_types_are_refused_by_rclpy(user: Any) -> None:
    with open_node("here", "/arm", backend="rclpy") as node:
        for kind in ("unitree_go/msg/LowState", "control_msgs/msg/JointJog"):
            with pytest.raises(BusError, match=f"rclpy has no {kind} .*install {kind.split('/')[0]} .*bus:=dds"):
                node.subscribe(kind, "x")
            with pytest.raises(BusError, match=f"rclpy has no {kind}"):
                node.publisher(kind, "x")
        node.subscribe(STATE, "y")
        with pytest.raises(BusError, match="ROS refused a subscription of .*Float64MultiArray on /arm/y"):
            node.subscribe(FLOATS, "y")
        with pytest.raises(BusError, match="ROS refused a publisher of .*Float64MultiArray on /arm/y"):
            node.publisher(FLOATS, "y")
