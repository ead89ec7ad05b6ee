"""Autonomous practice in rounds: choose goals, play episodes, clone all episodes with hindsight goals.

Zhou et al. 2024, "Autonomous Improvement of Instruction Following Skills via Foundation Models" (SOAR, arXiv
2407.20635). A judge's verdicts only affect the choice of goals, not the labels. Tasks with a medium success rate and
few tries are chosen first, by the score 1 - |success rate - 0.3| + c sqrt(log N / n) with n tries of the task among
N tries. Optionally, a language model narrows the choice.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from robot_rl.assistant import ModelConfig, ModelFailure, ReplyModel, message
from robot_rl.interface.observation_spec import STATE
from robot_rl.learning.algorithms.cloning import Cloning
from robot_rl.training.goals import Episode, GoalConfig, Goals, in_hindsight, regions
from robot_rl.training.metrics import Progress, counts, report
from robot_rl.training.run import Run
from robot_rl.training.supervised import clone
from robot_rl.util.limits import Fraction, NonNegativeFloat, NonNegativeInt, PositiveInt
from robot_rl.util.seeds import training_seed

SAMPLED = 512
"""Number of goals of the environment that are sampled, and among which practice chooses."""
PROMPT = """A robot practises by itself. Below are numbered tasks, with how often each was tried and judged a success.
Which of them can be done in this scene, and are worth trying next? Those that are always or never done teach little.
Answer with their numbers, separated by commas, and nothing else."""


@dataclass(frozen=True)
class ProposerConfig:
    """Hyperparameters of the choice of tasks."""

    aim: Fraction = 0.3
    """Success rate of a task at which its score is highest."""
    curiosity: NonNegativeFloat = 0.5
    """Weight c of the exploration term, which is large for tasks with few tries."""
    random: Fraction = 0.2
    """Share of choices that are uniform over the tasks."""


class Proposer:
    """Choose among K tasks by the numbers of their tries and of a judge's verdicts on them."""

    def __init__(self, count: int, config: ProposerConfig):
        self.config = config
        self.tried, self.judged, self.won = (torch.zeros(count, dtype=torch.float64) for _ in range(3))
        """(K,) Number of choices, of verdicts, and of positive verdicts for every task."""

    def scores(self) -> Tensor:
        """Return the score (K,) of every task; infinite for a task without a try."""
        rate = self.won / self.judged.clamp(min=1)
        doubt = (self.tried.sum().clamp(min=1).log() / self.tried).sqrt()
        score = 1 - (rate - self.config.aim).abs() + self.config.curiosity * doubt
        return torch.where(self.tried > 0, score, torch.inf)

    def choose(self, rng: torch.Generator, feasible: Sequence[int] = ()) -> int:
        """Choose a task among `feasible` (empty: all tasks), and count it as tried."""
        among = torch.tensor(feasible) if feasible else torch.arange(len(self.tried))
        pick, uniform = torch.rand(2, generator=rng).tolist()
        if pick < self.config.random:
            chosen = int(among[int(uniform * len(among))])
        else:
            scores = self.scores()[among]
            best = (scores == scores.max()).nonzero()[:, 0]
            chosen = int(among[best[int(uniform * len(best))]])
        self.tried[chosen] += 1
        return chosen

    def judge(self, task: int, success: bool) -> None:
        """Count a judge's verdict on a try of a task."""
        self.judged[task] += 1
        self.won[task] += success

    def state_dict(self) -> dict[str, Tensor]:
        return {"tried": self.tried, "judged": self.judged, "won": self.won}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, value in state.items():
            getattr(self, name).copy_(value)


