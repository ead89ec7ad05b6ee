"""Predictive cloning: targets, samples, limits, known answers, and what episodes without actions may change."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from policies.actor import GaussianPolicy
from policies.base import Size
from policies.bundle import load_bundle
from policies.networks.encoder import EncoderConfig
from policies.networks.gaussian import GaussianConfig
from policies.play import PlayPolicy
from robot_rl.cli.main import main
from robot_rl.data.sources import LATER, SEEN, Demonstrations, Observed
from robot_rl.interface.observation_spec import STATE, ObservationSpec, picture_field
from robot_rl.learning.algorithms.cloning import Cloning, CloningConfig
from robot_rl.learning.algorithms.jepa import PredictiveCloning, PredictiveConfig
from robot_rl.training.supervised import SupervisedConfig, train_supervised
from robot_rl.util.errors import ConfigError

CAMERA = "observation.images.top"
SIZE = Size(1, 1, ObservationSpec.of(**{CAMERA: picture_field(16, 16)}))


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def policy() -> GaussianPolicy:
    torch.manual_seed(0)
    encoder = EncoderConfig((8, 8), 16, 1)
    return GaussianPolicy(SIZE, GaussianConfig(hidden=(16,), std=0.1, horizon=2, encoder=encoder))


def agent(**settings: Any) -> PredictiveCloning:
    return PredictiveCloning(policy(), PredictiveConfig(warmup=0, ahead=(1, 3), predictor=(32,), **settings), 400)


def ball(start: Tensor, velocity: Tensor, steps: int) -> dict[str, Tensor]:
    """Return an episode whose pictures show a bright square that moves by `velocity` (2,), pixels per step, and
    bounces. The state is a constant."""
    place = start + velocity * torch.arange(steps)[:, None]
    place = 12 - (place % 24 - 12).abs()
    row, column = torch.arange(16)[:, None], torch.arange(16)
    inside = (row - place[:, :1, None]).abs().maximum((column - place[:, 1:, None]).abs()) < 2.5
    pictures = (30 + 200 * inside[..., None].expand(-1, -1, -1, 3)).to(torch.uint8)
    return {STATE: torch.zeros(steps, 1), CAMERA: pictures, "action": (place[:, :1] / 6 - 1), "place": place}


def balls(count: int, seed: int, steps: int = 8) -> list[dict[str, Tensor]]:
    starts, velocities = 24 * torch.rand(count, 2, generator=rng(seed)), torch.tensor([1.0, 2.0])
    return [ball(start, velocities, steps) for start in starts]


def observed(demos: list[dict[str, Tensor]], others: list[dict[str, Tensor]], ahead: tuple[int, ...]) -> Observed:
    data = Observed.of([*demos, *others])
    data.demonstrated, data.ahead = sum(len(demo["action"]) for demo in demos), ahead
    return data


# ---- samples --------------------------------------------------------------------------------------------------------
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 6), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_samples_stay_in_their_episode_and_read_only_demonstrated_actions(
    lengths: list[int], demos: int, seed: int
) -> None:
    parts = torch.arange(sum(lengths)).float()[:, None].split(lengths)
    episodes = [{STATE: rows, "action": -rows} for rows in parts]
    data = observed(episodes[:demos], episodes[demos:], (1, 4))
    batch = data.sample(200, data.rows(2), rng(seed))
    limit = sum(lengths[:demos])
    assert float(batch[STATE].max()) < limit and float(batch["action"].min()) > -limit
    seen, later = batch[SEEN + STATE][:, 0].long(), batch[LATER + STATE][..., 0].long()
    assert torch.equal(later, torch.minimum(seen[:, None] + torch.tensor([1, 4]), data.last[seen][:, None]))
    assert len(seen.unique()) > 0.9 * sum(lengths), "all episodes are seen"
    assert not any(name.endswith("action") for name in batch if name != "action")


# ---- targets --------------------------------------------------------------------------------------------------------
def test_targets_are_the_average_encoders_normalized_features() -> None:
    learner, episode = agent(), balls(1, 0)[0]
    later = {key: episode[key][:6].unflatten(0, (3, 2)) for key in (STATE, CAMERA)}
    targets = learner.targets(later)
    assert torch.allclose(targets.mean(-1), torch.zeros(3, 2), atol=1e-5)
    assert torch.allclose(targets.square().mean(-1), torch.ones(3, 2), atol=1e-3)
    with torch.no_grad():
        one = learner.policy.features({key: values[1, :1] for key, values in later.items()})[0]
    assert torch.allclose(targets[1, 0], (one - one.mean()) / one.std(correction=0), atol=1e-4)


def test_pictures_as_targets_are_those_of_the_later_steps() -> None:
    learner, data = agent(target="pictures"), observed(balls(1, 0), balls(2, 1), (1, 3))
    later = data.sample(8, data.rows(2), rng())[LATER + CAMERA]
    assert torch.equal(learner.targets({CAMERA: later}), later.flatten(2).float() / 127.5 - 1)
    blind = GaussianPolicy(Size(1, 1), GaussianConfig(hidden=(8,)))
    with pytest.raises(ConfigError, match="the task shows none"):
        PredictiveCloning(blind, PredictiveConfig(target="pictures"), 10)
    with pytest.raises(ConfigError, match="names no step to predict"):
        PredictiveCloning(blind, PredictiveConfig(ahead=()), 10)


def test_seen_and_later_pictures_are_shifted_alike() -> None:
    learner, noise = agent(), torch.randint(0, 255, (32, 1, 16, 16, 3), generator=rng(), dtype=torch.uint8)
    noise = noise.expand(-1, 3, -1, -1, -1)
    zero = torch.zeros(32, 1)
    batch = {SEEN + STATE: zero, SEEN + CAMERA: noise[:, 0], LATER + STATE: zero, LATER + CAMERA: noise[:, 1:]}
    seen, later = learner.moved(batch, rng())
    assert torch.equal(later[CAMERA], seen[CAMERA][:, None].expand(-1, 2, -1, -1, -1))
    assert not torch.equal(seen[CAMERA], noise[:, 0])
    inner = [noise[:, 0, 5 + a, 5 + b] for a in (-1, 0, 1) for b in (-1, 0, 1)]
    assert bool(torch.stack([(seen[CAMERA][:, 5, 5] == each).all(1) for each in inner]).any(0).all())


def test_targets_have_no_gradient_and_follow_the_encoder() -> None:
    learner = agent(tau=0.25)
    batch = observed(balls(3, 0), balls(3, 1), (1, 3)).sample(32, torch.zeros(48, 2, dtype=torch.long), rng())
    learner.predictive_loss(batch, rng())[0].backward()
    heads = {name for name, p in learner.policy.named_parameters() if p.grad is not None}
    assert heads and all(name.startswith("encoder") for name in heads), "actions are not predicted here"
    assert all(p.grad is None and not p.requires_grad for p in learner.target.parameters())
    before = copy.deepcopy(learner.target.state_dict())
    learner.update(batch, rng())
    latest = learner.policy.encoder.state_dict()
    for name, value in learner.target.state_dict().items():
        assert torch.allclose(value, before[name].lerp(latest[name], 0.25), atol=1e-7)


# ---- limits ---------------------------------------------------------------------------------------------------------
def trained(run: Callable[..., Any], name: str, learner: Cloning, data: Demonstrations, resume: bool = False) -> Any:
    config = SupervisedConfig(updates=30, batch=16, checkpoint_every=10, log_every=10)
    with run(name, resume=resume) as folder:
        train_supervised(learner, data, config, folder, 0, lambda *_: None)
    return learner.policy.state_dict()


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_without_weight_it_is_cloning_to_the_bit(run: Callable[..., Any]) -> None:
    demos = balls(4, 0)
    plain = trained(run, "plain", Cloning(policy(), CloningConfig(warmup=0), 400), Demonstrations.of(demos))
    off = trained(run, "off", agent(jepa=0.0), observed(demos, [], ()))
    on = trained(run, "on", agent(jepa=1.0), observed(demos, [], (1, 3)))
    assert equal(plain, off) and not equal(plain, on)


def test_actions_of_other_episodes_change_nothing_and_their_pictures_do(run: Callable[..., Any]) -> None:
    demos, others = balls(2, 0), balls(4, 1)
    first = trained(run, "first", agent(), observed(demos, others, (1, 3)))
    hidden = [episode | {"action": torch.full_like(episode["action"], torch.nan)} for episode in others]
    assert equal(first, trained(run, "hidden", agent(), observed(demos, hidden, (1, 3))))
    assert not equal(first, trained(run, "other", agent(), observed(demos, balls(4, 2), (1, 3))))


def test_resumed_run_is_the_same(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    data = observed(balls(2, 0), balls(4, 1), (1, 3))
    whole = trained(run, "whole", agent(), data)
    broken, update = agent(), PredictiveCloning.update

    def killed(self: PredictiveCloning, batch: Any, generator: Any) -> Any:
        if self.updates == 25:
            raise RuntimeError("killed")
        return update(self, batch, generator)

    monkeypatch.setattr(PredictiveCloning, "update", killed)
    with pytest.raises(RuntimeError, match="killed"):
        trained(run, "broken", broken, data)
    monkeypatch.undo()
    assert equal(whole, trained(run, "broken", agent(), data, resume=True))


# ---- known answers --------------------------------------------------------------------------------------------------
def probed(learner: PredictiveCloning, train: list[dict[str, Tensor]], test: list[dict[str, Tensor]]) -> float:
    """Return the error of a ridge regression of the ball's place on the features, relative to the place's spread."""

    def features(episodes: list[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
        rows = {key: torch.cat([episode[key] for episode in episodes]) for key in (STATE, CAMERA, "place")}
        with torch.no_grad():
            x = learner.policy.features(rows).double()
        return torch.cat([x, torch.ones(len(x), 1)], 1), rows["place"].double()

    (x, y), (other, wanted) = features(train), features(test)
    weights = torch.linalg.solve(x.T @ x + 1e-3 * torch.eye(x.shape[1]), x.T @ y)
    return float((other @ weights - wanted).square().mean().sqrt() / wanted.std())


def test_moving_pictures_are_predicted_and_features_do_not_collapse() -> None:
    learner, data = agent(jepa=1.0, lr=3e-3), observed(balls(1, 0), balls(60, 1), (1, 3))
    fresh = probed(agent(), balls(40, 8), balls(20, 9))
    rows, generator, metrics = data.rows(2), rng(), []
    learner.policy.train()
    for _ in range(400):
        metrics.append(learner.update(data.sample(32, rows, generator), generator))
    errors = torch.stack([row["jepa/loss"] for row in metrics])
    assert errors[-20:].mean() < 0.4 * errors[:5].mean()
    assert float(metrics[-1]["jepa/std"]) > 0.1
    assert probed(learner, balls(40, 8), balls(20, 9)) < fresh


# ---- recipe ---------------------------------------------------------------------------------------------------------
def test_policy_without_an_encoder_is_refused() -> None:
    from policies.hilbert import GoalIndices
    from policies.play import PlayConfig

    with pytest.raises(ConfigError, match="PlayPolicy has no encoder"):
        PredictiveCloning(PlayPolicy(Size(3, 1), PlayConfig(), GoalIndices((0,), (2,))), PredictiveConfig(), 10)  # type: ignore[arg-type]


def test_recipe_trains_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(tmp_path / "data")
    collect = ["collect", "testbed:discs", "--episodes", "6", "--num-envs", "6", "--keep-failures", "--skill", "STEADY"]
    assert main([*collect, "--out", data]) == 0
    few = ["train", "testbed:discs", "--recipe", "act-jepa", "--dataset", data, "--policy.hidden", "8"]
    few += ["--training.updates", "4", "--training.batch", "8", "--agent.predictor", "8"]
    for flags, message in (
        (["--labelled", "7"], "successful episodes to clone, and --labelled is 7"),
        (["--training.demos", "best"], "leave out --training.demos best"),
    ):
        assert main([*few, *flags, "--out", str(tmp_path / "wrong")]) == 2
        assert message in capsys.readouterr().err
    for name, flags in (("run", []), ("again", []), ("one", ["--labelled", "1"])):
        assert main([*few, *flags, "--out", str(tmp_path / name)]) == 0
    run, again, one = (load_bundle(tmp_path / name).policy.state_dict() for name in ("run", "again", "one"))
    assert equal(run, again) and not equal(run, one)
    assert main(["evaluate", str(tmp_path / "run"), "--episodes", "2", "--num-envs", "2"]) == 0
