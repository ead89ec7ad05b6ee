"""Rounds of practice without a person: choose goals, try them, clone everything that happened, again.

Zhou et al. 2024, "Autonomous Improvement of Instruction Following Skills via Foundation Models" (SOAR, arXiv
2407.20635). A judge's verdicts steer what is tried; what is learned is what was achieved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from robot_rl.assistant import ModelConfig
from robot_rl.interface.observation_spec import STATE
from robot_rl.learning.algorithms.cloning import Cloning
from robot_rl.training.advice import Adviser, in_words
from robot_rl.training.goals import Episode, GoalConfig, Goals, as_asked, in_hindsight, regions
from robot_rl.training.metrics import Progress, counts, report
from robot_rl.training.proposer import Proposer, ProposerConfig
from robot_rl.training.run import Run
from robot_rl.training.supervised import clone
from robot_rl.util.limits import Fraction, NonNegativeFloat, NonNegativeInt, PositiveInt
from robot_rl.util.seeds import training_seed

SAMPLED = 512
"""Goals that the environment is asked for, to practise among."""


@dataclass(frozen=True)
class AutonomousConfig:
    """Hyperparameters of the rounds."""

    rounds: NonNegativeInt = 3
    """Rounds of practice; 0 only clones the demonstrations."""
    episodes: PositiveInt = 256
    """Episodes of a round."""
    num_envs: PositiveInt = 32
    """Environments stepped side by side."""
    regions: PositiveInt = 8
    """Regions of the environment's goals: the tasks among which is chosen."""
    horizon: PositiveInt = 50
    """Steps of an episode at most."""
    hindsight: bool = True
    """What was achieved becomes the goal; off: the goals that were asked for stay, achieved or not."""
    within: PositiveInt = 20
    """Steps ahead at most of what is taken for the goal."""
    copies: PositiveInt = 4
    """Goals in hindsight for every step."""
    noise: NonNegativeFloat = 0.2
    """Standard deviation of the noise on actions."""
    deterministic: Fraction = 0.2
    """Share of the episodes without noise."""
    wrong: Fraction = 0.0
    """Share of the verdicts that are turned round: a judge of a vision-language model's quality."""
    updates: PositiveInt = 1_500
    """Gradient steps of each cloning, from fresh weights."""
    batch: PositiveInt = 256
    """Steps per gradient step."""
    goal: GoalConfig = field(default_factory=GoalConfig)
    proposer: ProposerConfig = field(default_factory=ProposerConfig)
    adviser: ModelConfig = field(default_factory=ModelConfig)
    """A language or vision-language model that lists what is worth trying in each round; without `model`, none."""


