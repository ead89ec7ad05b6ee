"""Limits above which a measure of a run names a cause."""

MARGIN = 1.3
"""A limit is so many times the largest value of runs without a fault, or the largest that does no harm if that is larger.
Two seeds, tasks or robots differ by less than a tenth."""
CLEAN: dict[str, float] = {"motor-delay": 0.0681, "damping": 1.947, "position-scale": 0.0032, "velocity-noise": 0.75}
"""Largest values of runs without a fault, as `python -m benchmarks.shaking --limits` prints them."""
HARMLESS = {
    "motor-delay": 0.05,  # s, to which tasks are trained
    "damping": 1.0, "stiffness": 1.0,  # damping over stiffness and its inverse, as multiples of the spec's
    "joint-order": 1.0, "position-sign": 1.0,  # times nearer
    "position-offset": 0.01,  # rad: 5 mm at the tool
    "position-scale": 0.02,  # error of the scale
    "switch-jump": 0.01,  # rad
    "state-rate": 1.0,  # interval of states, as a multiple of the expected one
    "velocity-noise": 1.0,  # as a multiple of the noise of differences of positions over a control period
    "quaternion-order": 0.2,  # how much better turned orientations correlate with the gyroscope
    "unlike-simulation": 0.01,  # rad that no simulation explains
}  # fmt: skip
"""Values that do no harm, by the name of the cause."""
LIMITS = {name: MARGIN * max(value, CLEAN.get(name, 0.0)) for name, value in HARMLESS.items()}
