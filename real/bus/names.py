"""ROS names: validated, expanded (`~`, `{ns}`, relative), remapped, and mangled for DDS."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from real.bus.errors import BusError

_TOKEN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Remap:
    """One rule ``[node:]old:=new``; ``old`` may be a topic, ``__ns`` or ``__node``."""

    old: str
    new: str
    node: str | None = None
    """Node name of the rule; None: all nodes."""


def check_node_name(name: str) -> str:
    """Return the node name; raise BusError if it is not valid."""
    if not _TOKEN.fullmatch(name):
        raise BusError(f"node name {name!r} is not valid: use letters, digits and '_', and start with no digit")
    return name


def check_namespace(namespace: str) -> str:
    """Return the namespace with a leading and no trailing slash; the root is "/"."""
    return "/" if namespace in ("", "/") else check_name("/" + namespace.removeprefix("/"), "namespace")


def check_name(name: str, what: str = "name") -> str:
    """Return a fully qualified name; raise BusError if it is not valid."""
    problem = ""
    if "//" in name:
        problem = "has an empty part ('//')"
    elif name.endswith("/"):
        problem = "ends with '/'"
    else:
        for token in name.removeprefix("/").split("/"):
            if token[:1].isdigit():
                problem = f"has a part that starts with a digit ({token!r})"
            elif not _TOKEN.fullmatch(token):
                problem = f"has a part ({token!r}) with other than letters, digits and '_'"
    if problem:
        raise BusError(f"{what} {name!r} {problem}; a valid one looks like /arm/joint_states")
    return name


def expand(name: str, node: str, namespace: str) -> str:
    """Expand a name to its fully qualified form.

    ``a`` is under the namespace, ``~/a`` under the node, ``/a`` stays; ``{node}``, ``{ns}`` and
    ``{namespace}`` are replaced.
    """
    if not name:
        raise BusError("a topic name is empty; give one such as joint_states")
    text = name
    for key, value in (("node", node), ("ns", namespace), ("namespace", namespace)):
        text = text.replace("{" + key + "}", value)
    root = namespace.rstrip("/")
    if text == "~" or text.startswith("~/"):
        text = f"{root}/{node}{text[1:]}"
    elif text.startswith("//") and name.startswith("{"):
        text = text[1:]  # `{ns}/a` in the root namespace
    elif not text.startswith("/"):
        text = f"{root}/{text}"
    return check_name(text, "topic name")


def resolve(name: str, node: str, namespace: str, remaps: Sequence[Remap] = ()) -> str:
    """Expand a name, then apply the first rule whose old name expands to the same."""
    full = expand(name, node, namespace)
    for rule in remaps:
        if rule.old.startswith("__") or rule.node not in (None, node):
            continue
        if expand(rule.old, node, namespace) == full:
            return expand(rule.new, node, namespace)
    return full


def qualified(node: str, namespace: str) -> str:
    """Join namespace and node name."""
    return f"{namespace.rstrip('/')}/{node}"


def dds_topic(name: str) -> str:
    """Mangle a fully qualified ROS topic name: `/a` travels as `rt/a`."""
    return f"rt{name}"


def dds_type(type_name: str) -> str:
    """Mangle a type name: `pkg/msg/Name` travels as `pkg::msg::dds_::Name_`."""
    package, kind, short = type_name.split("/")
    return f"{package}::{kind}::dds_::{short}_"
