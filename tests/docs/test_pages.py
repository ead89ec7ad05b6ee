"""The tutorials on adding tasks, robots and recipes: their package is built, installed and run."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from robot_rl.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("add-a-task.md", "add-a-robot.md", "add-a-driver.md", "add-a-recipe.md")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site folder with the tutorials' package, installed by pip."""
    from robot_rl.robots.panda import PANDA
    from sim.scenes import robot_model

    source, target = tmp_path_factory.mktemp("my-lab"), tmp_path_factory.mktemp("site")
    (source / "my_lab").mkdir()
    (source / "my_lab" / "__init__.py").touch()
    for page in PAGES:
        for code in re.findall(r"^```(?:python|toml)\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S):
            path = re.match(r"# ([\w./]+)\n", code)
            assert path, f"{page}: a block does not say which file it is for"
            with (source / path[1]).open("a") as file:
                file.write(code)
    assets = robot_model(PANDA).parents[2]
    shutil.copytree(assets / "urdf" / "kuka_iiwa", source / "my_lab" / "iiwa_model")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*pip, "--target", target, source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def run(site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command line in an empty folder; return its stdout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(site)

    def go(line: str) -> str:
        assert main(line.split()) == 0, capsys.readouterr()
        return capsys.readouterr().out

    yield go
    for name in [name for name in sys.modules if name.split(".")[0] == "my_lab"]:
        del sys.modules[name]


def test_documented_task_is_listed_collected_and_evaluated(run: Any, tmp_path: Path) -> None:
    from robot_rl.data import Dataset, verify

    assert "in-the-middle" in run("tasks") and "my-lab 0.1.0" in run("tasks")
    collected = json.loads(run("collect in-the-middle --episodes 6 --num-envs 4 --image-size 0 --json"))
    assert collected["episodes"] == 6 and collected["new_attempts"] <= 8
    assert verify(tmp_path / "datasets" / "in-the-middle") == []
    assert Dataset(tmp_path / "datasets" / "in-the-middle").tasks == ["go between the cube and the mark"]
    chance = json.loads(run("evaluate random:in-the-middle --episodes 8 --num-envs 8 --json"))
    assert chance["success"] <= 0.25


def test_documented_robot_matches_its_model_and_trains(run: Any, tmp_path: Path) -> None:
    from robot_rl.robots import robots

    assert "iiwa" in run("robots")
    report = json.loads(run("robots check iiwa --json"))
    severity = {finding["what"]: finding["severity"] for finding in report["findings"]}
    assert report["ok"] and severity["frames"] == severity["motion"] == severity["limits"] == "ok"
    assert Path(robots.get("iiwa").model).parts[-3:] == ("my_lab", "iiwa_model", "model.urdf")
    run("collect my_lab.reach:TASK --episodes 4 --num-envs 4 --image-size 0")
    run("train my_lab.reach:TASK --recipe diffusion-bc --training.updates 2 --out run")
    measured = json.loads(run("evaluate run --episodes 2 --json"))
    assert measured["steps"] > 0, "the bundle's names identify task and robot"


def test_tables_of_a_robots_page_name_all_fields_and_drivers() -> None:
    from dataclasses import fields

    from real.drivers import drivers
    from robot_rl.interface.driver import DriverConfig
    from robot_rl.interface.robot import Gripper, Joint, Tool

    page = (DOCS / "add-a-robot.md").read_text()
    for kind in (Joint, Tool, Gripper):
        (table,) = re.findall(rf"^\| `{kind.__name__}` \| unit .*\n\|.*\n((?:\|.*\n)+)", page, re.M)
        named = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
        assert sorted(named) == sorted(field.name for field in fields(kind)), kind
    configs = {kind.driver: kind.__name__ for kind in below(DriverConfig) if kind.driver in drivers.entries}
    assert configs.keys() == drivers.entries.keys()
    (table,) = re.findall(r"^\| driver's config .*\n\|.*\n((?:\|.*\n)+)", page, re.M)
    assert set(configs.values()) == set(re.findall(r"`([A-Z]\w+)`", table))


def below(kind: type) -> list[type]:
    """Return all subclasses of a class."""
    return [each for child in kind.__subclasses__() for each in (child, *below(child))]


@pytest.mark.parametrize("command", ["twin", "collect"])
def test_help_on_another_model_file_is_right_for_any_robot(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = " ".join(re.sub(r"[^\w.,;:`-]", " ", capsys.readouterr().out).split())
    assert "MJCF or URDF" in shown and "genesis-world" not in shown.partition("--mjcf")[2][:120]


def test_documented_driver_has_a_twin(run: Any, tmp_path: Path) -> None:
    from policies.bundle import save_bundle
    from robot_rl.cli.bench.loop import acting
    from robot_rl.robots import robots

    save_bundle(acting(robots.get("panda"), None), tmp_path / "lift")
    ran = "deploy lift --robot my_lab.pose_arm:PANDA_POSES --twin --episodes 1 --seconds 1 --video-episodes 0 --json"
    assert json.loads(run(ran))["steps"] == 20
    assert json.loads(run("robots check my_lab.pose_arm:PANDA_POSES --json"))["ok"]


def test_documented_recipes_train(run: Any, tmp_path: Path) -> None:
    assert "droq" in run("recipes") and "Hiraoka" in run("recipes droq")
    options = "--training.steps 300 --training.updates-per-step 0.5 --training.log-every 100"
    run(f"train gym:Pendulum-v1 --recipe droq --out droq {options}")
    measured = json.loads(run("evaluate droq --episodes 2 --num-envs 2 --json"))
    assert measured["episodes"] == 2 and measured["return"]["mean"] < 0 and "success" not in measured
    run("collect panda-lift --episodes 2 --image-size 0")
    run("train panda-lift --recipe my_lab.linear:LinearBC --training.updates 5 --out linear")
    policy = json.loads((tmp_path / "linear" / "bundle" / "policy.json").read_text())["policy"]
    assert policy["class"] == "my_lab.linear:LinearPolicy"
    assert json.loads(run("evaluate linear --episodes 2 --num-envs 2 --json"))["episodes"] == 2


@pytest.mark.timeout(600)
def test_documented_examples_are_current_and_run(tmp_path: Path) -> None:
    shown = re.findall(r"^```python\n# (examples/\w+\.py)\n(.*?)^```", (DOCS / "python.md").read_text(), re.M | re.S)
    assert {path for path, _ in shown} == {f"examples/{file.name}" for file in (DOCS.parent / "examples").glob("*.py")}
    here = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "ROS_DOMAIN_ID": str(os.getpid() % 100)}
    for path, code in shown:
        file = DOCS.parent / path
        assert file.read_text() == code and len(list(filter(None, code.splitlines()))) <= 16
        command, environment = [sys.executable, str(file)], os.environ | here
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
