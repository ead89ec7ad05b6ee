"""The one error of the bus."""

from __future__ import annotations

from robot_rl.util.errors import UserError


class BusError(UserError, RuntimeError):
    """Say in one sentence what is wrong with the bus, and in the next what to do about it."""
