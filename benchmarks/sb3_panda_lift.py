"""Measure the time to reliable success in panda-lift: SAC of stable-baselines3 against robot-rl's fastest way.

    python -m benchmarks.sb3_panda_lift --seeds 3 --work /tmp/sb3

Both methods have the same task, reward (1 for success, which ends the episode) and demonstrations, with which SAC's
replay starts. Robot-rl's way is the fastest of `benchmarks.panda_lift`. SAC has its defaults, except for
--updates-per-step and the number of environments, which is robot-rl's (stepped as one batch). Every --every seconds,
SAC is evaluated on the 200 held-out episodes, until the lower end of the 95 % interval reaches 0.95, for at most
--limit seconds, without evaluation time. Stopping at the first such interval favours SAC. Finished runs in --work are
not repeated.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.panda_lift import early
from benchmarks.suites import first_episode
from policies.base import Policy
from robot_rl.bench.peers.sb3 import Batched
from robot_rl.data.recording import load_episodes
from robot_rl.evaluation import evaluate
from robot_rl.interface.environment import EnvWrapper
from robot_rl.training.run import provenance, write_json
from robot_rl.util.seeds import training_seed
from sim.env import TaskEnv

RESULTS = Path(__file__).parent / "results" / "sb3_panda_lift.json"
TASK, STATE, ENOUGH = "panda-lift", "observation.state", 0.95


class Paid(EnvWrapper):
    """Environment that pays success, as `robot_rl.bench.peers.sb3.Batched` takes it."""

    def __init__(self, env: TaskEnv, seed: int):
        super().__init__(env)
        self.first = seed

    def begin(self) -> dict[str, torch.Tensor]:
        return self.env.reset(seed=self.first)[0]

    def step(self, actions: torch.Tensor) -> tuple[Any, ...]:
        observation, _, terminated, truncated, infos = self.env.step(actions)
        return observation, infos["success"].float(), terminated, truncated, infos


class Mode(Policy):
    """Policy that takes SAC's mean action."""

    horizon = execute = 1

    def __init__(self, model: SAC):
        super().__init__()
        self.predict = model.predict

    def act(self, observation: dict[str, torch.Tensor], rng: torch.Generator) -> torch.Tensor:
        action, _ = self.predict(observation[STATE].numpy(), deterministic=True)
        return torch.from_numpy(action)[:, None]


def remember(model: SAC, episodes: list[dict[str, torch.Tensor]]) -> int:
    """Put demonstrations into the replay buffer; return the number of transitions. Terminal states do not bootstrap."""
    rows = [(e[STATE], torch.cat([e[STATE][1:], e[STATE][-1:]]), e["action"], e["reward"], e["terminated"].float())
            for e in episodes]  # fmt: skip
    columns = [torch.cat(part).numpy() for part in zip(*rows, strict=True)]
    buffer, n = model.replay_buffer, model.n_envs
    assert buffer is not None
    whole = len(columns[0]) // n
    for k in range(whole):
        buffer.add(*(column[k * n : (k + 1) * n] for column in columns), [{}] * n)
    return whole * n


class Clock(BaseCallback):
    """Evaluate periodically; stop at the target success or the time limit. Evaluation time does not count."""

    def __init__(self, every: float, limit: float, since: float, first: int):
        """Evaluate every `every` seconds, from `since` seconds on, on the episodes with seeds from `first` on."""
        super().__init__()
        self.first = first
        self.every, self.limit, self.spent, self.before = every, limit, since, time.monotonic()
        self.next, self.rows, self.judge = since + every, [], TaskEnv(TASK, 100)

    def _on_step(self) -> bool:
        now = time.monotonic()
        self.spent, self.before = self.spent + now - self.before, now
        if self.spent < self.next:
            return True
        self.next += self.every
        found = evaluate(Mode(self.model), self.judge, 200, self.first).summary()  # type: ignore[arg-type]
        row = {"seconds": self.spent, "steps": self.num_timesteps}
        self.rows.append(row | {key: found[key] for key in ("success", "success_low", "success_high")})
        sys.stdout.write(json.dumps(self.rows[-1]) + "\n")
        self.before = time.monotonic()
        return found["success_low"] < ENOUGH and self.spent < self.limit


def theirs(seed: int, data: Path, collected: float, a: argparse.Namespace, first: int) -> dict[str, Any]:
    """Train stable-baselines3's SAC; times count from the start of `collect`, s, as for robot-rl."""
    start = time.monotonic()
    env = TaskEnv(TASK, a.num_envs)
    model = SAC(
        "MlpPolicy", Batched(Paid(env, training_seed(seed))), seed=seed, device="cpu", learning_starts=1000,
        gradient_steps=max(1, round(a.updates_per_step * a.num_envs)),
    )  # fmt: skip
    demonstrations = remember(model, load_episodes(data, env.info, "success"))
    clock = Clock(a.every, a.limit, collected + time.monotonic() - start, first)
    model.learn(10**9, callback=clock)
    reached = [row["seconds"] for row in clock.rows if row["success_low"] >= ENOUGH]
    return {"demonstrations": demonstrations, "updates": model._n_updates, "curve": clock.rows,
            "seconds_to_success": min(reached, default=None)}  # fmt: skip


def main() -> int:
    """Run the seeds and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--work", type=Path, required=True, help="folder of our runs")
    parser.add_argument("--num-envs", type=int, default=32, help="environments of SAC")
    parser.add_argument("--updates-per-step", type=float, default=0.4, help="gradient steps per environment step")
    parser.add_argument("--every", type=float, default=60, help="seconds between evaluations")
    parser.add_argument("--limit", type=float, default=600, help="seconds of SAC at most, demonstrations included")
    parser.add_argument("--out", type=Path, default=RESULTS)
    a = parser.parse_args()
    torch.set_num_threads(2)
    rows, first = [], first_episode(a.out, RESULTS)
    for seed in range(a.first, a.first + a.seeds):
        folder = a.work / str(seed)
        kept = folder / f"ours-{first}.json"
        if not kept.exists():
            write_json(kept, early(seed, folder, first))
        ours = json.loads(kept.read_text())
        sac = theirs(seed, folder / "data", ours["collect_seconds"], a, first)
        rows.append({"seed": seed, "robot-rl": ours, "stable-baselines3": sac})
        options = {key: getattr(a, key) for key in ("num_envs", "updates_per_step", "every", "limit")}
        table = {"task": TASK, "enough": ENOUGH, "options": options, "rows": rows}
        write_json(a.out, table | {"provenance": provenance()})
        lower, seconds = ours["success_low"], ours["seconds"]
        sys.stdout.write(f"seed {seed}: ours at least {lower:.3f} after {seconds:.0f} s, ")
        sys.stdout.write(f"SAC {ENOUGH} after {sac['seconds_to_success']} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
