"""On-policy loop on problems with known solutions."""

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


def learner(history: int = 1, seed: int = 0, **config: Any) -> PPO:
    """Return a small agent for the point mass."""
    torch.manual_seed(seed)
    numbers = {"hidden": (32, 32), "minibatches": 2, "discount": 0.9}
    policy = FeedforwardPolicy(Size(4, 2), FeedforwardConfig(hidden=(32, 32), history=history))
    return PPO(policy, 3, PPOConfig(**(numbers | config)), seed)


class Best(Policy):
    """Linear-quadratic regulator u = -K x; the Riccati equation is iterated for one axis."""

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
    """Return the mean return over one episode per environment, with equal seeds for all policies."""
    runner = ChunkExecutor(policy, env.num_envs)
    runner.reset()
    observation, _ = env.reset(seed=10**6)
    total = 0.0
    for _ in range(env.horizon):
        observation, reward, *_ = env.step(runner.act(observation, torch.Generator()))
        total += float(reward.mean())
    return total


@pytest.mark.parametrize("history", [1, 2])
def test_ppo_learns_to_follow_commanded_velocities(point_mass: Build, run: Build, history: int) -> None:
    """At least 95 % of the improvement from the initial policy to the optimum, LQR."""
    agent = learner(history)
    before = mean_return(point_mass(256), agent.policy)
    config = OnPolicyConfig(steps=128 * 16 * 45, num_envs=128, rollout=16)
    train_on_policy(point_mass(128), agent, TaskReward(), config, run(), 0, lambda *_: None)
    env = point_mass(256)
    after, best = mean_return(env, agent.policy), mean_return(env, Best(env.GAIN, env.PRICE))
    assert before < 3 * best, f"the start ({before:.3f}) is too far from the best ({best:.3f})"
    assert (after - before) / (best - before) > 0.95, f"{before:.3f} -> {after:.3f}, best {best:.3f}"


FIVE: dict[str, Any] = {"num_envs": 64, "horizon": 5, "constant": True}
"""Episodes of 5 steps with reward 1; at discount 0.9, the value of an endless episode is 10."""


@pytest.mark.parametrize("terminates", [False, True])
def test_value_continues_at_a_timeout_and_ends_at_termination(point_mass: Build, run: Build, terminates: bool) -> None:
    agent, env = learner(critic_lr=3e-3), point_mass(**FIVE, frozen=not terminates, clock=terminates,
                                                     terminates=terminates)  # fmt: skip
    config = OnPolicyConfig(steps=64 * 8 * (60 if terminates else 40), num_envs=64, rollout=8)
    train_on_policy(env, agent, TaskReward(), config, run(), 0, lambda *_: None)
    if not terminates:
        state, exact = agent.state(env.reset()[0]), torch.full((64,), 1 / (1 - 0.9))
    else:
        state, exact = torch.zeros(3, 7), torch.tensor([(1 - 0.9**left) / (1 - 0.9) for left in (5, 3, 1)])
        state[:, -1] = torch.tensor([0.0, 2.0, 4.0]) / 5
    assert torch.allclose(agent.critic(state), exact, rtol=0.1 if terminates else 0.02)


def test_values_of_states_without_actions_stay_bounded(point_mass: Build, run: Build) -> None:
    """Episodes drift and end in states without actions; without a bound, the value 10 grows to 20 and more."""
    agent, env = learner(critic_lr=3e-3), point_mass(**FIVE, clock=False)
    config = OnPolicyConfig(steps=64 * 8 * 110, num_envs=64, rollout=8)
    train_on_policy(env, agent, TaskReward(), config, run(), 0, lambda *_: None)
    value = agent.critic(agent.state(env.reset()[0]))
    assert 9 < value.mean() < 12


def gather(env: Any, agent: PPO, steps: int, **options: Any) -> tuple[Any, ...]:
    observation, _ = env.reset(seed=0, **options)
    agent.policy.reset()
    episodes = EpisodeMetrics(env.num_envs, torch.device("cpu"))
    return *collect(env, agent, TaskReward(), observation, steps, torch.Generator().manual_seed(0), episodes), episodes


def test_rollout_rows_and_targets(point_mass: Build) -> None:
    """Rows in time order, histories that start with their episodes, targets from the next state of a row."""
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
    # The reward depends on the state after the step: within an episode, the next row.
    after = torch.cat([rows["state"][1:], agent.state(observation)[None]])
    reward = -after[..., 4:6].square().sum(-1) - env.PRICE * rows["action"].clamp(-1, 1).square().sum(-1)
    target = (reward + 0.9 * agent.critic(after))[clock < 3]
    torch.testing.assert_close(rows["target"][..., 0][clock < 3], target)
    assert metrics["env/error"] > 0
    assert episodes.summary()["train/length"] == pytest.approx((4 + 3 + 2 + 4) / 4)


