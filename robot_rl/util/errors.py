"""Errors for users: each message is one sentence with the problem, its place and the remedy."""

import difflib
import importlib
import signal
from collections.abc import Iterable
from typing import Any

INSTALL = "run `make`, or: pip install -c constraints.txt -e '.[all]'"
"""Remedy for a missing or outdated package."""


class UserError(Exception):
    """An error that the user can fix; the command line prints it without a traceback.

    Attributes:
        code: process exit status; 2 for an invalid name, flag or file, 1 for other errors.
    """

    code = 1


class ConfigError(UserError):
    """A flag, task, folder, file or bundle is invalid; raised before any work starts."""

    code = 2


class Interrupted(UserError):  # noqa: N818 - it reads as a sentence
    """A signal stopped the work cleanly; the message has the progress and how to resume. `code` is 128 + the signal's
    number, as in a shell: 130 after Ctrl-C, 143 after SIGTERM."""

    def __init__(self, message: str, number: int = signal.SIGINT):
        self.code = 128 + number
        super().__init__(message)


class UnknownName(UserError):  # noqa: N818 - it reads as a sentence
    """A name is not in a registry; the message lists the most similar names."""

    code = 2

    def __init__(self, kind: str, name: str, known: Iterable[str]):
        super().__init__(f"unknown {kind} {name!r}; {nearest(name, known)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint with the `known` names similar to `name`, or with all known names if none is similar."""
    known = sorted(known)
    cased = {each.lower(): each for each in known}
    near = [cased[each] for each in difflib.get_close_matches(name.lower(), cased, n=3, cutoff=0.4)]
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known) or 'none'}"


def require(name: str, use: str, extra: str) -> Any:
    """Import and return a package that only `use` needs; ConfigError says which optional dependencies to install."""
    try:
        return importlib.import_module(name)
    except ImportError:
        remedy = f"pip install -c constraints.txt -e '.[{extra}]'"
        raise ConfigError(f"{use} needs the package {name}, which is not installed: {remedy}") from None
