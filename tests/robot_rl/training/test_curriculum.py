"""Curricula: bounds move to the limits of a policy, never past the task's, and a resumed run goes on as it was."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.learning.parts.curriculum import Curriculum
from robot_rl.training.curriculum import RandomizationCurriculum, read_curriculum
from robot_rl.util.errors import ConfigError, UnknownName
from sim.env import TaskEnv
from sim.make import make
from sim.randomization import Randomize
from sim.step.distribution import EpisodeDistribution


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(-1, 2)), max_size=60), st.sampled_from([0.1, 0.3, 1.0]))
def test_numbers_stay_between_start_and_limit(reports: list[tuple[int, float]], step: float) -> None:
    start, limit = torch.tensor([0.0, 1.0, -2.0]).double(), torch.tensor([1.0, 0.25, 5.0]).double()
    numbers = Curriculum(start, limit, step, size=2, low=0.4, high=0.6)
    for index, outcome in reports:
        numbers.report(torch.tensor([index]), torch.tensor([outcome]))
        assert ((numbers.progress >= 0) & (numbers.progress <= 1)).all()
        assert (numbers.count < 2).all()


def test_only_a_full_buffer_moves_its_number() -> None:
    numbers = Curriculum(torch.zeros(2).double(), torch.ones(2).double(), 0.25, size=3, low=0.2, high=0.8)
    assert not numbers.report(torch.tensor([0, 0, 1]), torch.tensor([1.0, 1.0, 0.0]))
    assert numbers.report(torch.tensor([0]), torch.tensor([1.0])) and numbers.value.tolist() == [0.25, 0.0]
    assert not numbers.report(torch.tensor([0] * 3), torch.tensor([1.0, 0.0, 0.0]))  # between low and high
    assert numbers.report(torch.tensor([0] * 3), torch.zeros(3)) and numbers.value.tolist() == [0.0, 0.0]


def test_a_pinned_episode_is_at_its_bound_and_at_no_other() -> None:
    drawn = EpisodeDistribution([Randomize("cube.mass", 0.1, 0.4, "log_uniform"), Randomize("cube.friction", 0.5, 1.0)])
    drawn.pin([("cube.mass", 1), ("cube.friction", 0)], 0.5)
    rng = np.random.default_rng(0)
    values, pinned = drawn.draw(rng.random((4000, 2)), rng.random((4000, 2)))
    assert values[pinned == 0, 0] == pytest.approx(0.4) and values[pinned == 1, 1] == pytest.approx(0.5)
    assert (values[pinned != 0, 0] < 0.4).all() and (values[pinned != 1, 1] > 0.5).all()
    assert [np.mean(pinned == k) for k in (-1, 0, 1)] == pytest.approx([0.5, 0.25, 0.25], abs=0.03)


class Fails:
    """A policy that succeeds if the drawn mass is at most `most` kg, in an environment of one-step episodes."""

    def __init__(self, most: float, n: int = 64):
        self.most, self.num_envs, self.device = most, n, torch.device("cpu")
        self.info: Any = type("Info", (), {"reports_success": True, "horizon": 1, "task": "fails"})
        self.distribution = EpisodeDistribution([Randomize("cube.mass", 0.1, 2.1)])
        self.set_ranges, self.pin = self.distribution.set_ranges, self.distribution.pin
        self.nominal_values, self.rng = {"cube.mass": 0.1}, np.random.default_rng(0)
        self.begin()

    @property
    def randomization(self) -> tuple[Randomize, ...]:
        return self.distribution.randomization

    def begin(self) -> None:
        self.mass, pinned = self.distribution.draw(*(self.rng.random((self.num_envs, size)) for size in (1, 2)))
        self.pinned = torch.from_numpy(pinned)

    def reset(self, **_: Any) -> Any:
        return {}, {}

    def step(self, actions: torch.Tensor) -> Any:
        success, every = torch.from_numpy(self.mass[:, 0] <= self.most), torch.ones(self.num_envs, dtype=torch.bool)
        self.begin()
        return {}, success.float(), every, ~every, {"success": success}


@pytest.mark.parametrize("most", [0.55, 1.23, 3.0])
def test_a_bound_goes_to_what_the_policy_can_do_within_one_step(most: float) -> None:
    env = RandomizationCurriculum(Fails(most), 0.5, 0.8, size=10, step=0.1)
    for _ in range(100):
        env.step(torch.zeros(64, 1))
    assert env.bounds.value.item() == pytest.approx(min(most, 2.1), abs=0.2 + 1e-9)
    assert env.env.randomization[0].high == env.bounds.value.item() and env.sides == [("cube.mass", 1)]
    env.env.most = 0.0  # the policy gets worse: the bound returns, and not past its start
    for _ in range(100):
        env.step(torch.zeros(64, 1))
    assert env.bounds.value.item() == pytest.approx(0.1, abs=0.2) and env.bounds.value.item() >= 0.1


def test_episodes_of_a_task_begin_nominal_and_widen() -> None:
    env = read_curriculum("adr:0.5:0.8:success:2:0.5")(TaskEnv("panda-lift", 16))
    mass = [r.parameter for r in env.randomization].index("cube.mass")
    env.reset(seed=0)
    free = env.pinned < 0
    assert (env.sampled[:, mass] - 0.1).abs().max() < 1e-9 and 0 < int(free.sum()) < 16
    place = [r for r in env.randomization if r.parameter == "cube.x"][0]
    assert (place.low, place.high) == (0.36, 0.62)  # placement is not the curriculum's
    expert, observation = env.make_demonstrator(0, "STEADY"), env.reset(seed=0)[0]
    for _ in range(150):
        observation, _, terminated, truncated, _ = env.step(expert.act(observation))
        expert.reset((terminated | truncated).nonzero().flatten())
    assert env.curriculum_metrics["adr/mean"] > 0.1
    saved, other = env.state_dict(), read_curriculum("adr:0.5:0.8:success:2:0.5")(TaskEnv("panda-lift", 16))
    other.load_state_dict(saved)
    assert other.randomization == env.randomization and torch.equal(other.pinned, env.pinned)
    action = torch.zeros(16, env.info.action)
    for _ in range(130):
        first, second = env.step(action), other.step(action)
        assert torch.equal(first[0]["observation.state"], second[0]["observation.state"])
    assert env.curriculum_metrics == other.curriculum_metrics
    env.close()
    other.close()


def test_a_nominal_value_outside_the_range_begins_at_its_nearer_bound() -> None:
    env = Fails(3.0)
    env.nominal_values = {"cube.mass": 0.05}
    curriculum = RandomizationCurriculum(env, 0.5, 0.8)
    assert (env.randomization[0].low, env.randomization[0].high) == (0.1, 0.1)
    assert curriculum.sides == [("cube.mass", 1)]


def test_a_testbed_draws_its_parameters_and_resumes() -> None:
    env = make("testbed:swing-varied", 256, ranges={"pendulum.mass": {"low": 1.0, "high": 2.0}})
    env.reset(seed=3)
    mass, damping = env.state[:, 2], env.state[:, 3]
    assert 1.0 <= mass.min() < 1.05 and 1.95 < mass.max() <= 2.0 and damping.max() > 0.55
    env.step(torch.zeros(256, 1))
    assert torch.equal(env.state[:, 2], mass)
    other = make("testbed:swing-varied", 256)
    other.load_state_dict(env.state_dict())
    for _ in range(250):
        env.step(torch.ones(256, 1))
        other.step(torch.ones(256, 1))
    assert torch.equal(env.state, other.state) and not torch.equal(env.state[:, 2], mass)


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="not below"):
        read_curriculum("adr:0.8:0.5")(TaskEnv("panda-lift", 1))
    with pytest.raises(ConfigError, match="reward"):
        read_curriculum("adr:0.5:0.8")(make("testbed:swing-varied", 1))
    with pytest.raises(ConfigError, match="no randomized parameters"):
        read_curriculum("adr:0.5:0.8")(make("testbed:reach", 1))
    with pytest.raises(ConfigError, match="is written"):
        read_curriculum("adr")
    with pytest.raises(UnknownName, match="curriculum"):
        read_curriculum("adx:0.5:0.8")
