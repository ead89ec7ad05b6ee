"""Replay against a reference in plain Python that keeps whole episodes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robot_rl.data.replay import Column, Replay, Sampling
from robot_rl.data.sources import sample_batches
from robot_rl.util.errors import ConfigError

COLUMNS = {
    "observation.state": Column((1,), observed=True),
    "base": Column((1,), observed=True),
    "action": Column((1,)),
    "intervention": Column(dtype=torch.bool),
}


@dataclass
class World:
    """Lanes of episodes with given lengths; every observation is a number that never comes twice."""

    lanes: int
    rows: int
    replay: Replay = field(init=False)
    episodes: list[list[dict[str, Any]]] = field(init=False)
    """Of each lane; an episode holds the lists obs (T + 1), reward (T), and how it ended."""

    def __post_init__(self) -> None:
        self.replay = Replay(self.rows, self.lanes, COLUMNS)
        self.count = 0
        self.episodes = [[self.fresh()] for _ in range(self.lanes)]

    def fresh(self) -> dict[str, Any]:
        self.count += 1
        return {"obs": [float(self.count)], "reward": [], "end": None}

    def step(self, ends: list[str | None]) -> None:
        """One step of every lane, which ends with "terminated", "truncated" or goes on."""
        row: dict[str, list[Any]] = {
            k: [] for k in ("observation.state", "base", "action", "reward", "terminated", "last")
        }
        finals = []
        for lane, end in enumerate(ends):
            episode = self.episodes[lane][-1]
            before = episode["obs"][-1]
            self.count += 1
            reward = 0.5 + (self.count % 7)
            episode["obs"].append(float(self.count))
            episode["reward"].append(reward)
            episode["end"] = end
            for key, value in zip(
                row,
                (before, before + 0.5, -before, reward, end == "terminated", end is not None),
                strict=True,
            ):
                row[key].append(value)
            finals.append(float(self.count))
            if end is not None:
                self.episodes[lane].append(self.fresh())
        tensors = {k: torch.tensor(v) for k, v in row.items()}
        for key in ("observation.state", "base", "action"):
            tensors[key] = tensors[key].view(-1, 1)
        final = torch.tensor(finals).view(-1, 1)
        self.replay.add(tensors, {"observation.state": final, "base": final + 0.5} if any(ends) else None)

    def expected(self, state: float, n_step: int, discount: float) -> tuple[float, float, float]:
        """Reward sum, discount and next observation of the transition that starts at a state."""
        for episode in (e for lane in self.episodes for e in lane):
            if state in episode["obs"][:-1]:
                t = episode["obs"].index(state)
                stop = min(t + n_step, len(episode["reward"]))
                total = sum(discount**k * r for k, r in enumerate(episode["reward"][t:stop]))
                cut = stop == len(episode["reward"]) and episode["end"] == "terminated"
                return total, 0.0 if cut else discount ** (stop - t), episode["obs"][stop]
        raise AssertionError(f"{state} starts no transition")


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.integers(1, 3).flatmap(
        lambda lanes: st.lists(
            st.lists(st.sampled_from([None, None, None, "terminated", "truncated"]), min_size=lanes, max_size=lanes),
            min_size=14,
            max_size=40,
        )
    ),
    st.integers(1, 5),
    st.integers(9, 30),
)
def test_every_sample_is_the_references(script: list[list[str | None]], n_step: int, length: int) -> None:
    """Random ends of episodes; often the storage is smaller than what is added, so it wraps around."""
    lanes = len(script[0])
    world = World(lanes, length * lanes)
    for ends in script:
        world.step(ends)
    batch = world.replay.sample(200, Sampling(n_step, 0.9), rng())
    for k in range(200):
        state = float(batch["observation.state"][k])
        reward, discount, following = world.expected(state, n_step, 0.9)
        assert float(batch["reward"][k]) == pytest.approx(reward, rel=1e-5)
        assert float(batch["discount"][k]) == pytest.approx(discount, rel=1e-5)
        assert float(batch["next.observation.state"][k]) == following
        assert float(batch["next.base"][k]) == following + 0.5
        assert (float(batch["base"][k]), float(batch["action"][k])) == (state + 0.5, -state)
    assert world.replay.transitions == len(script) * lanes
    assert world.replay.size == int(world.replay.flags["starts"].sum()) <= world.replay.transitions


@pytest.mark.parametrize(("end", "discount"), [("truncated", 0.9), ("terminated", 0.0)])
def test_truncation_bootstraps_from_the_final_observation_and_termination_does_not(end: str, discount: float) -> None:
    world = World(1, 20)
    for ends in ([None], [None], [end], [None], [None], [None]):
        world.step(ends)
    final = world.episodes[0][0]["obs"][3]
    batch = world.replay.sample(300, Sampling(1, 0.9), rng())
    third = batch["observation.state"][:, 0] == world.episodes[0][0]["obs"][2]
    assert third.any()
    assert torch.allclose(batch["discount"][third], torch.tensor(discount))
    assert (batch["next.observation.state"][third] == final).all() and (batch["next.base"][third] == final + 0.5).all()


def test_an_unfinished_window_is_not_sampled() -> None:
    world = World(1, 50)
    for _ in range(10):
        world.step([None])
    starts = world.replay.sample(400, Sampling(3, 0.9), rng())["observation.state"].unique()
    assert sorted(starts.tolist()) == world.episodes[0][0]["obs"][:7]  # s7, s8, s9 lack part of their three steps


@pytest.mark.parametrize("lengths", [[5, 5], [1, 20]], ids=["equal lanes", "short beside long episodes"])
def test_all_transitions_are_equally_likely(lengths: list[int]) -> None:
    """A lane of short episodes spends more rows on final observations; its steps must not count for less."""
    world = World(2, 400)
    for t in range(1, 41):
        world.step(["truncated" if t % length == 0 else None for length in lengths])
    draws = 40_000
    state = world.replay.sample(draws, Sampling(1, 0.9), rng())["observation.state"]
    starts = torch.tensor([o for lane in world.episodes for e in lane for o in e["obs"][:-1]])
    counts = (state == starts).sum(0)
    assert len(counts) == 80 and counts.sum() == draws
    expected = draws / 80
    assert ((counts - expected).abs() < 5 * expected**0.5).all(), (
        f"{counts.min()} to {counts.max()}, expected {expected}"
    )


def test_a_full_storage_forgets_the_oldest() -> None:
    world = World(1, 10)
    for _ in range(25):
        world.step([None])
    obs = world.episodes[0][0]["obs"]
    assert set(world.replay.sample(300, Sampling(1, 0.9), rng())["observation.state"].flatten().tolist()) == set(
        obs[15:24]
    )
    assert world.replay.size == 10


def test_a_whole_episode_is_the_same_as_its_steps() -> None:
    world = World(1, 30)
    for ends in ([None], [None], ["terminated"]):
        world.step(ends)
    obs, reward = world.episodes[0][0]["obs"], world.episodes[0][0]["reward"]
    state = torch.tensor(obs).view(-1, 1)
    other = Replay(30, 1, COLUMNS)
    terminated = torch.tensor([False, False, True])
    episode = {
        "observation.state": state,
        "base": state + 0.5,
        "action": -state[:3],
        "reward": torch.tensor(reward),
        "terminated": terminated,
    }
    other.add_episode(episode)
    for name, column in (other.columns | other.flags).items():
        assert torch.equal(column, (world.replay.columns | world.replay.flags)[name]), name
    assert (other.transitions, other.size) == (3, 3)


def test_resumed_equals_uninterrupted(same: Callable[[Any, Any], bool]) -> None:
    world = World(2, 40)
    for t in range(25):
        world.step(["truncated" if t % 4 == 3 else None, "terminated" if t % 7 == 6 else None])
    saved = copy.deepcopy(world.replay.state_dict())
    other = World(2, 40)
    other.replay.load_state_dict(saved)
    other.episodes, other.count = copy.deepcopy(world.episodes), world.count
    for one in (world, other):
        one.step([None, "truncated"])
    assert same(world.replay.state_dict(), other.replay.state_dict())
    assert same(world.replay.sample(50, Sampling(3, 0.9), rng(1)), other.replay.sample(50, Sampling(3, 0.9), rng(1)))


def test_a_snapshot_stays_as_it_was() -> None:
    world = World(1, 40)
    world.step([None])
    saved = world.replay.state_dict()
    before = copy.deepcopy(saved)
    world.step([None])
    assert torch.equal(saved["head"], before["head"]) and torch.equal(saved["filled"], before["filled"])


def test_mixed_batches_keep_their_shares(same: Callable[[Any, Any], bool]) -> None:
    worlds = [World(1, 60), World(1, 60)]
    worlds[1].count += 1000
    worlds[1].episodes = [[worlds[1].fresh()]]
    for world in worlds:
        for _ in range(20):
            world.step([None])
    how = Sampling(1, 0.9)
    batches = sample_batches([(worlds[0].replay, 5), (worlds[1].replay, 11)], 3, how, rng())
    assert len(batches) == 3
    for batch in batches:
        assert (batch["observation.state"] > 1000).sum() == 11 and (batch["observation.state"] < 1000).sum() == 5
        assert torch.equal(batch["action"], -batch["observation.state"]), "rows stay together"
    only = sample_batches([(worlds[0].replay, 8), (worlds[1].replay, 0)], 1, how, rng(2))
    assert same(only, [worlds[0].replay.sample(8, how, rng(2))])


@pytest.mark.timeout(5)
def test_sampling_from_nothing_is_an_error_not_a_hang() -> None:
    with pytest.raises((ValueError, RuntimeError)):
        Replay(20, 1, COLUMNS).sample(4, Sampling(1, 0.9), rng())


@pytest.mark.timeout(5)
def test_steps_that_are_not_known_yet_are_an_error_not_a_hang() -> None:
    world = World(2, 50)
    for _ in range(3):
        world.step([None, None])
        assert not world.replay.ready(3)
        with pytest.raises(ValueError, match="no transition of the replay has 3 steps, or the end of its episode"):
            world.replay.sample(4, Sampling(3, 0.9), rng())
    assert world.replay.ready(2)
    world.step([None, "terminated"])
    assert len(world.replay.sample(4, Sampling(3, 0.9), rng())["action"]) == 4
    assert not World(1, 50).replay.ready(1)


def test_interventions_are_marked() -> None:
    replay = Replay(20, 1, COLUMNS)
    column: Tensor = torch.tensor([False, True, False, True])
    zeros = torch.zeros(5, 1)
    replay.add_episode(
        {
            "observation.state": torch.arange(5.0)[:, None],
            "base": zeros,
            "action": zeros[:4],
            "reward": zeros[:4, 0],
            "intervention": column,
        }
    )
    batch = replay.sample(100, Sampling(1, 0.9), rng())
    assert torch.equal(batch["intervention"], batch["observation.state"][:, 0].long() % 2 == 1)


@pytest.mark.parametrize("chunk", [1, 3])
def test_a_return_ends_where_another_acts_unless_all_actions_are_judged(chunk: int) -> None:
    """What a person does after a takeover is no merit of the policy's action before it, nor the other way round."""
    acted, steps = [False, False, True, True, True, False, True], 7
    replay, state = Replay(30, 1, COLUMNS), torch.arange(8.0)[:, None]
    episode = {"observation.state": state, "base": state, "action": state[:7], "reward": 1 + torch.arange(7.0)}
    replay.add_episode(episode | {"intervention": torch.tensor(acted)})
    batch = replay.sample(200, Sampling(3, 0.5, chunk), rng())
    switches = [t for t in range(1, steps) if acted[t] != acted[t - 1]] if chunk == 1 else []
    for k, start in enumerate(int(s) for s in batch["observation.state"]):
        stop = min([start + 3, steps, *(t for t in switches if t > start)])
        reward = sum(0.5 ** (t - start) * (1 + t) for t in range(start, stop))
        found = [float(batch[name][k]) for name in ("reward", "discount", "next.observation.state")]
        assert found == pytest.approx([reward, 0.5 ** (stop - start), stop])
        if chunk > 1:
            assert batch["intervention"][k][batch["valid"][k]].tolist() == acted[start:stop]


