"""Try a written reward in a separate process with time and memory limits, before any other process runs the reward.

python -m robot_rl.rewards.written.sandbox TRANSITIONS REWARDS SECONDS < reward.py
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from robot_rl.rewards.written.code import BadCode, Function, compile_reward, evaluate

SECONDS = 10
"""CPU time limit for trying a reward, s."""
MEMORY = 2_000_000_000
"""Memory limit for trying a reward, in addition to the interpreter's own memory, bytes."""
START = 600
"""Wall-clock limit of the sandbox's process, s; generous, for busy machines."""
Transitions = dict[str, Any]
"""Data of M transitions: `now` and `before` are views (M, size) by name; `action` is (M, A)."""


def try_reward(source: str, transitions: Transitions, seconds: int = SECONDS) -> Tensor:
    """Return the rewards (M,) of M transitions; `BadCode` for a reward that is forbidden, fails, exceeds a limit, is
    not finite, or depends on other transitions."""
    compile_reward(source, transitions["now"])
    flat = {f"{part}/{name}": v for part in ("now", "before") for name, v in transitions[part].items()}
    flat = {name: value.contiguous().clone() for name, value in (flat | {"action": transitions["action"]}).items()}
    with tempfile.TemporaryDirectory() as folder:
        given, result = Path(folder, "transitions.safetensors"), Path(folder, "rewards.safetensors")
        save_file(flat, given)
        command = [sys.executable, "-m", "robot_rl.rewards.written.sandbox", str(given), str(result), str(seconds)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        try:
            done = subprocess.run(command, input=source.encode(), capture_output=True, timeout=START, env=environment)
        except subprocess.TimeoutExpired:
            raise BadCode(f"it had not ended after {START} s; write a shorter one") from None
        if done.returncode == 0:
            return load_file(result)["reward"]
        log = done.stderr.decode(errors="replace").strip().splitlines()
    if done.returncode == 3 and log:
        raise BadCode(str(json.loads(log[-1])))
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise BadCode(f"it takes more than {seconds} s for {len(flat['action'])} rows; write a shorter one")
    raise BadCode(f"it ended its process with status {done.returncode} ({log[-1] if log else 'silent'}); correct it")


def check_rewards(function: Function, transitions: Transitions) -> Tensor:
    """Return the rewards (M,) of M transitions; `BadCode` if a reward depends on other transitions or is not finite.
    Rewards of a robot at rest and at the origin must be finite too."""
    reward = _finite(function, transitions, "a recorded transition")
    rest = {"now": transitions["before"], "before": transitions["before"], "action": transitions["action"] * 0}
    _finite(function, rest, "a robot at rest")
    _finite(function, _mapped(transitions, lambda v: v[:1] * 0), "values that are all 0")
    some = _mapped(transitions, lambda v: v[::3])
    alone = evaluate(function, some["now"], some["before"], some["action"])
    if not torch.allclose(alone, reward[::3], rtol=1e-4, atol=1e-5):
        raise BadCode(
            "the reward of an environment depends on the others, as a sum or mean over all rows does; give these "
            "a dim, such as .sum(dim=1)"
        )
    return reward


def _mapped(transitions: Transitions, change: Callable[[Tensor], Tensor]) -> Transitions:
    """Apply a function to every tensor of transitions."""
    parts = {part: {name: change(v) for name, v in transitions[part].items()} for part in ("now", "before")}
    return parts | {"action": change(transitions["action"])}


def _finite(function: Function, transitions: Transitions, where: str) -> Tensor:
    """Return the rewards (M,) of transitions; `BadCode` with an example if a reward is not finite."""
    reward = evaluate(function, transitions["now"], transitions["before"], transitions["action"])
    wrong = (~reward.isfinite()).nonzero()[:, 0]
    if len(wrong):
        k = int(wrong[0])
        values = ", ".join(f"{name} {v[k].tolist()}" for name, v in list(transitions["now"].items())[:3])
        raise BadCode(
            f"it is {float(reward[k])} for {where} ({values[:200]}), in {len(wrong)} of {len(reward)}; keep divisors, "
            "roots and logarithms away from 0, as by .clamp(min=1e-6)"
        )
    return reward


def main(given: str, result: str, seconds: str) -> int:
    """Try the reward from stdin. For a bad reward, write the fault to stderr as a JSON string and return 3."""
    source, flat = sys.stdin.read(), load_file(given)
    transitions: Transitions = {"now": {}, "before": {}, "action": flat.pop("action")}
    for name, value in flat.items():
        part, _, view = name.partition("/")
        transitions[part][view] = value
    torch.set_num_threads(1)
    torch.zeros(8, 8) @ torch.zeros(8, 8)  # let torch load its lazy parts before memory is measured
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + int(seconds), int(used) + int(seconds)))
    try:
        reward = check_rewards(compile_reward(source, transitions["now"]), transitions)
    except (BadCode, MemoryError, RecursionError) as error:
        too_large = f"it takes more than {MEMORY / 1e9:g} GB; write a shorter one"
        fault = str(error) if isinstance(error, BadCode) else too_large
        sys.stderr.write("\n" + json.dumps(fault) + "\n")
        return 3
    save_file({"reward": reward}, result)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
