"""Table of checks: every method against controls on a task where they should differ.

A check whose control passes as well proves nothing and fails: its task must be changed. An arm takes at most about
eight minutes on one idle core; most arms take less than three minutes.
"""

from robot_rl.bench.checks.check import EXPERT, Arm, Check, flags
from robot_rl.bench.checks.improved import IMPROVED_CHECKS
from robot_rl.bench.checks.offline import OFFLINE_CHECKS
from robot_rl.bench.checks.online import ONLINE_CHECKS
from robot_rl.bench.checks.vla import VLA_CHECKS

__all__ = ["EXPERT", "Arm", "Check", "checks", "flags"]

checks: dict[str, Check] = OFFLINE_CHECKS | ONLINE_CHECKS | IMPROVED_CHECKS | VLA_CHECKS
"""Checks by name. A name is the method's recipe, or the recipe with an option."""
