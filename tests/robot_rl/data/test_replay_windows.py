"""Chunks and sequences of the replay against whole episodes in plain Python, and what is written only once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_rl.data.replay import Column, Replay, Sampling

COLUMNS = {"observation.state": Column((1,), observed=True), "action": Column((1,))}
END = st.sampled_from([None, None, None, None, "terminated", "truncated"])
SCRIPT = st.integers(1, 3).flatmap(
    lambda lanes: st.lists(
        st.one_of(st.lists(END, min_size=lanes, max_size=lanes), st.just("cut")), min_size=12, max_size=40
    ).map(lambda steps: (lanes, steps))
)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class World:
    """Lanes of episodes, each a list of observations that never come twice, its rewards, and how it ended.

    The action after observation s is -s, the reward s / 8, which float32 holds exactly.
    """

    def __init__(self, lanes: int, length: int):
        self.replay, self.count = Replay(lanes * length, lanes, COLUMNS), 0
        self.running = [[self.fresh()] for _ in range(lanes)]
        self.ends: list[str | None] = [None] * lanes
        self.episodes: list[tuple[list[float], str | None]] = []

    def fresh(self) -> float:
        self.count += 1
        return float(self.count)

    def step(self, ends: list[str | None]) -> None:
        before = torch.tensor([obs[-1] for obs in self.running])[:, None]
        for obs in self.running:
            obs.append(self.fresh())
        after = torch.tensor([obs[-1] for obs in self.running])[:, None]
        row = {"observation.state": before, "action": -before, "reward": before[:, 0] / 8}
        row |= {"terminated": torch.tensor([e == "terminated" for e in ends]), "last": torch.tensor([*map(bool, ends)])}
        self.replay.add(row, {"observation.state": after} if any(ends) else None)
        for lane, end in enumerate(ends):
            if end:
                self._end(lane, end)

    def cut(self) -> None:
        self.replay.cut({"observation.state": torch.tensor([obs[-1] for obs in self.running])[:, None]})
        for lane in range(len(self.running)):
            self._end(lane, "truncated")

    def _end(self, lane: int, end: str) -> None:
        self.episodes.append((self.running[lane], end))
        self.running[lane] = [self.fresh()]

    def find(self, state: float) -> tuple[list[float], int, str | None]:
        """Return the episode's observations, the step that begins with `state`, and how the episode ended."""
        for obs, end in [*self.episodes, *((obs, None) for obs in self.running)]:
            if state in obs[:-1]:
                return obs, obs.index(state), end
        raise AssertionError(f"{state} starts no transition")


def played(script: tuple[int, list[Any]], length: int) -> World:
    lanes, steps = script
    world = World(lanes, length)
    for ends in steps:
        world.cut() if ends == "cut" else world.step(ends)
        assert world.replay.size == int(world.replay.flags["starts"].sum())
    return world


@settings(deadline=None, derandomize=True, max_examples=80)
@given(SCRIPT, st.integers(2, 6), st.integers(1, 3), st.booleans(), st.integers(8, 24))
def test_windows_are_those_of_the_episode(
    script: tuple[int, list[Any]], chunk: int, n_step: int, sequence: bool, length: int
) -> None:
    world, how = played(script, length), Sampling(n_step, 0.5, chunk, sequence)
    if not world.replay.size or not world.replay.ready(how.span):
        return
    batch = world.replay.sample(60, how, rng())
    starts = batch["observation.state"][:, 0, 0] if sequence else batch["observation.state"][:, 0]
    for k, state in enumerate(starts.tolist()):
        obs, t, end = world.find(state)
        steps = len(obs) - 1
        within = [t + i < steps for i in range(chunk)]
        assert batch["valid"][k].tolist() == within
        actions = [-obs[t + i] if inside else 0.0 for i, inside in enumerate(within)]
        assert batch["action"][k, :, 0].tolist() == actions
        stop = min(t + n_step, steps)
        terminated = stop == steps and end == "terminated"
        assert batch["discount"][k].item() == (0.0 if terminated else 0.5 ** (stop - t))
        if sequence:
            observed = [obs[min(t + i, steps)] for i in range(chunk + 1)]
            assert batch["observation.state"][k, :, 0].tolist() == observed, "the final one stays"
            assert batch["reward"][k].tolist() == [-a / 8 for a in actions]
        else:
            assert batch["reward"][k].item() == sum(0.5**i * o / 8 for i, o in enumerate(obs[t:stop]))
            assert batch["next.observation.state"][k].item() == obs[stop]


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.integers(1, 14), min_size=1, max_size=8), st.integers(8, 24))
def test_whole_episodes_are_the_same_as_their_steps(lengths: list[int], length: int) -> None:
    """Also where they wrap around; one that is longer than the storage keeps its end."""
    stepwise, whole = World(1, length), Replay(length, 1, COLUMNS)
    for steps in lengths:
        for t in range(steps):
            stepwise.step(["terminated" if t == steps - 1 else None])
        obs = torch.tensor(stepwise.episodes[-1][0])[:, None]
        ended = torch.arange(steps) == steps - 1
        whole.add_episode(
            {"observation.state": obs, "action": -obs[:-1], "reward": obs[:-1, 0] / 8, "terminated": ended}
        )
        assert whole.size == stepwise.replay.size == int(whole.flags["starts"].sum())
    ours, theirs = stepwise.replay.state_dict(), whole.state_dict()
    for name, values in ours["columns"].items():
        assert torch.equal(values, theirs["columns"][name]), name
    assert all(torch.equal(ours[k], theirs[k]) for k in ("head", "filled")) and ours["transitions"] == sum(lengths)