def test_metrics_are_means_without_nan(point_mass: Build, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert metrics == {"env/rare": pytest.approx(3.0), "env/clock": pytest.approx(3.5)}, "mean of 1, 3, 5"


def ending_with(env: Any, final: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the environment with changed final observations."""
    step = env.step

    def other(action: Tensor) -> Any:
        result = step(action)
        if "final_obs" in result[-1]:
            result[-1]["final_obs"] = {name: final(value) for name, value in result[-1]["final_obs"].items()}
        return result

    monkeypatch.setattr(env, "step", other)
    return env


def test_truncation_bootstraps_from_the_final_observation(point_mass: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the final observation is the state of another environment, which does not move."""
    env, agent = point_mass(4, horizon=3, constant=True, frozen=True, clock=False), learner(gae_lambda=0.0)
    batch, *_ = gather(ending_with(env, lambda x: x.flip(0), monkeypatch), agent, 5)
    rows = {name: x.view(5, 4) for name, x in batch.items() if x.ndim == 1}
    torch.testing.assert_close(rows["target"][2], 1 + 0.9 * rows["value"][2].flip(0))
    torch.testing.assert_close(rows["target"][1], 1 + 0.9 * rows["value"][2])
    env.terminates = True
    batch, *_ = gather(env, agent, 5)
    assert batch["target"].view(5, 4)[2].tolist() == [1, 1, 1, 1]


def test_nan_in_a_final_observation_keeps_the_batch_finite(point_mass: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    env, agent = point_mass(2, horizon=3, constant=True), learner(gae_lambda=0.0)
    batch, *_ = gather(ending_with(env, lambda x: torch.full_like(x, torch.nan), monkeypatch), agent, 5)
    assert all(x.isfinite().all() for x in batch.values())
    rows = {name: x.view(5, 2) for name, x in batch.items() if x.ndim == 1}
    torch.testing.assert_close(rows["target"][2], 1 + 0.9 * rows["value"][2])


class Killed(BaseException):
    """Replacement for a kill signal."""


@pytest.mark.parametrize("history", [1, 3])
def test_resume_is_bit_identical(point_mass: Build, run: Build, same: Callable[[Any, Any], bool], history: int) -> None:
    """Killed at step 1440 with a checkpoint at 960, during episodes."""
    config = OnPolicyConfig(steps=2400, num_envs=16, rollout=15, checkpoint_every=480)

    def kill(step: int, metrics: dict[str, float]) -> None:
        if step == 1440:
            raise Killed

    envs, agents = [point_mass(16, horizon=17) for _ in range(3)], [learner(history, seed) for seed in (0, 0, 5)]
    with run("whole") as one:
        train_on_policy(envs[0], agents[0], TaskReward(), config, one, 3, lambda *_: None)
    with pytest.raises(Killed), run("broken") as two:
        train_on_policy(envs[1], agents[1], TaskReward(), config, two, 3, kill)
    with run("broken", resume=True) as three:
        train_on_policy(envs[2], agents[2], TaskReward(), config, three, 3, lambda *_: None)
    assert same(agents[2].state_dict(), agents[0].state_dict())
    assert same(envs[2].state_dict(), envs[0].state_dict())
    assert same(agents[2].policy.history.state_dict(), agents[0].policy.history.state_dict())
    timing = {"seconds", "train/steps_per_second", "train/update_seconds"}
    curves = [[{k: v for k, v in r.items() if k not in timing} for r in read_metrics(x.folder)] for x in (one, three)]
    assert curves[0] == curves[1] and len(curves[0]) == 10


def test_rollout_of_one_step_raises() -> None:
    with pytest.raises(ValueError, match="num_envs and rollout are both 1.*at least 2"):
        OnPolicyConfig(num_envs=1, rollout=1)
    assert OnPolicyConfig(num_envs=1, rollout=2).rollout == OnPolicyConfig(num_envs=2, rollout=1).num_envs == 2


def test_signal_saves_and_ends(point_mass: Build, run: Build) -> None:
    folder = run()

    def stop(step: int, metrics: dict[str, float]) -> None:
        folder.stop_signal = signal.SIGINT

    config = OnPolicyConfig(steps=800, num_envs=8, rollout=10)
    with pytest.raises(Interrupted, match="SIGINT at step 80"):
        train_on_policy(point_mass(8), learner(), TaskReward(), config, folder, 0, stop)
    saved = folder.load()
    assert saved is not None and saved["step"] == 80


def test_nan_reward_stops_the_run_and_keeps_the_checkpoint(point_mass: Build, run: Build, monkeypatch: Any) -> None:
    env, agent, folder = point_mass(8), learner(), run()
    config = OnPolicyConfig(steps=8 * 10 * 9, num_envs=8, rollout=10, checkpoint_every=80)
    step, calls = env.step, []

    def poison(action: Tensor) -> Any:
        calls.append(1)
        observation, reward, *rest = step(action)
        return observation, reward * torch.nan if len(calls) == 35 else reward, *rest

    monkeypatch.setattr(env, "step", poison)
    with pytest.raises(FloatingPointError, match="advantage.*NaN.*at step 320; the last checkpoint is intact"):
        train_on_policy(env, agent, TaskReward(), config, folder, 0, lambda *_: None)
    saved = folder.load()
    assert saved is not None and saved["step"] == 240
    assert all(v.isfinite().all() for v in saved["agent"]["policy"].values())
