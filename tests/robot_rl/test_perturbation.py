"""Perturbed policies: sizes, the worst of several errors, smoothing and its certificate."""

import json
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from policies.actor import GaussianPolicy
from policies.base import Chunk, Observation, Size
from policies.bundle import Bundle, save_bundle
from policies.feedforward import FeedforwardConfig, FeedforwardPolicy
from policies.networks.gaussian import GaussianConfig
from robot_rl.cli.main import main
from robot_rl.interface.observation_spec import STATE
from robot_rl.perturbation import PerturbedPolicy, certified_success, state_scale
from robot_rl.util.errors import ConfigError
from sim.make import describe, make


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


class Watched:
    """A policy that keeps the states that it sees."""

    horizon = execute = 1

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def peek(self, observation: Observation, rows: Tensor, rng: torch.Generator) -> Tensor:
        return (3 * observation[STATE][:, None, :1]).clamp(-1, 1)

    def infer(self, observation: Observation, rng: torch.Generator, prefix: Any = None) -> Chunk:
        self.seen.append(observation[STATE])
        return Chunk(self.peek(observation, torch.ones(1), rng))

    def reset(self, ids: Tensor | None = None) -> None: ...


@given(st.floats(0.01, 2.0), st.sampled_from([1, 8]), st.integers(0, 99))
def test_errors_are_within_their_size(size: float, tries: int, seed: int) -> None:
    scale, state = torch.tensor([1.0, 0.1]), torch.randn(64, 2, generator=rng())
    watched = Watched()
    PerturbedPolicy(watched, scale, size, tries).infer({STATE: state}, torch.Generator().manual_seed(seed))
    error = (watched.seen[0] - state) / scale
    assert 0 < error.abs().max() <= size * 1.0001 and error.std() > 0.2 * size


def test_the_worst_of_several_errors_moves_the_action_further() -> None:
    state, moved = torch.zeros(400, 2), []
    for tries in (1, 16):
        action = PerturbedPolicy(Watched(), torch.ones(2), 0.3, tries).infer({STATE: state}, rng()).actions
        moved.append(float(action.abs().mean()))
    assert moved[0] == pytest.approx(0.45, abs=0.05), "a uniform error of at most 0.3, times 3"
    assert moved[1] > 0.8, "about 16 / 17 of the largest"


def test_questions_of_the_attacker_do_not_change_the_policy_s_memory_or_noise() -> None:
    torch.manual_seed(0)
    policy = FeedforwardPolicy(Size(2, 1), FeedforwardConfig(hidden=(8,), history=3))
    perturbed = PerturbedPolicy(policy, torch.ones(2), 1e-9, 8)
    states = torch.randn(5, 4, 2, generator=rng())
    plain = [policy.infer({STATE: state}, rng()).actions for state in states]
    policy.reset()
    again = [perturbed.infer({STATE: state}, rng()).actions for state in states]
    assert torch.allclose(torch.stack(again), torch.stack(plain), atol=1e-5)


def test_a_server_cannot_be_attacked_by_questions() -> None:
    class Server:
        horizon = execute = 1

    with pytest.raises(ConfigError, match="perturb-tries"):
        PerturbedPolicy(Server(), torch.ones(2), 0.1, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.5, 1.0, 2.0])
def test_the_certificate_holds_and_is_tight_for_the_worst_attack(share: float) -> None:
    """A policy that succeeds while the noisy state is below a bound: an attack shifts the state towards it."""
    smooth, bound, count = 0.4, 0.5, 200_000
    noise = smooth * torch.randn(count, generator=rng())
    bounds = certified_success(int((noise < bound).sum()), count, smooth)
    attacked = float((noise + share * smooth < bound).double().mean())
    certified = bounds[f"{share * smooth:g}"]
    assert attacked - 0.01 < certified <= attacked


@given(st.integers(0, 200), st.floats(0.01, 5.0))
def test_certificates_fall_with_the_norm_of_the_attack(successes: int, smooth: float) -> None:
    bounds = list(certified_success(successes, 200, smooth).values())
    assert len(bounds) == 3 and bounds == sorted(bounds, reverse=True)
    assert bounds[2] >= 0 and bounds[0] <= max(successes / 200, NormalDist().cdf(-0.5))


def test_scale_is_the_deviation_of_the_states() -> None:
    class Still(Watched):
        def infer(self, observation: Observation, rng: torch.Generator, prefix: Any = None) -> Chunk:
            return Chunk(torch.zeros(len(observation[STATE]), 1, 2))

    scale = state_scale(Still(), make("testbed:fork", 20))
    assert scale.tolist() == pytest.approx([0.0, 0.0], abs=1.0) and scale.shape == (2,)
    again = state_scale(Still(), make("testbed:fork", 20))
    assert torch.equal(scale, again)


def test_evaluate_reports_attacks_and_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = describe("testbed:reach")
    policy = GaussianPolicy(Size(info.observation, info.action), GaussianConfig(hidden=(8,)))
    save_bundle(Bundle(policy, None, {}, task="testbed:reach", described=info), tmp_path / "bundle")

    def evaluated(*words: str) -> dict[str, Any]:
        command = ["evaluate", str(tmp_path / "bundle"), "--episodes", "8", "--num-envs", "8", "--json", *words]
        assert main([*command, "--out", str(tmp_path / "result.json")]) == 0
        capsys.readouterr()
        result: dict[str, Any] = json.loads((tmp_path / "result.json").read_text())
        return result

    result = evaluated("--smooth", "0.2")
    assert list(result["certified"]) == ["0.1", "0.2", "0.4"] and result["smooth"] == 0.2
    result = evaluated("--smooth", "0.2", "--perturb", "0.1", "--perturb-tries", "4")
    assert "certified" not in result and (result["perturb"], result["perturb_tries"]) == (0.1, 4)
    assert evaluated("--interval", "2", "--perturb", "0.1", "--perturb-tries", "2")["interval"] == 2
    assert main(["evaluate", "expert:testbed:reach", "--perturb", "0.1", "--episodes", "4"]) == 2
    assert "scripted demonstrator" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "bundle"), "--perturb-tries", "4"]) == 2
    assert "add --perturb" in capsys.readouterr().err
