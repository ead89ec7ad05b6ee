"""The pages that show how to add a task and a robot: a test builds each as the page says."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, ModuleType]]:
    """Put the python blocks of a page in place, as its reader would; undone afterwards."""

    def follow(name: str) -> dict[str, ModuleType]:
        built = {}
        for code in re.findall(r"^```python\n(.*?)^```", (DOCS / name).read_text(), re.M | re.S):
            path = re.match(r"# ([\w/]+)\.py\n", code)
            assert path, f"{name}: a block does not say which file it is for"
            module_name = path[1].replace("/", ".").removesuffix(".__init__")
            if path[1].endswith("__init__") or module_name == "robot_rl.interface.success":
                # An addition to a file that exists: run it among that file's names.
                existing = sys.modules.get(module_name) or __import__(module_name, fromlist=["_"])
                scope = dict(vars(existing))
                exec(compile(code, f"{name}: {path[1]}.py", "exec"), scope)
                built[module_name] = ModuleType(module_name)
                vars(built[module_name]).update(scope)
                for registry in ("tasks", "robots"):
                    if isinstance(vars(existing).get(registry), type(scope.get(registry))) and registry in scope:
                        monkeypatch.setattr(vars(existing)[registry], "entries", scope[registry].entries)
                if module_name == "robot_rl.interface.success":
                    shown = code.partition("\n")[2]
                    assert shown in inspect.getsource(existing), f"{name} shows another {path[1]}.py"
                continue
            module = ModuleType(module_name)
            monkeypatch.setitem(sys.modules, module_name, module)
            exec(compile(code, f"{name}: {path[1]}.py", "exec"), vars(module))
            built[module_name] = module
        return built

    return follow


def test_the_task_of_the_page_collects_demonstrations(page: Callable[..., Any], tmp_path: Path) -> None:
    page("add-a-task.md")
    from robot_rl.data import Dataset, verify
    from sim.collect import collect
    from sim.env import TaskEnv
    from sim.tasks import tasks

    assert set(tasks) == {"go2-velocity", "panda-lift", "panda-turn", "ur5e-reach", "panda-touch"}
    env = TaskEnv("panda-touch", 4, threads=1)
    got = collect(env, tmp_path / "data", 6, seed=0, image_size=0)
    env.close()
    assert got.episodes == 6 and got.attempts <= 8
    assert verify(tmp_path / "data") == []
    assert Dataset(tmp_path / "data").tasks == ["touch the cube"]


def test_chance_does_not_solve_the_task_of_the_page(page: Callable[..., Any]) -> None:
    page("add-a-task.md")
    from policies.base import RandomPolicy
    from robot_rl.evaluation import evaluate
    from sim.env import TaskEnv

    env = TaskEnv("panda-touch", 8, threads=1)
    result = evaluate(RandomPolicy(env.pipeline.actions.size), env, 8)
    env.close()
    assert sum(result.success) <= 2


def test_the_walking_robot_of_the_page_is_driven_in_the_order_of_its_messages(page: Callable[..., Any]) -> None:
    rewired = page("add-a-robot.md")["robot_rl.robots.go2_rewired"].GO2_REWIRED
    from real.robots.lowlevel import Motors

    motors = Motors(rewired)
    command = motors.command(np.array(rewired.home))["motor_cmd"]["q"][: motors.count]
    named = dict(zip(rewired.joint_names, rewired.home, strict=True))
    assert command == pytest.approx([named[name] for name in rewired.ros.motors])
    assert rewired.ros.motors[:3] == ("RR_hip_joint", "RR_thigh_joint", "RR_calf_joint") and rewired.base.lying
    assert sorted(rewired.ros.feet) == sorted(rewired.base.feet)


def test_a_spec_may_name_a_model_file_of_its_own(tmp_path: Path) -> None:
    from robot_rl.robots.go2 import GO2
    from robot_rl.util.errors import Misfit
    from sim.scenes import robot_model

    own = tmp_path / "own.urdf"
    with pytest.raises(Misfit, match="own.urdf: no such file; mend `model` of robot 'go2'"):
        robot_model(replace(GO2, model=str(own)))
    own.write_bytes(robot_model(GO2).read_bytes())
    assert robot_model(replace(GO2, model=str(own))) == own


def test_the_robot_of_the_page_moves_within_its_own_limits(page: Callable[..., Any], task: Callable[..., Any]) -> None:
    built = page("add-a-robot.md")
    from policies.bundle import Bundle, BundleError
    from real.launch import describe
    from robot_rl.robots import robots
    from sim.env import TaskEnv

    slow, panda = robots.get("panda-slow"), robots.get("panda")
    env = TaskEnv(built["sim.tasks.panda_slow_lift"].TASK, 2, threads=1)
    assert torch.allclose(env.pipeline.shield.velocity, 0.5 * 0.5 * panda.limit("velocity"))
    env.reset(seed=0)
    for _ in range(5):
        env.step(torch.ones(2, 4))
    assert (env.velocity.abs() <= env.pipeline.shield.velocity + 1e-6).all()
    assert env.command.isfinite().all()
    env.close()
    lift: Any = task()
    with pytest.raises(BundleError, match="panda-slow"):
        Bundle(None, lift.interface, panda.fingerprint()).check_robot(slow)  # type: ignore[arg-type]
    assert describe("twin", {})  # the file still describes itself
