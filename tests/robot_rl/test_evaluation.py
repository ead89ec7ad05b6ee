"""Evaluation: every episode counts once; confidence intervals."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from policies.base import Chunk, Observation, Policy, Prefix
from policies.execution import ChunkExecutor, Execution
from robot_rl.cli.evaluate import Evaluate
from robot_rl.evaluation import ActionRepeat, Evaluation, evaluate
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.spec import numbered
from robot_rl.util.statistics import wilson
from sim.env import TaskEnv


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [  # Newcombe 1998, Table I, score method without continuity correction
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_interval_equals_published_values(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == (pytest.approx(low, abs=6e-5), pytest.approx(high, abs=6e-5))
    mirrored = wilson(trials - successes, trials)
    assert mirrored == (pytest.approx(1 - high, abs=6e-5), pytest.approx(1 - low, abs=6e-5))


class Scripted:
    """The episode of seed s has 1 + s % 7 steps and succeeds if s is even.

    Later episodes of an environment have one step and report success: they must not be counted.
    """

    info = EnvInfo("scripted", numbered("state", [-1.0] * 2, [1.0] * 2), numbered("action", [-1.0], [1.0]), horizon=7)

    def __init__(self, num_envs: int):
        self.num_envs = num_envs
        self.seeds: list[int] = []

    def reset(self, *, seed: int) -> tuple[Observation, dict[str, Any]]:
        self.seed = torch.arange(seed, seed + self.num_envs)
        self.seeds += self.seed.tolist()
        self.left = 1 + self.seed % 7
        self.again = torch.zeros(self.num_envs, dtype=torch.bool)
        return self._see(), {}

    def _see(self) -> Observation:
        return {"observation.state": torch.stack([self.seed, self.left], -1).float()}

    def step(self, action: Tensor) -> tuple[Observation, Tensor, Tensor, Tensor, dict[str, Any]]:
        self.left = self.left - 1
        over = self.left == 0
        success = over & (self.seed % 2 == 0) & ~self.again
        late = over & self.again
        infos = {"success": success | late, "executed": 2 * action}
        self.left, self.again = torch.where(over, 1, self.left), self.again | over
        return self._see(), success.float(), success, over & ~success, infos


class Alternating(Policy):
    """A policy whose action alternates between +0.25 and -0.25; records resets."""

    horizon = execute = 1

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.resets: list[Any] = []

    def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
        self.calls += 1
        return torch.full((len(observation["observation.state"]), 1, 2), 0.25 * (-1) ** self.calls)

    def reset(self, ids: Tensor | None = None) -> None:
        self.resets.append(None if ids is None else ids.tolist())


@pytest.mark.parametrize(("num_envs", "episodes"), [(4, 8), (4, 10), (5, 3), (1, 9), (16, 16)])
def test_every_episode_counts_once(num_envs: int, episodes: int) -> None:
    result = evaluate(Alternating(), env := Scripted(num_envs), episodes, seed=100)
    assert env.seeds == list(range(100, 100 + len(env.seeds)))
    seeds = range(100, 100 + episodes)
    assert result.success == [s % 2 == 0 for s in seeds]
    assert result.steps == [1 + s % 7 for s in seeds]


def test_divergences_of_counted_episodes() -> None:
    """All episodes of `Exploding` diverge, also those that are not counted."""

    class Exploding(Scripted):
        def step(self, action: Tensor) -> tuple[Observation, Tensor, Tensor, Tensor, dict[str, Any]]:
            *rest, infos = super().step(action)
            return *rest, infos | {"diverged": rest[2] | rest[3]}  # type: ignore[return-value]

    result = evaluate(Alternating(), Exploding(4), 6, seed=0)
    assert result.divergences == 6 and "divergences" not in result.summary()


def test_action_change_uses_executed_actions() -> None:
    """The executed action is twice the policy's action: it changes by 1 per step."""
    result = evaluate(Alternating(), Scripted(4), 7, seed=0)
    assert result.action_change == pytest.approx([0.0] + [1.0] * 6)


def test_policy_is_reset_before_every_episode() -> None:
    policy = Alternating()
    evaluate(policy, Scripted(2), 4, seed=0)
    assert policy.resets[0] is None and policy.resets.count(None) == 2
    assert [0] in policy.resets or [0, 1] in policy.resets


