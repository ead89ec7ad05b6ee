"""Vision-language-action policies on the small backbone: features, token codecs, cloning, bundles."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from policies.base import Policy, Size
from policies.networks.encoder import Encoder, EncoderConfig, hashed_words
from policies.vla.backbone import Backbone
from policies.vla.config import BackboneConfig
from policies.vla.flow import VLAFlowConfig, VLAFlowPolicy
from policies.vla.tokens import BinCodec, CosineCodec, VLATokensConfig, VLATokensPolicy
from policies.vla.words import words_of
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.util.errors import ConfigError
from tests.policies.vla.conftest import FRONT, SIZE, TEXTS, observe

SMALL = BackboneConfig(width=16, heads=2, layers=1, readouts=2, channels=(8,), shift=1, words=words_of(TEXTS))


def flow(encoder: BackboneConfig = SMALL) -> VLAFlowPolicy:
    torch.manual_seed(0)
    config = VLAFlowConfig(horizon=4, execute=2, hidden=16, layers=1, sample_steps=3, encoder=encoder)
    return VLAFlowPolicy(SIZE, config).eval()


def tokens(encoder: BackboneConfig = SMALL, **options: Any) -> VLATokensPolicy:
    torch.manual_seed(0)
    config = VLATokensConfig(horizon=4, execute=2, bins=16, kept=2, layers=2, encoder=encoder)
    return VLATokensPolicy(SIZE, replace(config, **options)).eval()


heads = pytest.mark.parametrize("make", [flow, tokens])


def backbone(config: BackboneConfig = SMALL) -> Callable[[dict[str, Tensor]], Tensor]:
    torch.manual_seed(0)
    made = Backbone(SIZE, config).eval()
    return lambda observation: made(observation["observation.state"], observation)


def test_features_depend_on_every_input_and_word_order() -> None:
    features, observation = backbone(), observe()
    before = features(observation)
    assert before.shape == (4, 2 * 16)
    for key, values in observation.items():
        if key != LANGUAGE:
            changed = features(observation | {key: values.flip(0)})
            assert not torch.allclose(changed, before, atol=1e-6), key
    one = [features(observe(1, texts=[text])) for text in TEXTS[:2]]  # same words, other order
    assert not torch.allclose(*one, atol=1e-6)


def test_features_do_not_depend_on_other_rows_letter_case_or_unknown_words() -> None:
    features, observation = backbone(), observe()
    alone = [features({k: v[i : i + 1] for k, v in observation.items()}) for i in range(4)]
    assert torch.allclose(features(observation), torch.cat(alone), atol=1e-5)  # instructions of 8, 8, 2 and 3 words
    same = observation | {LANGUAGE: encode([t.upper() + "!" for t in TEXTS])}
    assert torch.equal(features(same), features(observation))
    strange = [features(observe(1, texts=[f"lift the {word}"])) for word in ("anvil", "xylophone")]
    assert torch.equal(*strange)
    assert features(observe(1) | {LANGUAGE: torch.zeros_like(encode(["a"]))}).isfinite().all()


def test_blind_backbone_ignores_the_instruction() -> None:
    blind = backbone(replace(SMALL, blind=True))
    assert torch.equal(blind(observe(texts=TEXTS)), blind(observe(texts=TEXTS[::-1])))
    count = [sum(p.numel() for p in Backbone(SIZE, replace(SMALL, blind=b)).parameters()) for b in (False, True)]
    assert count[0] == count[1]


def test_unsupported_tasks_and_sizes_are_refused() -> None:
    with pytest.raises(ConfigError, match="has no pictures"):
        Backbone(Size(3, 2, SIZE.extra_inputs.only([LANGUAGE])), SMALL)
    with pytest.raises(ConfigError, match="has no instructions"):
        Backbone(Size(3, 2, SIZE.extra_inputs.only([FRONT])), SMALL)
    with pytest.raises(ValueError, match="width 12"):
        BackboneConfig(width=12, heads=8)
    with pytest.raises(ValueError, match="each must be a multiple of 8"):
        BackboneConfig(channels=(12,))


@heads
def test_cloning_learns_to_follow_instructions(make: Callable[[], Policy]) -> None:
    """The data have opposite actions for two instructions in the same state."""
    policy, rng = make().train(), torch.Generator().manual_seed(0)
    observation = {k: v[:1].expand(8, *v.shape[1:]) for k, v in observe().items()} | {LANGUAGE: encode(TEXTS[:2] * 4)}
    wanted = torch.tensor([0.5, -0.5]).repeat(4)[:, None, None].expand(8, 4, 2)
    agent = Cloning(policy, CloningConfig(lr=3e-3, warmup=0, ema_decay=0.9), 150)
    for _ in range(150):
        agent.update(observation | {"action": wanted}, rng)
    agent.finish()
    with torch.no_grad():
        assert (policy.act(observation, rng) - wanted).abs().mean() < 0.1


def test_tokens_are_sampled_with_their_probability_computed_together_or_stepwise() -> None:
    policy, rng = tokens(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        features = policy.features(observe())
        written, texts = policy.sample(features, 1.5, rng)
        assert torch.allclose(policy.log_prob(features, written, 1.5), texts, atol=1e-5)
        for k in range(written.shape[1]):  # independent of later tokens
            changed = written.clone()
            changed[:, k + 1 :] = 0
            logits = policy.decoder(features, changed)[:, k] / 1.5
            alone = logits.log_softmax(-1)[torch.arange(4), written[:, k]]
            assert torch.allclose(alone, texts[:, k], atol=1e-5)
    policy, rng, n = tokens(), torch.Generator().manual_seed(0), 20_000
    with torch.no_grad():
        features = policy.features(observe(1)).expand(n, -1, -1)
        written, _ = policy.sample(features, 1.0, rng)
        share = policy.decoder(features[:1], written[:1])[0, 0].softmax(-1)
        assert (torch.bincount(written[:, 0], minlength=16) / n - share).abs().max() < 0.015
        likeliest, _ = policy.sample(features[:2], 0.0, rng)
        assert (likeliest[:, 0] == share.argmax()).all()


chunks = st.integers(0, 1000).map(lambda s: 2 * torch.rand(3, 8, 2, generator=torch.Generator().manual_seed(s)) - 1)


@given(chunks, st.integers(2, 64))
def test_bin_codec_error_is_at_most_half_a_bin(chunk: Tensor, bins: int) -> None:
    codec = BinCodec(8, 2, bins)
    coded = codec.encode(chunk)
    assert coded.shape == (3, codec.length) and coded.min() >= 0 and coded.max() < bins
    assert (codec.decode(coded) - chunk).abs().max() <= 1 / bins + 1e-6
    assert torch.equal(codec.encode(codec.decode(coded)), coded)


@given(chunks, st.integers(1, 8))
def test_cosine_codec_keeps_the_lowest_frequencies(chunk: Tensor, kept: int) -> None:
    codec = CosineCodec(8, 2, 4096, kept)
    basis = codec.basis()
    assert torch.allclose(basis @ basis.T, torch.eye(kept), atol=1e-5)
    coded = codec.encode(chunk)
    assert coded.shape == (3, 2 * kept) and coded.min() >= 0 and coded.max() < 4096
    slow = (basis.T @ (basis @ chunk)).clamp(-1, 1)
    assert (codec.decode(coded) - slow).abs().max() < 0.005
    still = torch.full((1, 8, 2), 0.7)
    assert (codec.decode(codec.encode(still)) - still).abs().max() < 0.002


def test_hashed_words_distinguish_instructions() -> None:
    rows = hashed_words(encode(TEXTS), 64)
    assert torch.pdist(rows).min() > 1, "including instructions with the same words in another order"
    assert torch.equal(rows[2], hashed_words(encode(["Lift it."]), 64)[0])
    encoder = Encoder(SIZE, EncoderConfig(channels=(4, 4), embedding=5))
    observation = observe()
    features = encoder(observation["observation.state"], observation)
    assert features.shape == (4, 3 + 64 + 2 * 5) and torch.equal(features[:, 3:67], rows)


@pytest.mark.parametrize(("wrong", "message"), [
    ({"execute": 9}, "execute 9"), ({"codec": "words"}, "codec is 'words'"), ({"kept": 5}, "kept 5")
])  # fmt: skip
def test_invalid_token_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tokens(**wrong)
