"""Testbeds: episodes depend on their seed alone, states stay bounded, and demonstrators are as good as their skill."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.base import RandomPolicy
from robot_rl.cli.main import main
from robot_rl.data.recording import load_episodes
from robot_rl.evaluation import evaluate
from robot_rl.interface.language import decode
from robot_rl.interface.observation_spec import LANGUAGE, PRIVILEGED
from robot_rl.training.run import read_metrics
from sim.make import describe, make
from sim.testbeds import base, testbeds
from sim.testbeds.discs import BESIDE, COLOURS, INSTRUCTIONS, NEAR, PIXELS, TOP

ALL = [f"testbed:{name}" for name in testbeds]
HALF = ("testbed:fork-", "testbed:discs")
"""Testbeds whose demonstrators choose one of two goals, of which only one counts."""


def demonstrated(name: str, skill: str, steps: int = 250) -> tuple[float, float]:
    """Return the success rate of ended episodes, and the mean reward."""
    env = make(name, 256)
    assert isinstance(env, base.TestbedEnv)
    expert, observation = env.make_demonstrator(0, skill), env.reset(seed=3)[0]
    ended = won = 0
    total = 0.0
    for _ in range(steps):
        observation, reward, terminated, truncated, infos = env.step(expert.act(observation))
        done = terminated | truncated
        total += float(reward.mean()) / steps
        ended += int(done.sum())
        won += int((infos.get("success", done & False) & done).sum())
        expert.reset(done.nonzero().squeeze(-1))
    return won / max(1, ended), total


@pytest.mark.parametrize("name", ALL)
def test_an_episode_depends_on_its_seed_alone(name: str) -> None:
    many, one = make(name, 5), make(name, 1)
    first, single = many.reset(seed=7)[0], one.reset(seed=9)[0]
    actions = torch.rand(120, 1, many.info.action, generator=torch.Generator().manual_seed(0)) * 2 - 1
    for action in actions:
        assert torch.equal(first["observation.state"][2:3], single["observation.state"])
        first, reward, terminated, truncated, infos = many.step(action.expand(5, -1))
        single, r, t, u, alone = one.step(action)
        assert (reward[2], terminated[2], truncated[2]) == (r[0], t[0], u[0])
        if alone.get("_final_obs") is not None:
            assert torch.equal(infos["final_obs"]["observation.state"][2], alone["final_obs"]["observation.state"][0])


@pytest.mark.parametrize("name", ALL)
def test_states_stay_finite_and_resume_bit_identically(name: str) -> None:
    env, other = make(name, 16), make(name, 16)
    observation = env.reset(seed=1)[0]["observation.state"]
    rng = torch.Generator().manual_seed(1)
    for k in range(150):
        if k == 75:
            restored = other.load_state_dict(env.state_dict())  # type: ignore[attr-defined]
            assert torch.equal(restored["observation.state"], observation)
        action = 3 * torch.randn(16, env.info.action, generator=rng)  # also beyond the limits
        observation = env.step(action)[0]["observation.state"]
        assert observation.shape == (16, env.info.observation) and bool(observation.isfinite().all())
        if k >= 75:
            assert torch.equal(other.step(action)[0]["observation.state"], observation)


@pytest.mark.parametrize("name", [n for n in ALL if describe(n).reports_success and not n.startswith(HALF)])
def test_a_better_skill_succeeds_more_often(name: str) -> None:
    clumsy, weak = demonstrated(name, "CLUMSY")[0], demonstrated(name, "WEAK")[0]
    assert clumsy > 0.85 and 0.3 < weak < clumsy - 0.2
    chance = evaluate(RandomPolicy(describe(name).action), make(name, 100), 100).summary()["success"]
    assert chance < 0.15


@pytest.mark.parametrize("name", [name for name in ALL if name.endswith(("right", "discs"))])
def test_half_of_the_demonstrations_succeed_where_one_side_counts(name: str) -> None:
    assert 0.4 < demonstrated(name, "STEADY", 60)[0] < 0.6


def test_the_demonstrator_of_discs_beside_stops_next_to_the_disc() -> None:
    assert demonstrated("testbed:discs-beside", "STEADY", 60)[0] < 0.05
    env = make("testbed:discs-beside", 64)
    expert, observation = env.make_demonstrator(0, "STEADY"), env.reset(seed=0)[0]  # type: ignore[attr-defined]
    for _ in range(25):  # before the time limit
        observation = env.step(expert.act(observation))[0]
    away = -env.progress()  # type: ignore[attr-defined]
    assert float(away.median()) == pytest.approx(math.hypot(*BESIDE), abs=0.03)
    assert NEAR + 0.05 < math.hypot(*BESIDE) < NEAR + 0.1


def test_true_values_count_the_expert_s_steps_to_success() -> None:
    env: Any = make("testbed:reach", 1)
    for seed in range(5):
        observation = env.reset(seed=seed)[0]
        before = env.state.clone()
        still, best = env.true_values(torch.zeros(1, 2))
        assert torch.equal(env.state, before) and still == pytest.approx(base.FADE * best), "one step is wasted"
        expert, steps, success = env.make_demonstrator(0, "STEADY"), 0, False
        expert.noise, expert.bias = 0.0, torch.zeros(1, 2)
        while not success:
            observation, _, _, _, infos = env.step(expert.act(observation))
            success, steps = bool(infos["success"]), steps + 1
        assert best == pytest.approx(base.FADE ** (steps - 1))


def test_jumps_between_the_stones_fail() -> None:
    env = make("testbed:stones", 4)
    env.reset(seed=0)
    jumps = torch.tensor([[0.8, 0.8], [-0.8, -0.8], [0.8, -0.8], [0.0, 0.8]])
    assert env.step(jumps)[2].tolist() == [False, False, True, True]
    assert env.step(jumps)[4]["success"].tolist() == [True, True, False, False]


def test_success_in_the_fast_fork_depends_on_the_skill() -> None:
    steady, clumsy, weak = (demonstrated("testbed:fork-fast", skill)[0] for skill in ("STEADY", "CLUMSY", "WEAK"))
    assert steady > 0.98 and 0.6 < clumsy < 0.9 and weak < clumsy - 0.2


@pytest.mark.parametrize(("name", "mean"), [("testbed:fork", [0.0, 1.0]), ("testbed:fork-fast", [0.0])])
def test_the_mean_of_both_sides_hits_the_obstacle(name: str, mean: list[float]) -> None:
    env = make(name, 64)
    env.reset(seed=0)
    failed = torch.zeros(64, dtype=torch.bool)
    for _ in range(40):
        _, _, terminated, _, infos = env.step(torch.tensor([mean]).expand(64, -1))
        failed |= terminated & ~infos["success"]
    assert bool(failed.all())


def test_the_fork_with_goals_must_be_decided_at_the_start_and_its_mean_hits_the_obstacle() -> None:
    def success(until: int, chosen: bool) -> float:
        """Return the success rate if both sides are averaged for the first `until` steps."""
        env = make("testbed:fork-goal", 64)
        observation, won = env.reset(seed=0)[0], torch.zeros(64, dtype=torch.bool)
        sides, ended = torch.rand(64, 4, generator=torch.Generator().manual_seed(0)), won.clone()
        for k in range(40):
            ways = [env.testbed.expert(observation["observation.state"], u) for u in (sides, 1 - sides)]  # type: ignore[attr-defined]
            action = ways[0] if chosen and k >= until else (ways[0] + ways[1]) / 2
            observation, _, terminated, truncated, infos = env.step(action)
            won |= infos["success"] & ~ended
            ended |= terminated | truncated
        assert bool(ended.all())
        return float(won.float().mean())

    assert success(0, True) == 1.0 and success(0, False) == 0.0 == success(4, True)


@pytest.mark.parametrize("radius", [0.0, 0.45])
def test_the_island_is_passed_by_its_demonstrator_and_hit_by_straight_motion(radius: float) -> None:
    def success(skill: str) -> float:
        """Return the success rate of the demonstrator, or without a skill of straight motion."""
        ranges = {"radius": {"low": radius, "high": radius}, "goal.x": {"low": 0.4, "high": 1.0}}
        env = make("testbed:island", 200, ranges=ranges)
        seen, expert = env.reset(seed=0)[0], env.make_demonstrator(0, skill) if skill else None  # type: ignore[attr-defined]
        state = seen["observation.state"]
        assert float(state[:, 2].min()) > 0.35 and float(state[:, 0].max()) < -0.3
        won, ended = torch.zeros(200, dtype=torch.bool), torch.zeros(200, dtype=torch.bool)
        for _ in range(60):
            way = seen["observation.state"][:, 2:] - seen["observation.state"][:, :2]
            seen, _, terminated, truncated, infos = env.step(expert.act(seen) if expert else way / 0.1)
            won |= infos["success"] & ~ended
            ended |= terminated | truncated
        return float(won.float().mean())

    assert success("STEADY") > 0.98
    assert success("") == 1.0 if not radius else success("") < 0.5


def test_swinging_up_increases_the_reward() -> None:
    steady, weak, mixed = (demonstrated("testbed:swing", skill, 200)[1] for skill in ("STEADY", "WEAK", "MIXED"))
    assert steady > max(weak, mixed) + 1


def test_a_mixed_demonstrator_has_a_constant_habit_per_episode() -> None:
    env = make("testbed:swing", 200)
    observation = env.reset(seed=0)[0]
    mixed, steady = (env.make_demonstrator(0, skill) for skill in ("MIXED", "STEADY"))  # type: ignore[attr-defined]
    mixed.noise = steady.noise = 0.0
    mixed.bias, steady.bias = torch.zeros(200, 1), torch.zeros(200, 1)
    habits = [mixed.act(observation) / steady.act(observation) for _ in range(2)]
    assert torch.equal(*habits)
    assert -0.5 <= float(habits[0].min()) < -0.3 and 0.8 < float(habits[0].max()) <= 1.0


def test_a_changing_demonstrator_has_other_habits_within_an_episode() -> None:
    env = make("testbed:swing", 400)
    observation = env.reset(seed=0)[0]
    changing, steady = (env.make_demonstrator(0, skill) for skill in ("CHANGING", "STEADY"))  # type: ignore[attr-defined]
    changing.noise = steady.noise = 0.0
    changing.bias, steady.bias = torch.zeros(400, 1), torch.zeros(400, 1)
    habits = torch.stack([(changing.act(observation) / steady.act(observation))[:, 0] for _ in range(50)])
    assert float((habits[1:] != habits[:-1]).float().mean()) == pytest.approx(0.2, abs=0.02)
    assert -0.75 <= float(habits.min()) < -0.7 and 0.95 < float(habits.max()) <= 1.0


def test_random_numbers_are_uniform_and_independent() -> None:
    seed, episode = torch.arange(2000) % 100, torch.arange(2000) // 100
    u = base.uniform(seed, episode, 8)
    assert bool(((u >= 0) & (u < 1)).all()) and len(u.flatten().unique()) > 15_900
    assert torch.allclose(u.mean(0), torch.full((8,), 0.5), atol=0.03)
    assert torch.corrcoef(u.T).fill_diagonal_(0).abs().max() < 0.08
    assert torch.equal(base.uniform(seed, episode, 3), u[:, :3])


def test_a_testbed_is_collected_trained_and_recorded_by_its_policy(tmp_path: Path) -> None:
    """By commands: collect with failures, train offline, record with the policy."""
    data, run = str(tmp_path / "data"), str(tmp_path / "run")
    collect = ["collect", "testbed:fork", "--keep-failures"]
    assert main([*collect, "--episodes", "20", "--skill", "WEAK", "--out", data]) == 0
    info = describe("testbed:fork")
    everything, won = load_episodes(data, info, successes=False), load_episodes(data, info)
    assert len(everything) == 20 > len(won)
    ended = [bool(e["terminated"][-1]) for e in everything]
    short = [len(e["action"]) < 60 for e in everything]
    assert ended == short, "obstacle and success terminate, the time limit does not"
    train = ["train", "testbed:fork", "--recipe", "iql", "--dataset", data, "--training.offline-updates", "30"]
    assert main([*train, "--training.steps", "40", "--training.log-every", "20", "--out", run]) == 0
    rows = read_metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == [20, 30, 50, 70] and rows[-1]["train/steps"] == 40
    again = str(tmp_path / "again")
    assert main([*collect, "--policy", run, "--episodes", "3", "--out", again]) == 0
    assert len(load_episodes(again, info, successes=False)) == 3
    assert main(["collect", "testbed:push", "--policy", run, "--out", str(tmp_path / "no")]) == 2
    assert not (tmp_path / "no").exists()


def test_a_group_of_environments_has_equal_initial_states() -> None:
    env = make("testbed:discs", 6)
    seen = env.reset(seed=5, options={"group": 3})[0]
    for value in seen.values():
        assert all(torch.equal(value[k], value[0]) for k in (1, 2)) and torch.equal(value[3], value[5])
    assert not torch.equal(seen[PRIVILEGED][0], seen[PRIVILEGED][3])


def test_image_and_instruction_of_discs_show_the_goal() -> None:
    """The left disc of the instructed colour in the image is the goal."""
    env = make("testbed:discs", 64)
    assert isinstance(env, base.TestbedEnv)
    observation, bed = env.reset(seed=2)[0], env.testbed
    texts = decode(observation[LANGUAGE])
    assert [env.instruction(k) for k in range(64)] == texts and set(texts) == set(INSTRUCTIONS)
    index = torch.tensor([INSTRUCTIONS.index(text) for text in texts])
    colours = torch.tensor(list(COLOURS.values()), dtype=torch.uint8)[index]
    shown = (observation[TOP] == colours[:, None, None]).all(-1)
    columns = torch.linspace(-1, 1, PIXELS)
    left = shown & (columns < 0)[None, None, :]
    assert (shown.sum((1, 2)) > left.sum((1, 2))).all(), "there is a right disc as well"
    for k in range(64):
        rows, across = left[k].nonzero().unbind(1)
        place = torch.stack([columns[across].mean(), columns[rows].mean()])
        for point, reward in ((place, 1.0), (place * torch.tensor([-1.0, 1.0]), 0.0)):
            state = torch.cat([point, env.state[k, 2:]])[None]
            assert float(bed.outcome(state, torch.zeros(1, 2))[0]) == reward


def test_mirror_image_of_a_push_is_a_push() -> None:
    push, rng = testbeds.get("push")(), torch.Generator().manual_seed(0)
    mirror, flip = push.mirror, torch.tensor([1.0, -1.0] * 3)
    assert mirror is not None
    s = push.start(torch.rand(500, 6, generator=rng))
    touched = torch.zeros(500, dtype=torch.bool)
    for _ in range(30):
        a = 2 * torch.rand(500, 2, generator=rng) - 1
        following, image = push.advance(s, a), push.advance(s * flip, mirror.action(a))
        assert torch.allclose(push.observe(image), mirror.observation(push.observe(following)), atol=1e-6)
        assert torch.equal(push.outcome(image, a)[1], push.outcome(following, a)[1])
        touched |= (following[:, 2:4] != s[:, 2:4]).any(1)
        s = following
    assert touched.sum() > 30, "the images of contacts are contacts"