def test_the_episode_that_has_just_ended_is_what_was_added() -> None:
    columns = {"observation.state": Column((1,), observed=True), "action": Column((1,))}
    replay, other = Replay(16, 2, columns), Replay(40, 1, columns)
    for t in range(11):  # lane 1 ends every 4 steps, and the ring of 8 rows wraps
        last = torch.tensor([False, t % 4 == 3])
        state = torch.tensor([[0.0], [float(t)]])
        step = {"observation.state": state, "action": state + 0.5, "reward": last.float(), "last": last}
        replay.add(step | {"terminated": last}, {"observation.state": state + 100})
        if bool(last[1]):
            episode = replay.newest(1)
            assert episode["observation.state"][:, 0].tolist() == [t - 3, t - 2, t - 1, t, t + 100]
            assert (episode["action"][:, 0] - 0.5).tolist() == [t - 3, t - 2, t - 1, t]
            assert episode["terminated"].tolist() == [False] * 3 + [True] and episode["reward"].tolist() == [0, 0, 0, 1]
            other.add_episode(episode)
    assert other.size == 8 and other.newest(0)["action"][:, 0].tolist() == [4.5, 5.5, 6.5, 7.5]


def test_a_replay_that_no_memory_holds_is_refused_with_its_size() -> None:
    with pytest.raises(ConfigError, match=r"1000000000000 rows of 101 KB takes 1008\d+ GB.*--training.capacity"):
        Replay(10**12, 1, {"picture": Column((210, 160, 3), torch.uint8, observed=True)})
