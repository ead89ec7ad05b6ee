"""Parse terms and tests written as text: `lifted:cube:0.12`, `object_to_object:cube:bowl`, `my_lab.terms:angle:drawer`.

The text is a name or import path, followed by arguments separated by colons. Parameters are converted by annotation:
`ObjectName` or `JointedName` is an object of the scene; float, int or a type of `robot_rl.util.limits` is a number
within its range; `str` or `Literal[...]` is a word. Trailing parameters with defaults are optional.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from robot_rl.interface.state import OF_JOINTS, JointedName, ObjectName
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import find_problem
from robot_rl.util.registry import Registry


@dataclass(frozen=True)
class Call:
    """Function with its arguments, ready to be called."""

    function: Callable[..., Any]
    arguments: dict[str, Any]
    objects: tuple[str, ...]
    """Views of scene objects that the arguments name, in order: `cube` is a pose, `drawer.joints` are joints."""

    def __call__(self) -> Any:
        return self.function(**self.arguments)


def read_call(registry: Registry, text: str, returns: Any, given: Mapping[Any, Any] | None = None) -> Call:
    """Parse the text of a term or test; `given` maps an annotation to the value of the parameters annotated with it.

    Functions of other packages must be annotated to return `returns`, so that bundles cannot call arbitrary functions.

    Raises:
        UnknownName: the name is not in the registry.
        ConfigError: the import fails, the return annotation is not `returns`, or the arguments do not fit.
    """
    name, words = registry.split(text)
    function, what, given = registry.get(name), f"{registry.kind} {text!r}", given or {}
    try:
        parameters, hints = inspect.signature(function).parameters, get_type_hints(function, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"{what}: its annotations cannot be read ({error}); import what they name") from None
    if name not in registry.entries and hints.get("return") != returns:
        raise ConfigError(f"{what}: {name} is not annotated to return {getattr(returns, '__name__', returns)}; do so")
    arguments = {p: given[hints[p]] for p in parameters if isinstance(hints.get(p), type) and hints[p] in given}
    open_ = [p for p in parameters if p not in arguments]
    needed = sum(parameters[p].default is inspect.Parameter.empty for p in open_)
    views = {ObjectName: "", JointedName: OF_JOINTS}
    objects = [p for p in open_ if hints.get(p) in views]
    if not needed <= len(words) <= len(open_) or not all(words):
        shown = ["object" if [p] == objects else p for p in open_]
        raise ConfigError(f"{what} is written {':'.join([name, *(f'<{p}>' for p in shown)])}")
    for parameter, word in zip(open_, words, strict=False):
        arguments[parameter] = _value(word, hints.get(parameter), f"{what}: {parameter}")
    return Call(function, arguments, tuple(arguments[p] + views[hints[p]] for p in objects if p in arguments))


def _value(word: str, hint: Any, what: str) -> Any:
    """Convert a word of the text to the type in a parameter's annotation `hint`."""
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if kind in (ObjectName, JointedName, str):
        return word
    if kind in (float, int):
        try:
            value: Any = kind(word)
        except ValueError:
            value = word
    elif get_origin(kind) is Literal:
        value = word
    else:
        raise ConfigError(f"{what} is annotated {hint}; annotate it ObjectName, str, Literal, or a type of util.limits")
    if found := find_problem(value, hint):
        raise ConfigError(f"{what} is {word}; it must be {found[1]}")
    return value
