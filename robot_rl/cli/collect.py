"""`robot-rl collect`: record demonstrations."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from robot_rl.cli import options as opt
from robot_rl.util.limits import Interval, PositiveInt, Seed


@dataclass
class Collect:
    """Record demonstrations of a task as a LeRobot v3.0 dataset, by a scripted demonstrator or a policy."""

    task: tyro.conf.Positional[str]
    """Task name, see `robot-rl tasks`; import path, my_lab.drawer:TASK; or gym:ID, which needs --policy if the
    environment has no demonstrator."""
    policy: Path | None = None
    """Bundle or run folder of a policy that acts instead of the demonstrator."""
    episodes: PositiveInt = 20
    """Number of demonstrations in the dataset."""
    out: Path | None = None
    """Dataset folder; default datasets/<task>."""
    seed: Seed = 0
    """Seed of everything random. Different seeds share no episodes, and no seed gives a held-out episode."""
    num_envs: PositiveInt = 8
    """Number of parallel simulations; each records the same number of demonstrations."""
    image_size: Annotated[int, Interval(ge=0, le=960)] = 96
    """Image height and width for cameras that the policy does not use, pixels; 0 leaves these cameras out."""
    skill: str = "CLUMSY"
    """Demonstrator skill: CLUMSY or STEADY; for a testbed also WEAK, MIXED or RANDOM; for OGBench also PLAY."""
    keep_failures: bool = False
    """Write failed episodes to the dataset too."""
    resume: bool = False
    """Continue the interrupted recording of the dataset in --out."""
    log: Path | None = None
    """Folder for copies of the dataset's meta/dataset.json, randomization.json and provenance.json, for `report`."""
    engine: opt.Engine = "mujoco"
    device: opt.PhysicsDevice = "auto"
    without: opt.Without = ()
    randomization: opt.RangeFile = None
    range: opt.Range = ()
    instructions: opt.Instructions = "training"
    changes: opt.Changes = 0.0
    episode_steps: opt.EpisodeSteps = None
    env_python: opt.EnvPython = None
    mjcf: opt.Mjcf = ""
    json: opt.Json = False

    def run(self) -> int:
        from robot_rl.cli.console import bar, say_nominal, show
        from robot_rl.training.run import provenance, write_json
        from robot_rl.util.files import file_name
        from sim.collect import collect
        from sim.divergence import report
        from sim.make import make
        from sim.randomization.ranges import read_ranges
        from sim.tasks import without_robot

        out = self.out or Path("datasets") / file_name(self.task)
        env: Any = make(
            self.task, self.num_envs, self.env_python, self.episode_steps, engine=self.engine, mjcf=self.mjcf,
            device=self.device, without=self.without, diverged=out / "diverged", instruction_set=self.instructions,
            changes=self.changes, ranges=read_ranges(self.randomization, self.range),
        )  # fmt: skip
        where = {} if without_robot(self.task) else env.simulation
        say_nominal(self.engine, where.get("without", ()), self.without)
        with bar("demonstrations") as update:
            result = collect(
                env, out, self.episodes, seed=self.seed, skill=self.skill, image_size=self.image_size,
                policy=self.policy, keep_failures=self.keep_failures, resume=self.resume,
                progress=lambda done, attempts: update(done, self.episodes, f"{attempts} new attempts"),
            )  # fmt: skip
        summary: dict[str, Any] = {
            "path": str(out), "episodes": result.episodes, "frames": result.frames,
            "new_episodes": result.new_episodes, "new_attempts": result.attempts,
        }  # fmt: skip
        if where:
            summary |= {"divergences": env.divergences} | (report(out / "diverged") if env.divergences else {})
        places = [folder for folder in (self.log, out / "meta" if result.attempts else None) if folder]
        if places:
            facts = summary | where | {"fps": env.info.rate}
            if result.attempts:  # 0 if a resumed dataset was already complete
                facts["success_of_demonstrator"] = result.successes / result.attempts
            files = {"dataset": facts, "randomization": [r.record() for r in env.randomization] if where else []}
            for name, content in (files | {"provenance": provenance()}).items():
                for folder in places:
                    write_json(folder / f"{name}.json", content)
        show(summary, self.json, "demonstrations")
        return 0
