"""Judge a robot after a fault by its trace: tuples of time, s, joint positions, rad, and whether it is held up."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.faults.real.documented import Cell
from robot_rl.robots import robots

WATCHED = 2.5
"""Time for which a robot is watched after a fault, s."""
STILL = 0.02
"""Joint speed below which an arm is at rest, rad/s."""
MOVES = 0.02
"""Share of the speed limits above which an arm counts as moving before a fault."""
SPAN = 0.02
"""Time over which speeds are taken, s."""


def settled(trace: list[tuple[float, np.ndarray, bool]], begin: float) -> float | None:
    """Return the seconds from `begin` until the arm rests; None if it still moves."""
    last = begin
    at = np.array([t for t, *_ in trace])
    for k, (t, q, _) in enumerate(trace):
        before = int(np.searchsorted(at, t - SPAN, "right")) - 1
        if t > begin and k > before >= 0 and np.abs(q - trace[before][1]).max() > STILL * (t - at[before]):
            last = t
    return None if last > begin + WATCHED - 0.3 else max(0.0, last - begin)


def damped(trace: list[tuple[float, np.ndarray, bool]], begin: float) -> float | None:
    """Return the seconds from `begin` until the robot is damped for good; None if it is not."""
    held = [t for t, _, up in trace if up and t > begin]
    return None if trace[-1][2] else (held[-1] - begin if held else 0.0)


def jump(trace: list[tuple[float, np.ndarray, bool]], begin: float, robot: str) -> float:
    """Return the largest speed after `begin`, as a share of the robot's limits."""
    moves = [(t, q) for t, q, up in trace if t > begin - SPAN and up]
    limit, worst = robots.get(robot).limit("velocity").numpy(), 0.0
    for (t, q), (later, after) in zip(moves, moves[4:], strict=False):
        worst = max(worst, float((np.abs(after - q) / limit).max()) / max(later - t, SPAN))
    return worst


def met(cell: Cell, found: dict[str, Any]) -> bool:
    """Return whether the robot did what is documented."""
    safe = found["speed"] <= 1.05 and found["kept"]
    if cell.state == "safe":
        return bool(safe)
    if cell.state == "keeps":
        return bool(safe and found["seconds"] is None and found["status"] == 1)
    if cell.state == "goes on":
        return bool(safe and found["seconds"] is None and found["status"] is None and not found["stops"])
    return bool(safe and found["seconds"] is not None and found["seconds"] <= cell.within)