def test_policy_infers_again_after_a_correction() -> None:
    """A chunk from before a correction is not executed after it."""

    class Corrected(Scripted):
        def step(self, action: Tensor) -> tuple[Observation, Tensor, Tensor, Tensor, dict[str, Any]]:
            *rest, infos = super().step(action)
            return *rest, infos | {"handed_back": self.left.item() == 3}  # type: ignore[return-value]

    class Chunked(Alternating):
        horizon = execute = 5

        def act(self, observation: Observation, rng: torch.Generator) -> Tensor:
            return super().act(observation, rng).expand(-1, 5, -1)

    policy = Chunked()
    evaluate(policy, Corrected(1), 1, seed=6)  # seven steps, correction ends after four
    assert policy.calls == 2 and policy.resets == [None, None, [0]]


def test_progress_counts_finished_episodes() -> None:
    seen: list[int] = []
    evaluate(Alternating(), Scripted(4), 10, seed=0, on_step=lambda k, infos: seen.append(k))
    assert seen == sorted(seen) and seen[-1] == 10
    assert seen[0] == 1, "episode 0 has one step"


def test_summary() -> None:
    summary = Evaluation([True, False, True, True], [10, 100, 20, 30], [0.1, 0.2, 0.3, 0.4]).summary()
    assert (summary["episodes"], summary["success"], summary["steps"]) == (4, 0.75, 40)
    assert summary["steps_of_successes"] == 20
    assert summary["action_change"] == pytest.approx(0.25)
    assert (summary["success_low"], summary["success_high"]) == wilson(3, 4)
    assert "successes_per_10_min" not in summary, "the rate is unknown"
    timed = Evaluation([True, False, True, True], [10, 100, 20, 30], [0.0] * 4, rate=20.0).summary()
    assert timed["successes_per_10_min"] == pytest.approx(3 / (160 / 20 / 600))
    assert Evaluation([], [], []).summary()["success"] is None


class Measured(Scripted):
    """Reports the step number, a metric of environment 0 at every second step, and a metric that is always NaN."""

    def reset(self, *, seed: int) -> tuple[Observation, dict[str, Any]]:
        self.clock = 0
        return super().reset(seed=seed)

    def step(self, action: Tensor) -> tuple[Observation, Tensor, Tensor, Tensor, dict[str, Any]]:
        self.clock += 1
        *rest, infos = super().step(action)
        rare = torch.full((self.num_envs,), math.nan)
        if self.clock % 2 == 0:
            rare[0] = 10.0 * self.clock
        infos["metrics"] = {
            "clock": torch.full((self.num_envs,), float(self.clock)),
            "rare": rare,
            "never": torch.full((self.num_envs,), math.nan),
        }
        return *rest, infos  # type: ignore[return-value]


def same(values: list[float], wanted: list[float]) -> bool:
    return values == pytest.approx(wanted, nan_ok=True)


def test_metric_is_the_mean_over_its_episode() -> None:
    """Episodes of 1 to 7 steps; steps after an episode's end do not count."""
    metrics = evaluate(Alternating(), Measured(4), 7, seed=0).metrics
    assert same(metrics["clock"], [(1 + length) / 2 for length in range(1, 8)])
    # Environment 0 plays episodes of one and five steps: values 20 and 40 in the second, none in the first.
    assert same(metrics["rare"], [math.nan] * 4 + [30.0] + [math.nan] * 2)
    assert same(metrics["never"], [math.nan] * 7)


def test_summary_has_metric_means_with_intervals() -> None:
    metrics = {"height": [1.0, 3.0, math.nan, 5.0, math.nan], "error": [0.5] * 5}
    summary = Evaluation([True] * 5, [1] * 5, [0.0] * 5, metrics).summary()
    half = 4.302653 * 2.0 / math.sqrt(3)  # standard deviation of 1, 3, 5 is 2
    assert summary["height"] == pytest.approx({"mean": 3.0, "low": 3.0 - half, "high": 3.0 + half})
    assert summary["error"] == pytest.approx({"mean": 0.5, "low": 0.5, "high": 0.5})
    assert Evaluation([], [], []).summary().keys().isdisjoint(metrics)


@pytest.mark.parametrize("won", [1, 197, 199])
def test_binary_return_has_a_wilson_interval(won: int) -> None:
    summary = Evaluation([False] * 200, [1] * 200, [0.0] * 200, returns=[1.0] * won + [0.0] * (200 - won)).summary()
    low, high = wilson(won, 200)
    assert summary["return"] == pytest.approx({"mean": won / 200, "low": low, "high": high}) and low > 0 and high < 1


