"""`train --resume` to more steps: bit-identical to a longer run if the recipe allows it, else refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_rl.cli.main import main
from robot_rl.training.run import read_metrics

Train = Callable[..., tuple[int, str]]
SMALL = ("--training.num-envs", "4", "--training.rollout", "20", "--policy.hidden", "16", "--agent.hidden", "16")


@pytest.fixture
def train(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Train a Go2 for a number of steps; return exit status and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(out: str, steps: int, *more: str) -> tuple[int, str]:
        words = ["train", "go2-velocity", "--recipe", "ppo", *SMALL, "--out", out]
        code = main([*words, "--training.steps", str(steps), *more])
        torch.set_num_threads(1)
        return code, capsys.readouterr().err

    return call


def learned(folder: str) -> dict[str, bytes]:
    return {name: (Path(folder) / "bundle" / f"{name}.safetensors").read_bytes() for name in ("policy", "critic")}


def curves(folder: str) -> list[dict[str, float]]:
    clock = ("seconds", "train/steps_per_second", "train/update_seconds")
    return [{k: v for k, v in row.items() if k not in clock} for row in read_metrics(Path(folder))]


def test_extended_on_policy_run_equals_a_longer_run(train: Train) -> None:
    assert train("whole", 480)[0] == 0 and train("longer", 240)[0] == 0
    first = learned("longer")
    assert train("longer", 480, "--resume")[0] == 0
    assert learned("longer") == learned("whole") != first
    assert curves("longer") == curves("whole") and curves("whole")[-1]["step"] == 480
    assert json.loads(Path("longer/config.json").read_text())["config"]["training"]["steps"] == 480
    code, said = train("longer", 240, "--resume")
    assert code == 2 and "was started with different settings (config): config was training steps 480" in said, said
    assert learned("longer") == learned("whole")


def test_extended_off_policy_run_equals_a_longer_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend offline updates by environment steps, and these by more steps."""
    monkeypatch.chdir(tmp_path)
    assert main(["collect", "testbed:push", "--skill", "WEAK", "--keep-failures", "--out", "data"]) == 0
    words = ["train", "testbed:push", "--recipe", "iql", "--dataset", "data", "--policy.hidden", "16"]
    words += ["--agent.hidden", "16", "--training.offline-updates", "20", "--training.log-every", "20"]
    words += ["--training.batch", "32", "--training.learning-starts", "20"]
    for out, steps in (("whole", [120]), ("longer", [0, 40, 120])):
        for count in steps:
            assert main([*words, "--training.steps", str(count), "--out", out, *["--resume"] * bool(count)]) == 0
    torch.set_num_threads(1)
    assert learned("longer") == learned("whole")
    assert [row["step"] for row in curves("longer")] == [20, 40, 60, 80, 100, 120, 140]


def test_other_changed_settings_are_refused(train: Train) -> None:
    assert train("r", 80)[0] == 0
    for more in (["--agent.epochs", "2"], ["--seed", "1"]):
        code, said = train("r", 160, "--resume", *more)
        assert code == 2 and "was started with different settings" in said and "80" not in said, said
    assert json.loads(Path("r/config.json").read_text())["config"]["training"]["steps"] == 80


def test_run_without_input_files_resumes_from_another_folder(train: Train, tmp_path: Path, monkeypatch: Any) -> None:
    assert train("r", 80)[0] == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert train("../r", 160, "--resume")[0] == 0
    assert curves("../r")[-1]["step"] == 160
