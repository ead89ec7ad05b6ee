"""A success classifier: what it measures, its folder, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.interface.observation_spec import ObservationSpec, picture_field
from robot_rl.interface.pipeline import Pipeline
from robot_rl.rewards.classifier import Classifier, Measured, load_classifier, read_classifier, save_classifier
from robot_rl.util.errors import ConfigError
from sim.tasks import tasks

Build = Callable[..., Any]
FRONT = "observation.images.front"


@pytest.fixture
def saved(verdict: Build, tmp_path: Path) -> Path:
    save_classifier(verdict(front=(32, 32), state=2), tmp_path / "classifier")
    return tmp_path / "classifier"


def edit(folder: Path, **changes: Any) -> None:
    file = folder / "classifier.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


# ---- figures -----------------------------------------------------------------------------------------------------
def test_precision_and_recall_have_intervals() -> None:
    measured = Measured(episodes=30, successes=20, claims=18, right=17)
    assert measured.precision["mean"] == pytest.approx(17 / 18) and measured.recall["mean"] == pytest.approx(0.85)
    low, high = measured.recall["low"], measured.recall["high"]
    assert low is not None and high is not None and 0.6 < low < 0.85 < high < 0.96
    assert measured.clears(0.85) and not measured.clears(0.9)


def test_without_a_claim_no_bar_is_cleared() -> None:
    silent = Measured(episodes=10, successes=5, claims=0, right=0)
    assert silent.precision["mean"] is None and not silent.clears(0.8)


@given(*[st.integers(0, 12)] * 4)
def test_counts_that_contradict_each_other_are_refused(episodes: int, successes: int, claims: int, right: int) -> None:
    sound = right <= min(successes, claims) and max(successes, claims) <= episodes
    try:
        Measured(episodes, successes, claims, right)
    except ValueError:
        assert not sound
    else:
        assert sound


# ---- the folder --------------------------------------------------------------------------------------------------
def test_round_trip(saved: Path, verdict: Build) -> None:
    first: Classifier = verdict(front=(32, 32), state=2)
    torch.manual_seed(3)
    for value in first.network.parameters():
        torch.nn.init.normal_(value)
    first.network.normalizer.fit(torch.randn(20, 2))
    first.provenance = {"seed": 3}
    save_classifier(first, saved)
    again = load_classifier(saved)
    observation = {
        FRONT: torch.randint(0, 256, (5, 32, 32, 3), dtype=torch.uint8),
        "observation.state": torch.ones(5, 2),
    }
    assert torch.equal(again.probability(observation), first.probability(observation))
    assert again.folder == saved and again.summary() == first.summary() and again.provenance == {"seed": 3}
    assert sorted(p.name for p in saved.parent.iterdir()) == ["classifier"], "nothing is left beside it"


def test_a_classifier_below_its_bar_can_be_shown_but_pays_nothing(verdict: Build, tmp_path: Path) -> None:
    weak = verdict(front=(32, 32), measured=Measured(40, 20, 20, 18))
    save_classifier(weak, tmp_path / "weak")
    assert not read_classifier(tmp_path / "weak").pays
    said = r"weak may not pay rewards: precision 0.900 and recall 0.900 on 40 held-out episodes.*0.95 for both; record"
    with pytest.raises(ConfigError, match=said):
        load_classifier(tmp_path / "weak")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 9}, "format 9"),
        ({"threshold": 1.5}, "threshold is 1.5"),
        ({"hold": 0}, "hold is 0"),
        ({"at_least": 0.1}, "at_least is 0.1"),
        ({"measured": {"episodes": 1, "successes": 2, "claims": 1, "right": 1}}, "contradict"),
        ({"network": {"hidden": -1}}, "hidden is -1"),
        ({"network": {"hidden": 10**12}}, "another classifier than classifier.json says"),
        ({"reads": {"observation": 2, "action": 0}}, "it reads no picture"),
        ({"instructions": [""]}, "says nothing"),
        ({"sha256": {}}, "not what was saved"),
    ],
)
def test_a_damaged_description_is_named(saved: Path, changes: dict[str, Any], said: str) -> None:
    edit(saved, **changes)
    with pytest.raises(ConfigError, match=said):
        read_classifier(saved)


def test_other_damage_is_named(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no classifier.*robot-rl classifier fit"):
        read_classifier(tmp_path)
    weights = saved / "classifier.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="not what was saved"):
        read_classifier(saved)
    weights.unlink()
    with pytest.raises(ConfigError, match="is missing"):
        read_classifier(saved)
    (saved / "classifier.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged or foreign"):
        read_classifier(saved)


# ---- what does not fit -------------------------------------------------------------------------------------------
SEES = ObservationSpec.of(**{FRONT: picture_field(32, 32), "observation.images.wrist": picture_field(16, 16)})
LIFT = tasks.get("panda-lift").interface


def test_it_fits_where_its_cameras_are(verdict: Build) -> None:
    verdict(front=(32, 32)).require_fit(SEES, 20.0, LIFT)
    verdict(front=(32, 32), wrist=(16, 16)).require_fit(SEES, 20.0, None)
    state = Pipeline(LIFT).observation_spec
    verdict(front=(32, 32), state=state["observation.state"].shape[0]).require_fit(state | SEES, 20.0, LIFT)


@pytest.mark.parametrize(
    ("options", "rate", "interface", "said"),
    [
        ({"side": (32, 32)}, 20.0, LIFT, "reads observation.images.side of 32x32 pixels, which is not there here"),
        ({"front": (48, 32)}, 20.0, LIFT, "images.front of 48x32 pixels, which is 32x32 pixels here"),
        ({"front": (32, 32), "rate": 30.0}, 20.0, LIFT, "fitted to 30 frames per second, and here are 20"),
        ({"front": (32, 32)}, 20.0, replace(LIFT, instruction="push it"), "knows no success of 'push it'"),
        ({"front": (32, 32)}, 20.0, tasks.get("tabletop").interface, "knows no success of"),
    ],
)
def test_what_does_not_fit_is_named(verdict: Build, options: Any, rate: float, interface: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        verdict(**options).require_fit(SEES, rate, interface)


def test_a_state_of_another_size_is_named(verdict: Build) -> None:
    with pytest.raises(ConfigError, match=r"observation.state of 5 numbers, which is \d+ numbers here"):
        verdict(front=(32, 32), state=5).require_fit(Pipeline(LIFT).observation_spec | SEES, 20.0, LIFT)
    with pytest.raises(ConfigError, match="observation.state of 5 numbers, which is not there here"):
        verdict(front=(32, 32), state=5).require_fit(SEES, 20.0, LIFT)
