"""Measure Gymnasium-Robotics' Fetch tasks, rewarded for success, with and without 20 demonstrations.

    python -m benchmarks.fetch --work runs/fetch --env-python PYTHON [--task fetch:pick-and-place] [--method her]

Policies are evaluated on 50 held-out episodes after 20,000, 50,000 and 100,000 steps:

rlpd      half of each batch from 20 demonstrations
rlpd-her  the same, and four goals in hindsight for each episode
her       sac with goals in hindsight, without demonstrations

For comparison, hindsight alone needs about 1,500,000 steps of pick-and-place, 10.5 hours of CPU time, as others report.
"""

import sys

from benchmarks.suites import Method, Suite, main

DEMOS = "--skill CLUMSY --episodes 20 --num-envs 4"
HINDSIGHT = (
    "--training.hindsight 4 --training.goal.achieved achieved_goal --training.goal.wanted desired_goal "
    "--training.goal.difference= --training.goal.tolerance 0.05"
)
SPARSE = "--training.reward success --training.reward-scale 50 --agent.discount 0.95"
"""With rewards of at most 1, the entropy of sac would outweigh a step's loss of value, which is 5 % of them."""
RLPD = (
    "rlpd --agent.critics 4 --agent.discount 0.95 --training.num-envs 4 --training.updates-per-step 0.5 "
    "--training.keep-successes"
)
SUITE = Suite(
    "fetch",
    ("fetch:push", "fetch:pick-and-place"),
    {
        "rlpd": Method(RLPD, DEMOS),
        "rlpd-her": Method(f"{RLPD} {HINDSIGHT}", DEMOS),
        "her": Method(f"sac {SPARSE} {HINDSIGHT}", DEMOS, reads_demos=False),
    },
    (20_000, 50_000, 100_000),
    own_python=True,
    package="gymnasium-robotics",
)

if __name__ == "__main__":
    sys.exit(main(SUITE, __doc__))
