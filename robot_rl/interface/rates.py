"""Check that a control period is a whole number of commands; it would be rounded to another rate otherwise."""

from __future__ import annotations

from robot_rl.util.errors import ConfigError


def is_whole(count: float) -> bool:
    """Return whether a value is a whole number of at least 1, within rounding errors."""
    return round(count) >= 1 and abs(count - round(count)) < 1e-4


def command_ticks(command_rate: float, rate: float) -> int:
    """Return the commands at `command_rate`, Hz, per control period at `rate`, Hz; raise ConfigError if not whole."""
    count = command_rate / rate
    if not is_whole(count):
        raise ConfigError(
            f"a control period at {rate:g} Hz is {1 / rate:.6g} s, which is {count:.4g} commands of "
            f"{1 / command_rate:g} s and not a whole number; a rate of {command_rate / max(1, round(count)):.6g} Hz "
            "would do"
        )
    return round(count)
