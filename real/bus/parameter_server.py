"""The six parameter services of a node and `/parameter_events`, for backends without their own."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from real.bus.messages import make
from real.bus.names import qualified
from real.bus.parameters import Declaration, Parameters, from_value, to_value, type_of
from real.bus.qos import PARAMETERS
from real.bus.stamps import stamp

if TYPE_CHECKING:
    from real.bus.node import Node

_RESULT = "rcl_interfaces/msg/SetParametersResult"


class ParameterServer:
    """Services ``~/get_parameters`` and so on. Parameters that are not declared can be read, not set."""

    def __init__(self, node: Node, parameters: Parameters) -> None:
        self._parameters, self._name = parameters, qualified(node.name, node.namespace)
        self._events = node.publisher("rcl_interfaces/msg/ParameterEvent", "/parameter_events", PARAMETERS)
        handlers: dict[str, Callable[[Any], dict[str, Any]]] = {
            "DescribeParameters": self._describe,
            "GetParameterTypes": lambda request: {"types": [self._type(n) for n in self._known(request.names)]},
            "GetParameters": lambda request: {"values": [self._value(n) for n in self._known(request.names)]},
            "ListParameters": self._list,
            "SetParameters": lambda request: {"results": [self._set([one]) for one in request.parameters]},
            "SetParametersAtomically": lambda request: {"result": self._set(request.parameters)},
        }
        for short, handler in handlers.items():
            kind, name = f"rcl_interfaces/srv/{short}", re.sub(r"\B([A-Z])", r"_\1", short).lower()
            node.service(kind, f"~/{name}", partial(self._answer, f"{kind}_Response", handler), PARAMETERS)
        self.publish("new_parameters", list(parameters.values))

    @staticmethod
    def _answer(response: str, handler: Callable[[Any], dict[str, Any]], request: Any) -> Any:
        return make(response, **handler(request))

    def declare(self, declaration: Declaration) -> None:
        """Publish a parameter that was declared later."""
        self.publish("new_parameters", [declaration.name])

    def publish(self, field: str, names: list[str]) -> None:
        """Publish the values of parameters as ``new_parameters`` or ``changed_parameters`` (`field`)."""
        found = [{"name": n, "value": self._value(n)} for n in names]
        event = make("rcl_interfaces/msg/ParameterEvent", stamp=stamp(), node=self._name, **{field: found})
        self._events.publish(event)

    def _known(self, names: list[str]) -> list[str]:
        """Return the names; none if one is unknown, as rclpy does."""
        return names if all(name in self._parameters.values for name in names) else []

    def _type(self, name: str) -> int:
        declared = self._parameters.declared.get(name)
        return declared.type if declared is not None else type_of(self._parameters.values[name])

    def _value(self, name: str) -> Any:
        return to_value(self._parameters.values[name], self._type(name))

    def _describe(self, request: Any) -> dict[str, Any]:
        declared = self._parameters.declared
        undeclared = {"description": "not declared by the node: cannot be set while it runs", "read_only": True}
        return {
            "descriptors": [
                declared[n].descriptor() if n in declared else {"name": n, "type": self._type(n), **undeclared}
                for n in self._known(request.names)
            ]
        }

    def _list(self, request: Any) -> dict[str, Any]:
        def depth(rest: str) -> bool:
            return request.depth == 0 or rest.count(".") < request.depth

        def listed(name: str) -> bool:
            inside = [name[len(p) + 1 :] for p in request.prefixes if name.startswith(f"{p}.")]
            return name in request.prefixes or any(map(depth, inside)) or (not request.prefixes and depth(name))

        names = [name for name in self._parameters.values if listed(name)]
        prefixes = list(dict.fromkeys(name.rpartition(".")[0] for name in names if "." in name))
        return {"result": {"names": names, "prefixes": prefixes}}

    def _set(self, parameters: list[Any]) -> Any:
        reason = self._parameters.set([(one.name, from_value(one.value)) for one in parameters])
        if not reason:
            self.publish("changed_parameters", [one.name for one in parameters])
        return make(_RESULT, successful=not reason, reason=reason)
