"""Unitree Go2 tracks velocity commands on slopes, stairs and rubble: blind, or with a scan of the ground.

Differences from go2-velocity: uneven ground, a critic that observes the ground, weaker rewards for a level trunk, which
has to tilt on slopes and rises on stairs, and a gait that lifts the feet higher.
"""

from dataclasses import replace
from functools import partial

from robot_rl.interface.control import JointOffsetConfig
from robot_rl.interface.symmetry import Reflection, joined
from sim import rewards as r
from sim.randomization import Randomize
from sim.tasks import go2_velocity as flat
from sim.tasks.base import Task
from sim.terrain import Terrain

LENGTH, WIDTH = 1.2, 0.8
"""Extent of the scan of the ground forwards and sideways, m."""
_WEIGHTS = {"alive": 2.0, "lin_vel_z": -0.5, "flat_orientation": -2.0}
"""Weights of reward terms that differ from those on level ground."""
_LIFT = 0.1
"""Height to which feet are lifted, m: the highest step."""
_SWING = (0.0, 0.3, -0.65) * 4
"""Offsets of the joints in the middle of a swing, rad, that lift a foot by 10 cm."""
_TERMS = {"feet_clearance": partial(r.feet_clearance, height=_LIFT)}


def _scan(spacing: float) -> tuple[str, Reflection]:
    """Return the observation term of a scan with a distance between its points, m, and its mirror image."""
    rows, points = (round(size / spacing) + 1 for size in (LENGTH, WIDTH))  # a row goes from right to left
    index = [points * row + point for row in range(rows) for point in reversed(range(points))]
    return f"height_scan:{LENGTH}:{WIDTH}:{spacing}", Reflection(index, [1.0] * len(index))


def _task(name: str, spacing: float, seen: bool) -> Task:
    """Return a task whose critic, and policy if `seen`, observe a scan with a distance between its points, m."""
    level, (scan, mirrored) = flat.TASK, _scan(spacing)
    assert level.mirror is not None
    interface, randomization, mirror = level.interface, level.randomization, level.mirror
    assert isinstance(interface.controller, JointOffsetConfig)
    interface = replace(interface, task=name, controller=replace(interface.controller, swing=_SWING))
    mirror = replace(mirror, privileged=joined(mirrored, mirror.privileged))
    if seen:
        interface = replace(interface, observations=(*interface.observations, scan))
        randomization = (*randomization, Randomize("sensor.scan_noise", 0.0, 0.03))
        drawn = Reflection([0], [1.0])
        mirror = replace(
            mirror, observation=joined(mirror.observation, mirrored), privileged=joined(mirror.privileged, drawn)
        )
    return replace(
        level,
        interface=interface,
        scene=replace(level.scene, ground=Terrain()),
        randomization=randomization,
        rewards=tuple(
            replace(term, weight=_WEIGHTS.get(term.name, term.weight), term=_TERMS.get(term.name, term.term))
            for term in level.rewards
        ),
        privileged=(scan, *level.privileged),
        metrics=r.rough_metrics,
        mirror=mirror,
    )


TASK = _task("go2-rough", spacing=0.2, seen=False)
SCAN_TASK = _task("go2-rough-scan", spacing=0.1, seen=True)
