"""`train --workers`: environments on a Ray cluster of two nodes of this computer, one of which is killed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_rl.cli.main import main
from robot_rl.cluster import workers
from robot_rl.cluster.remote import Cluster
from robot_rl.cluster.workers import WorkerEnv, on_workers
from robot_rl.training.run import read_metrics
from robot_rl.util.errors import ConfigError, UserError
from sim.make import make

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def cluster(ray: Any) -> Iterator[Cluster]:
    joined = Cluster(ray.address)
    yield joined
    joined.close()


def equal(a: Any, b: Any) -> bool:
    """Return whether two results have the same tensors, numbers and texts."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[name], b[name]) for name in a)
    return len(a) == len(b) and all(map(equal, a, b)) if isinstance(a, list | tuple) else bool(a == b)


def actions(env: Any, steps: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    return 2 * torch.rand(steps, env.num_envs, env.info.action, generator=rng) - 1


@pytest.mark.parametrize(
    ("task", "steps", "options"),
    [("panda-lift", 160, {}), ("go2-velocity", 40, {"stagger": True}), ("panda-lift-cameras", 4, {}),
     ("testbed:swing", 120, {"group": 2}), ("gym:Pendulum-v1", 205, {})],
)  # fmt: skip
def test_steps_equal_those_of_one_computer(cluster: Cluster, task: str, steps: int, options: dict[str, Any]) -> None:
    here, there = make(task, 5 if not options else 8), on_workers(cluster, 2)(task, 5 if not options else 8)
    try:
        assert equal(here.reset(seed=7, options=options), there.reset(seed=7, options=options))
        assert there.info == here.info and equal(here.hold_action(), there.hold_action())
        for k, action in enumerate(actions(here, steps)):
            if hasattr(there, "request_images"):
                rows = torch.arange(here.num_envs) % 2 == k % 2
                here.request_images(rows)  # type: ignore[attr-defined]
                there.request_images(rows)
            mine, theirs = here.step(action), there.step(action)
            ended = mine[2] | mine[3]
            if "final_obs" in mine[4]:  # of the others, it has no meaning
                for final in (mine[4].pop("final_obs"), theirs[4].pop("final_obs")):
                    theirs[4].setdefault("final", []).append({name: value[ended] for name, value in final.items()})
                assert equal(*theirs[4].pop("final"))
            assert equal(mine, theirs), f"step {k}"
    finally:
        here.close()
        there.close()


def test_a_lost_worker_is_replaced_without_a_trace(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "SAVE_EVERY", 20)
    here, there = make("panda-lift", 4), WorkerEnv(cluster, 2, "panda-lift", 4)
    for env in (here, there):
        env.reset(seed=3)
    for k, action in enumerate(actions(here, 60)):
        if k in (5, 47):  # before the first saved state, and after one
            there.parts[k % 2].close()
        for env in (here, there):
            env.set_ranges({"cube.mass": (0.05, 0.05 + 0.001 * k)})  # type: ignore[union-attr]
        mine, theirs = here.step(action), there.step(action)
        assert equal(mine[:4], theirs[:4]), f"step {k}"
    saved = there.state_dict()
    following = there.step(action)
    there.load_state_dict(saved)
    assert equal(following[0], there.step(action)[0])
    here.close()
    there.close()


def test_what_cannot_be_restored_is_said(cluster: Cluster) -> None:
    there = WorkerEnv(cluster, 1, "gym:Pendulum-v1", 2)
    there.reset(seed=0)
    assert not hasattr(there, "state_dict")
    there.parts[0].close()
    with pytest.raises(UserError, match="gym:Pendulum-v1 cannot be restored; go on with --resume"):
        there.step(torch.zeros(2, 1))


@pytest.mark.parametrize(
    ("count", "task", "said"),
    [(9, "testbed:push", "--workers 9: the recipe has only 8"), (3, "testbed:push", "the Ray cluster has 2; give"),
     (2, "gym:Nowhere-v0", "Nowhere")],
)  # fmt: skip
def test_bad_workers(cluster: Cluster, count: int, task: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        WorkerEnv(cluster, count, task, 8)


def test_groups_are_not_split(cluster: Cluster) -> None:
    there = WorkerEnv(cluster, 2, "testbed:push", 6)
    with pytest.raises(ConfigError, match="would split groups of 2 environments"):
        there.reset(seed=0, options={"group": 2})
    there.close()


@pytest.mark.parametrize(
    "words",
    [
        ["panda-lift", "--recipe", "ppo", "--training.num-envs", "8", "--training.steps", "576", "--training.reward",
         "success", "--curriculum", "adr:0.2:0.8"],
        ["testbed:push", "--recipe", "sac", "--training.num-envs", "4", "--training.steps", "600", "--training.warmup",
         "100", "--training.learning-starts", "100"],
    ],
)  # fmt: skip
def test_training_survives_a_killed_worker_and_equals_that_of_one_computer(
    ray: Any, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    step, stepped = WorkerEnv.step, 0

    def lose(env: WorkerEnv, given: torch.Tensor) -> Any:
        nonlocal stepped
        stepped += 1
        if stepped == 40:
            env.parts[1].close()
        return step(env, given)

    monkeypatch.setattr(WorkerEnv, "step", lose)
    shared = ["train", *words, "--threads", "1"]
    assert main([*shared, "--ray", ray.address, "--workers", "2", "--out", str(tmp_path / "far")]) == 0
    assert stepped > 40
    assert main([*shared, "--out", str(tmp_path / "near")]) == 0
    near, far = ((tmp_path / name / "bundle" / "policy.safetensors").read_bytes() for name in ("near", "far"))
    assert near == far
    timed = ("seconds", "train/steps_per_second", "train/update_seconds")
    rows = [
        [{k: v for k, v in row.items() if k not in timed} for row in read_metrics(tmp_path / name)]
        for name in ("near", "far")
    ]
    assert rows[0] == rows[1]
    assert main([*shared, "--out", str(tmp_path / "far"), "--resume"]) == 2, "its environments are saved in two parts"
    assert "workers was 2" in " ".join(capfd.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--workers", "2"], "name the Ray cluster of the workers with --ray"),
        (["--workers", "2", "--seeds", "0..1", "--ray", "127.0.0.1:1"], "give one of the two"),
        (["--ray", "127.0.0.1:1"], "give one of the two"),
    ],
)
def test_options_that_do_not_fit(words: list[str], said: str, capfd: Any) -> None:
    assert main(["train", "testbed:fork", "--recipe", "sac", *words]) == 2
    assert said in " ".join(capfd.readouterr().err.split())


def test_a_lost_node(ray: Any, cluster: Cluster) -> None:
    """The last test: one node is left."""
    here, there = make("testbed:push", 4), WorkerEnv(cluster, 1, "testbed:push", 4)
    for env in (here, there):
        env.reset(seed=3)
    actor = cluster.ray._private.state.actors(there.parts[0].actor._actor_id.hex())
    ray.nodes.sort(key=lambda node: node.node_id != actor["Address"]["NodeID"])
    for k, action in enumerate(actions(here, 20)):
        if k == 10:
            ray.lose_node()
        assert equal(here.step(action)[:4], there.step(action)[:4])
    there.close()
