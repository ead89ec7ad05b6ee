"""`robot-rl transfer`: one policy in several places."""

import json
from pathlib import Path

import pytest
import torch

from policies.base import Size
from policies.bundle import Bundle, save_bundle
from policies.feedforward import FeedforwardPolicy
from robot_rl.cli.main import main
from robot_rl.cli.transfer import interval, shown
from robot_rl.interface.pipeline import Pipeline
from robot_rl.robots import robots
from sim.tasks import tasks

SHORT = ("--episodes", "4", "--num-envs", "4", "--json")


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    """Bundle of a network that was not trained."""
    interface = tasks.get("panda-lift").interface
    pipeline = Pipeline(interface)
    torch.manual_seed(0)
    network = FeedforwardPolicy(Size(pipeline.observer.spec.size, pipeline.actions.size))
    save_bundle(Bundle(network, interface, robots.get("panda").fingerprint()), tmp_path / "bundle")
    return str(tmp_path / "bundle")


def test_places_share_episodes_and_differ_in_dynamics(
    bundle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranges = tmp_path / "ranges.json"
    ranges.write_text(json.dumps({"cube.bias_x": {"low": 0.3, "high": 0.3}}))
    assert main(["transfer", bundle, *SHORT, "--identified", str(ranges), "--where", "mujoco", "dynamics"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["place"] for row in found["places"]] == ["mujoco", "dynamics", "identified"]
    mujoco, dynamics, identified = found["places"]
    assert all(row["episodes"] == 4 and row["divergences"] == 0 for row in found["places"])
    changes = [row["action_change"] for row in (mujoco, dynamics, identified)]
    assert len(set(changes)) == 3, "the policy meets other states in each place"
    assert json.loads((tmp_path / "transfer.json").read_text()) == found
    assert "success" in (tmp_path / "transfer.html").read_text()


def test_the_twin_is_deployed_behind_its_topics(
    bundle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*SHORT, "--where", "nominal", "twin", "--twin-episodes", "1", "--out", str(tmp_path / "t.json")]
    assert main(["transfer", bundle, *options]) == 0
    nominal, twin = json.loads(capsys.readouterr().out)["places"]
    assert twin["place"] == "twin" and twin["episodes"] == 1 and twin["where"] != "simulation"
    assert nominal["success"] is not None and (tmp_path / "t.html").is_file()


@pytest.mark.parametrize(("options", "words"), [
    (("--where", "mars"), "place 'mars'"),
    (("--where", "identified"), "needs --identified FILE"),
    (("--identified", "none.json"), "none.json is no JSON or TOML file of ranges"),
])  # fmt: skip
def test_wrong_places_are_named_before_anything_runs(
    bundle: str, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    assert main(["transfer", bundle, *options]) == 2
    assert words in capsys.readouterr().err


def test_intervals_of_rates_and_means() -> None:
    row = {"success": 0.5, "success_low": 0.4, "success_high": 0.6}
    row |= {"velocity_error": {"mean": 1, "low": None, "high": None}}
    assert interval(row, "success") == (0.5, 0.4, 0.6) and interval(row, "velocity_error") == (1, 1, 1)
    assert shown(row, "success") == "0.50 [0.40, 0.60]" and shown(row, "other") == ""
