"""Off-policy loop: act in a vector environment, store steps, update. Demonstrations and offline updates are optional.

The learner updates while the environment steps; neither reads data that the other writes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from robot_rl.data.recording import DemoSelection
from robot_rl.data.replay import DEMONSTRATION, NEXT, Batch, Replay
from robot_rl.data.sources import Share, sample_batches
from robot_rl.interface.environment import on_device
from robot_rl.interface.observation_spec import PRIVILEGED, STATE
from robot_rl.interface.symmetry import Mirror
from robot_rl.learning.agent import Agent, LearningPhase
from robot_rl.rewards import EpisodeReward, RewardName, RewardSource
from robot_rl.training.goals import GoalConfig, Goals, achieved_later
from robot_rl.training.metrics import EpisodeMetrics, Progress, check_finite, check_update, counts, report
from robot_rl.training.repeat import HeldAction
from robot_rl.training.run import Run
from robot_rl.util.errors import ConfigError
from robot_rl.util.limits import Fraction, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from robot_rl.util.seeds import training_seed


@dataclass(frozen=True)
class OffPolicyConfig:
    """Hyperparameters of the off-policy loop."""

    steps: NonNegativeInt = 40_000
    """Total number of environment steps; 0: only offline updates."""
    offline_updates: NonNegativeInt = 0
    """Updates from demonstrations before the first environment step."""
    num_envs: PositiveInt = 32
    """Number of parallel environments."""
    updates_per_step: NonNegativeFloat = 0.4
    """Critic updates per environment step."""
    batch: PositiveInt = 128
    """Transitions per update."""
    reward: RewardName = "success"
    """Reward source: success (1 when the episode succeeds, else 0), or the task's own reward."""
    reward_scale: PositiveFloat = 1.0
    """Factor of the rewards that are learned from; metrics show them without it."""
    action_repeat: PositiveInt = 1
    """Steps for which an action is repeated while training; then all numbers of steps count decisions. Evaluate and
    deploy with `--interval` of the same number."""
    demo_share: Fraction = 0.5
    """Share of every batch that is drawn from demonstrations."""
    demos: DemoSelection = "successes"
    """Episodes of the dataset used for learning; best: the quarter with the largest return of the task's reward. A task
    that reports no success counts all as successes."""
    keep_successes: bool = False
    """Add successful online episodes to the demonstrations."""
    warmup: NonNegativeInt = 4_000
    """Environment steps at the start with random actions and without updates of the actor."""
    learning_starts: NonNegativeInt = 1_000
    """Environment steps before the first update."""
    capacity: PositiveInt = 200_000
    """Capacity of the replay, rows."""
    checkpoint_every: PositiveInt = 8_000
    """Environment steps between two checkpoints."""
    log_every: PositiveInt = 1_600
    """Environment steps between two rows of metrics."""
    mirror: Fraction = 0.0
    """Share of every batch that is replaced by its mirror image, in a task that declares a symmetry. The critics then
    learn from states and actions that were not seen."""
    hindsight: NonNegativeInt = 0
    """Copies of each episode with a goal that it achieved later, for a reward for success; they make up N / (N + 1) of
    what batches draw from the environment's steps (HER, Andrychowicz et al. 2017, arXiv 1707.01495)."""
    goal: GoalConfig = GoalConfig()
    """Fields of the state with the goal; read for --training.hindsight."""
    stop_at: PositiveFloat = 1.1
    """Stop at this success rate of the last 200 episodes (at least one per environment); above 1: never stop early."""


ONE_ENV = OffPolicyConfig(
    steps=100_000, num_envs=1, updates_per_step=1.0, batch=256, warmup=1_000, learning_starts=1_000,
    capacity=1_000_000, checkpoint_every=25_000, log_every=1_000,
)  # fmt: skip
"""One environment and one update per step, as in the papers of SAC, TD3 and RLPD."""
OFFLINE = replace(ONE_ENV, offline_updates=20_000, steps=0, warmup=0, demos="all")
"""Offline updates from demonstrations of any quality; --training.steps adds environment steps after them."""


def demo_replay(agent: Agent, episodes: list[dict[str, Tensor]], rng: torch.Generator, rows: int = 0) -> Replay:
    """Return demonstrations as a replay; `add_episode` describes the columns of an episode."""
    total = sum(len(e["action"]) + 1 for e in episodes)
    replay = Replay(max(rows, total + 8), 1, agent.columns, agent.device)
    for episode in episodes:
        add_episode(replay, agent, episode, rng)
    return replay


