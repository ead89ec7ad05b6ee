"""The error of the bus."""

from __future__ import annotations

from robot_rl.util.errors import ConfigError, UserError


class BusError(UserError, RuntimeError):
    """An error of the bus: one sentence on what is wrong, and one on what to do."""


class BusSettingError(BusError, ConfigError):
    """An environment variable of the bus has a value that it cannot have."""
