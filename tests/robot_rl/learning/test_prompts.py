"""Prompts of hilp: known directions are recovered, and a stored prompt survives the bundle without touching weights."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from policies.base import Size, build_policy
from policies.bundle import Bundle, load_bundle, save_bundle
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from policies.hilbert import SKILL, GoalIndices, HilbertConfig, HilbertPolicy
from robot_rl.cli.main import main
from robot_rl.data import DatasetWriter
from robot_rl.data.recording import features
from robot_rl.interface.observation_spec import STATE
from robot_rl.learning.prompts import Features, of_reward, of_sequence, of_set, regress
from robot_rl.util.errors import ConfigError
from sim.make import describe
from tests.robot_rl.learning.conftest import rng as generator

INFO = describe("testbed:maze", None, None)


@pytest.fixture
def policy() -> HilbertPolicy:
    torch.manual_seed(0)
    config = HilbertConfig(hidden=(32,), embedding=8, metric=(64, 64))
    return HilbertPolicy(Size(4, 2), config, GoalIndices((0, 1), (2, 3))).eval()


def walks(count: int = 20, steps: int = 50) -> list[Tensor]:
    """Return the states (steps, 4) of random walks in the square, with random goals."""
    rng = generator(3)
    moves = 0.1 * torch.randn(count, steps, 2, generator=rng)
    places = (2 * torch.rand(count, 1, 2, generator=rng) - 1 + moves.cumsum(1)).clamp(-1, 1)
    goals = (2 * torch.rand(count, 1, 2, generator=rng) - 1).expand(-1, steps, -1)
    return list(torch.cat([places, goals], -1))


def cosine(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum() / a.norm() / b.norm())


# ---- rewards --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_regression_recovers_a_planted_direction(noise: float) -> None:
    rng = generator()
    x = 3 + torch.randn(4000, 8, generator=rng) * torch.logspace(0, 0.5, 8)
    planted = torch.randn(8, generator=rng)
    found = regress(x, x @ planted + 7 + noise * torch.randn(4000, generator=rng) * (x @ planted).std())
    assert cosine(found.skill, planted) > 0.95 and float(found.skill.norm()) == pytest.approx(1)
    assert found.explained == pytest.approx(1 / (1 + noise**2), abs=0.05)


@pytest.mark.parametrize("kind", ["places", "motions"])
def test_rewards_of_recorded_steps_give_back_the_skill_that_they_pay(policy: HilbertPolicy, kind: Features) -> None:
    states, rng = walks(), generator(1)
    at = [policy.embed(policy.achieved(rows)).detach() for rows in states]
    following = [torch.cat([rows[1:], rows[-1:]]) for rows in at]
    x = [b if kind == "places" else b - a for a, b in zip(at, following, strict=True)]
    every = torch.cat(x) - torch.cat(x).mean(0)
    wide = torch.linalg.svd(every, full_matrices=False).Vh[:2]  # a plane embeds into few directions
    planted = torch.randn(2, generator=rng) @ wide
    rewards = [rows @ planted for rows in x]
    spread = torch.cat(rewards).std()
    noisy = [reward + 0.5 * spread * torch.randn(len(reward), generator=rng) for reward in rewards]
    found = of_reward(policy, states, noisy, kind)
    assert cosine(found.skill, planted) > 0.95 and 0.7 < found.explained < 0.9


def test_a_reward_in_the_last_step_counts_for_places(policy: HilbertPolicy) -> None:
    states = walks()
    rewards = [torch.zeros(len(rows)) for rows in states]
    for rows, reward in zip(states, rewards, strict=True):
        reward[-1] = (rows[-1, 0] > 0).float()
    assert float(of_reward(policy, states, rewards).skill.norm()) == pytest.approx(1)
    with pytest.raises(ConfigError, match="0 in all 980 steps"):
        of_reward(policy, states, rewards, "motions")


# ---- imagined states ------------------------------------------------------------------------------------------------
def test_a_set_becomes_the_mean_embedding_of_the_nearest_recorded_states(policy: HilbertPolicy) -> None:
    states = torch.cat(walks())
    chosen = states[[5, 300, 700]]
    imagined = chosen + torch.tensor([1e-4, -1e-4, 0.7, 0.7])  # goals do not count
    assert torch.allclose(of_sequence(policy, imagined, states), policy.embed(chosen[:, :2]), atol=1e-5)
    assert torch.allclose(of_set(policy, imagined, states)[0], policy.embed(chosen[:, :2]).mean(0), atol=1e-5)


@pytest.mark.parametrize("make", [of_set, of_sequence])
def test_a_set_of_one_state_is_the_goal_prompt(
    policy: HilbertPolicy, make: Callable[[HilbertPolicy, Tensor, Tensor], Tensor]
) -> None:
    states = torch.cat(walks())
    goal = states[123]
    observed = torch.cat([states[:50, :2], goal[:2].expand(50, 2)], 1)
    prompted = policy.prompted(make(policy, goal[None], states), ahead=3)
    for rows in (observed, torch.cat([observed[:, :2], -observed[:, 2:]], 1)):  # the goal in the state is ignored
        skill = prompted.sample_inputs({STATE: rows}, generator())[SKILL]
        assert torch.allclose(skill, policy.sample_inputs({STATE: observed}, generator())[SKILL], atol=1e-5)


def test_a_sequence_is_followed_from_the_nearest_state_on(policy: HilbertPolicy) -> None:
    places = torch.stack([torch.linspace(-0.8, 0.8, 9), torch.zeros(9)], 1)
    stored = policy.embed(places).detach()
    prompted = policy.prompted(stored, ahead=2)
    skill = prompted.sample_inputs({STATE: torch.cat([places, places], 1)}, generator())[SKILL]
    ahead = stored[[2, 3, 4, 5, 6, 7, 8, 8, 8]] - stored
    assert torch.allclose(skill, normalize(ahead, dim=1), atol=1e-4)


# ---- the policy -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ahead", [0, 2])
def test_a_prompted_bundle_acts_as_before_saving_with_the_same_weights(
    policy: HilbertPolicy, ahead: int, tmp_path: Path
) -> None:
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    stored = normalize(torch.randn(5 if ahead else 1, 8, generator=generator()), dim=1)
    prompted = policy.prompted(stored, ahead)
    save_bundle(Bundle(prompted, None, {}, task="testbed:maze", described=INFO), tmp_path / "bundle")
    loaded = load_bundle(tmp_path / "bundle").policy
    observed = {STATE: 2 * torch.rand(20, 4, generator=generator()) - 1}
    action = prompted.act(observed, generator())
    assert torch.equal(loaded.act(observed, generator()), action)
    assert not torch.allclose(policy.act(observed, generator()), action, atol=1e-3)
    for kept in (policy, prompted, loaded):
        assert all(torch.equal(kept.state_dict()[name], value) for name, value in before.items())
    other = prompted.prompted(-stored, ahead)  # a prompt can be replaced
    assert torch.equal(other.state_dict()["stored"], -stored)


def test_a_description_with_several_vectors_and_no_sequence_is_refused(policy: HilbertPolicy) -> None:
    description = policy.prompted(torch.ones(3, 8), 1).describe()
    description["prompt"]["ahead"] = 0
    with pytest.raises(ValueError, match="3 stored vectors"):
        build_policy(description)


# ---- the command ----------------------------------------------------------------------------------------------------
@pytest.fixture
def folder(policy: HilbertPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle of hilp, one of another class, random walks, and walks of another task."""
    monkeypatch.chdir(tmp_path)
    save_bundle(Bundle(policy, None, {}, task="testbed:maze", described=INFO), Path("hilp"))
    plain = FeedforwardPolicy(Size(4, 2), FeedforwardConfig(hidden=(8,)))
    save_bundle(Bundle(plain, None, {}, task="testbed:maze", described=INFO), Path("plain"))
    for name, info in (("walks", INFO), ("others", describe("testbed:reach", None, None))):
        with DatasetWriter.create(Path(name), fps=20, features=features(info)) as writer:
            for k, rows in enumerate(walks(6)):
                count = len(rows)
                state = torch.zeros(count, info.observation)
                state[:, : min(4, info.observation)] = rows[:, : info.observation]
                last = np.arange(count)[:, None] == count - 1
                writer.add_episode(
                    {
                        "observation.state": state, "action": torch.zeros(count, info.action),
                        "action.policy": torch.zeros(count, info.action), "next.success": last & (k % 2 == 0),
                        "next.reward": torch.zeros(count, 1), "next.done": last, "intervention": last & False,
                    },
                    "walk",
                )  # fmt: skip
    return tmp_path


