"""Measure methods on OGBench's single tasks, trained offline and then online.

    python -m benchmarks.ogbench --work runs/ogbench [--task ogbench:cube-double-singletask-v0] [--method qc-fql]

The methods are evaluated on 50 held-out episodes after 0, 25,000 and 100,000 environment steps:

resfit   600 demonstrations of the task, with the noise of the suite's datasets; a clone, corrected online from success
dsrl     the clone of resfit, steered online by its noise
qc-fql   data of oracles that play towards other goals, and dense reward, as in the paper on Q-chunking (Li et al. 2025,
         arXiv 2507.07969), with at most 150,000 transitions and 50,000 offline updates, not 1,000,000 of each
qc       the data and reward of qc-fql; each update takes 15 times as long
"""

import sys

from benchmarks.suites import CORRECTED, Method, Suite, main

DOMAINS = ("cube-single", "cube-double", "scene", "puzzle-3x3")
PLAY = "--skill PLAY --keep-failures --episodes 200 --num-envs 4"
DEMOS = "--skill CLUMSY --episodes 600 --num-envs 4"
CLONE = "diffusion-bc --policy.hidden 512 --training.updates 10000"
STEERED = "dsrl --training.num-envs 4 --training.warmup 5000 --training.updates-per-step 0.25 --agent.discount 0.995"
AS_PUBLISHED = "--training.reward task --training.offline-updates 50000 --training.updates-per-step 0.5"
SUITE = Suite(
    "ogbench",
    tuple(f"ogbench:{domain}-singletask-v0" for domain in DOMAINS),
    {
        "resfit": Method(f"{CORRECTED} 0.1", DEMOS, CLONE),
        "dsrl": Method(STEERED, DEMOS, CLONE, reads_demos=False),
        "qc-fql": Method(f"fql --policy.horizon 5 {AS_PUBLISHED}", PLAY),
        "qc": Method(f"qc {AS_PUBLISHED}", PLAY),
    },
    (0, 25_000, 100_000),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(SUITE, __doc__))
