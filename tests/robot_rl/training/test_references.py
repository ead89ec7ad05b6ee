"""References: starts, links, tracking reward and weights against brute force, closed forms and recorded actions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from robot_rl.cli.main import main
from robot_rl.interface.spec import VectorSpec, box
from robot_rl.learning.parts.references import SEGMENTS, References, StartWeights, adaptive
from robot_rl.training.references import ReferenceEnv, ReferencesConfig
from robot_rl.util.errors import ConfigError, UnknownName
from sim.make import make

SPEC = VectorSpec((box("position", "x y", "m", -1, 1), box("angle", "a", "rad", -3, 3), box("skill", "s", "1", 0, 9)))
PLAIN = ReferencesConfig(links=0.0, noisy=0.0, uniform=1.0)
STATE = "observation.state"


def recorded(name: str = "testbed:clips", count: int = 6) -> tuple[list[Tensor], list[Tensor]]:
    """Return the states (T, D) and the actions (T, A) of demonstrations."""
    env: Any = make(name, count)
    expert, observation = env.make_demonstrator(0, "STEADY"), env.reset(seed=0)[0]
    rows, running = [], torch.ones(count, dtype=torch.bool)
    while running.any():
        action = expert.act(observation)
        rows.append((observation[STATE], action, running.clone()))
        observation, _, terminated, truncated, _ = env.step(action)
        running &= ~(terminated | truncated)
    columns = [torch.stack(column) for column in zip(*rows, strict=True)]
    each = [(columns[0][columns[2][:, k], k], columns[1][columns[2][:, k], k]) for k in range(count)]
    return [states for states, _ in each], [actions for _, actions in each]


@pytest.fixture(scope="module")
def clips() -> tuple[list[Tensor], list[Tensor]]:
    return recorded()


def started(episodes: list[Tensor], config: ReferencesConfig, n: int = 512, seed: int = 3) -> tuple[Any, Tensor]:
    env = ReferenceEnv(make("testbed:clips", n), episodes, config)
    return env, env.reset(seed=seed)[0][STATE]


# ---- weights --------------------------------------------------------------------------------------------------------
@given(st.lists(st.floats(0, 1), min_size=2, max_size=8, unique=True), st.floats(0, 0.99))
def test_a_worse_reference_has_strictly_more_weight_and_weights_sum_to_one(means: list[float], uniform: float) -> None:
    mean = torch.tensor(sorted(means), dtype=torch.double)
    weights = adaptive(mean, uniform)
    assert weights.sum().item() == pytest.approx(1) and (weights >= uniform / len(means) - 1e-12).all()
    apart = mean.diff() > 1e-9
    assert (weights.diff()[apart] < 0).all()
    if uniform == 0:
        assert (weights[0] / weights[-1]).item() == pytest.approx(float((5 * (mean[-1] - mean[0])).exp()))


def test_reports_move_the_mean_of_their_segment_alone() -> None:
    starts = StartWeights(3, uniform=0.5)
    assert torch.allclose(starts.weights(), torch.full((3, SEGMENTS), 1 / (3 * SEGMENTS)))
    starts.report(torch.tensor([SEGMENTS, SEGMENTS, 2]), torch.tensor([0.2, 0.6, 1.0]))
    expected = torch.zeros(3, SEGMENTS)
    expected[1, 0], expected[0, 2] = 0.1 * 0.4, 0.1 * 1.0
    assert torch.allclose(starts.mean, expected)
    weights = starts.weights()
    assert weights.sum().item() == pytest.approx(1)
    assert weights[2].sum() > weights[1].sum() > weights[0].sum(), "the best tracked reference is drawn least"
    assert weights[0, 1] > weights[0, 2] and weights[1, 1] > weights[1, 0]


def test_frames_are_drawn_by_the_weights_of_their_segments() -> None:
    episodes = [torch.randn(length, 4) * torch.tensor([1, 1, 1, 0]) for length in (7, 40, 95)]
    known = References(episodes, SPEC, "skill")
    weights = torch.rand(3, SEGMENTS, generator=torch.Generator().manual_seed(0))
    weights[1, 4] = 0.0
    frame = known.draw(weights, torch.rand(200_000, 2, generator=torch.Generator().manual_seed(1)))
    counts = torch.bincount(known.clip[frame], minlength=3) / len(frame)
    assert torch.allclose(counts, weights.sum(1) / weights.sum(), atol=5e-3)
    long = known.clip[frame] > 0  # a reference of 7 states has no frame in some segments
    drawn = torch.bincount(known.segment(frame[long]), minlength=30)[10:] / long.sum()
    assert torch.allclose(drawn, weights[1:].flatten() / weights[1:].sum(), atol=5e-3)
    assert frame.unique().tolist() == [k for k in range(142) if not (k >= 7 and k < 47 and (k - 7) * 10 // 40 == 4)]
    last = known.draw(weights, torch.full((1, 2), 1 - 2**-24))
    assert last.tolist() == [141]


# ---- distances and links --------------------------------------------------------------------------------------------
def test_distance_is_that_of_the_fields_in_their_deviations_without_the_command() -> None:
    rng = torch.Generator().manual_seed(0)
    episodes = [torch.randn(50, 4, generator=rng) * torch.tensor([3.0, 0.1, 0.0, 0.0]) for _ in range(2)]
    episodes[1][:, 3] = 5.0
    known = References(episodes, SPEC, "skill")
    both = torch.cat(episodes)
    variance = ((both[:, :2] - both[:, :2].mean(0)) ** 2).mean()
    near, far = torch.zeros(1, 4), torch.tensor([[1.0, 2.0, 7.0, 5.0]])  # angles are all the same: they tell nothing
    assert known.distance(near, far).item() ** 2 == pytest.approx(float((1**2 + 2**2) / 2 / variance), rel=1e-5)


def test_links_go_to_the_nearest_frames(clips: tuple[list[Tensor], list[Tensor]]) -> None:
    known = References(clips[0], make("testbed:clips", 1).info.state, "skill")
    state = torch.cat([known.frames[::7], known.frames[::9] + 0.2])
    for skill in range(2):
        found, distance = known.nearest(state, torch.full((len(state),), skill))
        for row, frame, far in zip(state, found.tolist(), distance.tolist(), strict=True):
            each = [
                sum(float(((row - other) / known.scale)[k]) ** 2 for k in range(6)) ** 0.5 for other in known.frames
            ]
            allowed = [far if int(known.skill[k]) == skill else float("inf") for k, far in enumerate(each)]
            assert known.skill[frame] == skill and far == pytest.approx(min(allowed), abs=1e-5)
            assert allowed[frame] == pytest.approx(min(allowed), abs=1e-5)


def test_the_frame_after_the_last_one_is_the_last_one() -> None:
    known = References([torch.arange(12.0).view(3, 4) * torch.tensor([1, 1, 1, 0]), torch.ones(2, 4)], SPEC, "skill")
    assert known.next(torch.arange(5)).tolist() == [1, 2, 2, 4, 4]


# ---- starts ---------------------------------------------------------------------------------------------------------
def test_without_links_and_noise_starts_are_states_of_the_references_to_the_bit(
    clips: tuple[list[Tensor], list[Tensor]],
) -> None:
    env, state = started(clips[0], PLAIN)
    known = env.references
    u = torch.rand(512, 5, generator=torch.Generator().manual_seed(3))
    expected = []
    for cell, share in zip((u[:, 0].double() * 6 * SEGMENTS).long().tolist(), u[:, 1].tolist(), strict=True):
        states, segment = clips[0][cell // SEGMENTS], cell % SEGMENTS
        own = [k for k in range(len(states)) if k * SEGMENTS // len(states) == segment]
        expected.append(states[own[int(share * len(own))]])
    assert torch.equal(state, torch.stack(expected)) and torch.equal(state, known.frames[env.frame])
    assert not env.wait.any() and torch.equal(env.env.state[:, :7], state)
    other, linked = started(clips[0], ReferencesConfig(links=0.5, noisy=0.0, uniform=1.0))
    same = u[:, 2] >= 0.5
    assert torch.equal(linked[same], state[same]) and torch.equal(other.frame[same], env.frame[same])
    assert torch.equal(linked[:, :6], state[:, :6]) and torch.equal(linked[~same, 6], -state[~same, 6])


def test_noise_has_the_given_deviation(clips: tuple[list[Tensor], list[Tensor]]) -> None:
    config = ReferencesConfig(links=0.0, noisy=1.0, noise=0.5, uniform=1.0)
    state, plain = (started(clips[0], each, 4000)[1] for each in (config, PLAIN))
    expected = 0.5 * torch.cat(clips[0])[:, :6].var(0, correction=0).mean().sqrt()
    assert torch.allclose((state - plain)[:, :6].std(0), expected.expand(6), rtol=0.05)
    assert torch.equal(state[:, 6], plain[:, 6])


def test_without_a_command_all_references_show_one_skill(clips: tuple[list[Tensor], list[Tensor]]) -> None:
    config = ReferencesConfig(command="", links=0.0, noisy=1.0)
    env, state = started(clips[0], config)
    assert len(env.references.commands) == 1
    assert torch.equal(env.references.told(state, env.references.skill[env.frame]), state)
    known = References(clips[0], env.info.state, "skill")
    assert env.references.scale[6].isfinite() and not known.scale[6].isfinite(), "then the side is a part of the state"


def test_linked_and_noisy_starts_track_the_nearest_frame_after_the_time_to_get_there(
    clips: tuple[list[Tensor], list[Tensor]],
) -> None:
    env, state = started(clips[0], ReferencesConfig(links=0.5, noisy=0.5, noise=0.4))
    known = env.references
    assert torch.equal(known.frames[env.frame][:, 6], state[:, 6]), "what is tracked is what is told"
    off = (state != known.frames[env.frame]).any(1)
    assert 0.65 < off.double().mean() < 0.85
    frame, distance = known.nearest(state, known.skill[env.frame])
    assert torch.equal(env.frame[off], frame[off])
    steps = torch.stack([(a[1:, :6] - a[:-1, :6]).norm(dim=1).mean() for a in clips[0]]).mean()
    away = (state - known.frames[env.frame])[:, :6].norm(dim=1)
    assert torch.allclose(env.wait.float(), (away / steps).ceil(), atol=1.0) and int(env.wait.max()) > 20


@pytest.mark.parametrize("name", ["testbed:clips", "testbed:push", "testbed:carry"])
def test_a_testbed_starts_in_a_recorded_state_exactly(name: str) -> None:
    states, actions = recorded(name, 3)
    env: Any = make(name, 2)
    env.reset(seed=9)
    untouched = env.state[1].clone()
    where = torch.tensor([True, False])
    for k in (0, len(states[0]) // 2):
        observed = env.begin(where, torch.stack([states[0][k], states[1][0]]))[STATE]
        assert torch.equal(observed[0], states[0][k]) and torch.equal(env.state[1], untouched)
    observed = env.step(torch.stack([actions[0][k], actions[0][k]]))[0][STATE]
    assert torch.equal(observed[0], states[0][k + 1]), "it goes on as recorded"


# ---- reward ---------------------------------------------------------------------------------------------------------
def test_recorded_actions_are_paid_one_per_step_and_others_less(clips: tuple[list[Tensor], list[Tensor]]) -> None:
    env, _ = started(clips[0], PLAIN, n=64)
    actions, last = torch.cat(clips[1]), torch.cat([torch.arange(len(a)) == len(a) - 1 for a in clips[1]])
    running = ~last[env.frame]
    for _ in range(10):
        frame = env.frame.clone()
        running &= ~last[frame]
        reward = env.step(actions[frame])[1]
        assert torch.allclose(reward[running], torch.ones(int(running.sum())))
    assert 0 < running.sum() < 64
    env, state = started(clips[0], PLAIN, n=64)
    reward = env.step(torch.zeros(64, 6))[1]
    ahead = env.references.frames[env.frame][:, :6] - state[:, :6]
    variance = torch.cat(clips[0])[:, :6].var(0, correction=0).mean()
    assert torch.allclose(reward, (-2 * ahead.square().mean(1) / variance).exp(), atol=1e-6) and reward.min() < 0.999


def test_no_step_is_paid_and_no_frame_passes_before_the_tracking_begins(
    clips: tuple[list[Tensor], list[Tensor]],
) -> None:
    env, _ = started(clips[0], ReferencesConfig(links=1.0, noisy=0.0))
    wait, frame, running = env.wait.clone(), env.frame.clone(), torch.ones(512, dtype=torch.bool)
    stays = env.references.next(frame) == frame
    for step in range(30):
        _, reward, terminated, truncated, _ = env.step(torch.zeros(512, 6))
        running &= ~(terminated | truncated)
        assert torch.equal(reward[running] > 0, step >= wait[running])
        assert torch.equal((env.frame > frame)[running], ((step >= wait) & ~stays)[running])
    assert running.sum() > 200


def test_success_ends_no_episode_and_a_failure_counts_its_lost_rewards(
    clips: tuple[list[Tensor], list[Tensor]],
) -> None:
    env, _ = started(clips[0], PLAIN, n=2)
    env.env.state[0, :6] = torch.tensor([0.0, -0.51, 0, 0, 0, 0])  # before the ball
    env.env.state[1, :6] = torch.tensor([0.7 * env.env.state[1, 6].item(), 0.6, 0, 0, 0, 0])  # at the end
    env.env.state[1, 7] = 4
    segment, left = env.segment.clone(), env.references.left(env.frame)
    _, reward, terminated, truncated, infos = env.step(torch.tensor([[0.0, 1, 0, 0, 0, 0]]).expand(2, -1))
    assert terminated.tolist() == [True, False] and not truncated.any()
    assert infos["success"].tolist() == [False, True]
    assert env.starts.mean.flatten()[segment[0]].item() == pytest.approx(0.1 * reward[0].item() / (left[0].item() + 20))
    rewards = [reward[1].item()]
    while not truncated[1]:
        _, reward, _, truncated, infos = env.step(torch.zeros(2, 6))
        rewards.append(reward[1].item())
    assert len(rewards) == left[1] + 20 and infos["_final_obs"][1]
    assert infos["final_obs"][STATE][1, 1] > 0.6 and env.env.steps[1] == 0, "a new episode has begun"
    assert env.starts.mean.flatten()[segment[1]].item() == pytest.approx(0.1 * sum(rewards) / len(rewards), rel=1e-4)


# ---- runs -----------------------------------------------------------------------------------------------------------
def test_seeds_reproduce_and_a_restored_environment_goes_on_alike(clips: tuple[list[Tensor], list[Tensor]]) -> None:
    config = ReferencesConfig(links=0.3, noisy=0.3)
    (env, first), (other, second) = started(clips[0], config, 32, 5), started(clips[0], config, 32, 6)
    assert torch.equal(first, started(clips[0], config, 32, 5)[1]) and not torch.equal(first, second)
    rng, observation = torch.Generator().manual_seed(0), first
    for step in range(160):
        if step == 70:
            assert torch.equal(other.load_state_dict(env.state_dict())[STATE], observation)
        action = 2 * torch.rand(32, 6, generator=rng) - 1
        observation, reward = env.step(action)[0][STATE], env.starts.mean.sum()
        if step >= 70:
            assert torch.equal(other.step(action)[0][STATE], observation) and other.starts.mean.sum() == reward
    assert env.curriculum_metrics == other.curriculum_metrics and env.curriculum_metrics["references/worst"] > 0


def test_a_run_learns_from_a_dataset_and_resumes_bit_identically(tmp_path: Path) -> None:
    data, runs = str(tmp_path / "data"), [tmp_path / "whole", tmp_path / "parts"]
    few = ("--training.num-envs", "8", "--training.rollout", "10", "--policy.hidden", "8", "--device", "cpu")
    words = ("train", "testbed:clips-switch", "--recipe", "skillmimic", "--dataset", data, *few)
    assert main(["collect", "testbed:clips", "--skill", "STEADY", "--episodes", "10", "--out", data]) == 0
    assert main([*words, "--out", str(runs[0]), "--training.steps", "160"]) == 0
    assert main([*words, "--out", str(runs[1]), "--training.steps", "80"]) == 0
    assert main([*words, "--out", str(runs[1]), "--training.steps", "160", "--resume"]) == 0
    one, two = (next(run.glob("bundle/*.safetensors")).read_bytes() for run in runs)
    assert one == two
    assert main([*words, "--out", str(tmp_path / "no"), "--training.reward", "success"]) == 2


# ---- refusals -------------------------------------------------------------------------------------------------------
def test_what_cannot_work_is_refused(clips: tuple[list[Tensor], list[Tensor]]) -> None:
    left = [states for states in clips[0] if states[0, 6] < 0]
    with pytest.raises(ConfigError, match=r"references.links 0"):
        started(left, ReferencesConfig())
    assert len(started(left, PLAIN)[1]) == 512
    with pytest.raises(ConfigError, match=r"references.links 0"):
        started(clips[0], ReferencesConfig(command=""))
    with pytest.raises(UnknownName, match="skil"):
        started(clips[0], ReferencesConfig(command="skil"))
    with pytest.raises(ConfigError, match="changes its"):
        started(clips[0], ReferencesConfig(command="position"))
    with pytest.raises(ConfigError, match="leave it out"):
        started([clips[0][0][:1]], PLAIN)
    with pytest.raises(ConfigError, match="restore"):
        ReferenceEnv(make("testbed:pair", 2), [torch.zeros(3, 8)], ReferencesConfig("state", links=0)).reset(seed=0)
    with pytest.raises(ConfigError, match="only testbeds"):
        ReferenceEnv(make("panda-lift", 1), clips[0], PLAIN)
