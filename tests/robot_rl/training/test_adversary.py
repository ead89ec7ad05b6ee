"""An adversary finds the force that hurts, grows colder only while the policy holds out, and resumes bit for bit."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from robot_rl.cli.main import main
from robot_rl.interface.observation_spec import STATE
from robot_rl.training.adversary import AdversarialEnv
from robot_rl.training.curriculum import read_curriculum
from robot_rl.util.errors import ConfigError
from sim.env import TaskEnv
from sim.make import make
from sim.testbeds.base import TestbedEnv
from sim.testbeds.swing import OUTSIDE, Swing


class Hurts:
    """Episodes of two steps whose reward is `share` times a force that the state's sign turns round; nothing acts."""

    disturbance, privileged_size, device, num_envs = 1, 0, torch.device("cpu"), 64

    def __init__(self, share: float = 1.0):
        self.share, self.steps = share, torch.zeros(64, dtype=torch.long)
        self.info: Any = type("Info", (), {"observation": 1, "task": "hurts"})
        self.rng = torch.Generator().manual_seed(7)
        self.state = self.draw()

    def draw(self) -> Tensor:
        return 2 * torch.rand(64, 1, generator=self.rng) - 1

    def disturb(self, forces: Tensor) -> None:
        self.forces = forces

    def reset(self, **_: Any) -> Any:
        return {STATE: self.state}, {}

    def step(self, actions: Tensor) -> Any:
        reward = self.share * (self.state.sign() * self.forces)[:, 0]
        self.steps += 1
        done, last = self.steps % 2 == 0, {STATE: self.state}
        self.state = self.draw()
        return {STATE: self.state}, reward, torch.zeros_like(done), done, {"final_obs": last}


def run(env: AdversarialEnv, steps: int) -> float:
    """Return the mean reward of the last 50 steps."""
    env.reset()
    rewards = [float(env.step(torch.zeros(64, 1))[1].mean()) for _ in range(steps)]
    return sum(rewards[-50:]) / 50


@pytest.mark.parametrize("share", [1.0, 1e-3])
def test_a_cold_adversary_finds_the_force_that_hurts_whatever_the_units(share: float) -> None:
    env = AdversarialEnv(Hurts(share), hot=0.01)
    run(env, 600)
    env.learning = False
    assert run(env, 100) / share < -0.9


def test_a_hot_adversary_stays_nearly_random() -> None:
    hot, cold = (run(AdversarialEnv(Hurts(), hot=heat), 600) for heat in (10.0, 0.01))
    assert hot > -0.3 and cold < -0.7


def test_random_forces_are_uniform_and_nothing_learns() -> None:
    env = read_curriculum("random-forces")(Hurts())
    before = [p.clone() for p in env.adversary.actor.parameters()]
    assert abs(run(env, 200)) < 0.1 and env.env.forces.std() == pytest.approx(3**-0.5, abs=0.08)
    assert all(torch.equal(a, b) for a, b in zip(before, env.adversary.actor.parameters(), strict=True))


def test_the_temperature_falls_only_while_the_policy_returns_the_floor() -> None:
    held, lost = (AdversarialEnv(Hurts(0.0), floor=floor, size=30) for floor in (-1.0, 1.0))
    heats = [float(held.concentration.value)]
    for env in (held, lost):
        env.reset()
        for _ in range(30):
            env.step(torch.zeros(64, 1))
            heats += [float(held.concentration.value)] * (env is held)
    assert heats[0] == 50.0 and heats[-1] == 1.0 and heats == sorted(heats, reverse=True)
    assert lost.concentration.value.item() == 50.0
    assert held._drawn().mean() < 0.04 and lost._drawn().mean() == pytest.approx(1.0, abs=0.1)


def test_a_resumed_adversary_goes_on_bit_for_bit() -> None:
    def env() -> Any:
        return AdversarialEnv(TestbedEnv(Swing(), 64), floor=-1000.0)

    one, other = env(), env()
    one.reset(seed=0)
    for _ in range(210):
        one.step(torch.zeros(64, 1))
    state = copy.deepcopy(one.state_dict())
    observation = other.load_state_dict(state)[STATE]
    assert torch.equal(observation, one.env.testbed.observe(one.env.state))
    for _ in range(20):
        first, second = (each.step(torch.zeros(64, 1)) for each in (one, other))
        assert torch.equal(first[0][STATE], second[0][STATE])
    same = zip(one.adversary.actor.parameters(), other.adversary.actor.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in same)


def test_a_force_acts_for_one_step() -> None:
    env = TestbedEnv(Swing(), 2)
    env.reset(seed=0)
    env.state = torch.zeros(2, 2)
    env.disturb(torch.tensor([[1.0], [0.0]]))
    env.step(torch.zeros(2, 1))
    assert env.state[:, 1].tolist() == pytest.approx([3 * OUTSIDE * 0.05, 0.0])
    env.state = torch.zeros(2, 2)
    env.step(torch.zeros(2, 1))
    assert not env.state.any()


def test_a_legged_robot_is_accelerated_by_a_share_of_its_weight() -> None:
    speeds = []
    for force in (0.0, 1.0):
        env = TaskEnv("go2-velocity", 2, randomize=False)
        env.reset(seed=0)
        env.disturb(torch.tensor([[0.0, force]] * 2))
        env.step(torch.zeros(2, 12))
        speeds.append(env.true.base_velocity[0, 1])
        env.close()
    assert speeds[1] - speeds[0] == pytest.approx(0.15 * 9.81 / 50, rel=0.3)  # the feet hold it back a little


def test_a_task_without_outside_forces_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing pushes in task 'panda-lift'"):
        read_curriculum("qarl:0.5")(make("panda-lift", 1))


@pytest.mark.timeout(400)
def test_an_attack_is_learned_and_reported(capsys: Any) -> None:
    """The expert balances a pendulum in the first line, and is toppled in the second."""
    returns = []
    for attack in ("0", "60"):
        words = ["evaluate", "expert:testbed:swing", "--skill", "STEADY", "--episodes", "20", "--num-envs", "20"]
        assert main([*words, "--attack", attack, "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result.get("attack", 0) == int(attack)
        returns.append(result["return"]["mean"])
    assert returns[1] < returns[0] - 200


@pytest.mark.parametrize("curriculum", ["qarl:-500", "rarl", "random-forces"])
def test_policies_train_under_every_curriculum(curriculum: str, tmp_path: Path) -> None:
    words = ["train", "testbed:swing", "--recipe", "ppo", "--curriculum", curriculum, "--training.num-envs", "8",
             "--training.rollout", "10", "--training.steps", "160", "--out", str(tmp_path / "run")]  # fmt: skip
    assert main(words) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert ("adversary/temperature" in rows[-1]) == (curriculum != "random-forces")
