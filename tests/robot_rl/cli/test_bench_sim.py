"""`robot-rl bench sim` on a small scale: consistent figures, and bare physics equal to the environment's physics."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from robot_rl.cli.bench import Bare
from robot_rl.cli.main import main
from sim.env import TaskEnv

TASKS = ("go2-velocity", "panda-lift")


@pytest.mark.parametrize("task", TASKS)
def test_bare_physics_reaches_the_same_state(task: str) -> None:
    """Start in mid-episode, with commands in the delay lines and contacts in the solver."""
    env = TaskEnv(task, 3, randomize=False, threads=1)
    env.reset(seed=0)
    rng = torch.Generator().manual_seed(0)

    def act(steps: int) -> int:
        """Take small actions, with which no robot falls; return the number of ended episodes."""
        ended = 0
        for _ in range(steps):
            _, _, terminated, truncated, _ = env.step(0.3 * torch.rand(3, env.pipeline.actions.size, generator=rng))
            ended += int((terminated | truncated).sum())
        return ended

    engine: Any = env.engine
    bare, commands = Bare(engine), []
    assert act(5) == 0
    bare.start()
    assert np.array_equal(bare.batch.bind("qpos"), engine.qpos)
    with engine.recording(commands):
        assert act(8) == 0
    assert not np.array_equal(bare.batch.bind("qpos"), engine.qpos)
    bare.follow(commands)
    assert np.array_equal(bare.batch.bind("qpos"), engine.qpos)
    assert np.array_equal(bare.batch.bind("qvel"), engine.qvel)
    env.close()


def test_figures_are_complete_and_consistent(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    try:
        code = main(["bench", "sim", "--sizes", "4", "--peers", "2", "--seconds", "0.2", "--json"])
    finally:
        torch.set_num_threads(threads)
    result = json.loads(capsys.readouterr().out)
    assert code == 0 and result.pop("provenance")["command"]
    assert set(result) == {f"{task}, {rest}" for task in TASKS for rest in ("4", "2, gymnasium")}
    for name, row in result.items():
        assert all(math.isfinite(value) and value > 0 for value in row.values()), (name, row)
        if name.endswith("gymnasium"):
            assert set(row) == {"ratio", *(f"{kind}_steps_per_second" for kind in ("ours", "sync", "async"))}
            best = max(row["sync_steps_per_second"], row["async_steps_per_second"])
            assert row["ratio"] == pytest.approx(row["ours_steps_per_second"] / best)
        else:
            ours, bare = row.pop("steps_per_second"), row.pop("bare_physics")
            assert row == pytest.approx({"share": ours / bare}) and row["share"] < 1.5
