"""`robot-rl evaluate`: measure a policy in simulation or against recorded actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from robot_rl.cli import options as opt
from robot_rl.util.limits import Interval, NonNegativeFloat, NonNegativeInt, PositiveInt, Seed
from robot_rl.util.seeds import HELD_OUT

_SHOWN = ("run", "episodes", "success", "success_low", "success_high", "steps", "seconds")
"""Columns of the table for several policies, in addition to the measured means."""
PERTURBED = ("attack", "perturb", "perturb_tries", "smooth")
"""Options of `Evaluate` that disturb the policy."""


@dataclass
class Evaluate:
    """Evaluate policies on held-out episodes and report success with a 95 % Wilson interval. With --dataset, report the
    mean absolute error of a policy's actions on recorded episodes instead."""

    policies: tyro.conf.Positional[tuple[Path, ...]]
    """Bundles, run folders that contain one, or folders of seed runs; random:TASK for uniformly random actions,
    zero:TASK for zero actions, expert:TASK for the scripted demonstrator, ws://HOST:PORT for a policy server."""
    episodes: PositiveInt = 200
    """Number of episodes. For every policy, episode k has the seed --seed + k."""
    seed: Seed = HELD_OUT
    """Seed of the first episode. Held-out seeds start at 1000000000, seeds of development episodes at 1500000000."""
    num_envs: PositiveInt = 100
    """Number of parallel simulations."""
    dataset: Path | None = None
    """Dataset of recorded episodes with which to compare the policy and simple baselines. Of the policy's own training
    dataset, only episodes that were held out or recorded after training count."""
    all_episodes: bool = False
    """With --dataset: also evaluate on the episodes with which the policy was trained."""
    rename: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """With --dataset: new names of columns and cameras, as in `robot-rl train`; default: the training run's names."""
    video: Path | None = None
    """Also record the first episodes to this mp4 file."""
    video_episodes: PositiveInt = 3
    """Number of episodes in the video."""
    label: str = ""
    """Policy name in the report."""
    out: Path | None = None
    """JSON file of the result. Default: evaluation.json in the bundle's run folder, if any; physics and execution that
    are not the default are part of the name, as in evaluation-genesis.json."""
    skill: str = "CLUMSY"
    """Skill of the scripted demonstrator expert:TASK, see `robot-rl collect`."""
    runtime: opt.Runtime = "torch"
    execution: opt.ExecutionMode = "receding"
    """Execution of action chunks during inference: receding stops and waits; for the other modes see docs/deploy.md."""
    inference_delay: NonNegativeFloat = 0.0
    """Simulated inference time of a slower machine, ms, rounded up to whole control periods."""
    interval: PositiveInt | None = None
    """Control periods between decisions: number of actions executed per chunk; a shorter chunk's last action is held.
    Default: the policy's own number."""
    task: str | None = None
    """For a server other than `robot-rl serve`: task whose contract defines the policy's inputs and actions."""
    keys: opt.ServerKeys = ()
    execute: opt.ServerExecute = 0
    episode_steps: PositiveInt | None = None
    """Time limit of a gym: task, steps; required if the environment has none. Default: the training run's, else the
    environment's."""
    env_python: Path | None = None
    """Python interpreter of another virtual environment in which a gym: task runs; required if training used one."""
    engine: opt.Engine = "mujoco"
    device: opt.PhysicsDevice = "auto"
    without: opt.Without = ()
    randomization: opt.RangeFile = None
    range: opt.Range = ()
    instructions: opt.Instructions = "training"
    changes: opt.Changes = 0.0
    levels: opt.Levels = ""
    grid: tuple[str, ...] = ()
    """Heat map of the result over randomized parameters: randomization for each of them by itself, or two names. The
    episodes are played in every cell of the grid."""
    cells: Annotated[int, Interval(ge=2, le=50)] = 5
    """Number of values of each parameter of --grid, from one end of its range to the other."""
    attack: NonNegativeInt = 0
    """Development episodes in which an adversary first learns to push where it hurts this policy most; then it pushes
    in the held-out episodes. 0: nobody pushes. For testbed:swing and legged robots."""
    perturb: NonNegativeFloat = 0.0
    """Largest error of each component of the observed state, standard deviations of the component over development
    episodes; uniform random in every step."""
    perturb_tries: PositiveInt = 1
    """Random errors per step, of which the one that moves the action furthest is taken: an attacker who can ask the
    policy. 1: noise."""
    smooth: NonNegativeFloat = 0.0
    """Gaussian noise on the observed state, standard deviations as for --perturb: the result has lower bounds of the
    success rate under any attack on the state of a given norm, unless --perturb or --grid is given."""
    mjcf: opt.Mjcf = ""
    threads: PositiveInt = 2
    """Number of policy threads; physics uses all cores."""
    json: opt.Json = False

    def run(self) -> int:
        from robot_rl.cli.console import show_runs
        from robot_rl.training.run import seed_runs
        from robot_rl.util.errors import ConfigError

        if not self.policies:
            raise ConfigError("name a policy to evaluate: a bundle, a run folder, or random:TASK")
        if self.out and self.out.is_dir():
            raise ConfigError(f"{self.out} is a folder; name a file with --out")
        policies = [run for policy in self.policies for run in seed_runs(policy) or [policy]]
        if policies == list(self.policies[:1]):
            self.evaluate(policies[0])
            return 0
        if single := [name for name in ("out", "video", "grid") if getattr(self, name)]:
            raise ConfigError(
                f"--{single[0]} is for one policy, and these are {len(policies)}; leave it out: "
                "each run keeps its result"
            )
        rows = [{"run": str(policy)} | self.evaluate(policy, quiet=True) for policy in policies]
        if not self.json:
            rows = [{k: v for k, v in row.items() if k in _SHOWN or isinstance(v, dict)} for row in rows]
            rows = [{k: v for k, v in row.items() if k != "by_number"} for row in rows]
        show_runs(rows, self.json, "evaluation", {})
        return 0

    def evaluate(self, bundle_path: Path, quiet: bool = False) -> dict[str, Any]:
        """Evaluate one policy, write the result, show it unless `quiet`, and return it."""
        import math
        import time

        import torch

        from policies.base import RandomPolicy, RunnablePolicy
        from policies.execution import Execution
        from robot_rl.cli.console import bar, say_nominal, show
        from robot_rl.cli.grid import measure_grid
        from robot_rl.cli.remote import open_policy, server_report
        from robot_rl.data.video import quoted
        from robot_rl.evaluation import ActionRepeat, evaluate
        from robot_rl.perturbation import EPISODES, PerturbedPolicy, certified_success, state_scale
        from robot_rl.robots import robots
        from robot_rl.training.adversary import attacked
        from robot_rl.training.terrain import read_levels
        from robot_rl.util.errors import ConfigError
        from sim.divergence import report
        from sim.experts.policy import ExpertPolicy
        from sim.make import make
        from sim.randomization.ranges import read_ranges
        from sim.rendering.video import filmed, record
        from sim.tasks import tasks, without_robot

        torch.set_num_threads(self.threads)
        if self.dataset:
            return self._measured(bundle_path, quiet)
        for option in ("all_episodes", "rename"):
            if getattr(self, option):
                raise ConfigError(f"--{option.replace('_', '-')} is for --dataset; leave it out")
        simulation: dict[str, Any] = {
            "engine": self.engine, "device": self.device, "mjcf": self.mjcf, "without": self.without,
        }  # fmt: skip
        if self.video and self.video.suffix != ".mp4":
            raise ConfigError(f"--video {self.video}: videos are written as mp4; give a name that ends with .mp4")
        simulation |= {} if self.instructions == "training" else {"instruction_set": self.instructions}
        simulation |= {"changes": self.changes} if self.changes else {}
        ranges = read_ranges(self.randomization, self.range)
        simulation |= {"ranges": ranges} if ranges else {}
        simulation |= {"levels": read_levels(self.levels)} if self.levels else {}
        out = self.out or self._beside_run(bundle_path)
        diverged = out.parent / "diverged" if out else None
        name, _, task = str(bundle_path).partition(":")
        floors = {"random": 1.0, "zero": 0.0}
        if name in (*floors, "expert") and task:
            if self.runtime != "torch":
                raise ConfigError(f"{name} actions need no runtime; leave out --runtime {self.runtime}")
            python, simulation["episode_steps"] = self.env_python, self.episode_steps
            env: Any = make(task, min(self.num_envs, self.episodes), python, diverged=diverged, **simulation)
            if name in floors:
                policy: RunnablePolicy = RandomPolicy(env.info.action, floors[name])
            elif self.execution != "receding" or self.inference_delay or self.interval:
                env.close()
                raise ConfigError("a scripted demonstrator takes no --execution, --inference-delay or --interval")
            else:
                policy = ExpertPolicy(env, self.skill, self.seed)
        else:
            bundle = open_policy(bundle_path, self.runtime, self.task, self.keys, self.execute)
            task, python, named = bundle.task, self.env_python, bundle.provenance.get("env_python")
            if named and python is None:
                raise ConfigError(
                    f"{bundle.label} was trained with {named}, which no file starts: add --env-python {named}"
                )
            simulation["episode_steps"] = self.episode_steps or bundle.provenance.get("episode_steps")
            if bundle.contract is not None:
                bundle.check_task(tasks.get(task).interface)
                bundle.check_robot(robots.get(bundle.interface.robot))
            env = make(task, min(self.num_envs, self.episodes), python, diverged=diverged, **simulation)
            policy = bundle.policy
        if self.video and without_robot(task):  # fail before the episodes if the task cannot be filmed
            filmed(task, python, **simulation)[0].close()
        where = getattr(env, "simulation", {"engine": "gymnasium", "without": ()})
        simulation["without"] = where["without"]
        say_nominal(self.engine, simulation["without"], self.without)
        scripted, served = isinstance(policy, ExpertPolicy), policy
        if self.interval is not None:
            policy = ActionRepeat(policy, self.interval)
        execution = Execution(self.execution)
        if self.inference_delay:
            interface = env.info.interface
            if interface is None:
                raise ConfigError(f"{task} has no control rate; leave out --inference-delay")
            execution = Execution(self.execution, math.ceil(self.inference_delay * interface.controller.rate / 1e3))
        if self.attack and self.video:
            raise ConfigError("--video would film episodes in which nobody pushes; leave out --video or --attack")
        if self.attack:
            with bar("attack") as update:
                env = attacked(policy, env, self.attack, lambda done, _: update(done, self.attack, "episodes"))
        if (self.perturb or self.smooth) and scripted:
            raise ConfigError("a scripted demonstrator reads the true state: leave out --perturb and --smooth")
        if self.perturb or self.smooth:
            with bar("state scale") as update:
                scale = state_scale(policy, env, lambda done, _: update(done, EPISODES, "episodes"))
            policy = PerturbedPolicy(policy, scale, self.perturb, self.perturb_tries, self.smooth)
        elif self.perturb_tries > 1:
            raise ConfigError("--perturb-tries needs a size of the errors: add --perturb")
        if self.grid:
            label = self.label or bundle_path.name
            return measure_grid(self, policy, env, execution, label, lambda result: self._keep(result, out), out)
        start = time.monotonic()
        with bar("evaluate") as update:
            result = evaluate(
                policy, env, self.episodes, self.seed, lambda done, _: update(done, self.episodes, "episodes"),
                execution=execution,
            )  # fmt: skip
        summary: dict[str, Any] = {"label": self.label or bundle_path.name, "where": "simulation", "seed": self.seed}
        summary |= {"skill": self.skill} if scripted else server_report(served) or {"runtime": self.runtime}
        summary |= {} if self.interval is None else {"interval": self.interval}
        summary |= {name: value for name in PERTURBED if (value := getattr(self, name)) != vars(Evaluate)[name]}
        summary |= {"execution": self.execution, "inference_delay": self.inference_delay} if execution.delayed else {}
        summary |= where | result.summary() | {"divergences": result.divergences}
        if self.smooth and not self.perturb and result.reports_success:
            summary["certified"] = certified_success(sum(result.success), len(result.success), self.smooth)
        summary |= report(diverged) if diverged and result.divergences else {}
        summary["seconds"] = time.monotonic() - start
        try:
            if self.video:
                instructions = record(
                    policy, task, self.video, self.video_episodes, self.seed, execution, python, **simulation
                )
                summary["video"] = str(self.video)
                said = quoted([text] for text in instructions)
                _caption(self.video, f"{summary['label']}, in simulation" + (f": {said}" if said else ""))
        finally:  # report the result even if the video fails
            if not quiet:
                show(summary, self.json, "evaluation")  # before the file is written: the disk may be full
            self._keep(summary | {"task": task, "per_episode": result.per_episode()}, out)
        env.close()
        if close := getattr(served, "close", None):
            close()
        return summary

    def _measured(self, policy: Path, quiet: bool) -> dict[str, Any]:
        """Compare one policy's actions with a dataset, write the result, show it unless `quiet`, and return it."""
        import time

        from robot_rl.cli.console import show
        from robot_rl.cli.recorded import measure, show_errors

        start = time.monotonic()
        summary, more, only = measure(self, policy)
        summary["seconds"] = time.monotonic() - start
        self._keep(summary | more, self.out or self._beside_run(policy, [] if only else ["dataset"]))
        if not quiet and self.json:
            show(summary, True)
        elif not quiet:
            show_errors(summary)
        return summary

    def _keep(self, result: dict[str, Any], out: Path | None) -> None:
        """Write a result to --out if given, else to the file `out` in the run folder if this folder is writable."""
        from contextlib import suppress

        from robot_rl.training.run import write_json
        from robot_rl.util.errors import UserError

        if self.out:
            write_json(self.out, result)
        elif out:
            with suppress(OSError, UserError):  # the folder may belong to another user
                write_json(out, result)

    def _beside_run(self, policy: Path, other: Sequence[str] = ()) -> Path | None:
        """Return the file in the policy's run folder where `report` looks for the result; None without a run folder."""
        from policies.bundle import bundle_folder
        from robot_rl.util.files import file_name

        run, defaults = bundle_folder(policy).parent, vars(Evaluate)
        if not (run / "config.json").is_file():
            return None
        other = [*other] + [
            getattr(self, name)
            for name in ("engine", "runtime", "execution", "instructions")
            if getattr(self, name) != defaults[name]
        ]
        other += [f"levels-{self.levels}"] * bool(self.levels)
        other += [f"changes-{self.changes:g}"] * (self.changes > 0)
        changed = [(name, value) for name in PERTURBED if (value := getattr(self, name)) != defaults[name]]
        other += [f"{name.replace('_', '-')}-{value:g}" for name, value in changed]
        other += [f"every-{self.interval}"] * (self.interval is not None)
        other += [f"steps-{self.episode_steps}"] * (self.episode_steps is not None)
        other += [f"{self.inference_delay:g}ms"] * (self.inference_delay > 0)
        other += [f"without-{name}" for name in self.without]
        other += [self.randomization.stem] if self.randomization else []
        other += list(self.range)
        other += ["grid", *self.grid] if self.grid else []
        return run / f"{'-'.join(['evaluation', *map(file_name, other)])}.json"


def _caption(video: Path, text: str) -> None:
    """Add the video's caption to captions.json in its folder, for the report."""
    import json

    from robot_rl.training.run import write_json

    path = video.parent / "captions.json"
    try:
        kept = json.loads(path.read_text())
    except (OSError, ValueError):  # absent or damaged
        kept = {}
    write_json(path, (kept if isinstance(kept, dict) else {}) | {video.name: text})
