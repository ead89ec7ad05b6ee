"""Errors of bundles and of policy servers."""

from __future__ import annotations

from pathlib import Path

from robot_rl.util.errors import ConfigError, UserError


class BundleError(ConfigError):
    """A bundle that is missing, damaged, or made for something else."""


class NoBundle(BundleError):  # noqa: N818 - it reads as a sentence
    """A folder without a bundle; of a run that was stopped, the message says how to make one."""

    def __init__(self, folder: Path):
        if (folder / "config.json").is_file() and (folder / "checkpoint.safetensors").is_file():
            said = f"{folder} is a run that was stopped before its bundle: make one with `robot-rl bundle {folder}`"
        else:
            said = f"{folder} is no bundle: it has no policy.json; name a folder that `robot-rl train` wrote"
        super().__init__(said)


class WrongBundle(BundleError):  # noqa: N818 - it reads as a sentence
    """A sound bundle for something else."""


class RemoteFailure(UserError):  # noqa: N818 - it reads as a sentence
    """A policy server that cannot be reached, has gone, is late, reports an error, or answers nonsense.

    Attributes:
        kind: what it is counted as: unreachable, closed, timeout, error, nonsense, shape or nonfinite.
    """

    def __init__(self, kind: str, message: str):
        self.kind = kind
        super().__init__(message)
