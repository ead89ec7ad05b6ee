"""Progress that is learned from demonstrations, and the reward that it shapes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policies.base import Size
from policies.vla.config import BackboneConfig
from policies.vla.tokens import VLATokensConfig, VLATokensPolicy
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import LANGUAGE, LANGUAGE_FIELD, ObservationSpec, picture_field
from robot_rl.learning.algorithms.token_ppo import TokenPPO, TokenPPOConfig
from robot_rl.learning.parts.progress import EVERY, ProgressEstimate, labelled, shaping
from robot_rl.recipes.vla_rl import VlaRL
from robot_rl.util.errors import ConfigError

STATE = "observation.state"


def episodes(lengths: list[int], told: list[str]) -> list[dict[str, torch.Tensor]]:
    """Demonstrations whose state is the share of the way that is done, and what was asked."""
    return [
        {
            STATE: torch.stack([torch.arange(n) / (n - 1), torch.full((n,), float(text == "left"))], 1),
            LANGUAGE: encode([text] * n),
            "action": torch.zeros(n, 2),
        }
        for n, text in zip(lengths, told, strict=True)
    ]


def read(observation: dict[str, torch.Tensor]) -> torch.Tensor:
    """Features: the state, and whether the instruction is to go left."""
    left = (observation[LANGUAGE] == encode(["left"])).all(1, keepdim=True)
    return torch.cat([observation[STATE], left.float(), torch.ones(len(left), 5)], 1)


def test_labels_are_the_share_of_the_way_and_nothing_under_another_instruction() -> None:
    played = episodes([9, 21], ["left", "right"])
    features, done = labelled(read, played, torch.Generator().manual_seed(0))
    own = len(range(0, 9, EVERY)) + len(range(0, 21, EVERY))
    assert torch.allclose(done[:own], features[:own, 0]) and done[own - 1] == 1
    assert len(done) > own and not done[own:].any()
    assert (features[own:, 1] != features[own:, 2]).all(), "these are read with what was not asked"


def test_of_an_episode_whose_instruction_changed_the_last_one_was_achieved() -> None:
    (episode,) = episodes([25], ["left"])
    episode[LANGUAGE] = encode(["right"] * 13 + ["left"] * 12)
    features, done = labelled(read, [episode], torch.Generator().manual_seed(0))
    assert len(done) == 3 and done[0] == 0 and torch.allclose(done, torch.tensor([0.0, 4.0, 8.0]) / 11)
    assert torch.allclose(features[:, 0] * 24, torch.tensor([13.0, 17.0, 21.0]))


def test_what_is_learned_grows_along_the_way_and_needs_the_right_instruction() -> None:
    torch.manual_seed(0)
    played = episodes([30] * 8, ["left", "right"] * 4)
    progress = ProgressEstimate(8)
    assert progress.fit(read, played, torch.Generator().manual_seed(0)) < 0.1
    fresh = episodes([50], ["left"])[0]
    right = progress(read(fresh)).detach()
    wrong = progress(read(fresh | {LANGUAGE: encode(["right"] * 50)})).detach()
    assert (right - fresh[STATE][:, 0]).abs().max() < 0.2 and wrong.mean() < 0.15


@given(
    begins=st.lists(st.booleans(), min_size=2, max_size=12),
    end=st.integers(1, 11),
    terminates=st.booleans(),
    discount=st.floats(0.5, 1.0),
    seed=st.integers(0, 100),
)
def test_the_shaping_of_an_episode_adds_up_to_its_ends(
    begins: list[bool], end: int, terminates: bool, discount: float, seed: int
) -> None:
    """Discounted, all of it cancels but the first and the last potential: which policy is best does not change."""
    steps = len(begins)
    end = min(end, steps - 1)
    begin = torch.tensor([*begins[: end + 1], True, *begins[end + 2 :]][:steps])  # an episode begins with a chunk
    potential = torch.rand(steps, 1, generator=torch.Generator().manual_seed(seed))
    done = torch.zeros(steps, 1, dtype=torch.bool)
    done[end] = True
    gained = shaping(potential, torch.ones(1), begin[:, None], done & terminates, done, discount)[:, 0]
    known = [t for t in range(end + 1) if begin[t]]
    assert not gained[: known[0] if known else end + 1].any(), "nothing is known yet"
    if known:
        first, last = known[0], known[-1]
        total = sum(discount ** (t - first) * float(gained[t]) for t in range(first, end + 1))
        left = 0.0 if terminates else discount ** (end + 1 - first) * float(potential[last])
        assert abs(total - (left - float(potential[first]))) < 1e-5


def test_what_runs_on_after_a_rollout_gains_up_to_its_end() -> None:
    potential, begin = torch.tensor([[0.2], [0.0], [0.6], [0.0]]), torch.tensor([[True], [False], [True], [False]])
    no = torch.zeros(4, 1, dtype=torch.bool)
    gained = shaping(potential, torch.tensor([0.9]), begin, no, no, 1.0)
    assert torch.allclose(gained[:, 0], torch.tensor([0.0, 0.4, 0.0, 0.3]), atol=1e-6)


def test_the_agent_pays_for_progress_and_not_for_its_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    front = "observation.images.front"
    size = Size(2, 2, ObservationSpec.of(**{front: picture_field(16, 16), LANGUAGE: LANGUAGE_FIELD}))
    reads = BackboneConfig(width=16, heads=2, layers=1, readouts=2, channels=(8,), words=("left",))
    policy = VLATokensPolicy(size, VLATokensConfig(horizon=4, execute=1, encoder=reads))
    observation = {STATE: torch.zeros(3, 2), front: torch.zeros(3, 16, 16, 3, dtype=torch.uint8)}
    observation[LANGUAGE] = encode(["left"] * 3)
    advantage = {}
    for weight in (0.0, 0.5):
        agent = TokenPPO(policy, 0, TokenPPOConfig(progress=weight, discount=1.0, gae_lambda=1.0), seed=0)
        rows = [agent.act(observation, torch.Generator().manual_seed(t))[1] for t in range(5)]
        rollout = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        # The first environment advances from step to step, the second falls back, the third stays.
        way = torch.linspace(0, 1, 6)[:, None]
        known = torch.cat([way, 1 - way, 0.5 + 0 * way], 1)
        seen = iter((known[:5].flatten(), known[5]))
        if weight:
            monkeypatch.setattr(agent, "progress", lambda features, seen=seen: next(seen))
        no = torch.zeros(5, 3, dtype=torch.bool)
        rollout |= {"reward": torch.zeros(5, 3), "terminated": no, "done": no}
        advantage[weight] = agent.assess(rollout, observation, [])["advantage"].view(5, 3)
    more = advantage[0.5] - advantage[0.0]
    assert torch.allclose(more[0], torch.tensor([0.5, -0.5, 0.0]), atol=1e-4)
    assert torch.allclose(more[4], torch.tensor([0.1, -0.1, 0.0]), atol=1e-4)
    with pytest.raises(ConfigError, match="not its terms"):
        TokenPPO(policy, 0, TokenPPOConfig(progress=0.5), terms=2)


def test_demonstrations_are_needed_only_for_it() -> None:
    assert "demonstrations" not in VlaRL().needs
    assert "demonstrations" in VlaRL(agent=TokenPPOConfig(progress=0.5)).needs