@pytest.mark.parametrize("values", [[], [2.0], [math.nan], [2.0, math.nan]])
def test_fewer_than_two_values_have_no_interval(values: list[float]) -> None:
    """Results must be valid JSON: None, not NaN."""
    summary = Evaluation([], [], [], {"x": values}).summary()["x"]
    assert summary == {"mean": 2.0 if 2.0 in values else None, "low": None, "high": None}


def test_action_repeat_holds_the_last_action_of_a_short_chunk() -> None:
    class Counting:
        """Chunks of two actions: 10 and 11 times the number of decisions."""

        horizon = execute = 2
        decisions = 0

        def infer(self, observation: dict[str, Tensor], rng: torch.Generator, prefix: object = None) -> Chunk:
            self.decisions += 1
            return Chunk(self.decisions * torch.tensor([[[10.0], [11.0]]]))

        def reset(self, ids: Tensor | None = None) -> None: ...

    for interval, wanted in ((1, [10, 20, 30, 40]), (2, [10, 11, 20, 22]), (3, [10, 11, 11, 20])):
        runner = ChunkExecutor(ActionRepeat(Counting(), interval), 1)
        seen = {"observation.state": torch.zeros(1, 1)}
        assert [float(runner.act(seen, torch.Generator())) for _ in range(4)] == wanted


def test_frequency_averaged_score() -> None:
    from benchmarks.decision_intervals import INTERVALS, score

    assert score([-10.0] * len(INTERVALS), floor=-110.0, best=-10.0) == pytest.approx(1.0)
    assert score([-110.0] * len(INTERVALS), floor=-110.0, best=-10.0) == pytest.approx(0.0)
    falling = [-10.0, -10.0, -10.0, -110.0, -110.0]  # falls linearly between 4 and 8 control periods
    assert score(falling, floor=-110.0, best=-10.0) == pytest.approx((3 + 4 / 2) / 15)


# ---- delayed inference ---------------------------------------------------------------------------------------------
class Sideways:
    """A policy that moves to the left with a closed gripper; no torch module."""

    horizon, execute = 8, 4

    def infer(self, observation: Observation, rng: torch.Generator, prefix: Prefix | None = None) -> Chunk:
        action = torch.tensor([0.0, 0.02, 0.0, -1.0])
        return Chunk(action.expand(len(observation["observation.state"]), self.horizon, -1))

    def reset(self, ids: Tensor | None = None) -> None:
        pass


@pytest.mark.parametrize(
    ("mode", "held", "moved"),
    [
        ("receding", 14 * 3 + 2, 14 * 4),  # 14 rounds of 3 held periods and 4 actions, then 2 held periods
        ("asynchronous", 3, 97),
    ],
)
def test_robot_holds_while_inference_is_not_done(mode: Any, held: int, moved: int) -> None:
    env = TaskEnv("panda-lift", 2, threads=1)
    step, actions = env.step, []

    def watch(action: Tensor) -> Any:
        actions.append(action.clone())
        return step(action)

    env.step = watch  # type: ignore[assignment,method-assign]
    result = evaluate(Sideways(), env, 2, execution=Execution(mode, delay=3))
    env.close()
    assert result.steps == [100, 100] and result.held == 2 * held
    assert result.summary()["held_share"] == held / 100
    executed = torch.stack(actions)
    still = (executed[..., :3] == 0).all(-1)
    assert still.sum(0).tolist() == [held, held] and (~still).sum(0).tolist() == [moved, moved]
    assert (executed[:3, :, 3] == 1).all(), "the gripper is open at the start"
    assert (executed[3:, :, 3] == -1).all(), "holding keeps the gripper closed"


def test_delay_is_rounded_up_and_recorded(tmp_path: Path) -> None:
    Evaluate((Path("zero:panda-lift"),), 2, num_envs=2, inference_delay=51, out=tmp_path / "e.json", json=True).run()
    summary = json.loads((tmp_path / "e.json").read_text())
    assert summary["inference_delay"] == 51 and summary["execution"] == "receding"
    assert summary["held_share"] == pytest.approx(2 / 3, abs=0.01), "two held periods per action"
