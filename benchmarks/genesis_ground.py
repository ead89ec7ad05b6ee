"""Robots stand on the same uneven ground in Genesis and MuJoCo: `python -m benchmarks.genesis_ground`.

Not a test, since Genesis compiles contacts with height fields for minutes.
"""

from dataclasses import replace

import torch

from sim.env import TaskEnv
from sim.tasks import tasks
from sim.terrain import Terrain


def main() -> None:
    """Print how far robots in the two engines are apart after each of 50 control periods, and where they stand."""
    task = tasks.get("go2-rough")
    ground = Terrain(kinds=("slope_up", "stairs_down"), levels=2, tile_size=4.0, border_width=2.0)
    task = replace(task, scene=replace(task.scene, ground=ground), randomization=(), mirror=None)
    both = TaskEnv(task, 8, engine="genesis", device="cpu"), TaskEnv(task, 8, threads=1)
    for env in both:
        env.reset(seed=0)
    assert torch.equal(both[0].tiles, both[1].tiles), "both engines draw the same tiles"
    for k in range(50):
        for env in both:
            env.step(torch.zeros(8, 12))
        apart = (both[0].true.base_position - both[1].true.base_position).norm(dim=1)
        print(f"period {k + 1}: at most {1000 * float(apart.max()):.1f} mm apart")
    for env, name in zip(both, ("genesis", "mujoco"), strict=True):
        print(f"{name}: lowest trunk {float(env.true.base_height.min()):.3f} m, {env.divergences} diverged")
        env.close()


if __name__ == "__main__":
    main()