def add_episode(replay: Replay, agent: Agent, episode: dict[str, Tensor], rng: torch.Generator) -> None:
    """Append a recorded episode, with the agent's additional columns, to a replay.

    An episode has observation columns (T, ...), action (T, A) in [-1, 1], reward (T,), and optionally terminated (T,),
    by default reward > 0. Keys "final.<column>" (1, ...) are the observation after the last step, by default the last
    observation.
    """
    observed = {k: v for k, v in episode.items() if k.startswith("observation.")}
    whole = {k: torch.cat([v, episode.get(f"final.{k}", v[-1:])]).to(agent.device) for k, v in observed.items()}
    terminated = episode.get("terminated", episode["reward"] > 0)
    action, reward = episode["action"].to(agent.device), episode["reward"].to(agent.device)
    added = agent.annotate(whole, action, reward, rng)
    replay.add_episode(episode | whole | added | {"terminated": terminated})


def train_off_policy(
    env: Any, agent: Agent, demos: Replay | None, reward: RewardSource, config: OffPolicyConfig, run: Run, seed: int,
    progress: Progress, finished: EpisodeReward | None = None,
) -> None:  # fmt: skip
    """Train the agent in `env`; a resumed run continues from its checkpoint.

    With `finished`, the agent learns from its rewards and discount. An episode is learned from when it has ended, as if
    it had been cut, since its end may tell of success. `reward` is then only for metrics.
    """
    if not (config.steps or config.offline_updates):
        raise ConfigError("--training.steps and --training.offline-updates are both 0: nothing would be learned")
    if config.keep_successes and demos is None:
        raise ConfigError("--training.keep-successes needs demonstrations: use --training.no-keep-successes")
    if config.action_repeat > 1:
        env = HeldAction(env, config.action_repeat)
    env, span = on_device(env, agent.device), agent.sampling.span
    if config.capacity // env.num_envs <= span:
        raise ConfigError(
            f"--training.capacity {config.capacity} leaves each of {env.num_envs} environments "
            f"{config.capacity // env.num_envs} rows, too few for samples of {span} steps; raise it"
        )
    reflect = mirrored(getattr(env, "mirror", None), config.mirror, agent.columns)
    replay = Replay(config.capacity, env.num_envs, agent.columns, agent.device)
    from_demos = int(config.batch * config.demo_share) if demos is not None else 0
    goals = hindsight_goals(env, config, agent.columns)
    achieved = Replay(config.capacity, 1, agent.columns, agent.device) if goals else None
    rng, scale = torch.Generator().manual_seed(seed), config.reward_scale
    episodes = EpisodeMetrics(env.num_envs, agent.device, first_of_each=True)
    offline, step, due, learns = 0, 0, 0.0, False
    observation = env.reset(seed=training_seed(seed))[0]
    agent.reset()
    if saved := run.load():
        offline, step, due = saved["offline"], saved["step"], saved["owed"]
        episodes.load_state_dict(saved["episodes"])
        agent.load_state_dict(saved["agent"])
        replay.load_state_dict(saved["replay"])
        if achieved is not None:
            achieved.load_state_dict(saved["achieved"])
        if finished is not None:
            finished.load_state_dict(saved["finished"])
        if demos is not None and "demos" in saved:
            demos.load_state_dict(saved["demos"])
        rng.set_state(saved["rng"])
        if "env" in saved:
            observation = env.load_state_dict(saved["env"])
            agent.load_memory(saved["memory"], observation)
        else:  # the environment cannot be restored: truncate its episodes
            replay.cut(saved["final"])
            episodes.restart()
    metrics: dict[str, Tensor] = {}

    def sources() -> list[Share]:
        own = config.batch - from_demos
        copied = own * config.hindsight // (config.hindsight + 1) if achieved is not None and achieved.size else 0
        shares = [(replay, own - copied), (achieved, copied), (demos, from_demos)]
        return [(source, count) for source, count in shares if source is not None]

    def over() -> bool:
        return step >= config.steps or episodes.success() >= config.stop_at

    def figures() -> dict[str, float]:
        row = {name: float(value) for name, value in metrics.items()} | episodes.summary()
        return row | (finished.metrics() if finished is not None else {})

    def log() -> None:
        report(run, offline + step, figures() | counts(env, step), progress)

    def save() -> None:
        done = offline + step
        check_finite(run, done, figures())
        state = {"offline": offline, "step": step, "owed": due, "episodes": episodes.state_dict()}
        state |= {"agent": agent.state_dict(), "replay": replay.state_dict(), "memory": agent.memory()}
        state |= {"demos": demos.state_dict()} if demos is not None and config.keep_successes else {}
        state |= {"achieved": achieved.state_dict()} if achieved is not None else {}
        state |= {"finished": finished.state_dict()} if finished is not None else {}
        if hasattr(env, "state_dict"):  # then the resume is bit-identical
            state["env"] = env.state_dict()
        else:
            every = torch.ones(env.num_envs, dtype=torch.bool)
            state["final"] = observation | agent.peek(observation, every, rng)
        run.save(done, state | {"rng": rng.get_state()})
        run.end_if_stopped(done)

    while offline < config.offline_updates:
        assert demos is not None
        count = min(config.offline_updates - offline, config.log_every - offline % config.log_every)
        for batch in batches([(demos, config.batch)], count, agent, rng):
            batch = reflect(batch)
            metrics |= check_update(run, offline, agent.update(batch, LearningPhase.LEARN), batch)
        offline += count
        log()
        if run.stop_signal or offline % config.checkpoint_every < count:
            save()
    with ThreadPoolExecutor(1, "environment", torch.set_num_threads, (1,)) as environment:
        while not over():
            phase = LearningPhase.WARMUP if step < config.warmup else LearningPhase.LEARN
            action, kept = agent.act(observation, rng, phase)
            stepping = environment.submit(env.step, action)
            if due >= 1:
                updates, due = int(due), due % 1
                how = agent.sampling if finished is None else replace(agent.sampling, discount=finished.discount)
                for batch in sample_batches(sources(), updates, how, rng):
                    batch = reflect(batch)
                    metrics |= check_update(run, offline + step, agent.update(batch, phase), batch)
            following, task_reward, terminated, truncated, infos = stepping.result()
            rewards, done = reward(task_reward, infos), terminated | truncated
            row = observation | kept | {"action": action, "reward": scale * rewards, "last": done}
            row["terminated"] = terminated
            if finished is not None:  # nothing is sampled before its reward is known
                row |= {"terminated": torch.zeros_like(done), "decides": torch.zeros_like(done)}
            final, ended = None, done.cpu()
            if ended.any():
                final = infos["final_obs"]
                final = final | agent.peek(final, ended, rng)
                agent.reset(ended.nonzero().squeeze(-1))
            replay.add(row, final)
            if finished is not None:
                for lane in ended.nonzero().flatten().tolist():
                    replay.relabel(lane, scale * finished(replay.newest(lane)))
            if achieved is not None and goals:
                for lane in ended.nonzero().flatten().tolist():
                    episode = replay.newest(lane)
                    for _ in range(config.hindsight):
                        if copy := achieved_later(episode, goals, rng):
                            achieved.add_episode(copy | {"reward": scale * copy["reward"]})
            if config.keep_successes and demos is not None:
                for lane in (ended & infos["success"].cpu()).nonzero().flatten().tolist():
                    kept = replay.newest(lane)
                    demos.add_episode(kept | {DEMONSTRATION: torch.ones(len(kept["action"]))})
            episodes.add(rewards, done, infos)
            observation = following
            step += env.num_envs
            learns = learns or (step >= config.learning_starts and replay.ready(span))
            if learns:
                due += config.updates_per_step * env.num_envs
            if over() or step % config.log_every < env.num_envs:
                log()
            if over() or run.stop_signal or step % config.checkpoint_every < env.num_envs:
                save()
    agent.finish()