class Adviser:
    """A language or vision-language model that lists feasible tasks before every round.

    If the model gives no answer or names no task, all tasks count as feasible.
    """

    def __init__(self, config: ModelConfig):
        """Raises ConfigError for a wrong URL."""
        self.model = ReplyModel(config)
        self.failed, self.nonsense = 0, 0  # rounds without an answer, and with an answer that names no task

    def feasible(self, tasks: Sequence[str], proposer: Proposer, env: Any) -> list[int]:
        """Return the indices of the tasks that the model lists; [] if the model gives no valid answer."""
        lines = [PROMPT]
        for k, (task, tried, won) in enumerate(zip(tasks, proposer.tried, proposer.won, strict=True)):
            lines.append(f"{k + 1}. {task}: tried {int(tried)} times, {int(won)} successes")
        scene = [env.render()[0]] if hasattr(env, "render") else []
        try:
            answer = self.model.ask([message("user", "\n".join(lines), *scene)])
        except ModelFailure:
            self.failed += 1
            return []
        words = re.findall(r"-?\d+(?:\.\d+)?", answer)
        listed = sorted({int(word) - 1 for word in words if word.isdecimal() and 1 <= int(word) <= len(tasks)})
        self.nonsense += not listed
        return listed

    def counts(self) -> dict[str, float]:
        """Return metrics: the number of rounds without an answer, and of rounds whose answer named no task."""
        return {"proposer/model_failed": float(self.failed), "proposer/model_nonsense": float(self.nonsense)}


@dataclass(frozen=True)
class PracticeConfig:
    """Hyperparameters of practice in rounds."""

    rounds: NonNegativeInt = 3
    """Rounds of practice; 0: only clone the demonstrations."""
    episodes: PositiveInt = 256
    """Episodes per round."""
    num_envs: PositiveInt = 32
    """Number of environments that are stepped side by side."""
    regions: PositiveInt = 8
    """Number of regions of the goals; every region is a task of the proposer."""
    horizon: PositiveInt = 50
    """Maximum length of an episode, steps."""
    noise: NonNegativeFloat = 0.2
    """Standard deviation of the noise on actions, which are in [-1, 1]."""
    deterministic: Fraction = 0.2
    """Share of the episodes that are played without action noise."""
    wrong: Fraction = 0.0
    """Share of the verdicts that are inverted, to simulate an imperfect judge, such as a vision-language model."""
    updates: PositiveInt = 1_500
    """Gradient steps per cloning, from fresh weights."""
    batch: PositiveInt = 256
    """Recorded steps per gradient step."""
    goal: GoalConfig = field(default_factory=GoalConfig)
    proposer: ProposerConfig = field(default_factory=ProposerConfig)
    adviser: ModelConfig = field(default_factory=ModelConfig)
    """Language or vision-language model that lists feasible tasks in every round; not used if its `model` is empty."""


@dataclass(frozen=True)
class AutonomousConfig(PracticeConfig):
    """Hyperparameters of autonomous practice whose episodes are cloned."""

    hindsight: bool = True
    """Relabel episodes with achieved goals; False: keep the goals of the episodes."""
    within: PositiveInt = 20
    """Maximum number of steps between a state and its hindsight goal."""
    copies: PositiveInt = 4
    """Number of hindsight goals per recorded step."""


