"""Replay against a reference in plain Python that keeps whole episodes."""

import copy
from collections.abc import Callable
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
    "observation.state": Column((1,), observed=True), "base": Column((1,), observed=True), "action": Column((1,)),
    "intervention": Column(dtype=torch.bool),
}  # fmt: skip
END = st.sampled_from([None, None, None, None, "terminated", "truncated"])
SCRIPT = st.integers(1, 3).flatmap(
    lambda lanes: st.lists(
        st.one_of(st.lists(END, min_size=lanes, max_size=lanes), st.just("cut")), min_size=12, max_size=40
    ).map(lambda steps: (lanes, steps))
)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def observed(states: list[float]) -> dict[str, Tensor]:
    values = torch.tensor(states)[:, None]
    return {"observation.state": values, "base": values + 0.5}


class World:
    """Episodes in several lanes: unique observations, rewards and the end of each episode.

    The action after observation s is -s. The reward is s / 8, which is exact in float32.
    """

    def __init__(self, lanes: int, length: int):
        self.replay, self.count = Replay(lanes * length, lanes, COLUMNS), 0
        self.running = [[self.fresh()] for _ in range(lanes)]
        self.episodes: list[tuple[list[float], str]] = []

    def fresh(self) -> float:
        self.count += 1
        return float(self.count)

    def step(self, *ends: str | None) -> None:
        """Advance every lane by one step, which ends "terminated", "truncated" or not (None)."""
        before = observed([obs[-1] for obs in self.running])
        for obs in self.running:
            obs.append(self.fresh())
        state = before["observation.state"]
        row = before | {"action": -state, "reward": state[:, 0] / 8}
        row |= {"terminated": torch.tensor([e == "terminated" for e in ends]), "last": torch.tensor([*map(bool, ends)])}
        self.replay.add(row, observed([obs[-1] for obs in self.running]) if any(ends) else None)
        for lane, end in enumerate(ends):
            if end:
                self.end(lane, end)

    def cut(self) -> None:
        self.replay.cut(observed([obs[-1] for obs in self.running]))
        for lane in range(len(self.running)):
            self.end(lane, "truncated")

    def end(self, lane: int, end: str) -> None:
        self.episodes.append((self.running[lane], end))
        self.running[lane] = [self.fresh()]

    def find(self, state: float) -> tuple[list[float], int, str | None]:
        """Return the observations of the episode with `state`, the step of `state`, and the end of the episode."""
        for obs, end in [*self.episodes, *((obs, None) for obs in self.running)]:
            if state in obs[:-1]:
                return obs, obs.index(state), end
        raise AssertionError(f"{state} starts no transition")