def hindsight_goals(env: Any, config: OffPolicyConfig, columns: Iterable[str]) -> Goals | None:
    """Return the goals of the task's state; None for no hindsight. ConfigError if other `columns` may hold a goal, or
    if the reward is not that for success."""
    if not config.hindsight:
        return None
    if config.reward != "success":
        raise ConfigError("--training.hindsight pays for achieved goals alone: use it with --training.reward success")
    if other := sorted(name for name in columns if name.startswith("observation.") and name != STATE):
        raise ConfigError(f"--training.hindsight: {other[0]} may show the goal too, and is not relabelled")
    return Goals(config.goal, env.info.state)


def mirrored(mirror: Mirror | None, share: float, columns: Iterable[str]) -> Callable[[Batch], Batch]:
    """Return a function that replaces a share of a batch's rows, evenly spread, by their mirror images; for share 0 it
    returns the batch. ConfigError if the task has no symmetry, or if other `columns` have no mirror image."""
    if not share:
        return lambda batch: batch
    if mirror is None:
        raise ConfigError("--training.mirror: the task declares no symmetry; leave it out")
    parts = {"observation.state": mirror.observation, PRIVILEGED: mirror.privileged, "action": mirror.action}
    if other := sorted(set(columns) - {*parts, "intervention", DEMONSTRATION}):
        raise ConfigError(f"--training.mirror: this agent learns from {other[0]} too, which has no mirror image")

    def reflect(batch: Batch) -> Batch:
        size = len(batch["action"])
        every = torch.arange(1, size + 1, device=batch["action"].device)
        images = (every * share).floor() > ((every - 1) * share).floor()
        reflected = {}
        for name, reflection in parts.items():
            for key in (name, NEXT + name):
                if key in batch:
                    rows = images.view(-1, *[1] * (batch[key].ndim - 1))
                    reflected[key] = torch.where(rows, reflection(batch[key]), batch[key])
        return batch | reflected

    return reflect


def batches(sources: Sequence[Share], count: int, agent: Agent, rng: torch.Generator) -> Iterator[Batch]:
    """Yield `count` batches, sampled 50 at a time for speed."""
    for first in range(0, count, 50):
        yield from sample_batches(sources, min(50, count - first), agent.sampling, rng)
