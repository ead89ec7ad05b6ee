"""The on-policy loop on problems whose answers are known."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.base import Policy, Size
from policies.execution import ChunkExecutor
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from robot_rl.learning.algorithms.ppo import PPO, PPOConfig
from robot_rl.rewards import TaskReward
from robot_rl.training.metrics import EpisodeMetrics
from robot_rl.training.on_policy import OnPolicyConfig, collect, train_on_policy
from robot_rl.training.run import read_metrics
from robot_rl.util.errors import Interrupted

Build = Callable[..., Any]


def quiet(step: int, metrics: dict[str, float]) -> None:
    pass


def learner(history: int = 1, seed: int = 0, **config: Any) -> PPO:
    """A tiny agent for the point mass."""
    torch.manual_seed(seed)
    numbers = {"hidden": (32, 32), "minibatches": 2, "discount": 0.9}
    policy = FeedforwardPolicy(Size(4, 2), FeedforwardConfig(hidden=(32, 32), history=history))
    return PPO(policy, 3, PPOConfig(**(numbers | config)), seed)


class Best(Policy):
    """The linear-quadratic regulator: u = -K x, by iterating the Riccati equation for one axis."""

    horizon = execute = 1

    def __init__(self, gain: float, price: float):
        super().__init__()
        p = 0.0
        for _ in range(200):
            self.k = (1 + p) * gain / (price + (1 + p) * gain**2)
            p = (1 + p) * (1 - gain * self.k)

    def act(self, observation: dict[str, Tensor], rng: torch.Generator) -> Tensor:
        velocity, command = observation["observation.state"].chunk(2, 1)
        return (-self.k * (velocity - command)).clamp(-1, 1)[:, None]


def mean_return(env: Any, policy: Policy) -> float:
    """Of one episode of each environment, the same for every policy."""
    runner = ChunkExecutor(policy, env.num_envs)
    runner.reset()
    observation, _ = env.reset(seed=10**6)
    total = 0.0
    for _ in range(env.horizon):
        observation, reward, *_ = env.step(runner.act(observation, torch.Generator()))
        total += float(reward.mean())
    return total


@pytest.mark.parametrize("history", [1, 2])
def test_learns_to_follow_commanded_velocities(point_mass: Build, run: Build, history: int) -> None:
    """Within 5 % of the way from the policy it started with to the best one; LQR is the optimum."""
    agent = learner(history)
    before = mean_return(point_mass(256), agent.policy)
    config = OnPolicyConfig(steps=128 * 16 * 45, num_envs=128, rollout=16)
    train_on_policy(point_mass(128), agent, TaskReward(), config, run(), 0, quiet)
    env = point_mass(256)
    after, best = mean_return(env, agent.policy), mean_return(env, Best(env.GAIN, env.PRICE))
    assert before < 3 * best, f"the start ({before:.3f}) is too far from the best ({best:.3f})"
    assert (after - before) / (best - before) > 0.95, f"{before:.3f} -> {after:.3f}, best {best:.3f}"


FIVE: dict[str, Any] = {"num_envs": 64, "horizon": 5, "constant": True}
"""Episodes of 5 steps worth 1 each; at discount 0.9, an endless one is worth 10."""


def test_a_time_limit_does_not_end_what_a_state_is_worth(point_mass: Build, run: Build) -> None:
    agent, env = learner(critic_lr=3e-3), point_mass(**FIVE, frozen=True, clock=False)
    train_on_policy(
        env, agent, TaskReward(), OnPolicyConfig(steps=64 * 8 * 40, num_envs=64, rollout=8), run(), 0, quiet
    )
    state = agent.state(env.reset()[0])
    assert torch.allclose(agent.critic(state), torch.full((64,), 1 / (1 - 0.9)), rtol=0.02)


def test_a_termination_does(point_mass: Build, run: Build) -> None:
    agent, env = learner(critic_lr=3e-3), point_mass(**FIVE, terminates=True)
    train_on_policy(
        env, agent, TaskReward(), OnPolicyConfig(steps=64 * 8 * 60, num_envs=64, rollout=8), run(), 0, quiet
    )
    state = torch.zeros(3, 7)
    state[:, -1] = torch.tensor([0.0, 2.0, 4.0]) / 5
    exact = torch.tensor([(1 - 0.9**left) / (1 - 0.9) for left in (5, 3, 1)])
    assert torch.allclose(agent.critic(state), exact, rtol=0.1)


def test_values_of_states_in_which_nothing_is_ever_done_do_not_run_away(point_mass: Build, run: Build) -> None:
    """Episodes drift, so that each ends where none has acted; unbounded, 10 becomes 20 here and goes on."""
    agent, env = learner(critic_lr=3e-3), point_mass(**FIVE, clock=False)
    train_on_policy(
        env, agent, TaskReward(), OnPolicyConfig(steps=64 * 8 * 110, num_envs=64, rollout=8), run(), 0, quiet
    )
    value = agent.critic(agent.state(env.reset()[0]))
    assert 9 < value.mean() < 12


def gather(env: Any, agent: PPO, steps: int, **options: Any) -> tuple[Any, ...]:
    observation, _ = env.reset(seed=0, **options)
    agent.policy.reset()
    episodes = EpisodeMetrics(env.num_envs, torch.device("cpu"))
    return *collect(env, agent, TaskReward(), observation, steps, torch.Generator().manual_seed(0), episodes), episodes


def test_a_rollout_is_what_happened(point_mass: Build) -> None:
    """Rows in the order of time, histories that end with their episodes, targets from each row's own next state."""
    env, agent = point_mass(3, horizon=4), learner(history=2, gae_lambda=0.0)
    batch, observation, metrics, episodes = gather(env, agent, 6, options={"spread": True})
    assert {name: tuple(x.shape) for name, x in batch.items()} == {
        "frames": (18, 8), "state": (18, 7), "action": (18, 2), "mean": (18, 2), "value": (18,), "advantage": (18,),
        "target": (18,),
    }  # fmt: skip
    rows = {name: x.view(6, 3, -1) for name, x in batch.items()}
    now = rows["state"][..., :4]
    assert torch.equal(rows["frames"][..., 4:], now)
    clock = (rows["state"][..., -1] * 4).round().int()
    assert clock.T.tolist() == [[0, 1, 2, 3, 0, 1], [1, 2, 3, 0, 1, 2], [2, 3, 0, 1, 2, 3]]
    older = torch.cat([now[:1], now[:-1]])
    older[clock == 0] = now[clock == 0]
    assert torch.equal(rows["frames"][..., :4], older)
    torch.testing.assert_close(rows["mean"], agent.policy.mean(rows["frames"]))
    # The reward of a step, from the state after it: within an episode that is the next row.
    after = torch.cat([rows["state"][1:], agent.state(observation)[None]])
    reward = -after[..., 4:6].square().sum(-1) - env.PRICE * rows["action"].clamp(-1, 1).square().sum(-1)
    target = (reward + 0.9 * agent.critic(after))[clock < 3]
    torch.testing.assert_close(rows["target"][..., 0][clock < 3], target)
    assert metrics["env/error"] > 0
    assert episodes.summary()["train/length"] == pytest.approx((4 + 3 + 2 + 4) / 4)


