"""Policy with two cameras, deployed on a twin over the robot's topics."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.base import Observation, Size
from policies.bundle import Bundle, save_bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from real.control import clock
from robot_rl.cli.deploy import Deploy
from robot_rl.interface.pipeline import Pipeline
from sim.tasks import tasks

pytestmark = [pytest.mark.realtime, pytest.mark.usefixtures("stopping")]
TASK = tasks.get("panda-lift-cameras")


@pytest.fixture
def twin(private_domain: int) -> Iterator[None]:
    command = [sys.executable, "-m", "robot_rl.cli.main", "twin", "panda", "--task", TASK.name]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    first = process.stderr.readline()
    assert "twin of panda is up" in first, first + process.stderr.read()
    yield
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)


def test_diffusion_policy_with_two_cameras_runs_an_episode_on_a_twin(
    twin: None, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "bare_loop", partial(clock.bare_loop, seconds=0.5))
    pipeline = Pipeline(TASK.interface)
    config = DiffusionConfig(horizon=8, execute=4, hidden=32, layers=1, train_steps=10, sample_steps=2)
    policy = DiffusionPolicy(Size(pipeline.observer.spec.size, pipeline.actions.size, pipeline.extra_inputs), config)
    save_bundle(Bundle(policy, TASK.interface, pipeline.robot.fingerprint()), tmp_path / "bundle")
    seen: list[Observation] = []
    condition: Callable[..., torch.Tensor] = DiffusionPolicy.condition

    def watched(self: DiffusionPolicy, observation: Observation) -> torch.Tensor:
        seen.append(observation)
        return condition(self, observation)

    monkeypatch.setattr(DiffusionPolicy, "condition", watched)
    options: dict[str, Any] = dict(episodes=1, seconds=2.0, video_episodes=0, out=tmp_path / "run", json=True)
    code = Deploy(tmp_path / "bundle", **options).run()
    result = json.loads(capsys.readouterr().out)
    assert code == 0 and result["where"] == "twin" and result["stopped"] == "" and "ended" not in result
    for observation in seen[-5:]:
        pipeline.observation_spec.check(observation)
    fronts = [o["observation.images.front"] for o in seen]
    assert len({bytes(f.numpy().tobytes()) for f in fronts}) > 3, "the pictures show motion"
    events = json.loads((tmp_path / "run" / "loop.json").read_text())["shield"]
    assert events.get("stale view", 0) < 10
