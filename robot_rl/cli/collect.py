"""`robot-rl collect`: record demonstrations."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from robot_rl.util.limits import Fraction, Interval, PositiveInt, Seed


@dataclass
class Collect:
    """Record demonstrations of a task with its scripted, imperfect demonstrator, or with a policy, as a LeRobot v3.0
    dataset."""

    task: tyro.conf.Positional[str]
    """Name of the task, see `robot-rl tasks`, or its import path, my_lab.drawer:TASK; or gym:ID, with --policy
    where it has no demonstrator of its own."""
    policy: Path | None = None
    """Bundle or run whose policy acts instead of the demonstrator."""
    episodes: PositiveInt = 20
    """Demonstrations to keep."""
    out: Path | None = None
    """Folder of the dataset; default datasets/<task>."""
    seed: Seed = 0
    """Seed of everything random; two seeds share no episode, nor does any with held-out evaluation."""
    num_envs: PositiveInt = 8
    """Parallel simulations; each records an equal share of the demonstrations."""
    image_size: Annotated[int, Interval(ge=0, le=960)] = 96
    """Height and width of the pictures of cameras that the policy does not see, pixels; 0 records none of these."""
    skill: str = "CLUMSY"
    """Skill of the demonstrator: CLUMSY or STEADY; for a testbed also WEAK, MIXED or RANDOM, for OGBench also PLAY."""
    keep_failures: bool = False
    """Keep failed episodes too."""
    resume: bool = False
    """Continue an interrupted dataset."""
    log: Path | None = None
    """Folder for the report's dataset.json, randomization.json and provenance.json; meta/ of the dataset has them
    too."""
    engine: str = "mujoco"
    """Physics engine: mujoco or genesis."""
    device: str = "auto"
    """Device of the physics: cpu, with engine genesis also cuda, or auto for cuda where there is one."""
    without: tuple[str, ...] = ()
    """Randomized parameters of the task to leave at their nominal values, for example cube.mass."""
    instructions: str = "training"
    """What episodes ask for, in a task with instructions: those of training, held-out, all, or those that begin so."""
    changes: Fraction = 0.0
    """Share of episodes in which another of these instructions takes the place of the first on the way."""
    episode_steps: PositiveInt | None = None
    """Longest episode of a gym: task, steps; needed where its environment has no time limit. None: as it says."""
    env_python: Path | None = None
    """Python of another virtual environment that runs a gym: task."""
    mjcf: str = ""
    """MJCF file of the robot; empty is the one in genesis-world."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Record; return the exit status."""
        from robot_rl.cli.console import bar, say_nominal, show
        from robot_rl.training.run import provenance, write_json
        from robot_rl.util.files import file_name
        from sim.collect import collect
        from sim.divergence import report
        from sim.make import make
        from sim.tasks import without_robot

        out = self.out or Path("datasets") / file_name(self.task)
        env: Any = make(
            self.task, self.num_envs, self.env_python, self.episode_steps, engine=self.engine, mjcf=self.mjcf,
            device=self.device, without=self.without, diverged=out / "diverged", instruction_set=self.instructions,
            changes=self.changes,
        )  # fmt: skip
        where = {} if without_robot(self.task) else env.simulation
        say_nominal(self.engine, [name for name in where.get("without", ()) if name not in self.without])
        with bar("demonstrations") as update:
            result = collect(
                env, out, self.episodes, seed=self.seed, skill=self.skill, image_size=self.image_size,
                policy=self.policy, keep_failures=self.keep_failures, resume=self.resume,
                progress=lambda done, attempts: update(done, self.episodes, f"{attempts} new attempts"),
            )  # fmt: skip
        summary: dict[str, Any] = {
            "path": str(out),
            "episodes": result.episodes,
            "frames": result.frames,
            "new_episodes": result.new_episodes,
            "new_attempts": result.attempts,
        }
        if where:
            summary |= {"divergences": env.divergences} | (report(out / "diverged") if env.divergences else {})
        places = [folder for folder in (self.log, out / "meta" if result.attempts else None) if folder]
        if places:
            facts = summary | where | {"fps": env.info.rate}
            if result.attempts:  # a resumed run may have nothing left to do
                facts["success_of_demonstrator"] = result.successes / result.attempts
            files = {"dataset": facts, "randomization": [asdict(r) for r in env.randomization] if where else []}
            for name, content in (files | {"provenance": provenance()}).items():
                for folder in places:
                    write_json(folder / f"{name}.json", content)
        show(summary, self.json, "demonstrations")
        return 0
