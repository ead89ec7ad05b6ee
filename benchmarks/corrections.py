"""Measure the gain from three minutes of corrections, in simulation with the twin's dynamics and tracker bias.

    python -m benchmarks.corrections RUN --operators 2

RUN is a folder of `robot-rl demo`. The scripted operator corrects the policy of RUN/improve, `hil-serl` learns after
each episode, and 200 development episodes are evaluated before and after the session. Results: docs/results.md.
"""

import argparse
import dataclasses
import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from policies.actor import ActorPolicy
from policies.bundle import load_bundle
from policies.execution import ChunkExecutor
from real.twin.arm import HiddenArm
from robot_rl.evaluation import evaluate
from robot_rl.operators.intervention import InterventionWrapper
from robot_rl.operators.scripted import PEOPLE, ScriptedOperator
from robot_rl.recipes.hil_serl import HilSerl
from robot_rl.training.human_in_the_loop import EpisodeRecord, play_episode
from robot_rl.training.run import learning_floats, provenance, write_json
from robot_rl.util.seeds import DEVELOPMENT
from robot_rl.util.statistics import wilson
from sim.env import TaskEnv
from sim.randomization import Randomize
from sim.step.sampling import EpisodeSample, EpisodeSampler
from sim.tasks import tasks
from sim.tasks.base import PLACE, Task

RESULTS = Path(__file__).parent / "results" / "corrections.json"
HIDDEN = HiddenArm()
TRAINING = 900_000_000
"""First seed of the corrected episodes."""


def twin_of(task: Task) -> Task:
    """Return the task with the twin's dynamics instead of randomized ones; objects are still placed at random."""
    fixed = HIDDEN.of(task)

    def of(r: Randomize) -> Randomize:
        if r.parameter.split(".")[-1] in PLACE:
            return r
        value = fixed.get(r.parameter, 1.0 if r.parameter.endswith("_scale") else 0.0)
        return dataclasses.replace(r, low=value, high=value, distribution="uniform")

    return dataclasses.replace(task, randomization=tuple(of(r) for r in task.randomization))


class Biased(TaskEnv):
    """Environment with the twin's bias of the object tracker in all episodes."""

    def __init__(self, task: Task, num_envs: int, threads: int = 0):
        super().__init__(task, num_envs, threads=threads)
        old = self.episodes.sampler
        self.episodes.sampler = BiasedSampler(
            self.task, self.robot, old.columns, old.biases, num_envs, old.seed, self.device
        )


class BiasedSampler(EpisodeSampler):
    """Sampler of episodes that all have the twin's bias of the object tracker."""

    def sample(self, ids: np.ndarray) -> EpisodeSample:
        sample = super().sample(ids)
        # Directions of the biases end with the objects'; with this magnitude they are the bias itself.
        bias = sample.bias_direction.new_tensor([HIDDEN.values[f"<object>.bias_{axis}"] for axis in "xyz"])
        size = float(bias.abs().max())
        sample.bias_direction[:, -3:] = bias / size
        sample.values["sensor.object_bias"] = np.full(len(ids), size)
        return sample


def success(task: Task, policy: ActorPolicy, episodes: int) -> float:
    """Return the policy's success rate in `episodes` development episodes, which run in parallel."""
    policy.eval()
    explores, policy.explore = policy.explore, False
    env = Biased(task, episodes)
    won = evaluate(policy, env, episodes, DEVELOPMENT).success
    env.close()
    policy.explore = explores
    return float(np.mean(won))


def study(
    run: Path, recipe: HilSerl, kind: str, gain: float, steps: int, episodes: int, seed: int
) -> dict[str, Any]:
    """Correct the policy of one run; return success before and after training, and the share of corrected episodes."""
    bundle = load_bundle(run / "improve")
    task = twin_of(tasks.get(bundle.interface.task))
    torch.manual_seed(seed)
    policy = recipe.prepared(bundle)
    before = success(task, policy, episodes)
    policy.explore = True
    simulation = Biased(task, 1, threads=1)
    module, name = str(task.expert).split(":")
    experts = importlib.import_module(module)
    skill = dataclasses.replace(experts.STEADY, gain=gain)
    pipeline = simulation.pipeline
    expert = getattr(experts, name)(pipeline.observer.spec, pipeline.controller, 1, skill, seed)
    env = InterventionWrapper(simulation, ScriptedOperator(expert, PEOPLE[kind], seed))
    observation, _ = env.reset(seed=TRAINING + 1000 * seed)
    rng, helped, done = torch.Generator().manual_seed(seed), [], 0
    with tempfile.TemporaryDirectory() as folder:
        learner = recipe.learner(load_bundle(run / "improve"), run / "collect" / "dataset", Path(folder), seed)
        executor = ChunkExecutor(policy, 1)
        while done < steps:
            record = EpisodeRecord()
            observation = play_episode(env, executor, observation, rng, record.add)
            episode = record.episode()
            done += len(episode["reward"])
            helped.append(bool(episode["intervention"].any()))
            with learning_floats():
                learner.take(episode)
                while learner.update():
                    pass
            policy.actor.load_state_dict(learner.agent.average.state_dict())
    env.close()
    after, quarter = success(task, policy, episodes), max(1, len(helped) // 4)
    results = {"before": before, "after": after, "interval": wilson(round(after * episodes), episodes)}
    corrected = {"first_quarter": float(np.mean(helped[:quarter])), "last_quarter": float(np.mean(helped[-quarter:]))}
    results |= {"operator": seed, "kind": kind, "gain": gain, "steps": done}
    return results | {"episodes": len(helped), "corrected": corrected}


def main() -> int:
    """Study each run with each seed of the operator and write the table."""
    default = HilSerl().agent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders that `robot-rl demo` wrote")
    parser.add_argument("--steps", type=int, default=2100, help="corrected steps: three minutes less the resets")
    parser.add_argument("--episodes", type=int, default=200, help="episodes counted before and after")
    parser.add_argument("--operators", type=int, default=1, help="seeds of the operator")
    parser.add_argument("--kind", default="steady", choices=list(PEOPLE), help="errors of the operator")
    parser.add_argument("--imitation_filter", action="store_true", help="clone only corrections of higher value")
    parser.add_argument("--gain", type=float, default=1.0, help="the operator's share of the way in one action")
    parser.add_argument("--imitation", type=float, default=default.imitation, help="weight of the corrections")
    parser.add_argument("--l2", type=float, default=default.l2, help="weight of the pull to the starting actor")
    parser.add_argument("--n_step", type=int, default=default.n_step, help="steps of reward before the bootstrap")
    parser.add_argument("--ema_decay", type=float, default=default.ema_decay, help="decay of the averaged actor")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    a = parser.parse_args()
    torch.set_num_threads(1)
    settings = {name: getattr(a, name) for name in ("imitation", "imitation_filter", "l2", "n_step", "ema_decay")}
    recipe = HilSerl(agent=dataclasses.replace(default, **settings))
    rows = []
    for run in a.runs:
        for seed in range(a.operators):
            rows.append(study(run, recipe, a.kind, a.gain, a.steps, a.episodes, seed))
            sys.stdout.write(json.dumps(rows[-1]) + "\n")
    write_json(a.out, {"agent": settings, "rows": rows, "provenance": provenance()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
