"""Errors of bundles and of policy servers."""

from pathlib import Path

from robot_rl.util.errors import ConfigError, UserError


class BundleError(ConfigError):
    """A bundle is missing, damaged, or made for another robot or task."""


class NoBundle(BundleError):  # noqa: N818 - it reads as a sentence
    """A folder has no bundle. If it is the folder of a stopped run, the message says how to make the bundle."""

    def __init__(self, folder: Path):
        if (folder / "config.json").is_file() and (folder / "checkpoint.safetensors").is_file():
            message = f"{folder} is a run that was stopped before its bundle: make one with `robot-rl bundle {folder}`"
        else:
            message = f"{folder} is no bundle: it has no policy.json; name a folder that `robot-rl train` wrote"
        super().__init__(message)


class WrongBundle(BundleError):  # noqa: N818 - it reads as a sentence
    """An intact bundle is made for another robot or task."""


class RemoteFailure(UserError):  # noqa: N818 - it reads as a sentence
    """A policy server is unreachable, gone or late, reports an error, or sends an invalid answer.

    Attributes:
        kind: category in the connection's counts: unreachable, closed, timeout, error, nonsense, shape or nonfinite.
    """

    def __init__(self, kind: str, message: str):
        self.kind = kind
        super().__init__(message)
