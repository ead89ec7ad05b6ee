"""Measure ten hard tasks of Meta-World with 20 demonstrations and 50,000 environment steps each, rewarded for success.

    python -m benchmarks.metaworld --work runs/metaworld --env-python PYTHON [--task metaworld:push-v3]

The methods are evaluated on 50 held-out episodes after 0, 20,000 and 50,000 steps:

resfit   a clone of the demonstrations, corrected online
rlpd     a new policy, with demonstrations in every batch

For comparison, success of TD-MPC2 without demonstrations and with dense reward after 100,000 and 500,000 steps:
assembly 0.03 and 0.67, pick-place 0.10 and 0.77, pick-place-wall 0 and 0.67, disassemble 0.23 and 0.67, stick-pull 0.33
and 0.90, shelf-place 0 and 1.0 (results of FlashSAC's repository).
"""

import sys

from benchmarks.suites import CORRECTED, Method, Suite, main

HARD = (
    "assembly", "disassemble", "hand-insert", "pick-out-of-hole", "pick-place", "pick-place-wall", "push-back",
    "shelf-place", "stick-pull", "stick-push",
)  # fmt: skip
"""Tasks of the groups hard and very hard (Seo et al. 2023, arXiv 2206.14244), without push."""
DEMOS = "--skill STEADY --episodes 20 --num-envs 4"
SUITE = Suite(
    "metaworld",
    tuple(f"metaworld:{name}-v3" for name in HARD),
    {"resfit": Method(f"{CORRECTED} 0.2", DEMOS, "diffusion-bc --policy.execute 2"), "rlpd": Method("rlpd", DEMOS)},
    (0, 20_000, 50_000),
    own_python=True,
)

if __name__ == "__main__":
    sys.exit(main(SUITE, __doc__))