def test_metrics_are_means_over_what_was_measured(point_mass: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    env = point_mass(2)
    step, clock = env.step, [0]

    def measuring(action: Tensor) -> Any:
        result = step(action)
        clock[0] += 1
        rare = [torch.nan, float(clock[0])] if clock[0] % 2 else [torch.nan, torch.nan]
        never = torch.full((2,), torch.nan)
        result[-1]["metrics"] = {"rare": torch.tensor(rare), "clock": torch.full((2,), clock[0]), "never": never}
        return result

    monkeypatch.setattr(env, "step", measuring)
    _, _, metrics, _ = gather(env, learner(), 6)
    assert metrics == {"env/rare": pytest.approx(3.0), "env/clock": pytest.approx(3.5)}, "1, 3, 5; nothing for never"


def ending_with(env: Any, final: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The environment with other last observations."""
    step = env.step

    def other(action: Tensor) -> Any:
        result = step(action)
        if "final_obs" in result[-1]:
            result[-1]["final_obs"] = {name: final(value) for name, value in result[-1]["final_obs"].items()}
        return result

    monkeypatch.setattr(env, "step", other)
    return env


def test_the_end_of_an_episode_is_worth_its_last_state(point_mass: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the state before, nor the next episode's first: here that of another environment, which stands still."""
    env, agent = point_mass(4, horizon=3, constant=True, frozen=True, clock=False), learner(gae_lambda=0.0)
    batch, *_ = gather(ending_with(env, lambda x: x.flip(0), monkeypatch), agent, 5)
    rows = {name: x.view(5, 4) for name, x in batch.items() if x.ndim == 1}
    torch.testing.assert_close(rows["target"][2], 1 + 0.9 * rows["value"][2].flip(0))
    torch.testing.assert_close(rows["target"][1], 1 + 0.9 * rows["value"][2])
    env.terminates = True
    batch, *_ = gather(env, agent, 5)
    assert batch["target"].view(5, 4)[2].tolist() == [1, 1, 1, 1]


def test_a_diverged_simulation_does_not_poison_the_batch(point_mass: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    env, agent = point_mass(2, horizon=3, constant=True), learner(gae_lambda=0.0)
    batch, *_ = gather(ending_with(env, lambda x: torch.full_like(x, torch.nan), monkeypatch), agent, 5)
    assert all(x.isfinite().all() for x in batch.values())
    rows = {name: x.view(5, 2) for name, x in batch.items() if x.ndim == 1}
    torch.testing.assert_close(rows["target"][2], 1 + 0.9 * rows["value"][2])


def test_metrics_are_logged(point_mass: Build, run: Build) -> None:
    config = OnPolicyConfig(steps=8 * 10 * 3, num_envs=8, rollout=10)
    folder = run()
    train_on_policy(point_mass(8), learner(), TaskReward(), config, folder, 0, quiet)
    rows = read_metrics(folder.folder)
    assert [row["step"] for row in rows] == [80, 160, 240]
    assert "train/return" not in rows[0], "no episode has ended"
    assert rows[-1]["train/length"] == 20 and rows[-1]["train/return"] < 0 <= rows[-1]["train/success"] <= 1
    assert rows[-1]["env/error"] > 0 and rows[-1]["train/steps_per_second"] > 0
    assert {"ppo/kl", "ppo/lr", "ppo/std", "ppo/value_loss", "ppo/explained_variance"} <= rows[-1].keys()


class Killed(BaseException):
    """Stands for the signal."""


@pytest.mark.parametrize("history", [1, 3])
def test_resumes_to_the_bit(point_mass: Build, run: Build, same: Callable[[Any, Any], bool], history: int) -> None:
    """Killed at step 1440 with a checkpoint at 960, 9 steps into the fourth episodes."""
    config = OnPolicyConfig(steps=2400, num_envs=16, rollout=15, checkpoint_every=480)

    def kill(step: int, metrics: dict[str, float]) -> None:
        if step == 1440:
            raise Killed

    envs, agents = [point_mass(16, horizon=17) for _ in range(3)], [learner(history, seed) for seed in (0, 0, 5)]
    with run("whole") as one:
        train_on_policy(envs[0], agents[0], TaskReward(), config, one, 3, quiet)
    with pytest.raises(Killed), run("broken") as two:
        train_on_policy(envs[1], agents[1], TaskReward(), config, two, 3, kill)
    with run("broken", resume=True) as three:
        train_on_policy(envs[2], agents[2], TaskReward(), config, three, 3, quiet)
    assert same(agents[2].state_dict(), agents[0].state_dict())
    assert same(envs[2].state_dict(), envs[0].state_dict())
    assert same(agents[2].policy.history.state_dict(), agents[0].policy.history.state_dict())
    timing = {"seconds", "train/steps_per_second", "train/update_seconds"}
    curves = [[{k: v for k, v in r.items() if k not in timing} for r in read_metrics(x.folder)] for x in (one, three)]
    assert curves[0] == curves[1] and len(curves[0]) == 10


def test_a_rollout_of_one_step_is_refused() -> None:
    with pytest.raises(ValueError, match="num_envs and rollout are both 1.*at least 2"):
        OnPolicyConfig(num_envs=1, rollout=1)
    assert OnPolicyConfig(num_envs=1, rollout=2).rollout == OnPolicyConfig(num_envs=2, rollout=1).num_envs == 2


def test_a_signal_saves_and_ends(point_mass: Build, run: Build) -> None:
    folder = run()

    def ask(step: int, metrics: dict[str, float]) -> None:
        folder.stop_signal = signal.SIGINT

    config = OnPolicyConfig(steps=800, num_envs=8, rollout=10)
    with pytest.raises(Interrupted, match="SIGINT at step 80"):
        train_on_policy(point_mass(8), learner(), TaskReward(), config, folder, 0, ask)
    saved = folder.load()
    assert saved is not None and saved["step"] == 80


def test_a_nan_stops_the_run_and_keeps_the_checkpoint(
    point_mass: Build, run: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, agent, folder = point_mass(8), learner(), run()
    config = OnPolicyConfig(steps=8 * 10 * 9, num_envs=8, rollout=10, checkpoint_every=80)
    step, calls = env.step, []

    def poison(action: Tensor) -> Any:
        calls.append(1)
        observation, reward, *rest = step(action)
        return observation, reward * torch.nan if len(calls) == 35 else reward, *rest

    monkeypatch.setattr(env, "step", poison)
    with pytest.raises(FloatingPointError, match="advantage.*NaN.*at step 320; the last checkpoint is intact"):
        train_on_policy(env, agent, TaskReward(), config, folder, 0, quiet)
    saved = folder.load()
    assert saved is not None and saved["step"] == 240
    assert all(v.isfinite().all() for v in saved["agent"]["policy"].values())


def test_a_resumed_finished_run_changes_nothing(
    point_mass: Build, run: Build, same: Callable[[Any, Any], bool]
) -> None:
    config = OnPolicyConfig(steps=160, num_envs=8, rollout=10)
    one, two = learner(), learner(seed=1)
    with run() as first:
        train_on_policy(point_mass(8), one, TaskReward(), config, first, 0, quiet)
    train_on_policy(point_mass(8), two, TaskReward(), config, run(resume=True), 0, quiet)
    assert same(one.state_dict(), two.state_dict())
