"""OGBench's single tasks: QC offline on the oracles' play, then online (Li et al. 2025, arXiv 2507.07969).

    python -m benchmarks.ogbench --work /tmp/ogbench [--task ogbench:cube-double-singletask-v0]

Success on 50 held-out episodes after 0, 25,000 and 100,000 environment steps. The paper has 1,000,000 transitions and
as many offline updates; this has 100,000 of both at most, and the dense reward.
"""

from __future__ import annotations

import sys

from benchmarks.suites import Suite, main

DOMAINS = ("cube-single", "cube-double", "scene", "puzzle-3x3")
SUITE = Suite(
    "ogbench",
    tuple(f"ogbench:{domain}-singletask-v0" for domain in DOMAINS),
    "qc",
    "--skill PLAY --keep-failures --episodes 200 --num-envs 4",
    "--training.reward task --training.offline-updates 100000",
    (0, 25_000, 100_000),
)

if __name__ == "__main__":
    sys.exit(main(SUITE, __doc__))
