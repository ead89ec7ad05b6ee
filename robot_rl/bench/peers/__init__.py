"""Learners of other libraries on the same tasks: same environments, steps, networks and number of updates.

The libraries' other settings are their own defaults, and ours are ours. A row passes if our mean is not below the
interval of the other library's.
"""

import importlib.util
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from robot_rl.bench.checks import Arm, Check, flags
from robot_rl.bench.results import Series, interval_of, markdown
from robot_rl.report.figures import figure
from robot_rl.util.errors import ConfigError

SB3, RSL, D3, SBX = (f"robot_rl.bench.peers.{name}" for name in ("sb3:SB3", "rsl_rl:RslRl", "offline:D3", "sbx:SBX"))
LIBRARIES = {
    SB3: ("stable_baselines3", "stable-baselines3"), RSL: ("rsl_rl", "rsl-rl-lib"), D3: ("d3rlpy", "d3rlpy"),
    SBX: ("sbx", "sbx-rl"),
}  # fmt: skip
"""Module and package of each library, by the first part of its recipes' names."""
LEROBOT = "robot_rl.bench.peers.lerobot:LeRobot"
"""First part of the names of LeRobot's recipes, which run in a Python of their own."""


def row(
    task: str, ours: str, peer: str, both: str, own: str = "", theirs: str = "", data: str = "", figure: str = "return"
) -> Check:
    """Return a comparison: `both` are flags of both learners, `own` and `theirs` those of one, `data` of `collect`."""
    arms = Arm(ours, flags(both, own)), Arm(peer, flags(both, theirs))
    return Check("", task, *arms, flags(data), figure=figure, parity=True)


LONG, SHORT = "--training.steps 60000", "--training.steps 10000"
STARTS = "--learning-starts 1000"
"""Ours also acts at random in the first 1,000 steps."""
BATCHES = "--training.num-envs 16 --training.steps 500000"
PPO = "--training.rollout 128 --agent.epochs 10 --agent.minibatches 32 --policy.history 1 --no-symmetry"
OFFLINE = "--training.offline-updates 15000"
MIXED = "--skill MIXED --episodes 100 --num-envs 50"
NARROW = "--policy.hidden 64 64 --agent.hidden 64 64"
FIFTEEN = "--episodes 15 --image-size 0"
peers: dict[str, Check] = {
    **{
        f"{ours}-{name}": row(f"gym:{task}", ours, f"{SB3}{ours.upper()}", steps, "", STARTS)
        for ours in ("sac", "td3")
        for name, task, steps in (
            ("pendulum", "Pendulum-v1", SHORT), ("cheetah", "HalfCheetah-v5", LONG), ("hopper", "Hopper-v5", LONG),
        )
    },
    **{
        f"flash-sac-{name}": row(f"gym:{task}", "flash-sac", f"{SBX}CrossQ", LONG, "", STARTS)
        for name, task in (("cheetah", "HalfCheetah-v5"), ("hopper", "Hopper-v5"))
    },
    "ppo-cheetah": row("gym:HalfCheetah-v5", "ppo", f"{SB3}PPO", BATCHES, f"{PPO} {NARROW}"),
    "ppo-go2": row(
        "go2-velocity", "ppo", f"{RSL}PPO", "--training.steps 3800000",
        "--agent.epochs 5 --policy.history 1 --no-symmetry",
    ),
    **{
        ours: row("testbed:swing", ours, f"{D3}{peer}", f"--training.reward task {updates}", own, theirs, MIXED)
        for ours, peer, updates, own, theirs in (
            ("iql", "IQL", OFFLINE, "--agent.temperature 3", "--expectile 0.9 --temperature 3"),
            ("td3-bc", "TD3PlusBC", OFFLINE, "", ""),
            ("cal-ql", "CalQL", "--training.offline-updates 7000 --training.batch 128",
             "--agent.value-low -1700 --agent.hidden 128 128 --policy.hidden 128 128", "--hidden 128 128"),
        )
    },
    **{
        f"lerobot-{peer.lower()}": row(
            "panda-lift", "diffusion-bc", f"{LEROBOT}{peer}", "", "--training.updates 12000", theirs, FIFTEEN, "success"
        )
        for peer, theirs in (("Diffusion", "--training.updates 1800"), ("ACT", "--training.updates 4200 --no-latent"))
    },
}
"""Rows by name. Learners of a row have equal numbers of steps or updates, with LeRobot equal minutes on one core."""
LENGTHS = ("--training.steps", "--training.offline-updates", "--training.updates")
"""Flags of the length of a training, which the table shows."""


def require(names: Iterable[str]) -> None:
    """Raise ConfigError if a library that the rows need is not installed."""
    recipes = [peers[name].control.recipe for name in names]
    needed = [each for prefix, each in LIBRARIES.items() if any(name.startswith(prefix) for name in recipes)]
    missing = [package for module, package in needed if importlib.util.find_spec(module) is None]
    if any(name.startswith(LEROBOT) for name in recipes):
        from robot_rl.bench.peers.lerobot import find_python

        find_python()
    if missing:
        raise ConfigError(f"{', '.join(missing)} is not installed; pip install -c constraints.txt -e '.[peers]'")


def table(records: Mapping[str, Any]) -> str:
    """Return the results as a Markdown table with one line per comparison."""
    head = ("row", "task", "steps or updates", "ours", "theirs", "difference", "minutes of both", "verdict")
    return markdown([head, ("---",) * len(head), *(_line(name, records[name]) for name in peers if name in records)])


def _line(name: str, record: Mapping[str, Any]) -> tuple[str, ...]:
    arms = record["method"], record["control"]
    lengths = [int(value) for arm in arms for name, value in pairwise(arm["flags"]) if name in LENGTHS]
    steps = " and ".join(map(figure, dict.fromkeys(lengths)))
    results = [interval_of(arm, False) if "mean" in arm else "error" for arm in arms]
    gap = interval_of(record["difference"], False) if "difference" in record else "–"
    minutes = " and ".join(f"{arm['minutes']:.1f}" if "minutes" in arm else "–" for arm in arms)
    verdict = record["verdict"] if record["verdict"] == "passed" else f"**{record['verdict']}**"
    return f"`{name}`", f"`{record['task']}`", steps, *results, gap, minutes, verdict


PEERS = Series(peers, Path("benchmarks/results/peers.json"), Path("docs/peers.md"), table)
