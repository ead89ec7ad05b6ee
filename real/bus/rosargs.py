"""Parse ROS arguments, for the DDS and the rclpy backend."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from real.bus.names import BusError, Remap, check_namespace, check_node_name, qualified

LEVELS = {"debug": 10, "info": 20, "warn": 30, "error": 40, "fatal": 50}


@dataclass
class RosArgs:
    """ROS arguments of one node."""

    name: str
    namespace: str
    remaps: list[Remap] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    log_level: int = LEVELS["info"]
    """Lowest logged level: 10 debug to 50 fatal."""


class _Loader(yaml.SafeLoader):
    """YAML loader for ROS parameters: `1e-3` is a number, unlike in YAML 1.1."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def parse(name: str, namespace: str = "/", args: Sequence[str] | None = None) -> RosArgs:
    """Parse the arguments between ``--ros-args`` and ``--``; ignore all other arguments. As in ROS, a parameter takes
    the value of the last argument that sets it, be it ``-p`` or a parameter file."""
    pairs = _pairs(list(args or ()))
    rules = [_remap(value) for flag, value in pairs if flag == "-r"]
    result = RosArgs(check_node_name(name), check_namespace(namespace), rules)
    for rule in rules:
        if rule.node not in (None, name):
            continue
        if rule.old in ("__node", "__name"):
            result.name = check_node_name(rule.new)
        elif rule.old == "__ns":
            result.namespace = check_namespace(rule.new)
    full = qualified(result.name, result.namespace)
    for flag, value in pairs:
        if flag == "-p":
            rule = _remap(value)
            if rule.node in (None, result.name):
                result.parameters[rule.old] = _yaml(rule.new, f"-p {value}")
        elif flag == "--params-file":
            try:
                text = Path(value).read_bytes()  # bytes: YAML detects the encoding
            except OSError as error:
                raise BusError(f"--params-file {value}: {error.strerror}; check the path") from error
            result.parameters.update(parameters_for(full, _yaml(text, f"--params-file {value}"), value))
        elif flag == "--log-level":
            logger, _, level = value.rpartition(":=")
            if level.lower() not in LEVELS:
                raise BusError(f"--log-level {value}: use one of {', '.join(LEVELS)}")
            if logger in ("", result.name, full.strip("/").replace("/", ".")):
                result.log_level = LEVELS[level.lower()]
    return result


def parameters_for(full_name: str, tree: Any, source: str = "parameters") -> dict[str, Any]:
    """Return a node's parameters from the tree of a parameter file; nested names are joined by dots.

    The tree's keys are full node names (`/arm/policy`, or `arm: policy:`). `*` matches one part of a name, `**` any
    number of parts; `/**` matches every node.
    """
    parameters: dict[str, Any] = {}

    def walk(node: Any, path: str) -> None:
        if not isinstance(node, dict):
            what = path or "the file"
            raise BusError(f"{source}: {what} has no 'ros__parameters'; write /**: {{ros__parameters: …}}")
        for key, value in node.items():
            if key != "ros__parameters":
                walk(value, f"{path}/{str(key).strip('/')}")
            elif _pattern(path).fullmatch(full_name):
                parameters.update(_flatten(value, source))

    walk(tree or {}, "")
    return parameters


def _pattern(path: str) -> re.Pattern[str]:
    parts = {"**": "(/[^/]+)*", "*": "/[^/]+"}
    return re.compile("".join(parts.get(p, "/" + re.escape(p)) for p in path.strip("/").split("/")))


def _flatten(tree: Any, source: str, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        raise BusError(f"{source}: 'ros__parameters' must hold names and values, got {tree!r}")
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(_flatten(value, source, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


_WITH_VALUE = {
    "-r": "-r", "--remap": "-r", "-p": "-p", "--param": "-p", "--params-file": "--params-file",
    "--log-level": "--log-level", "-e": "-e", "--enclave": "-e", "--log-config-file": "--log-config-file",
}  # fmt: skip


def _pairs(args: list[str]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    inside = False
    words = iter(args)
    for word in words:
        if word == "--ros-args":
            inside = True
        elif word == "--":
            inside = False
        elif inside and word in _WITH_VALUE:
            value = next(words, None)
            if value is None:
                raise BusError(f"ROS argument {word} needs a value")
            pairs.append((_WITH_VALUE[word], value))
        elif inside and not re.match(r"--(enable|disable)-\w+-logs$", word):
            raise BusError(f"unknown ROS argument {word!r} after --ros-args; end the ROS arguments with '--'")
    return pairs


def _remap(text: str) -> Remap:
    old, sep, new = text.partition(":=")
    node, colon, rest = old.partition(":")
    if not sep or not old or (colon and not rest):
        raise BusError(f"{text!r} is no rule; write old:=new, or node:old:=new for one node only")
    return Remap(rest, new, node) if colon else Remap(old, new)


def _yaml(text: str | bytes, where: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise BusError(f"{where}: not valid YAML: {error}") from error
