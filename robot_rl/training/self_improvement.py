"""Self-improvement of a planner in rounds: plan, execute, keep episodes, fine-tune the small model, repeat.

Luo et al. 2025, "Self-Adapting Improvement Loops for Robotic Learning" (SAIL, arXiv 2506.06658). Samples have achieved
states as goals, in demonstrations and in practice.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from robot_rl.data.recording import DemoSelection
from robot_rl.data.sources import Futures
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.observation_spec import STATE
from robot_rl.learning.algorithms.cloning import Cloning
from robot_rl.training.autonomous import SAMPLED, Practice, PracticeConfig
from robot_rl.training.goals import Episode, Goals
from robot_rl.training.metrics import Progress, counts, report
from robot_rl.training.run import Run
from robot_rl.training.supervised import learn
from robot_rl.util.limits import PositiveInt
from robot_rl.util.seeds import training_seed


@dataclass(frozen=True)
class SelfImprovementConfig(PracticeConfig):
    """Hyperparameters of self-improvement in rounds."""

    horizon: PositiveInt = 100
    """Maximum length of an episode, steps."""
    demos: DemoSelection = "successes"
    """Episodes of the dataset on which the small model is trained first."""
    keep: Literal["successes", "all"] = "successes"
    """Episodes of practice on which the small model is fine-tuned."""
    updates: PositiveInt = 4_000
    """Gradient steps on the demonstrations."""
    finetune: PositiveInt = 2_000
    """Gradient steps after each round, on the demonstrations and the kept episodes of all rounds."""


def improve_planner(
    env: Any, info: EnvInfo, begin: Callable[[int], Cloning], demos: list[Episode], config: SelfImprovementConfig,
    run: Run, seed: int, progress: Progress,
) -> Cloning:  # fmt: skip
    """Return the agent trained on demonstrations and kept practice; resume after the last finished round.

    Args:
        env: None if there are no rounds.
        begin: gives an agent of the same policy for each stage, with a schedule of so many gradient steps.
    """
    goals, kept, done, step = Goals(config.goal, info.state), [], 0, 0
    practice = Practice(env, goals, config, seed) if config.rounds else None
    if practice and (saved := run.load()):
        done, step, kept = saved["done"], saved["step"], saved["kept"]
        practice.load_state_dict(saved["practice"])
        begin(config.finetune).policy.load_state_dict(saved["policy"])
    while True:
        updates = config.finetune if done else config.updates
        agent = begin(updates)
        data = Futures.of([*demos, *kept], agent.device)
        if not done:
            agent.policy.fit(data.steps)
        loss = learn(agent, data, updates, config.batch, run, seed + done)
        if practice is None or done == config.rounds:
            return agent
        agent.policy.to(env.device)  # it only acts in this round
        practice.begin()
        successes = []
        for k in range(-(-config.episodes // env.num_envs)):
            first = training_seed(seed) + SAMPLED + (done * config.episodes + k * env.num_envs)
            episodes, success = practice.play(agent.policy, first)
            step += sum(len(each["action"]) for each in episodes)
            successes.append(success)
            kept += [each for each in episodes if config.keep == "all" or succeeded(each, goals)]
        done += 1
        row = {"bc/loss": loss, "train/success": sum(successes) / len(successes), "train/round": float(done)}
        row |= {"train/kept": float(len(kept))} | counts(env, step)
        row |= practice.adviser.counts() if practice.adviser else {}
        report(run, done, row, progress)
        state = {"done": done, "step": step, "kept": kept, "practice": practice.state_dict()}
        run.save(done, state | {"policy": agent.policy.state_dict()})
        run.end_if_stopped(done)
        agent.policy.to(agent.device)


def succeeded(episode: Episode, goals: Goals) -> bool:
    """Return whether an episode of practice achieved its goal at its end."""
    final = episode[f"final.{STATE}"]
    return bool(goals.reached(final, goals.wanted(final)))
