"""README's commands from demonstrations to a report: the report is complete without extra options."""

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


def test_other_conditions_go_to_another_file(runs: Path) -> None:
    names = sorted(path.name for path in (runs / "runs/imitate").glob("evaluation*.json"))
    assert names == ["evaluation-60ms.json", "evaluation.json"]
    assert "inference_delay" not in json.loads((runs / "runs/imitate/evaluation.json").read_text())


def test_bundle_outside_a_run_gets_no_result_file(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "runs/imitate/bundle", tmp_path / "bundle")
    assert main(f"evaluate {tmp_path}/bundle --episodes 2 --num-envs 2".split()) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
