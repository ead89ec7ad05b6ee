"""OGBench's single tasks: Q-chunking offline on the oracles' play, then online (Li et al. 2025, arXiv 2507.07969).

    python -m benchmarks.ogbench --work /tmp/ogbench [--task ogbench:cube-double-singletask-v0] [--method qc]

Success on 50 held-out episodes after 0, 25,000 and 100,000 environment steps. The paper has 1,000,000 transitions and
as many offline updates; this has at most 150,000 of the first and 50,000 of the second, and the dense reward.
`qc-fql` takes about 0.03 s per update on one core, and `qc`, which integrates 32 candidates per target, 0.5 s.
"""

from __future__ import annotations

import sys

from benchmarks.suites import Suite, main

DOMAINS = ("cube-single", "cube-double", "scene", "puzzle-3x3")
SUITE = Suite(
    "ogbench",
    tuple(f"ogbench:{domain}-singletask-v0" for domain in DOMAINS),
    {"qc-fql": "fql --policy.horizon 5", "qc": "qc"},
    "--skill PLAY --keep-failures --episodes 200 --num-envs 4",
    "--training.reward task --training.offline-updates 50000 --training.updates-per-step 0.5",
    (0, 25_000, 100_000),
)

if __name__ == "__main__":
    sys.exit(main(SUITE, __doc__))
