"""Identify a robot's parameters from a log, and say which of them the log cannot show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from robot_rl.identification.fit import ARM, LEGS, Fitted, Problem, Unknown, coarse_delay, fit, slopes
from robot_rl.identification.log import Log
from robot_rl.identification.plant import Plant
from robot_rl.identification.tracker import Tracked, tracked
from sim.parameters import find
from sim.randomization.ranges import Ranges

HELD_OUT = 4
"""Every such window is kept from the fit, to measure it."""
SIGMAS = 2.0
"""Half width of intervals and ranges, standard errors."""
WIDER = 1.5
"""Width of a range as a multiple of that of the interval: a range should hold the truth in more than 95 % of cases."""
NOISE_SPREAD = 0.2
"""Half width of the range of a noise, as a share: it is known well, but not the same at all times."""


@dataclass(frozen=True)
class Estimate:
    """One parameter."""

    parameter: str
    estimate: float
    low: float
    high: float
    """Interval of `SIGMAS` standard errors."""
    shown: bool
    """Whether the data can show the parameter; if not, it was left at its start."""
    why: str = ""
    """Why the data cannot show it."""

    @property
    def unit(self) -> str:
        row = find(self.parameter)
        return row.unit if row else ""


@dataclass
class Identified:
    """Result of an identification."""

    estimates: list[Estimate]
    before: float
    after: float
    """Root mean square difference of held-out joint positions from simulation, nominal and identified, rad."""
    seconds: float
    time: np.ndarray
    measured: np.ndarray
    simulated: np.ndarray
    """Of a held-out window: time (T,) s, measured joint positions (T, J), and simulated ones before and after
    (2, T, J), rad."""
    notes: list[str] = field(default_factory=list)

    def ranges(self) -> Ranges:
        """Return ranges for `train --randomization`: centred on the estimates and as wide as they are uncertain."""
        found: Ranges = {}
        for e in self.estimates:
            row = find(e.parameter)
            if e.shown and row:
                low, high = (e.estimate + WIDER * (end - e.estimate) for end in (e.low, e.high))
                low, high = max(low, row.low), min(high, row.high)
                low = max(low, 0.05) if row.above else low
                found[e.parameter] = {"low": round(low, 6), "high": round(max(low, high), 6), "distribution": "uniform"}
        return found

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per parameter."""
        return [{"parameter": e.parameter, "estimate": e.estimate, "low": e.low, "high": e.high, "unit": e.unit,
                 "shown": e.shown, "why": e.why} for e in self.estimates]  # fmt: skip


def identify(log: Log, mjcf: str = "", held: dict[str, tuple[float, float]] | None = None) -> Identified:
    """Identify what a log shows. `held`: from when to when, s, each object is in the gripper; a legged robot must stand
    or hang in the log, and an arm touch nothing but that."""
    known = LEGS if log.robot.base else ARM
    plant = Plant(log, 1 + 2 * len(known), mjcf)
    try:
        found = _joints(log, plant, [u for u in known if u.name in plant.names or u.name == known[0].name])
    finally:
        plant.close()
    if log.robot.base and {"robot.stiffness_scale", "robot.damping_scale"} <= {e.parameter for e in found.estimates}:
        why = "by definition: it is part of stiffness and damping"
        found.estimates.append(Estimate("robot.strength_scale", 1.0, 1.0, 1.0, True, why))
    for name in log.objects:
        errors = tracked(log, name, (held or {}).get(name))
        found.estimates += _of_tracker(errors) if errors else []
        if errors is None:
            found.notes.append(f"{name}: too few poses to say anything about its tracker")
    return found