def test_a_cut_joins_nothing_to_what_comes_after() -> None:
    world = World(2, 30)
    script: list[Any] = [[None, None], [None, "terminated"], "cut", *[[None, None]] * 4]
    for ends in script:
        world.cut() if ends == "cut" else world.step(ends)
    batch = world.replay.sample(300, Sampling(3, 1.0), rng())
    assert len(batch["observation.state"].unique()) == 2 + 2 + 1 * 2, "before the cut all; after it what is known"
    for state, after in zip(batch["observation.state"][:, 0], batch["next.observation.state"][:, 0], strict=True):
        obs, t, _ = world.find(float(state))
        assert float(after) == obs[min(t + 3, len(obs) - 1)]


def test_pictures_are_stored_once_and_stay_bytes() -> None:
    columns = {"observation.images.top": Column((3, 8, 8), torch.uint8, observed=True), "action": Column((1,))}
    replay = Replay(64, 2, columns)
    stored = replay.columns["observation.images.top"]
    assert stored.dtype == torch.uint8 and stored.nbytes == 64 * 3 * 8 * 8, "one picture a row, none for what follows"
    frames = torch.randint(0, 256, (12, 2, 3, 8, 8), generator=rng(), dtype=torch.uint8)
    no = torch.zeros(2, dtype=torch.bool)
    for frame in frames:
        row = {"observation.images.top": frame, "action": torch.zeros(2, 1), "reward": torch.zeros(2)}
        replay.add(row | {"terminated": no, "last": no})
    batch = replay.sample(50, Sampling(2), rng())
    before, after = batch["observation.images.top"], batch["next.observation.images.top"]
    assert before.dtype == after.dtype == torch.uint8
    lane_of = frames.flatten(0, 1)
    for now, then in zip(before, after, strict=True):
        at = next(k for k in range(24) if torch.equal(lane_of[k], now))
        assert torch.equal(lane_of[at + 4], then), "two steps of two lanes later"


@pytest.mark.parametrize("n_step", [1, 4])
def test_one_step_is_the_next_row(n_step: int) -> None:
    """n_step = 1: reward, discount and next observation are the row's own."""
    world = World(1, 40)
    for t in range(20):
        world.step(["terminated" if t % 6 == 5 else None])
    batch = world.replay.sample(200, Sampling(n_step, 0.9), rng())
    same = torch.isclose(batch["reward"], batch["observation.state"][:, 0] / 8)
    obs, t, end = zip(*(world.find(float(s)) for s in batch["observation.state"][:, 0]), strict=True)
    last = torch.tensor([i == len(o) - 2 and e == "terminated" for o, i, e in zip(obs, t, end, strict=True)])
    if n_step == 1:
        assert same.all() and torch.equal(batch["discount"], torch.where(last, 0.0, 0.9))
    else:
        assert torch.equal(same, last), "the control"