@pytest.mark.parametrize("words", [
    "--reward success", "--within position.x=0.2:1 --within position.y=-1:0",
    "--within position.x=0.2:1 --features motions", "--states walks --episode 2", "--states walks --ahead 4",
])  # fmt: skip
def test_command_writes_a_bundle_that_acts_by_its_prompt(
    folder: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    assert main(["prompt", "hilp", "--dataset", "walks", "--out", "new", "--json", *words.split()]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["bundle"] == "new" and said["steps"] == 300
    old, new = load_bundle("hilp"), load_bundle("new")
    assert new.task == "testbed:maze" and new.provenance["prompt"]["dataset"] == "walks"
    assert isinstance(new.policy, HilbertPolicy) and new.policy.prompt is not None
    assert len(new.policy.stored) == (50 if "ahead" in words else 1)
    assert all(torch.equal(new.policy.state_dict()[k], v) for k, v in old.policy.state_dict().items())


@pytest.mark.parametrize(("words", "message"), [
    ("hilp --dataset walks --out new", "no prompt: give one of --reward, --within and --states"),
    ("hilp --dataset walks --out new --reward task --states walks", "--reward and --states: give one of"),
    ("hilp --dataset walks --out new --reward task", "the reward is 0 in all 300 steps"),
    ("hilp --dataset walks --out new --reward success --features motions", "before the last step of an episode"),
    ("hilp --dataset walks --out new --within position.x=3:4", "the reward is 0 in all 300 steps"),
    ("hilp --dataset walks --out new --within position.z=0:1", "for --within: 'position.z'; did you mean position"),
    ("hilp --dataset walks --out new --within position.x=0", "write NAME=LOW:HIGH"),
    ("hilp --dataset walks --out new --reward success --ahead 2", "--ahead and --episode are for --states"),
    ("hilp --dataset walks --out new --states walks --episode 9", "has episodes 0 to 5"),
    ("hilp --dataset walks --out hilp --reward success", "--out hilp is the bundle to read"),
    ("hilp --dataset walks --out new --states walks --features motions", "--features is for --reward and --within"),
    ("hilp --dataset others --out new --reward success", "the dataset does not fit task 'testbed:maze'"),
    ("hilp --dataset walks --out new --states others", "the dataset does not fit task 'testbed:maze'"),
    ("plain --dataset walks --out new --reward success", "take a bundle of recipe hilp"),
])  # fmt: skip
def test_wrong_input_is_one_sentence_that_says_what_to_do(
    folder: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    assert main(["prompt", *words.split()]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("robot-rl: ") and "Traceback" not in error
    assert not Path("new").exists()


def test_a_reward_without_variance_has_no_direction() -> None:
    with pytest.raises(ConfigError, match="0.3 in all 10 steps"):
        regress(torch.randn(10, 3), torch.full((10,), 0.3))
