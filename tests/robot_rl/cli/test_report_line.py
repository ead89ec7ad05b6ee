"""README's lines from demonstrations to a report: the report has what it promises, with no option for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from robot_rl.cli.main import main


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in (
            "collect panda-lift --episodes 2 --num-envs 2 --image-size 0",
            "train panda-lift --recipe diffusion-bc --out runs/imitate --training.updates 2",
            "evaluate runs/imitate --episodes 2 --num-envs 2",
            "evaluate runs/imitate/bundle --episodes 2 --num-envs 2 --inference-delay 60",
            "report runs/imitate --out report.html",
        ):
            assert main(line.split()) == 0, line
    return folder


def test_the_report_shows_success_demonstrations_and_randomization(runs: Path) -> None:
    page = (runs / "report.html").read_text()
    for section in ("success", "dataset", "randomization"):
        assert f'<section id="{section}"' in page
    assert "demonstrator\u2019s success" in page and "cube.mass" in page


def test_results_of_other_conditions_are_kept_apart(runs: Path) -> None:
    names = sorted(path.name for path in (runs / "runs/imitate").glob("evaluation*.json"))
    assert names == ["evaluation-60ms.json", "evaluation.json"]
    assert "inference_delay" not in json.loads((runs / "runs/imitate/evaluation.json").read_text())


def test_a_bundle_elsewhere_gets_no_file_beside_it(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "runs/imitate/bundle", tmp_path / "bundle")
    assert main(f"evaluate {tmp_path}/bundle --episodes 2 --num-envs 2".split()) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("evaluate zero:panda-lift --video x.gif", "x.gif: videos are written as mp4"),
        ("collect panda-lift --image-size 5000 --out data", "image-size is 5000; it must be less than or equal to 960"),
    ],
)
def test_what_cannot_be_done_is_said_first(
    line: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2 and words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
