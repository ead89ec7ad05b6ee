"""Measure the README's Go2 results: training from scratch and held-out episodes in both engines, over seeds.

    python -m benchmarks.go2_velocity --seeds 3

Each seed runs the first three stages of `robot-rl demo go2` on more episodes: train, evaluate in MuJoCo, evaluate in
Genesis. A baseline runs the controller alone, with zero actions, in MuJoCo. Results go to
benchmarks/results/go2_velocity.json with machine, versions and commit.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.suites import first_episode
from robot_rl.training.run import provenance, write_json

RESULTS = Path(__file__).parent / "results" / "go2_velocity.json"
TASK = "go2-velocity"
EPISODES = {"mujoco": 1000, "genesis": 200}
SIDE_BY_SIDE = {"mujoco": 250, "genesis": 100}
MEASURES = ("velocity_error", "yaw_error", "foot_slip", "swing_height", "power")
"""Metrics in the results, in m/s, rad/s, m/s, m and W."""
LONGEST = 360.0
"""Maximum training time, s."""
THRESHOLDS = {
    "mujoco": {"velocity_error": 0.15, "yaw_error": 0.2, "fall_rate": 0.02, "foot_slip": 0.1},
    "genesis": {"velocity_error": 0.3, "fall_rate": 0.05, "foot_slip": 0.1},
}
"""Upper thresholds of the means over each seed's episodes."""
LEAST_SWING = 0.03
"""Minimum mean height of a swinging foot, m; a robot with a lower mean shuffles."""


def robot_rl(*words: str) -> None:
    """Run a command as a user would; an error ends the benchmark."""
    subprocess.run([sys.executable, "-m", "robot_rl.cli.main", *words], check=True)


def one_seed(seed: int, folder: Path, steps: int, episodes: dict[str, int], first: int) -> dict[str, Any]:
    """Train and evaluate one seed in each engine; `seconds` is the wall-clock time of the whole `train` process."""
    start = time.monotonic()
    more = ("--training.steps", str(steps)) if steps else ()
    robot_rl("train", TASK, "--recipe", "ppo", "--out", str(folder), "--seed", str(seed), *more)
    row: dict[str, Any] = {"seed": seed, "seconds": round(time.monotonic() - start, 1)}
    return row | {engine: measured(str(folder), engine, count, folder, first) for engine, count in episodes.items()}


def measured(policy: str, engine: str, count: int, folder: Path, first: int) -> dict[str, Any]:
    """Return the results of a bundle, or of zero:TASK, over `count` episodes with seeds from `first` on."""
    out = folder / f"{engine}.json"
    size = ("--episodes", str(count), "--num-envs", str(min(SIDE_BY_SIDE[engine], count)), "--seed", str(first))
    robot_rl("evaluate", policy, "--engine", engine, *size, "--out", str(out))
    return reported(json.loads(out.read_text()))


def reported(evaluation: dict[str, Any]) -> dict[str, Any]:
    """Return the results that the table reports; an episode that ended early counts as a fall."""
    falls = {
        "fall_rate": 1 - evaluation["success"],
        "fall_rate_low": 1 - evaluation["success_high"],
        "fall_rate_high": 1 - evaluation["success_low"],
    }
    return {name: evaluation[name] for name in ("episodes", "device", "action_change", *MEASURES)} | falls


def missed(row: dict[str, Any]) -> list[str]:
    """Return the thresholds that a seed misses, as sentences."""
    found = [f"learning took {row['seconds']:.0f} s of {LONGEST:g} s"] if row["seconds"] > LONGEST else []
    for engine, limits in THRESHOLDS.items():
        for name, limit in limits.items():
            value = mean(row[engine][name])
            if value is None or not value < limit:
                found.append(f"{name} in {engine}: {value} is not below {limit:g}")
        swing = mean(row[engine]["swing_height"])
        if swing is None or not swing > LEAST_SWING:
            found.append(f"swing_height in {engine}: {swing} is not above {LEAST_SWING:g}")
    return [f"seed {row['seed']}: {text}" for text in found]


def mean(value: Any) -> float | None:
    """Return the mean of a result given as a number or as an interval dict."""
    return value["mean"] if isinstance(value, dict) else value


def table(rows: list[dict[str, Any]]) -> str:
    """Return the means with their 95 % intervals, one line per row and engine, and the thresholds."""
    line = "{:>5}  {:>8}  {:>8}  {:>20}  {:>20}  {:>20}  {:>6}  {:>7}  {:>6}  {:>7}".format
    heads = ("velocity_error m/s", "yaw_error rad/s", "falls", "slip", "swing m", "W", "action")
    lines = [line("seed", "learn s", "engine", *heads)]
    for row in rows:
        for engine in (name for name in THRESHOLDS if name in row):
            seen = row[engine]
            errors = [interval(seen[name]) for name in ("velocity_error", "yaw_error")]
            rate = {k: seen[f"fall_rate{end}"] for k, end in (("mean", ""), ("low", "_low"), ("high", "_high"))}
            rest = [number(seen[n]["mean"], digits) for n, digits in zip(MEASURES[2:], (3, 3, 0), strict=True)]
            change = number(seen["action_change"], 3)
            lines.append(line(row["seed"], row["seconds"], engine, *errors, interval(rate), *rest, change))
    for engine, limits in THRESHOLDS.items():
        names = ("velocity_error", "yaw_error", "fall_rate", "foot_slip")
        below = [f"< {limits[name]:g}" if name in limits else "" for name in names]
        lines.append(line("limit", f"< {LONGEST:g}", engine, *below, f"> {LEAST_SWING:g}", "", ""))
    return "\n".join(lines)


def interval(value: dict[str, float | None]) -> str:
    return f"{number(value['mean'], 3)} [{number(value['low'], 3)}, {number(value['high'], 3)}]"


def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def main() -> int:
    """Run all seeds and write the table; return 1 if a threshold is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--steps", type=int, default=0, help="environment steps of learning; 0: the recipe's")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    for engine, count in EPISODES.items():
        parser.add_argument(f"--{engine}", type=int, default=count, metavar="N", help=f"episodes in {engine}")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    episodes = {engine: getattr(arguments, engine) for engine in EPISODES}
    rows, first = [], first_episode(arguments.out, RESULTS)
    with tempfile.TemporaryDirectory() as folder:
        zero = measured(f"zero:{TASK}", "mujoco", episodes["mujoco"], Path(folder), first)
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            rows.append(one_seed(seed, Path(folder) / str(seed), arguments.steps, episodes, first))
    misses = [text for row in rows for text in missed(row)]
    result = {
        "task": TASK,
        "bars": THRESHOLDS | {"seconds": LONGEST, "least_swing": LEAST_SWING},
        "rows": rows,
        "zero": zero,
        "missed": misses,
    }
    result |= {"provenance": provenance()}
    write_json(arguments.out, result)
    shown = table([*rows, {"seed": "zero", "seconds": "", "mujoco": zero}])
    sys.stdout.write(json.dumps(result) + "\n" if arguments.json else "\n".join([shown, *misses, ""]))
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
