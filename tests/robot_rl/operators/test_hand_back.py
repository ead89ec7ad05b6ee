"""After a correction the policy's motion grows, and no action that was planned before is executed."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from policies.base import Chunk
from policies.execution import ChunkExecutor
from robot_rl.interface.pipeline import Pipeline
from robot_rl.operators.hand_back import BLEND, HandBack, hand_back_of
from robot_rl.operators.intervention import InterventionWrapper
from robot_rl.training.human_in_the_loop import EpisodeRecord, play_episode
from sim.env import TaskEnv
from sim.tasks import tasks

PIPELINE = Pipeline(tasks.get("panda-lift").interface)
FIRST, LAST = 5, 14
"""First control period of the person's, and the one in which the person lets go."""
Motions = st.lists(st.lists(st.floats(-2, 2, width=32), min_size=4, max_size=4), min_size=12, max_size=12)


class Hands:
    """A person who pulls the tool aside for a while, against the policy."""

    def reset(self) -> None:
        pass

    def __call__(self, view: Any, step: float) -> tuple[bool, Tensor]:
        return FIRST <= step < LAST, torch.tensor([[-1.0, 1.0, 0.0, 1.0]])


class Planner:
    """Policy of chunks of 8 actions, whose z says in which inference they were planned."""

    horizon = execute = 8

    def __init__(self, motion: float = 1.0):
        self.motion, self.inferences, self.resets = motion, 0, 0

    def reset(self, ids: Any = None) -> None:
        self.resets += 1

    def infer(self, observation: Any, rng: torch.Generator, prefix: Any = None) -> Chunk:
        self.inferences += 1
        return Chunk(torch.tensor([self.motion, 0.0, 0.01 * self.inferences, -1.0]).expand(1, 8, 4).clone())


def played(policy: Planner) -> tuple[TaskEnv, dict[str, Tensor], list[dict[str, Any]]]:
    """Play an episode with a takeover; return the recorded columns, and per step the command and what was wanted."""
    env = TaskEnv("panda-lift", 1, threads=1)
    watched, record, rows = InterventionWrapper(env, Hands()), EpisodeRecord(), []
    observation = watched.reset(seed=3)[0]
    rows.append({"velocity": env.episodes.chain.velocity.clone(), "command": env.episodes.chain.command.clone()})

    def on_step(observation: Any, action: Tensor, infos: dict[str, Any], terminated: bool) -> None:
        record.add(observation, action, infos, terminated)
        chain = env.episodes.chain
        rows.append({
            "wanted": action.clone(), "plan": policy.inferences, "velocity": chain.velocity.clone(),
            "command": chain.command.clone(), "last": chain.last_action.clone(),
        })  # fmt: skip

    play_episode(watched, ChunkExecutor(policy, 1), observation, torch.Generator().manual_seed(0), on_step)
    env.close()
    return env, record.episode(), rows[:-1]  # the last step began the next episode


def test_motion_grows_from_a_hold_and_the_record_has_what_was_executed() -> None:
    env, episode, rows = played(Planner())
    executed, periods = episode["action"], round(BLEND * env.rate)
    assert not executed[LAST, :3].any() and executed[LAST, 3] == 1.0, "hold, with the person's gripper"
    shares = executed[LAST : LAST + periods + 1, 0]
    assert shares.tolist() == pytest.approx([k / periods for k in range(periods + 1)])
    assert (executed[LAST + 1 :, 3] == -1).all(), "the gripper is not blended"
    assert (executed[LAST + periods :, 0] == 1).all(), "then the policy acts alone"
    for row, action in zip(rows[1:], executed, strict=False):
        assert torch.allclose(row["last"][0], action), "the chain executed what is recorded"
    assert not episode["intervention"][LAST:].any()


def test_nothing_planned_during_the_correction_is_executed() -> None:
    policy = Planner()
    _, episode, rows = played(policy)
    planned = rows[LAST + 1]["plan"]
    """Inferences until the person has let go; the step itself still uses a chunk from before."""
    periods, after = round(BLEND * 20), episode["action"][LAST + 1 :]
    shares = torch.arange(1, len(after) + 1).clamp_max(periods) / periods
    plans = (after[:, 2] / shares / 0.01).round().int()
    assert (plans > planned).all(), "all actions are of later plans"
    assert policy.resets == 2, "at the start and at the hand-back"


@settings(deadline=None, derandomize=True, max_examples=5)
@given(st.floats(-1, 1, width=32))
def test_commands_make_no_larger_step_than_in_normal_control(motion: float) -> None:
    env, _, rows = played(Planner(motion))
    shield, period = env.pipeline.shield, 1 / env.rate
    command = torch.cat([row["command"] for row in rows])
    speed = torch.cat([row["velocity"] for row in rows])
    assert (command.diff(dim=0).abs() <= shield.velocity * period + 1e-5).all(), "a normal control step"
    assert (speed.diff(dim=0).abs() <= shield.acceleration * period + 1e-4).all(), "no jump of the velocity"
    normal = command[1:FIRST].diff(dim=0).abs().amax()
    blended = command[LAST + 3 : LAST + 5].diff(dim=0).abs().amax()
    assert blended <= normal + 0.01, "the first motion is smaller than the policy's own"


@settings(deadline=None, derandomize=True, max_examples=100)
@given(Motions)
def test_share_never_exceeds_the_ramp_whatever_the_policy_wants(motions: list[list[float]]) -> None:
    blend = HandBack(PIPELINE.controller)
    first = torch.tensor([motions[0]])
    assert blend(first) is first, "nothing has been handed back"
    blend.begin()
    moved = 0
    for numbers in motions:
        action = torch.tensor([numbers])
        executed = blend(action)
        moved += bool(action[0, :3].any())  # while the policy plans, it holds: that is no part of the ramp
        share = min(1.0, moved / blend.periods)
        assert (executed[0, :3].abs() <= share * action[0, :3].abs() + 1e-6).all()
        assert moved >= blend.periods or executed[0, :3].abs().max() <= 1
    blend.begin()
    blend.reset()
    assert blend(first) is first, "a new episode begins unblended"


def test_what_is_no_number_stays_none_for_the_shield_to_refuse() -> None:
    blend = HandBack(PIPELINE.controller)
    blend.begin()
    assert not blend(torch.full((1, 4), torch.nan)).isfinite().any()


def test_walking_robot_is_not_held() -> None:
    assert hand_back_of(Pipeline(tasks.get("go2-velocity").interface).controller) is None
