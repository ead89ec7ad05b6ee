"""Advice on numbers that look like degrees or millimetres where rad and m are expected."""

import math

DEGREES, MILLI = 180 / math.pi, 1000.0
"""Factors by which numbers in degrees and in millimetres exceed those in rad and m."""
IMPOSSIBLE = 60.0
"""Angle, rad, and speed, rad/s, that no joint of a robot reaches; degrees do."""
FAR = 10.0
"""Length that no part of a robot has, m; millimetres do."""


def looks_scaled(ours: float, theirs: float, factor: float) -> bool:
    """Return whether `ours` looks like `theirs`, or a part of it, in a unit that is `factor` times as small."""
    return 0.3 * factor * theirs <= ours <= 1.1 * factor * theirs


def unit_advice(ours: float, theirs: float, factor: float, per: str = "") -> str:
    """Return advice, to precede a remedy, if the spec's or the file's number looks like degrees or millimetres."""
    right, wrong = ("rad", "degrees") if factor == DEGREES else ("m", "mm")
    for where, large, small in (("spec", ours, theirs), ("file", theirs, ours)):
        if small > 0 and looks_scaled(large, small, factor):
            return f"write {right}{per}, not {wrong}{per}, in the {where}; "
    return ""


def length_advice(*lengths: float) -> str:
    """Return advice, to precede a remedy, if one of a spec's lengths looks like millimetres."""
    return "write m, not mm, in the spec; " if max(map(abs, lengths)) > FAR else ""
