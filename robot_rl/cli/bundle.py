"""`robot-rl bundle` and `robot-rl export`: make a bundle from a checkpoint, and write its policy as ONNX."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from robot_rl.cli.options import BundlePath, Json
from robot_rl.util.limits import PositiveInt

if TYPE_CHECKING:
    from policies.base import Policy


@dataclass
class MakeBundle:
    """Make a bundle from the latest checkpoint of a training run, which may be running, stopped or crashed."""

    run_folder: tyro.conf.Positional[Path]
    """Run folder of `robot-rl train`."""
    out: Path | None = None
    """Bundle folder; default RUN/bundle."""
    json: Json = False

    def run(self) -> int:
        from policies.bundle import save_bundle
        from robot_rl.cli.console import show
        from robot_rl.recipes import recipes
        from robot_rl.recipes.job import open_job
        from robot_rl.training.checkpoint import load_state
        from robot_rl.training.run import configured, provenance
        from robot_rl.util.errors import ConfigError
        from robot_rl.util.registry import check_trusted_task

        try:
            settings = json.loads((self.run_folder / "config.json").read_text())
            check_trusted_task(settings["task"])
            recipe = configured(recipes.get(recipes.vet(settings["recipe"]))(), settings["config"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise ConfigError(f"{self.run_folder} is not a run folder of `robot-rl train`; name one") from None
        checkpoint = self.run_folder / "checkpoint.safetensors"
        if not hasattr(recipe, "build") or not checkpoint.is_file():
            raise ConfigError(f"{self.run_folder} holds no checkpoint of `robot-rl train` yet")
        inputs = ("base", "contract", *["dataset"] * recipe.reads_instructions)  # the dataset defines the vocabulary
        on_cpu = settings | {"device": "cpu"}
        job = open_job(on_cpu, None, lambda *_: None, began=settings.get("inputs"), check=inputs)
        env = job.make_env(1) if "environment" in recipe.needs else None
        agent = recipe.build(job, env)
        if env is not None:
            env.close()
        saved = load_state(checkpoint)
        agent.load_state_dict(saved["state"]["agent"])
        bundle = job.bundle(agent)
        del settings["config"]
        bundle.provenance = provenance() | settings | {"step": saved["step"], "seconds": saved["elapsed"]}
        out = self.out or self.run_folder / "bundle"
        save_bundle(bundle, out)
        show({"bundle": str(out), "task": bundle.task, "step": saved["step"]}, self.json, "bundle")
        return 0


@dataclass
class Export:
    """Write a bundle's policy as policy.onnx, compare its actions with those of torch, and time both runtimes.

    `deploy`, `evaluate` and `serve` run the file with --runtime onnx. Policies with a state (resfit) have no export."""

    bundle: BundlePath
    calls: PositiveInt = 1000
    """Number of timed inferences of each runtime, in alternation, at batch size 1 on one thread."""
    json: Json = False

    def run(self) -> int:
        import torch

        from policies.bundle import bundle_folder
        from policies.export import export_onnx
        from policies.onnx import FILE
        from robot_rl.cli.console import show

        torch.set_num_threads(1)
        policy, exported, difference = export_onnx(self.bundle)
        file = bundle_folder(self.bundle) / FILE
        summary = {"file": str(file), "bytes": file.stat().st_size, "history": exported.metadata["history"]}
        times = latency({"torch": policy, "onnx": exported}, policy, self.calls)
        ratios = {f"torch_over_onnx_{p}": times[f"torch_{p}_us"] / times[f"onnx_{p}_us"] for p in ("p50", "p99")}
        show(summary | {"difference": difference} | times | ratios, self.json, "export")
        return 0


def latency(policies: dict[str, Policy], reads: Policy, calls: int) -> dict[str, float]:
    """Return the median and 99th percentile latency of each policy at batch size 1, us.

    After a warm-up, the policies are called in turn on random observations with the inputs of the policy `reads`.
    """
    import time

    import numpy as np
    import torch

    from policies.onnx import example

    rng, warmup = torch.Generator().manual_seed(0), min(calls, 50)
    seconds: dict[str, list[float]] = {name: [] for name in policies}
    for policy in policies.values():
        policy.reset()
    for k in range(warmup + calls):
        observation = example(reads, 1, rng)
        for name, policy in policies.items():
            start = time.perf_counter()
            policy.act(observation, rng)
            if k >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return {f"{name}_p{q}_us": 1e6 * float(np.percentile(took, q)) for name, took in seconds.items() for q in (50, 99)}
