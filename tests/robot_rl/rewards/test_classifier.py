"""Success classifier: metrics, round trip through its folder, and refusal of other cameras, rates and tasks."""

import json
from collections.abc import Callable
from contextlib import nullcontext
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


# ---- figures -----------------------------------------------------------------------------------------------------
def test_precision_and_recall_have_intervals_and_a_bar() -> None:
    measured = Measured(episodes=30, successes=20, claims=18, right=17)
    assert measured.precision["mean"] == pytest.approx(17 / 18) and measured.recall["mean"] == pytest.approx(0.85)
    low, high = measured.recall["low"], measured.recall["high"]
    assert low is not None and high is not None and 0.6 < low < 0.85 < high < 0.96
    assert measured.clears(0.85) and not measured.clears(0.9)
    silent = Measured(episodes=10, successes=5, claims=0, right=0)
    assert silent.precision["mean"] is None and not silent.clears(0.8)


@given(*[st.integers(0, 12)] * 4)
def test_contradictory_counts_are_refused(episodes: int, successes: int, claims: int, right: int) -> None:
    sound = right <= min(successes, claims) and max(successes, claims) <= episodes
    with nullcontext() if sound else pytest.raises(ValueError, match="contradict"):
        Measured(episodes, successes, claims, right)


# ---- the folder --------------------------------------------------------------------------------------------------
def test_a_saved_classifier_predicts_the_same_and_is_loaded_if_it_reaches_its_bar(saved: Path, verdict: Build) -> None:
    first: Classifier = verdict(front=(32, 32), state=2)
    torch.manual_seed(3)
    for value in first.network.parameters():
        torch.nn.init.normal_(value)
    first.network.normalizer.fit(torch.randn(20, 2))
    first.provenance = {"seed": 3}
    save_classifier(first, saved)
    again = load_classifier(saved)
    pictures = torch.randint(0, 256, (5, 32, 32, 3), dtype=torch.uint8)
    observation = {FRONT: pictures, "observation.state": torch.ones(5, 2)}
    assert torch.equal(again.probability(observation), first.probability(observation))
    assert again.folder == saved and again.summary() == first.summary() and again.provenance == {"seed": 3}
    assert sorted(p.name for p in saved.parent.iterdir()) == ["classifier"], "no temporary files"
    weak = verdict(front=(32, 32), measured=Measured(40, 20, 20, 18))
    save_classifier(weak, saved)
    assert not read_classifier(saved).reaches_bar
    with pytest.raises(ConfigError, match=r"precision 0.900 and recall 0.900 on 40 held-out episodes.*0.95 for both"):
        load_classifier(saved)


@pytest.mark.parametrize(("changes", "words"), [
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
])  # fmt: skip
def test_invalid_descriptions_are_refused(saved: Path, changes: dict[str, Any], words: str) -> None:
    file = saved / "classifier.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ConfigError, match=words):
        read_classifier(saved)


def test_damaged_and_missing_files_are_refused(saved: Path, tmp_path: Path) -> None:
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


# ---- fit to a task -----------------------------------------------------------------------------------------------
SEES = ObservationSpec.of(**{FRONT: picture_field(32, 32), "observation.images.wrist": picture_field(16, 16)})
LIFT = tasks.get("panda-lift").interface


@pytest.mark.parametrize(("options", "rate", "interface", "words"), [
    ({"side": (32, 32)}, 20.0, LIFT, "reads observation.images.side of 32x32 pixels, which is not there here"),
    ({"front": (48, 32)}, 20.0, LIFT, "images.front of 48x32 pixels, which is 32x32 pixels here"),
    ({"front": (32, 32), "rate": 30.0}, 20.0, LIFT, "fitted to 30 frames per second, and here are 20"),
    ({"front": (32, 32)}, 20.0, replace(LIFT, instruction="push it"), "knows no success of 'push it'"),
    ({"front": (32, 32)}, 20.0, tasks.get("tabletop").interface, "knows no success of"),
])  # fmt: skip
def test_tasks_that_do_not_fit_are_refused(verdict: Any, options: Any, rate: Any, interface: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        verdict(**options).require_fit(SEES, rate, interface)


def test_a_classifier_fits_a_task_with_its_cameras_and_state(verdict: Build) -> None:
    verdict(front=(32, 32)).require_fit(SEES, 20.0, LIFT)
    verdict(front=(32, 32), wrist=(16, 16)).require_fit(SEES, 20.0, None)
    state = Pipeline(LIFT).observation_spec
    verdict(front=(32, 32), state=state["observation.state"].shape[0]).require_fit(state | SEES, 20.0, LIFT)
    with pytest.raises(ConfigError, match=r"observation.state of 5 numbers, which is \d+ numbers here"):
        verdict(front=(32, 32), state=5).require_fit(Pipeline(LIFT).observation_spec | SEES, 20.0, LIFT)
    with pytest.raises(ConfigError, match="observation.state of 5 numbers, which is not there here"):
        verdict(front=(32, 32), state=5).require_fit(SEES, 20.0, LIFT)
