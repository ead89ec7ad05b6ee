"""Try a written reward in a process of its own, with limits of time and memory, before any other process runs it.

python -m robot_rl.rewards.written.sandbox TRANSITIONS REWARDS SECONDS < reward.py
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from robot_rl.rewards.written.code import BadCode, Function, compile_reward, pay

SECONDS = 10
"""CPU time of a reward."""
MEMORY = 2_000_000_000
"""Bytes that it may take beside the program."""
START = 600
"""s until the process is ended, on a machine however busy: a reward cannot wait for anything."""
Transitions = dict[str, Any]
"""now and before: views (M, size) by name; action (M, A)."""


def try_reward(source: str, transitions: Transitions, seconds: int = SECONDS) -> Tensor:
    """Return the rewards (M,) of M transitions; `BadCode` for a reward that is not allowed, fails, takes too much time
    or memory, is not finite, or does not judge each row by itself."""
    compile_reward(source, transitions["now"])
    flat = {f"{part}/{name}": v for part in ("now", "before") for name, v in transitions[part].items()}
    flat = {name: value.contiguous().clone() for name, value in (flat | {"action": transitions["action"]}).items()}
    with tempfile.TemporaryDirectory() as folder:
        given, paid = Path(folder, "transitions.safetensors"), Path(folder, "rewards.safetensors")
        save_file(flat, given)
        command = [sys.executable, "-m", "robot_rl.rewards.written.sandbox", str(given), str(paid), str(seconds)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        try:
            done = subprocess.run(command, input=source.encode(), capture_output=True, timeout=START, env=environment)
        except subprocess.TimeoutExpired:
            raise BadCode(f"it had not ended after {START} s; write a shorter one") from None
        if done.returncode == 0:
            return load_file(paid)["reward"]
        said = done.stderr.decode(errors="replace").strip().splitlines()
    if done.returncode == 3 and said:
        raise BadCode(str(json.loads(said[-1])))
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise BadCode(f"it takes more than {seconds} s for {len(flat['action'])} rows; write a shorter one")
    raise BadCode(f"it ended its process with status {done.returncode} ({said[-1] if said else 'silent'}); correct it")


def check_rewards(function: Function, transitions: Transitions) -> Tensor:
    """Return the rewards (M,) of M transitions; `BadCode` for one that is not finite, also at rest and at the origin,
    or that depends on other rows."""
    reward = _paid(function, transitions)
    _finite(reward, transitions, "a recorded transition")
    rest = {"now": transitions["before"], "before": transitions["before"], "action": transitions["action"] * 0}
    _finite(_paid(function, rest), rest, "a robot at rest")
    origin = {part: {name: v[:1] * 0 for name, v in transitions[part].items()} for part in ("now", "before")}
    origin |= {"action": transitions["action"][:1] * 0}
    _finite(_paid(function, origin), origin, "values that are all 0")
    some = torch.arange(0, len(reward), 3)
    part = {key: {name: v[some] for name, v in transitions[key].items()} for key in ("now", "before")}
    alone = _paid(function, part | {"action": transitions["action"][some]})
    if not torch.allclose(alone, reward[some], rtol=1e-4, atol=1e-5):
        raise BadCode(
            "the reward of an environment depends on the others, as a sum or mean over all rows does; give these "
            "a dim, such as .sum(dim=1)"
        )
    return reward


def _paid(function: Function, t: Transitions) -> Tensor:
    return pay(function, t["now"], t["before"], t["action"])


def _finite(reward: Tensor, transitions: Transitions, where: str) -> None:
    wrong = (~reward.isfinite()).nonzero()[:, 0]
    if len(wrong):
        k = int(wrong[0])
        values = ", ".join(f"{name} {v[k].tolist()}" for name, v in list(transitions["now"].items())[:3])
        raise BadCode(
            f"it is {float(reward[k])} for {where} ({values[:200]}), in {len(wrong)} of {len(reward)}; keep divisors, "
            "roots and logarithms away from 0, as by .clamp(min=1e-6)"
        )


def main(given: str, paid: str, seconds: str) -> int:
    """Try the reward on stdin; return 3 with a JSON sentence on stderr where it is bad."""
    source, flat = sys.stdin.read(), load_file(given)
    transitions: Transitions = {"now": {}, "before": {}, "action": flat.pop("action")}
    for name, value in flat.items():
        part, _, view = name.partition("/")
        transitions[part][view] = value
    torch.set_num_threads(1)
    torch.zeros(8, 8) @ torch.zeros(8, 8)  # what torch loads late is not the reward's
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + int(seconds), int(used) + int(seconds)))
    try:
        reward = check_rewards(compile_reward(source, transitions["now"]), transitions)
    except (BadCode, MemoryError, RecursionError) as error:
        much = f"it takes more than {MEMORY / 1e9:g} GB; write a shorter one"
        said = str(error) if isinstance(error, BadCode) else much
        sys.stderr.write("\n" + json.dumps(said) + "\n")
        return 3
    save_file({"reward": reward}, paid)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
