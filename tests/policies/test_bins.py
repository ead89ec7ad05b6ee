"""Action bins: codec round trip, greedy choice, autoregressive probabilities."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from policies.autoregressive import AutoregressiveConfig, AutoregressivePolicy
from policies.base import Size, build_policy
from policies.bundle import Bundle, load_bundle, save_bundle
from policies.coarse_to_fine import Atoms, CoarseToFinePolicy
from policies.networks.bins import BinsConfig, BinsPolicy, CoarseToFineCodec


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(st.integers(1, 4), st.integers(2, 7), st.integers(0, 99))
def test_codec_round_trip_is_within_half_a_bin(levels: int, bins: int, seed: int) -> None:
    codec = CoarseToFineCodec(levels, bins)
    action = torch.cat([2 * torch.rand(50, 3, generator=rng(seed)) - 1, torch.tensor([[-1.0, 0.0, 1.0]])])
    code = codec.encode(action)
    assert code.shape == (51, levels, 3) and code.min() >= 0 and code.max() < bins
    assert (codec.decode(code) - action).abs().max() <= codec.width / 2 + 1e-6
    assert torch.equal(codec.encode(codec.decode(code)), code) and torch.equal(codec.centers(code)[:, 0], 0 * action)


class Peak(nn.Module):
    """Network whose bin values decrease with the distance of the centre from `at`."""

    def __init__(self, at: Tensor, codec: CoarseToFineCodec):
        super().__init__()
        self.at, self.codec = at, codec

    def forward(self, features: Tensor, center: Tensor, level: Tensor) -> Tensor:
        width = (2 / self.codec.bins ** (level[:, None, None] + 1)).float()
        places = torch.arange(self.codec.bins) - (self.codec.bins - 1) / 2
        distance = (center[:, :, None] + places * width - self.at[None, :, None]).abs()
        return torch.stack([distance, -distance], -1)  # logits of two atoms


@pytest.mark.parametrize("bins", [3, 5])
def test_greedy_choice_finds_the_peak(bins: int) -> None:
    policy = CoarseToFinePolicy(Size(2, 3), BinsConfig(levels=3, bins=bins), Atoms(2, 0.0, 1.0))
    peak = torch.tensor([0.73, -0.31, 0.02])
    chosen = policy.greedy(Peak(peak, policy.codec), torch.zeros(4, 2))  # type: ignore[arg-type]
    assert (policy.codec.decode(chosen) - peak).abs().max() <= policy.codec.width / 2 + 1e-6


def test_logits_of_all_levels_equal_those_of_each_level() -> None:
    torch.manual_seed(0)
    policy = CoarseToFinePolicy(Size(2, 3), BinsConfig(hidden=(16,)))
    nn.init.normal_(policy.network.advantage.weight)
    features, bins = torch.randn(5, 2), torch.randint(0, 5, (5, 3, 3))
    together = policy.logits(policy.network, features, bins)
    for level in range(3):
        alone = policy.network(features, policy.codec.centers(bins)[:, level], torch.full((5,), level))
        assert torch.allclose(together[:, level], alone, atol=1e-6)
    best = policy.greedy(policy.network, features)
    assert torch.equal(policy.atoms.mean(policy.logits(policy.network, features, best)).argmax(-1), best)


def every_action(codec: CoarseToFineCodec, actions: int) -> Tensor:
    """Return the bins (N, L, A) of all actions."""
    places = [torch.arange(codec.bins)] * (codec.levels * actions)
    return torch.cartesian_prod(*places).view(-1, codec.levels, actions)


def autoregressive(conditional: bool = True, temperature: float = 0.3) -> AutoregressivePolicy:
    torch.manual_seed(0)
    config = AutoregressiveConfig(2, 3, hidden=(16,), temperature=temperature, conditional=conditional)
    policy = AutoregressivePolicy(Size(4, 2), config)
    for parameter in policy.network.parameters():
        nn.init.normal_(parameter, std=0.5)
    return policy


def test_advantages_define_a_distribution_over_actions_from_which_bins_are_sampled() -> None:
    policy, alpha = autoregressive(), 0.3
    bins = every_action(policy.codec, 2)
    with torch.no_grad():
        heads = policy.advantages(policy.network, torch.randn(1, 4).expand(len(bins), -1), bins)
        assert ((heads / alpha).exp().sum(-1) - 1).abs().max() < 1e-5
        whole = heads.gather(-1, bins[None, ..., None].expand(2, -1, -1, -1, -1)).sum((2, 3, 4))
    torch.testing.assert_close((whole / alpha).exp().sum(1), torch.ones(2), atol=1e-5, rtol=0)
    policy = autoregressive()
    features = torch.randn(1, 4)
    seen = features.expand(20_000, -1)
    bins = policy.choose(seen, rng(), explore=True)
    first = torch.zeros(1, 2, 2, dtype=torch.long)
    with torch.no_grad():
        least = policy.advantages(policy.network, features, first)[:, 0, 0, 0].amin(0)
    shares = torch.bincount(bins[:, 0, 0], minlength=3) / len(bins)
    torch.testing.assert_close(shares, (least / 0.3).softmax(-1), atol=0.015, rtol=0)


@pytest.mark.parametrize("conditional", [True, False])
def test_advantages_depend_on_earlier_dimensions_only_if_conditional(conditional: bool) -> None:
    policy = autoregressive(conditional)
    bins = torch.zeros(2, 2, 2, dtype=torch.long)
    bins[1, 0, 0] = 2  # another first dimension at the first level
    with torch.no_grad():
        one, two = policy.advantages(policy.network, torch.randn(1, 4).expand(2, -1), bins).unbind(1)
    assert torch.equal(one[:, 0, 0], two[:, 0, 0]), "a bin does not depend on itself"
    assert torch.equal(one[:, 0, 1], two[:, 0, 1]) is not conditional
    assert not torch.equal(one[:, 1], two[:, 1]), "the next level has other centres"


@pytest.mark.parametrize("name", ["coarse-to-fine", "autoregressive"])
def test_bundle_round_trip(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    policy: BinsPolicy = autoregressive()
    if name == "coarse-to-fine":
        policy = CoarseToFinePolicy(Size(4, 2), BinsConfig(levels=2, bins=3, hidden=(16,)), Atoms(7, -2.0, 1.0))
        nn.init.normal_(policy.network.advantage.weight)
    policy.fit({"observation.state": 3 + torch.randn(20, 4)})
    save_bundle(Bundle(policy, None, {}, task="testbed:push"), tmp_path / "b")
    again = load_bundle(tmp_path / "b").policy
    seen = {"observation.state": torch.randn(6, 4)}
    assert torch.equal(again.act(seen, rng()), policy.act(seen, rng())) and again.describe() == policy.describe()
    assert build_policy(policy.describe()).act(seen, rng()).shape == (6, 1, 2)
