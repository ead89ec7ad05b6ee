"""Policy with two cameras, deployed on a twin over the robot's topics."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.base import Observation, Size
from policies.bundle import Bundle, save_bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.cli.deploy import Deploy
from robot_rl.interface.pipeline import Pipeline
from sim.tasks import tasks

pytestmark = [pytest.mark.realtime, pytest.mark.usefixtures("stopping", "short_bare_loop")]
TASK = tasks.get("panda-lift-cameras")


def test_policy_with_two_cameras_runs_on_a_twin(twin: Any, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    twin(TASK.name)
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
