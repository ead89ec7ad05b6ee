"""go2-rough and go2-rough-scan: contract, symmetry of the scan, curriculum, evaluation by ground."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.base import RandomPolicy
from robot_rl.cli.main import main
from robot_rl.evaluation import evaluate
from robot_rl.training.terrain import TerrainCurriculum
from sim.env import TaskEnv
from sim.tasks import tasks
from sim.terrain import Terrain

SMALL = Terrain(levels=4, tile_size=5.0, border_width=3.0)


def small(name: str, **interface: Any) -> Any:
    """Return the task on few tiles; keywords replace fields of its interface."""
    task = tasks.get(name)
    scene = replace(task.scene, ground=SMALL)
    return replace(task, scene=scene, interface=replace(task.interface, **interface))


def test_the_blind_policy_observes_what_it_does_on_level_ground() -> None:
    rough, level = (tasks.get(name).interface for name in ("go2-rough", "go2-velocity"))
    assert replace(rough, task="go2-velocity", controller=level.controller) == level


def test_the_gait_alone_lifts_the_feet_as_high_as_the_highest_step() -> None:
    env = TaskEnv("go2-rough", 4, threads=1, randomize=False, levels=(0, 0))
    env.reset(seed=3)
    highest = torch.zeros(4)
    for _ in range(270):  # commands begin after 4 s
        env.step(torch.zeros(4, 12))
        assert env.episodes.feet is not None
        highest = torch.maximum(highest, env.episodes.feet.sole(env.true).amax(1))
    assert 0.09 < highest.max() < 0.14
    env.close()


def test_the_mirror_image_of_a_scan_is_the_scan_at_the_reflected_points() -> None:
    env = TaskEnv(small("go2-rough-scan"), 1, threads=1)
    points = torch.tensor(env.pipeline.observer.scan)
    assert len(points) == 13 * 9 and points.abs().amax(0).tolist() == pytest.approx([0.6, 0.4])
    mirror = env.task.mirror
    assert mirror is not None
    at = env.pipeline.observer.spec.slice("height_scan")
    for k, reflection in ((0, mirror.observation), (1, mirror.privileged)):
        start = at.start if k == 0 else 0
        image = reflection(torch.arange(float(len(reflection))))[start : start + len(points)].long() - start
        assert torch.allclose(points[image], points * torch.tensor([1.0, -1.0]))


def test_a_resumed_curriculum_is_bit_identical(same: Any) -> None:
    task = small("go2-rough", horizon=12)
    env, other = (TerrainCurriculum(TaskEnv(task, 6, threads=1)) for _ in range(2))
    moves = 0.3 * torch.randn(90, 6, 12, generator=torch.Generator().manual_seed(0))
    env.reset(seed=1, options={"stagger": True})
    for action in moves[:40]:
        env.step(action)
    other.reset(seed=9)
    other.load_state_dict(env.state_dict())
    for action in moves[40:]:
        assert same(env.step(action), other.step(action))
        assert torch.equal(env.levels, other.levels) and torch.equal(env.tiles, other.tiles)


def test_evaluations_report_kinds_and_levels() -> None:
    env = TaskEnv(small("go2-rough", horizon=3), 8, threads=1, levels=(1, 2))
    result = evaluate(RandomPolicy(12, 0.0), env, 20, seed=0).summary()
    found = result["by_ground"]
    kinds = {name: each for name, each in found.items() if not name.startswith("level")}
    assert set(found) - set(kinds) == {"level 1", "level 2"} and set(kinds) <= set(SMALL.kinds)
    for groups in (kinds, {name: found[name] for name in ("level 1", "level 2")}):
        assert sum(each["episodes"] for each in groups.values()) == 20
        mean = sum(each["episodes"] * each["velocity_error"] for each in groups.values()) / 20
        assert mean == pytest.approx(result["velocity_error"]["mean"], rel=1e-5)


@pytest.mark.timeout(300)
def test_training_evaluation_and_levels_from_the_command_line(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(tasks.entries, "small-rough", ("tests_small_rough:TASK", "few tiles"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests_small_rough.py").write_text(
        "from dataclasses import replace\nfrom sim.tasks.go2_rough import TASK as T\nfrom sim.terrain import Terrain\n"
        "TASK = replace(T, scene=replace(T.scene, ground=Terrain(levels=4, tile_size=5.0, border_width=3.0)))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    sizes = ["--training.num-envs", "8", "--training.rollout", "8", "--training.checkpoint-every", "64"]
    train = ["train", "small-rough", "--recipe", "ppo", *sizes, "--out", "run"]
    assert main([*train, "--training.steps", "128"]) == 0
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert all(0 <= row["env/terrain_level"] <= 1 for row in rows), "in the lower half at first"
    assert json.loads(Path("run/config.json").read_text())["levels"] == "curriculum"
    assert main([*train, "--training.steps", "192", "--resume"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "run", "--episodes", "4", "--levels", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["levels"] == [3, 3] and result["by_ground"]["level 3"]["episodes"] == 4
    assert Path("run/evaluation-levels-3.json").is_file()
    assert main([*train[:-1], "none", "--training.steps", "64", "--levels", "4"]) == 2
    assert "levels 4..4 are not within 0..3" in capsys.readouterr().err
