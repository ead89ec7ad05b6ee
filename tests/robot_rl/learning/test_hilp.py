"""HILP: hindsight goals, distances that count steps, and a policy whose only goal input is a direction."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.base import Size, build_policy
from policies.hilbert import SKILL, GoalIndices, HilbertConfig, HilbertPolicy
from robot_rl.data.replay import NEXT
from robot_rl.data.sources import GOAL, Hindsight
from robot_rl.interface.observation_spec import STATE
from robot_rl.learning.algorithms.hilp import HILP, HILPConfig
from sim.testbeds.maze import HALF, PASSAGES, STEP, Maze, path_length
from tests.robot_rl.learning.conftest import rng as generator

PLACES = GoalIndices((0, 1), (2, 3))


def policy(size: int = 4, indices: GoalIndices = PLACES) -> HilbertPolicy:
    torch.manual_seed(0)
    return HilbertPolicy(Size(size, 2), HilbertConfig(hidden=(32,), embedding=8, metric=(64, 64)), indices)


# ---- transitions ----------------------------------------------------------------------------------------------------
@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_transitions_and_goals_stay_within_their_episode(lengths: list[int], seed: int) -> None:
    lengths = lengths if max(lengths) > 1 else [*lengths, 2]
    parts = torch.arange(sum(lengths)).float()[:, None].split(lengths)
    data = Hindsight.of([{STATE: rows, "action": -rows} for rows in parts])
    batch = data.sample(64, data.rows(1), generator(seed))
    now, following, goal = (batch[k + STATE][:, 0].long() for k in ("", NEXT, GOAL))
    assert torch.equal(following, now + 1) and torch.equal(batch["action"][:, 0, 0].long(), -now)
    assert bool((following <= data.last[now]).all())
    assert bool(((goal > now) & (goal <= data.last[now])).all())


def test_mean_distance_of_goals_follows_from_the_discount() -> None:
    rows = torch.arange(4000.0)[:, None]
    data = Hindsight.of([{STATE: rows, "action": rows}])
    data.discount = 0.9
    batch = data.sample(20_000, data.rows(1), generator())
    ahead = (batch[GOAL + STATE] - batch[STATE])[:, 0]
    assert abs(float(ahead.mean()) - 10) < 0.3 and float(ahead.min()) == 1


# ---- policy ---------------------------------------------------------------------------------------------------------
def test_policy_depends_on_the_goal_by_its_direction_only_also_when_rebuilt() -> None:
    made = policy(6, GoalIndices((0, 1), (2, 3), (4, 5)))
    state = torch.randn(5, 6, generator=generator())
    skill = made.sample_inputs({STATE: state}, generator())[SKILL]
    assert torch.allclose(skill.norm(dim=1), torch.ones(5))
    moved = state.clone()
    moved[:, 2:] += 1.0
    for other, same in ((moved, True), (state + 1.0, False)):
        features = made.features({STATE: other, SKILL: skill})
        assert torch.equal(features, made.features({STATE: state, SKILL: skill})) == same
    assert not torch.equal(made.act({STATE: moved}, generator()), made.act({STATE: state}, generator()))
    again = build_policy(made.describe())
    again.load_state_dict(made.state_dict())
    assert torch.equal(again.act({STATE: state}, generator()), made.act({STATE: state}, generator()))


# ---- learning -------------------------------------------------------------------------------------------------------
def test_distances_count_steps_and_the_policy_reaches_both_ends() -> None:
    rng, position = generator(), torch.zeros(40, 4)
    position[:, 0] = 2 * torch.rand(40, generator=rng) - 1
    rows, actions = [], []
    for _ in range(40):  # random walk along the first axis
        action = torch.cat([2 * torch.rand(40, 1, generator=rng) - 1, torch.zeros(40, 1)], 1)
        rows.append(position.clone())
        actions.append(action)
        position = (position + 0.1 * torch.cat([action, torch.zeros(40, 2)], 1)).clamp(-1, 1)
    states, taken = torch.stack(rows, 1), torch.stack(actions, 1)
    data = Hindsight.of([{STATE: states[k], "action": taken[k]} for k in range(40)])
    agent = HILP(policy(), HILPConfig(expectile=0.95), tolerance=0.1)
    agent.policy.fit(data.columns)
    every = data.rows(1)
    for _ in range(600):
        agent.update(data.sample(128, every, rng), rng)
    ends = torch.tensor([[-0.8, 0.0], [-0.4, 0.0], [0.0, 0.0], [0.8, 0.0]])
    with torch.no_grad():
        at = agent.policy.embed(ends)
    near, half, far = (float((at[k] - at[0]).norm()) for k in (1, 2, 3))
    steps = [(1 - 0.99**k) / 0.01 for k in (4, 8, 16)]
    for distance, right in zip((near, half, far), steps, strict=True):  # of the largest steps, 0.1 each
        assert 0.7 * right < distance < 1.4 * right
    agent.finish()
    for goal, sign in ((0.8, 1), (-0.8, -1)):
        state = torch.tensor([[0.0, 0.0, goal, 0.0]])
        assert sign * float(agent.policy.act({STATE: state}, generator())[0, 0, 0]) > 0.2


# ---- the maze -------------------------------------------------------------------------------------------------------
def test_shortest_path_is_straight_or_around_the_walls() -> None:
    starts = Maze().start(torch.rand(500, 4, generator=generator()))
    p, goal = starts[:, :2], starts[:, 2:]
    length, back, straight = path_length(p, goal), path_length(goal, p), (p - goal).norm(dim=1)
    assert torch.allclose(length, back, atol=1e-5) and bool((length >= straight - 1e-5).all())
    below = (p[:, 1] < PASSAGES[0][0] - HALF) & (goal[:, 1] < PASSAGES[0][0] - HALF)
    assert int(below.sum()) > 10 and torch.allclose(length[below], straight[below])
    middle, corner, _ = PASSAGES[0]
    under, over = torch.tensor([[-1.0, middle - HALF - 1e-3]]), torch.tensor([[-1.0, middle + HALF + 1e-3]])
    assert abs(float(path_length(under, over)) - 2 * (corner + 1) - 2 * HALF) < 1e-3, "along both faces and through"


def test_steps_are_limited_and_end_outside_walls() -> None:
    rng = generator(1)
    state = Maze().start(torch.rand(400, 4, generator=rng))
    aim = 4 * torch.rand(400, 2, generator=rng) - 2  # a constant direction, so that points meet walls
    crossed = torch.zeros(400, dtype=torch.bool)
    for _ in range(60):
        after = Maze().advance(state, (aim + torch.randn(400, 2, generator=rng)).clamp(-1, 1))
        assert bool(((after - state)[:, :2].abs() <= STEP + 2e-3).all())
        for middle, low, high in PASSAGES:
            within = (after[:, 1] - middle).abs() < HALF - 1e-6
            assert bool(((after[within, 0] >= low) & (after[within, 0] <= high)).all())
            crossed |= (state[:, 1] < middle) != (after[:, 1] < middle)
        state = after
    assert 0.05 < float(crossed.float().mean()) < 0.9
