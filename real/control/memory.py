"""Locked memory of processes with a control loop: a page that was swapped out would delay a command by milliseconds."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path

from real import clock
from real.control.timing import say_once

CAPABILITY = 14
"""Bit of CAP_IPC_LOCK in a process's capabilities."""
ALL = 1 | 2 | 4
"""MCL_CURRENT, MCL_FUTURE and MCL_ONFAULT: pages are locked when they are first used, not the gigabytes that torch only
reserves."""


def may_lock() -> bool:
    """Return whether this process may lock all of its memory. Below a limit it should lock none: later an allocation
    beyond the limit would fail, in the middle of a motion."""
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] == resource.RLIM_INFINITY:
        return True
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return bool(int(fields["CapEff"], 16) >> CAPABILITY & 1)


def lock_memory() -> bool:
    """Keep this process's memory from being swapped out until `unlock_memory`, if permitted; warn otherwise. Children
    do not inherit it. In lockstep nothing is locked, since no tick is late."""
    if sys.platform != "linux" or clock.in_lockstep():
        return False
    why = "no permission"
    if may_lock():
        hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
        if not ctypes.CDLL(None, use_errno=True).mlockall(ALL):
            return True
        why = os.strerror(ctypes.get_errno())
    say_once(f"memory is not locked ({why}): swapping may delay commands; allow it as `robot-rl doctor` says")
    return False


def unlock_memory() -> None:
    """Let this process's memory be swapped out again."""
    if sys.platform == "linux":
        ctypes.CDLL(None).munlockall()