def _joints(log: Log, plant: Plant, unknowns: list[Unknown]) -> Identified:
    windows = len(plant.spans)
    kept = np.ones(windows, bool)
    if windows >= HELD_OUT:
        kept[HELD_OUT - 1 :: HELD_OUT] = False
    problem = Problem(plant, kept)
    start = np.array([u.start for u in unknowns])
    theta = coarse_delay(problem, unknowns, start)
    error, slope = slopes(problem, unknowns, theta)
    first = Fitted(unknowns, theta, np.linalg.pinv(slope.T @ slope, hermitian=True), float((error**2).mean()))
    hidden = _hidden(first, slope)
    visible = [k for k, u in enumerate(unknowns) if u.name not in hidden]
    fitted = fit(problem, [unknowns[k] for k in visible], theta[visible])
    estimates = [_estimate(u, t, e) for u, t, e in zip(fitted.unknowns, fitted.theta, fitted.errors, strict=True)]
    estimates += [Estimate(u.name, float(u.value(u.start)), *_ends(u, u.start, 0.0), False, hidden[u.name])
                  for u in unknowns if u.name in hidden]  # fmt: skip
    noise = float(np.median(problem.noise))
    estimates.append(
        Estimate("sensor.joint_noise", noise, (1 - NOISE_SPREAD) * noise, (1 + NOISE_SPREAD) * noise, True)
    )
    judged = ~kept if (~kept).any() else kept
    simulated = _compared(plant, fitted, unknowns)
    before, after = (_rms(plant, one, judged) for one in simulated)
    window = int(np.flatnonzero(judged)[0])
    time = log.pieces[plant.spans[window][0]].time[: plant.ticks] + plant.period
    notes = [] if (~kept).any() else ["the log is too short to hold a part out: the error is that of the fitted part"]
    return Identified(
        estimates, before, after, log.seconds, time, plant.measured[window], np.stack([s[window] for s in simulated]),
        notes,
    )  # fmt: skip


def _compared(plant: Plant, fitted: Fitted, unknowns: list[Unknown]) -> list[np.ndarray]:
    """Return the simulations (W, T, J) with nominal and with identified parameters."""
    best = {u.name: float(u.value(t)) for u, t in zip(fitted.unknowns, fitted.theta, strict=True)}
    values = {u.name: np.full(plant.count, best.get(u.name, float(u.value(u.start)))) for u in unknowns}
    for name in values:  # the first candidate is the nominal one
        row = find(name)
        model = plant.engine.model.dof_frictionloss[plant.engine._v].mean() if name.endswith("joint_friction") else 0.0
        values[name][0] = row.nominal if row and row.nominal is not None else model
    simulated = plant(values)
    return [simulated[0], simulated[1]]


def _rms(plant: Plant, simulated: np.ndarray, windows: np.ndarray) -> float:
    difference = (plant.measured - simulated)[plant.known & windows[:, None]]
    return float(np.sqrt((difference**2).mean()))


def _hidden(first: Fitted, slope: np.ndarray) -> dict[str, str]:
    """Return why the data cannot show some of the parameters: their standard error would be larger than what makes a
    difference. Of several that look alike, all are hidden."""
    names = [u.name for u in first.unknowns]
    size = np.linalg.norm(slope, axis=0)
    alike = (slope.T @ slope) / np.outer(size, size).clip(1e-12)
    found = {}
    for k, (u, error) in enumerate(zip(first.unknowns, first.errors, strict=True)):
        if size[k] < 1e-6:
            found[u.name] = "nothing in the log depends on it"
        elif not SIGMAS * error <= u.matters:
            other = int(np.argmax(np.abs(np.where(np.arange(len(names)) == k, 0, alike[k]))))
            found[u.name] = f"it looks like {names[other]} in this log; move faster, or another way"
    return found


def _estimate(unknown: Unknown, theta: float, error: float) -> Estimate:
    low, high = _ends(unknown, theta, SIGMAS * error)
    shown = SIGMAS * error <= unknown.matters
    why = "" if shown else "its interval is wider than what makes a difference"
    return Estimate(unknown.name, float(unknown.value(theta)), low, high, shown, why)


def _ends(unknown: Unknown, theta: float, half: float) -> tuple[float, float]:
    low, high = (float(np.clip(theta + side * half, unknown.low, unknown.high)) for side in (-1, 1))
    return float(unknown.value(low)), float(unknown.value(high))


def _of_tracker(t: Tracked) -> list[Estimate]:
    """Return the estimates of one object's tracker."""
    found = []
    for axis, offset, error in zip("xyz", t.offset, t.offset_error, strict=True):
        shown = bool(SIGMAS * error < 0.005)
        why = "" if shown else "turn the hand that holds it: without, its place in the hand looks the same"
        half = SIGMAS * float(error) if shown else 0.0
        found.append(Estimate(f"{t.name}.bias_{axis}", float(offset), offset - half, offset + half, shown, why))
    half = SIGMAS * t.delay_error
    shown = half < 0.02
    ends = max(0.0, t.delay - half), t.delay + half
    found.append(Estimate("sensor.object_delay", t.delay, *ends, shown, "" if shown else "move the hand faster"))
    ends = (1 - NOISE_SPREAD) * t.noise, (1 + NOISE_SPREAD) * t.noise
    return [*found, Estimate("sensor.object_noise", t.noise, *ends, True)]
