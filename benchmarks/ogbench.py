"""OGBench's single tasks, offline and then online.

    python -m benchmarks.ogbench --work runs/ogbench [--task ogbench:cube-double-singletask-v0] [--method qc-fql]

Success on 50 held-out episodes after 0, 25,000 and 100,000 environment steps.

resfit   600 demonstrations of the task, with the noise of the suite's datasets; a clone, corrected online from success
dsrl     the same clone, steered online by its noise
qc-fql   the oracles' play, which aims elsewhere, and the dense reward, as Q-chunking has them (Li et al. 2025, arXiv
         2507.07969): at most 150,000 transitions and 50,000 offline updates, where the paper has 1,000,000 of each
qc       the same, and 15 times slower per update
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