@settings(deadline=None, derandomize=True, max_examples=140)
@given(SCRIPT, st.integers(1, 6), st.integers(1, 5), st.booleans(), st.integers(8, 24))
def test_samples_match_the_episodes(script: Any, chunk: int, n_step: int, sequence: bool, length: int) -> None:
    """Random ends and cuts of episodes; the buffer often wraps around."""
    lanes, steps = script
    world, how = World(lanes, length), Sampling(n_step, 0.5, chunk, sequence)
    for ends in steps:
        world.cut() if ends == "cut" else world.step(*ends)
        assert world.replay.size == int(world.replay.flags["starts"].sum()) <= world.replay.transitions
    assert world.replay.transitions == lanes * sum(ends != "cut" for ends in steps)
    if not world.replay.size or not world.replay.ready(how.span):
        return
    batch = world.replay.sample(60, how, rng())
    for k, state in enumerate(batch["observation.state"].reshape(60, -1)[:, 0].tolist()):
        obs, t, end = world.find(state)
        count = len(obs) - 1
        assert end or t + how.span <= count, "an unfinished window is not sampled"
        inside = [t + i < count for i in range(chunk)]
        actions = [-obs[t + i] if valid else 0.0 for i, valid in enumerate(inside)]
        assert batch["action"][k].flatten().tolist() == actions
        assert (chunk == 1 and not sequence) or batch["valid"][k].tolist() == inside
        stop = min(t + n_step, count)
        terminated = stop == count and end == "terminated"
        assert batch["discount"][k].item() == (0.0 if terminated else 0.5 ** (stop - t))
        if sequence:
            states = [obs[min(t + i, count)] for i in range(chunk + 1)]
            assert batch["observation.state"][k, :, 0].tolist() == states, "the final observation is repeated"
            assert batch["base"][k, :, 0].tolist() == [s + 0.5 for s in states]
            assert batch["reward"][k].tolist() == [-a / 8 for a in actions]
        else:
            assert batch["reward"][k].item() == sum(0.5**i * o / 8 for i, o in enumerate(obs[t:stop]))
            assert batch["base"][k].item() == state + 0.5
            assert batch["next.observation.state"][k].item() == obs[stop]
            assert batch["next.base"][k].item() == obs[stop] + 0.5


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.integers(1, 14), min_size=1, max_size=8), st.integers(8, 24))
def test_whole_episodes_are_stored_like_single_steps(lengths: list[int], length: int) -> None:
    """Also across the end of the buffer; an episode longer than the buffer keeps its end."""
    stepwise, whole = World(1, length), Replay(length, 1, COLUMNS)
    for steps in lengths:
        for t in range(steps):
            stepwise.step("terminated" if t == steps - 1 else None)
        episode = observed(stepwise.episodes[-1][0])
        before = episode["observation.state"][:-1]
        ended = torch.arange(steps) == steps - 1
        whole.add_episode(episode | {"action": -before, "reward": before[:, 0] / 8, "terminated": ended})
        assert whole.size == stepwise.replay.size == int(whole.flags["starts"].sum())
    ours, theirs = stepwise.replay.state_dict(), whole.state_dict()
    for name, values in ours["columns"].items():
        assert torch.equal(values, theirs["columns"][name]), name
    assert all(torch.equal(ours[k], theirs[k]) for k in ("head", "filled"))
    assert ours["transitions"] == theirs["transitions"] == sum(lengths)


@pytest.mark.parametrize("lengths", [[5, 5], [1, 20]], ids=["equal lanes", "short beside long episodes"])
def test_all_transitions_are_equally_likely(lengths: list[int]) -> None:
    """Short episodes use more rows for final observations; their steps must keep the same weight."""
    world = World(2, 200)
    for t in range(1, 41):
        world.step(*("truncated" if t % length == 0 else None for length in lengths))
    state = world.replay.sample(40_000, Sampling(1, 0.9), rng())["observation.state"]
    starts = torch.tensor([o for obs in [*(obs for obs, _ in world.episodes), *world.running] for o in obs[:-1]])
    counts = (state == starts).sum(0)
    assert len(counts) == 80 and counts.sum() == 40_000
    assert ((counts - 500).abs() < 5 * 500**0.5).all(), f"{counts.min()} to {counts.max()}, expected 500"


def test_a_full_buffer_keeps_the_newest_transitions() -> None:
    world = World(1, 10)
    for _ in range(25):
        world.step(None)
    sampled = world.replay.sample(300, Sampling(1, 0.9), rng())["observation.state"].flatten()
    assert set(sampled.tolist()) == set(world.running[0][15:24]) and world.replay.size == 10


def test_a_restored_replay_continues_identically(same: Callable[[Any, Any], bool]) -> None:
    world, other = World(2, 20), World(2, 20)
    for t in range(25):
        world.step("truncated" if t % 4 == 3 else None, "terminated" if t % 7 == 6 else None)
    saved = world.replay.state_dict()
    before = copy.deepcopy(saved)
    other.replay.load_state_dict(saved)
    other.running, other.count = copy.deepcopy(world.running), world.count
    for each in (world, other):
        each.step(None, "truncated")
    assert same(saved, before), "a saved state does not change with the replay"
    assert same(world.replay.state_dict(), other.replay.state_dict())
    assert same(world.replay.sample(50, Sampling(3, 0.9), rng(1)), other.replay.sample(50, Sampling(3, 0.9), rng(1)))


