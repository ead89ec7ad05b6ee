"""Off-policy recipes learn a problem with a known best policy, and the loop stores the executed steps."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.networks.gaussian import GaussianConfig
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.spec import numbered
from robot_rl.recipes import recipes
from robot_rl.recipes.job import Job
from robot_rl.rewards import TaskReward
from robot_rl.training import off_policy
from robot_rl.training.off_policy import OffPolicyConfig, train_off_policy

Build = Callable[..., Any]


class Point:
    """Points on a line: x' = x + 0.3 a, reward -x'^2, episodes of 8 steps from [-1, 1]; the best policy moves to 0."""

    info = EnvInfo("point", numbered("state", [-1.0], [1.0]), numbered("action", [-1.0], [1.0]), reports_success=False)
    privileged_size, mirror = 0, None

    def __init__(self, num_envs: int):
        self.num_envs, self.rng = num_envs, torch.Generator()
        self.x, self.steps = torch.zeros(num_envs, 1), torch.arange(num_envs) % 8

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self.rng.manual_seed(seed or 0)
        self.x, self.steps = self.anywhere(), torch.arange(self.num_envs) % 8
        return {"observation.state": self.x}, {}

    def anywhere(self) -> Tensor:
        return 2 * torch.rand(self.num_envs, 1, generator=self.rng) - 1

    def step(self, actions: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        self.x, self.steps = self.x + 0.3 * actions, self.steps + 1
        done, reward = self.steps >= 8, -self.x[:, 0].square()
        infos: dict[str, Any] = {"final_obs": {"observation.state": self.x}, "_final_obs": done} if done.any() else {}
        self.x = torch.where(done[:, None], self.anywhere(), self.x)
        self.steps = torch.where(done, 0, self.steps)
        return {"observation.state": self.x}, reward, torch.zeros_like(done), done, infos

    def close(self) -> None:
        pass


def regret(act: Callable[[Tensor], Tensor]) -> float:
    """Return the difference between the best return and the return of `act`, mean over starting points."""
    starts = torch.linspace(-1, 1, 41)[:, None]
    totals = []
    for policy in (act, lambda x: (-x / 0.3).clamp(-1, 1)):
        x, total = starts, torch.zeros(41)
        for _ in range(8):
            x = x + 0.3 * policy(x)
            total = total - x[:, 0].square()
        totals.append(total.mean())
    return float(totals[1] - totals[0])


STILL = regret(torch.zeros_like)
"""Regret of a policy with zero actions."""


def trained(name: str, run: Any, lr: float) -> float:
    recipe = recipes.get(name)()
    policy = replace(recipe.policy, hidden=(32, 32))
    rates = {"critic_lr": lr, "actor_lr": lr, "tau": 0.05, "discount": 0.9, "ema_decay": 0.9}
    agent = replace(recipe.agent, hidden=(32, 32), actor_delay=2, **rates)
    sizes = {"steps": 1280, "num_envs": 16, "batch": 64, "warmup": 160, "learning_starts": 160, "capacity": 4000}
    training = replace(recipe.training, updates_per_step=0.4, reward="task", demo_share=0.0, **sizes)
    recipe = replace(recipe, policy=policy, agent=agent, training=training)
    assert recipe.needs == ("environment",)
    job = Job(Point.info, Point, run(name), 0, Path("nowhere"), None, lambda *_: None)
    learned = recipe.train(job).policy
    return regret(lambda x: learned.act({"observation.state": x}, torch.Generator())[:, 0])


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_recipe_learns_the_best_policy(run: Build, name: str) -> None:
    assert trained(name, run, 3e-3) < 0.15 * STILL


def test_without_learning_the_regret_stays(run: Build) -> None:
    """Control: all other hyperparameters are equal."""
    assert trained("td3", run, 1e-9) > 0.5 * STILL


# ---- replay of the loop ------------------------------------------------------------------------------------------
@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the replays of the training loops of this test."""
    made: list[Any] = []
    replay = off_policy.Replay
    monkeypatch.setattr(off_policy, "Replay", lambda *words: made.append(replay(*words)) or made[-1])
    return made


def loop(env: Any, learner: Any, folder: Any, steps: int, **config: Any) -> None:
    numbers: dict[str, Any] = dict(batch=32, updates_per_step=0.1, warmup=0, learning_starts=0, capacity=20_000)
    with folder:
        config = {"num_envs": env.num_envs} | numbers | config
        train_off_policy(env, learner, None, TaskReward(), OffPolicyConfig(steps, **config), folder, 0, lambda *_: None)


@pytest.mark.parametrize(("terminates", "value"), [(False, 1 / (1 - 0.9)), (True, 1 / (1 - 0.9 * 0.8))])
def test_only_timeouts_bootstrap(point_mass: Build, agent: Build, run: Build, terminates: bool, value: float) -> None:
    """Episodes of 5 steps with reward 1; the state does not show the time, and 4 of 5 steps continue."""
    env = point_mass(20, horizon=5, constant=True, frozen=True, clock=False, terminates=terminates)
    policy = GaussianPolicy(Size(4, 2), GaussianConfig(hidden=(8,), std=0.1))
    settings = dict(n_step=1, discount=0.9, value_high=99.0, hidden=(32, 32), critic_lr=1e-2, tau=0.2)
    learner = agent(policy, **settings)
    loop(env, learner, run(), 20 * 150, updates_per_step=0.15, batch=128, warmup=20 * 150)
    state = env.reset(seed=9)[0]["observation.state"]
    values = learner.critic.value(state, torch.zeros(20, 2))
    assert values.mean().item() == pytest.approx(value, rel=0.06)


def test_replay_has_executed_steps(point_mass: Build, agent: Build, residual: Build, run: Build, stored: Any) -> None:
    """With the observation before the step, the base's action, and the final observation."""
    env, policy = point_mass(3, horizon=6), residual(4, 2, std=None, zero_init=False, initial_std=1.0)
    steps_seen: list[tuple[Tensor, ...]] = []
    step = env.step

    def record(action: Tensor) -> Any:
        before = env._observe()["observation.state"].clone()
        result = step(action)
        final = result[-1].get("final_obs", result[0])["observation.state"].clone()
        steps_seen.append((before, action.clone(), result[1].clone(), result[2] | result[3], final))
        return result

    env.step = record
    learner = agent(policy, value_low=-99.0)
    loop(env, learner, run(), 3 * 20)
    (replay,) = stored
    for lane in range(3):
        row = 0
        for before, action, reward, done, final in steps_seen:
            columns = {name: values[lane, row] for name, values in replay.columns.items()}
            assert torch.equal(columns["observation.state"], before[lane])
            assert torch.equal(columns["action"], action[lane]) and torch.equal(columns["reward"], reward[lane])
            assert ((columns["action"] - columns["base"]).abs() <= policy.config.scale + 1e-6).all()
            assert columns["base"].any() and bool(replay.flags["last"][lane, row]) == bool(done[lane])
            row += 1
            if done[lane]:
                assert torch.equal(replay.columns["observation.state"][lane, row], final[lane])
                assert replay.columns["base"][lane, row].any(), "the base acts on the final observation, too"
                row += 1
    assert not replay.flags["terminated"].any()
