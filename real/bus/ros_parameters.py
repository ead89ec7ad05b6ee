"""Parameters with rclpy, which serves them itself; the checks are those of `real.bus.parameters`."""

from __future__ import annotations

import array
from typing import Any

from rcl_interfaces.msg import ParameterDescriptor, SetParametersResult
from rclpy.serialization import deserialize_message

from real.bus.messages import encode
from real.bus.parameters import Declaration, Parameters


class RosParameters:
    """Declarations of a node in rclpy, and the check before a change."""

    def __init__(self, ros: Any, parameters: Parameters) -> None:
        self._ros, self._parameters = ros, parameters
        self._declaring = ""
        for declaration in parameters.declared.values():
            self.declare(declaration)
        ros.add_on_set_parameters_callback(self._on_set)

    def declare(self, declaration: Declaration) -> None:
        """Declare a parameter in rclpy; a launch argument has declared it without a descriptor."""
        name = declaration.name
        if self._ros.has_parameter(name):
            self._ros.undeclare_parameter(name)
        raw = bytes(encode(declaration.descriptor(), "rcl_interfaces/msg/ParameterDescriptor"))
        descriptor = deserialize_message(raw, ParameterDescriptor)
        value = self._parameters.values[name]
        if isinstance(value, bytes):
            value = [bytes([byte]) for byte in value]  # rclpy's form
        self._declaring = name
        try:
            self._ros.declare_parameter(name, value, descriptor, ignore_override=True)
        finally:
            self._declaring = ""

    def _on_set(self, parameters: list[Any]) -> SetParametersResult:
        if [one.name for one in parameters] == [self._declaring]:
            return SetParametersResult(successful=True)
        reason = self._parameters.set([(one.name, _plain(one.value)) for one in parameters])
        return SetParametersResult(successful=not reason, reason=reason)


def _plain(value: Any) -> Any:
    """Return a list for rclpy's arrays, and bytes for its lists of bytes."""
    if isinstance(value, list | tuple) and value and all(isinstance(item, bytes) for item in value):
        return b"".join(value)
    return list(value) if isinstance(value, array.array | list | tuple) else value