class Practice:
    """Episodes towards chosen goals, in environments whose own goals are not looked at."""

    def __init__(self, env: Any, goals: Goals, config: AutonomousConfig, seed: int):
        self.env, self.goals, self.config = env, goals, config
        self.proposer = Proposer(config.regions, config.proposer)
        # Each has random numbers of its own: verdicts change neither the actions nor the labels.
        self.choices, self.actions, self.verdicts, self.labels = (
            torch.Generator().manual_seed(4 * seed + k) for k in range(4)
        )
        self.shown = training_seed(seed)
        starts = range(training_seed(seed), training_seed(seed) + SAMPLED, env.num_envs)
        asked = [goals.wanted(env.reset(seed=start)[0][STATE].cpu()) for start in starts]
        self.wanted = torch.cat(asked)[:SAMPLED]
        self.region = regions(self.wanted, config.regions)
        self.adviser = Adviser(config.adviser) if config.adviser.model else None
        self.feasible: list[int] = []
        """Regions among which is chosen; []: all."""

    def begin(self) -> None:
        """Begin a round: let the model say what is worth trying."""
        if self.adviser is not None:
            centres = [self.wanted[self.region == k].mean(0) for k in range(self.config.regions)]
            tasks = [in_words(centre, self.config.goal.achieved) for centre in centres]
            self.env.reset(seed=self.shown)  # a resumed run shows the model the same scene
            self.feasible = self.adviser.feasible(tasks, self.proposer, self.env)

    def propose(self) -> tuple[int, Tensor]:
        """Return a region and a goal (G,) in it."""
        chosen = self.proposer.choose(self.choices, self.feasible)
        inside = (self.region == chosen).nonzero()[:, 0]
        inside = inside if len(inside) else torch.arange(len(self.wanted))
        return chosen, self.wanted[inside[int(torch.rand(1, generator=self.choices) * len(inside))]]

    def play(self, policy: Any, seed: int) -> tuple[list[Episode], float]:
        """Return one episode of each environment, and the share that achieved their goals."""
        n, c = self.env.num_envs, self.config
        proposed = [self.propose() for _ in range(n)]
        goal = torch.stack([each[1] for each in proposed])
        noisy = torch.rand(n, generator=self.actions) >= c.deterministic
        state = self.env.reset(seed=seed)[0][STATE].cpu()
        running, success = torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.bool)
        rows: list[tuple[Tensor, Tensor]] = []
        lengths, final = torch.zeros(n, dtype=torch.long), state.clone()
        for _ in range(c.horizon):
            aimed = self.goals.aim(state, goal)
            noise = c.noise * noisy[:, None] * torch.randn(n, self.env.info.action, generator=self.actions)
            action = (policy.act({STATE: aimed.to(self.env.device)}, self.actions)[:, 0].cpu() + noise).clamp(-1, 1)
            rows.append((aimed, action))
            observation, _, terminated, truncated, infos = self.env.step(action.to(self.env.device))
            done = (terminated | truncated).cpu()
            last = infos.get("final_obs", observation)[STATE].cpu()
            after = torch.where(done[:, None], last, observation[STATE].cpu())
            lengths += running
            final = torch.where(running[:, None], self.goals.aim(after, goal), final)
            success |= running & self.goals.reached(after, goal)
            running &= ~done & ~success
            state = observation[STATE].cpu()
            if not running.any():
                break
        wrong = torch.rand(n, generator=self.verdicts) < c.wrong
        for (region, _), verdict in zip(proposed, (success ^ wrong).tolist(), strict=True):
            self.proposer.judge(region, verdict)
        states, actions = (torch.stack([row[k] for row in rows], 1) for k in (0, 1))
        episodes = [
            {STATE: states[i, :length], "action": actions[i, :length], f"final.{STATE}": final[i : i + 1]}
            for i, length in enumerate(lengths.tolist())
        ]
        return episodes, float(success.float().mean())

    def labelled(self, episodes: list[Episode]) -> list[Episode]:
        """Return what is cloned of the episodes."""
        if not self.config.hindsight:
            return [as_asked(episode) for episode in episodes]
        made = [
            in_hindsight(episode, self.goals, self.config.within, self.labels)
            for _ in range(self.config.copies)
            for episode in episodes
        ]
        return [each for each in made if len(each["action"])]

    def state_dict(self) -> dict[str, Any]:
        rngs = (self.choices, self.actions, self.verdicts, self.labels)
        return {"proposer": self.proposer.state_dict(), "rngs": [rng.get_state() for rng in rngs]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.proposer.load_state_dict(state["proposer"])
        for rng, saved in zip((self.choices, self.actions, self.verdicts, self.labels), state["rngs"], strict=True):
            rng.set_state(saved)


def improve_alone(
    env: Any,
    fresh: Callable[[], Cloning],
    demos: list[Episode],
    config: AutonomousConfig,
    run: Run,
    seed: int,
    progress: Progress,
) -> Cloning:
    """Return the agent cloned from demonstrations and from all that was practised; resume after the last round."""
    practice, done, step, played = Practice(env, Goals(config.goal, env.info.state), config, seed), 0, 0, []
    if saved := run.load():
        done, step, played = saved["done"], saved["step"], saved["played"]
        practice.load_state_dict(saved["practice"])
    while True:
        agent = fresh()
        loss = clone(agent, practice.labelled([*demos, *played]), config.updates, config.batch, run, seed)
        if done == config.rounds:
            return agent
        agent.policy.to(env.device)  # it only acts from here on: the next agent is a fresh one
        practice.begin()
        successes = []
        for _ in range(-(-config.episodes // env.num_envs)):
            episodes, success = practice.play(agent.policy, training_seed(seed) + SAMPLED + len(played))
            played += episodes
            step += sum(len(each["action"]) for each in episodes)
            successes.append(success)
        done += 1
        row = {"bc/loss": loss, "train/success": sum(successes) / len(successes), "train/round": float(done)}
        tried = practice.proposer.tried / practice.proposer.tried.sum()
        row |= {f"proposer/region_{k}": float(share) for k, share in enumerate(tried)} | counts(env, step)
        row |= practice.adviser.counts() if practice.adviser else {}
        report(run, done, row, progress)
        run.save(done, {"done": done, "step": step, "played": played, "practice": practice.state_dict()})
        run.end_if_stopped(done)