def test_mixed_batches_keep_their_shares(same: Callable[[Any, Any], bool]) -> None:
    worlds = [World(1, 60), World(1, 60)]
    worlds[1].running = [[1001.0]]
    worlds[1].count = 1001
    for world in worlds:
        for _ in range(20):
            world.step(None)
    how = Sampling(1, 0.9)
    batches = sample_batches([(worlds[0].replay, 5), (worlds[1].replay, 11)], 3, how, rng())
    assert len(batches) == 3
    for batch in batches:
        assert (batch["observation.state"] > 1000).sum() == 11 and (batch["observation.state"] < 1000).sum() == 5
        assert torch.equal(batch["action"], -batch["observation.state"]), "rows stay together"
    only = sample_batches([(worlds[0].replay, 8), (worlds[1].replay, 0)], 1, how, rng(2))
    assert same(only, [worlds[0].replay.sample(8, how, rng(2))])


@pytest.mark.timeout(5)
def test_sampling_without_complete_transitions_raises_and_does_not_hang() -> None:
    with pytest.raises(ValueError, match="no transition yet"):
        Replay(20, 1, COLUMNS).sample(4, Sampling(1, 0.9), rng())
    world = World(2, 25)
    for _ in range(3):
        world.step(None, None)
        assert not world.replay.ready(3)
        with pytest.raises(ValueError, match="no transition of the replay has 3 steps, or the end of its episode"):
            world.replay.sample(4, Sampling(3, 0.9), rng())
    assert world.replay.ready(2)
    world.step(None, "terminated")
    assert len(world.replay.sample(4, Sampling(3, 0.9), rng())["action"]) == 4


@pytest.mark.parametrize("chunk", [1, 3])
def test_single_action_returns_stop_at_takeovers_and_chunk_returns_continue(chunk: int) -> None:
    acted, steps = [False, False, True, True, True, False, True], 7
    replay, episode = Replay(30, 1, COLUMNS), observed([float(t) for t in range(8)])
    episode |= {"action": episode["observation.state"][:7], "reward": 1 + torch.arange(7.0)}
    replay.add_episode(episode | {"intervention": torch.tensor(acted)})
    batch = replay.sample(200, Sampling(3, 0.5, chunk), rng())
    switches = [t for t in range(1, steps) if acted[t] != acted[t - 1]] if chunk == 1 else []
    for k, start in enumerate(int(s) for s in batch["observation.state"]):
        stop = min([start + 3, steps, *(t for t in switches if t > start)])
        reward = sum(0.5 ** (t - start) * (1 + t) for t in range(start, stop))
        sample = [float(batch[name][k]) for name in ("reward", "discount", "next.observation.state")]
        assert sample == pytest.approx([reward, 0.5 ** (stop - start), stop])
        marks = batch["intervention"][k].reshape(-1)[: steps - start]
        assert marks.tolist() == acted[start : start + chunk]


def test_newest_returns_the_last_finished_episode() -> None:
    columns = {"observation.state": Column((1,), observed=True), "action": Column((1,))}
    replay, other = Replay(16, 2, columns), Replay(40, 1, columns)
    for t in range(11):  # lane 1 ends every 4 steps, and its 8 rows wrap around
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


def test_pictures_are_stored_once_as_bytes_and_refused_if_larger_than_memory() -> None:
    replay = Replay(32, 1, {"picture": Column((3, 8, 8), torch.uint8, observed=True), "action": Column((1,))})
    stored = replay.columns["picture"]
    assert stored.dtype == torch.uint8 and stored.nbytes == 32 * 3 * 8 * 8, "one picture per row"
    no = torch.zeros(1, dtype=torch.bool)
    for k in range(12):
        row = {"picture": torch.full((1, 3, 8, 8), k, dtype=torch.uint8), "action": torch.zeros(1, 1)}
        replay.add(row | {"reward": no.float(), "terminated": no, "last": no})
    batch = replay.sample(50, Sampling(2), rng())
    assert batch["picture"].dtype == torch.uint8 and torch.equal(batch["next.picture"], batch["picture"] + 2)
    with pytest.raises(ConfigError, match=r"1000000000000 rows of 101 KB takes 1008\d+ GB.*--training.capacity"):
        Replay(10**12, 1, {"picture": Column((210, 160, 3), torch.uint8, observed=True)})