class Practice:
    """Play episodes towards chosen goals, in place of the environments' own goals."""

    def __init__(self, env: Any, goals: Goals, config: PracticeConfig, seed: int):
        self.env, self.goals, self.config = env, goals, config
        self.proposer = Proposer(config.regions, config.proposer)
        # Separate generators: verdicts change neither actions nor labels.
        rngs = [torch.Generator().manual_seed(4 * seed + k) for k in range(4)]
        self.choices, self.actions, self.verdicts, self.labels = rngs
        self.shown = training_seed(seed)
        starts = range(training_seed(seed), training_seed(seed) + SAMPLED, env.num_envs)
        self.wanted = torch.cat([goals.wanted(env.reset(seed=start)[0][STATE].cpu()) for start in starts])[:SAMPLED]
        self.region = regions(self.wanted, config.regions)
        self.adviser = Adviser(config.adviser) if config.adviser.model else None
        self.feasible: list[int] = []  # regions that the model allows; []: all

    def begin(self) -> None:
        """Begin a round: let the adviser, if there is one, list the feasible tasks."""
        if self.adviser is not None:
            centres = [self.wanted[self.region == k].mean(0) for k in range(self.config.regions)]
            texts = [", ".join(f"{value:.2f}" for value in centre.tolist()) for centre in centres]
            tasks = [f"bring {self.config.goal.achieved} to about ({text}) m" for text in texts]
            self.env.reset(seed=self.shown)  # same scene in a resumed run
            self.feasible = self.adviser.feasible(tasks, self.proposer, self.env)

    def propose(self) -> tuple[int, Tensor]:
        """Return the region that the proposer chooses, and a random goal (G,) of the region."""
        chosen = self.proposer.choose(self.choices, self.feasible)
        inside = (self.region == chosen).nonzero()[:, 0]
        inside = inside if len(inside) else torch.arange(len(self.wanted))
        return chosen, self.wanted[inside[int(torch.rand(1, generator=self.choices) * len(inside))]]

    def play(self, policy: Any, seed: int) -> tuple[list[Episode], float]:
        """Play one episode per environment; return the episodes, and the share of episodes that achieved the goal.

        `policy` gives chunks of which `execute` actions are executed.
        """
        n, c = self.env.num_envs, self.config
        proposed = [self.propose() for _ in range(n)]
        goal = torch.stack([each[1] for each in proposed])
        noisy = torch.rand(n, generator=self.actions) >= c.deterministic
        state = self.env.reset(seed=seed)[0][STATE].cpu()
        running, success = torch.ones(n, dtype=torch.bool), torch.zeros(n, dtype=torch.bool)
        rows: list[tuple[Tensor, Tensor]] = []
        lengths, final = torch.zeros(n, dtype=torch.long), state.clone()
        for k in range(c.horizon):
            aimed = self.goals.aim(state, goal)
            if k % policy.execute == 0:
                chunk = policy.act({STATE: aimed.to(self.env.device)}, self.actions).cpu()
            noise = c.noise * noisy[:, None] * torch.randn(n, self.env.info.action, generator=self.actions)
            action = (chunk[:, k % policy.execute] + noise).clamp(-1, 1)
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

    def state_dict(self) -> dict[str, Any]:
        rngs = (self.choices, self.actions, self.verdicts, self.labels)
        return {"proposer": self.proposer.state_dict(), "rngs": [rng.get_state() for rng in rngs]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.proposer.load_state_dict(state["proposer"])
        for rng, saved in zip((self.choices, self.actions, self.verdicts, self.labels), state["rngs"], strict=True):
            rng.set_state(saved)


def labelled(episodes: list[Episode], practice: Practice, config: AutonomousConfig) -> list[Episode]:
    """Return the states and actions of episodes to clone, with hindsight goals if `hindsight` is enabled."""
    if not config.hindsight:
        return [{key: episode[key] for key in (STATE, "action")} for episode in episodes]
    rng, copies = practice.labels, range(config.copies)
    made = [in_hindsight(episode, practice.goals, config.within, rng) for _ in copies for episode in episodes]
    return [each for each in made if len(each["action"])]


def improve_alone(
    env: Any, fresh: Callable[[], Cloning], demos: list[Episode], config: AutonomousConfig, run: Run, seed: int,
    progress: Progress,
) -> Cloning:  # fmt: skip
    """Return the agent cloned from demonstrations and all practice episodes; resume after the last finished round."""
    practice, done, step, played = Practice(env, Goals(config.goal, env.info.state), config, seed), 0, 0, []
    if saved := run.load():
        done, step, played = saved["done"], saved["step"], saved["played"]
        practice.load_state_dict(saved["practice"])
    while True:
        agent = fresh()
        loss = clone(agent, labelled([*demos, *played], practice, config), config.updates, config.batch, run, seed)
        if done == config.rounds:
            return agent
        agent.policy.to(env.device)  # it only acts in this round
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
