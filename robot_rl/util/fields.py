"""Explanations of wrong fields in the construction of a dataclass, for specs that users write."""

import re
from dataclasses import MISSING, fields, is_dataclass
from types import TracebackType

from robot_rl.util.errors import nearest

_CALL = re.compile(r"(?:\w+\.)*(\w+)\.__init__\(\) (.*)")


def explain(error: Exception, file: str) -> str:
    """Return an error's text; if it is about the fields of a dataclass, with the fields that there are. The number of
    the line in `file` comes first, if the error arose there."""
    line = _line(error.__traceback__, file)
    where = f"line {line}: " if line else ""
    call = _CALL.fullmatch(str(error)) if isinstance(error, TypeError) else None
    kind = _find(error.__traceback__, call[1]) if call else None
    if call is None or kind is None:
        return f"{where}{error}"
    known = [field.name for field in fields(kind) if field.init]
    required = [f.name for f in fields(kind) if f.init and f.default is MISSING and f.default_factory is MISSING]
    if unknown := re.match(r"got an unexpected keyword argument '(\w+)'", call[2]):
        return f"{where}{call[1]} has no field {unknown[1]!r}; {nearest(unknown[1], known)}"
    if re.match(r"missing \d+ required", call[2]):
        lacking = ", ".join(re.findall(r"'(\w+)'", call[2]))
        return f"{where}{call[1]} lacks {lacking}; it needs {', '.join(required)}"
    return f"{where}{call[1]} {call[2]}; its fields are {', '.join(known)}"


def _find(traceback: TracebackType | None, name: str) -> type | None:
    """Return the dataclass of a name that the frames of a traceback use."""
    while traceback:
        frame, traceback = traceback.tb_frame, traceback.tb_next
        for thing in (*frame.f_locals.values(), *frame.f_globals.values()):
            kind = thing if isinstance(thing, type) else type(thing)
            if kind.__name__ == name and is_dataclass(kind):
                return kind
    return None


def _line(traceback: TracebackType | None, file: str) -> int:
    """Return the last line of `file` in a traceback; 0 if there is none."""
    line = 0
    while traceback:
        if traceback.tb_frame.f_code.co_filename == file:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
