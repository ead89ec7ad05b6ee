"""Progress learned from demonstrations, and reward shaping by progress."""

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
from robot_rl.util.errors import ConfigError
from tests.robot_rl.learning.conftest import Batch, rng

STATE = "observation.state"


def episodes(lengths: list[int], instructions: list[str]) -> list[Batch]:
    """Return demonstrations whose state is their progress, and whether the instruction is "left"."""
    return [
        {
            STATE: torch.stack([torch.arange(n) / (n - 1), torch.full((n,), float(text == "left"))], 1),
            LANGUAGE: encode([text] * n),
            "action": torch.zeros(n, 2),
        }
        for n, text in zip(lengths, instructions, strict=True)
    ]


def read(observation: Batch) -> torch.Tensor:
    """Return features: the state, and whether the instruction is "left"."""
    left = (observation[LANGUAGE] == encode(["left"])).all(1, keepdim=True)
    return torch.cat([observation[STATE], left.float(), torch.ones(len(left), 5)], 1)


def test_labels_are_progress_or_0_for_another_instruction() -> None:
    features, done = labelled(read, episodes([9, 21], ["left", "right"]), rng())
    own = len(range(0, 9, EVERY)) + len(range(0, 21, EVERY))
    assert torch.allclose(done[:own], features[:own, 0]) and done[own - 1] == 1
    assert len(done) > own and not done[own:].any()
    assert (features[own:, 1] != features[own:, 2]).all(), "read with another instruction"
    (episode,) = episodes([25], ["left"])
    episode[LANGUAGE] = encode(["right"] * 13 + ["left"] * 12)
    features, done = labelled(read, [episode], rng())
    assert len(done) == 3 and done[0] == 0, "only frames with the last instruction"
    assert torch.allclose(done, torch.tensor([0.0, 4.0, 8.0]) / 11)
    assert torch.allclose(features[:, 0] * 24, torch.tensor([13.0, 17.0, 21.0]))


def test_learned_progress_needs_the_right_instruction() -> None:
    progress = ProgressEstimate(8)
    assert progress.fit(read, episodes([30] * 8, ["left", "right"] * 4), rng()) < 0.1
    fresh = episodes([50], ["left"])[0]
    right = progress(read(fresh)).detach()
    wrong = progress(read(fresh | {LANGUAGE: encode(["right"] * 50)})).detach()
    assert (right - fresh[STATE][:, 0]).abs().max() < 0.2 and wrong.mean() < 0.15


@given(st.lists(st.booleans(), min_size=2, max_size=12), st.integers(1, 11), st.booleans(), st.floats(0.5, 1.0),
       st.integers(0, 100))  # fmt: skip
def test_discounted_shaping_of_an_episode_is_last_minus_first_potential(
    begins: list[bool], end: int, terminates: bool, discount: float, seed: int
) -> None:
    """All other potentials cancel, so that the optimal policy does not change."""
    steps = len(begins)
    end = min(end, steps - 1)
    begin = torch.tensor([*begins[: end + 1], True, *begins[end + 2 :]][:steps])  # an episode begins with a chunk
    potential = torch.rand(steps, 1, generator=rng(seed))
    done = torch.zeros(steps, 1, dtype=torch.bool)
    done[end] = True
    gained = shaping(potential, torch.ones(1), begin[:, None], done & terminates, done, discount)[:, 0]
    known = [t for t in range(end + 1) if begin[t]]
    assert not gained[: known[0] if known else end + 1].any(), "no gain before the first chunk"
    if known:
        first, last = known[0], known[-1]
        total = sum(discount ** (t - first) * float(gained[t]) for t in range(first, end + 1))
        final = 0.0 if terminates else discount ** (end + 1 - first) * float(potential[last])
        assert abs(total - (final - float(potential[first]))) < 1e-5


def test_unfinished_episode_gains_up_to_the_end_of_the_rollout() -> None:
    potential, begin = torch.tensor([[0.2], [0.0], [0.6], [0.0]]), torch.tensor([[True], [False], [True], [False]])
    no = torch.zeros(4, 1, dtype=torch.bool)
    gained = shaping(potential, torch.tensor([0.9]), begin, no, no, 1.0)
    assert torch.allclose(gained[:, 0], torch.tensor([0.0, 0.4, 0.0, 0.3]), atol=1e-6)


def test_advantages_grow_with_progress_and_fall_with_its_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    front = "observation.images.front"
    size = Size(2, 2, ObservationSpec.of(**{front: picture_field(16, 16), LANGUAGE: LANGUAGE_FIELD}))
    reads = BackboneConfig(width=16, heads=2, layers=1, readouts=2, channels=(8,), words=("left",))
    policy = VLATokensPolicy(size, VLATokensConfig(horizon=4, execute=1, encoder=reads))
    observation = {STATE: torch.zeros(3, 2), front: torch.zeros(3, 16, 16, 3, dtype=torch.uint8)}
    observation[LANGUAGE] = encode(["left"] * 3)
    advantage = {}
    for weight in (0.0, 0.5):
        agent = TokenPPO(policy, 0, TokenPPOConfig(progress=weight, discount=1.0, gae_lambda=1.0), seed=0)
        rows = [agent.act(observation, rng(t))[1] for t in range(5)]
        rollout = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        # Progress grows in the first environment, falls in the second, and is constant in the third.
        ramp = torch.linspace(0, 1, 6)[:, None]
        potential = torch.cat([ramp, 1 - ramp, 0.5 + 0 * ramp], 1)
        seen = iter((potential[:5].flatten(), potential[5]))
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
