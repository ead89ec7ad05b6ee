"""ROS names: validation, expansion (`~`, `{ns}`, relative), remapping, DDS mangling; and the bus's errors."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from robot_rl.util.errors import ConfigError, UserError

_TOKEN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class BusError(UserError, RuntimeError):
    """Error of the bus; the message names the cause and the remedy."""


class BusSettingError(BusError, ConfigError):
    """Invalid value of an environment variable of the bus."""


@dataclass(frozen=True)
class Remap:
    """Remapping rule ``[node:]old:=new``; ``old`` is a topic, ``__ns`` or ``__node``."""

    old: str
    new: str
    node: str | None = None
    """Name of the node that the rule applies to; None: all nodes."""


def check_node_name(name: str) -> str:
    """Return a node's name unchanged; raise BusError if the name is not valid."""
    if not _TOKEN.fullmatch(name):
        raise BusError(f"node name {name!r} is not valid: use letters, digits and '_', and start with no digit")
    return name


def check_namespace(namespace: str) -> str:
    """Return the namespace with a leading and without a trailing slash; the root is "/"."""
    return "/" if namespace in ("", "/") else check_name("/" + namespace.removeprefix("/"), "namespace")


def check_name(name: str, what: str = "name") -> str:
    """Return a fully qualified name unchanged; raise BusError, which calls it `what`, if it is not valid."""
    for token in name.removeprefix("/").split("/"):
        if not _TOKEN.fullmatch(token):
            problem = "starts with a digit" if token[:1].isdigit() else "has other than letters, digits and '_'"
            problem = f"part {token!r} {problem}" if token else "a part is empty"
            raise BusError(f"{what} {name!r} is not valid: {problem}; a valid one looks like /arm/joint_states")
    return name


def expand(name: str, node: str, namespace: str) -> str:
    """Return the fully qualified name. ``a`` is relative to the namespace, ``~/a`` to the node, ``/a`` is absolute.
    ``{node}`` stands for the node's name, ``{ns}`` and ``{namespace}`` for its namespace."""
    if not name:
        raise BusError("a topic name is empty; give one such as joint_states")
    text = name
    for key, value in (("node", node), ("ns", namespace), ("namespace", namespace)):
        text = text.replace("{" + key + "}", value)
    root = namespace.rstrip("/")
    if text == "~" or text.startswith("~/"):
        text = f"{root}/{node}{text[1:]}"
    elif text.startswith("//") and name.startswith("{"):
        text = text[1:]  # `{ns}/a` with the root namespace
    elif not text.startswith("/"):
        text = f"{root}/{text}"
    return check_name(text, "topic name")


def resolve(name: str, node: str, namespace: str, remaps: Sequence[Remap] = ()) -> str:
    """Expand a topic name and apply the first remapping rule whose old name expands to the same topic."""
    full = expand(name, node, namespace)
    for rule in remaps:
        if rule.old.startswith("__") or rule.node not in (None, node):
            continue
        if expand(rule.old, node, namespace) == full:
            return expand(rule.new, node, namespace)
    return full


def qualified(node: str, namespace: str) -> str:
    """Return a node's full name: its namespace and name, joined by a slash."""
    return f"{namespace.rstrip('/')}/{node}"


def dds_topic(name: str) -> str:
    """Return the DDS topic of a fully qualified ROS topic: `rt/a` for `/a`."""
    return f"rt{name}"


def dds_request(name: str) -> str:
    """Return the DDS topic of a service's requests: `rq/aRequest` for `/a`."""
    return f"rq{name}Request"


def dds_reply(name: str) -> str:
    """Return the DDS topic of a service's replies: `rr/aReply` for `/a`."""
    return f"rr{name}Reply"


def dds_type(type_name: str) -> str:
    """Return the DDS type of a ROS type: `pkg::msg::dds_::Name_` for `pkg/msg/Name`."""
    package, kind, short = type_name.split("/")
    return f"{package}::{kind}::dds_::{short}_"
