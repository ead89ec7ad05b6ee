"""`robot-rl export`: write a bundle's policy as ONNX."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from robot_rl.util.limits import PositiveInt

if TYPE_CHECKING:
    from policies.base import Policy


@dataclass
class Export:
    """Write a bundle's policy as policy.onnx, check that it acts like torch, and time both.

    `deploy`, `evaluate` and `serve` run the file with --runtime onnx. Policies that remember (resfit) have none."""

    bundle: tyro.conf.Positional[Path]
    """Bundle, or a run folder that holds one."""
    calls: PositiveInt = 1000
    """Calls of each runtime that are timed, for one robot, in turn, on one thread."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Export; return the exit status."""
        import torch

        from policies.bundle import bundle_folder
        from policies.export import export_onnx
        from policies.onnx import FILE
        from robot_rl.cli.console import show

        torch.set_num_threads(1)
        policy, exported, apart = export_onnx(self.bundle)
        file = bundle_folder(self.bundle) / FILE
        summary = {"file": str(file), "bytes": file.stat().st_size, "history": exported.metadata["history"]}
        times = latency({"torch": policy, "onnx": exported}, policy, self.calls)
        ratios = {f"torch_over_onnx_{p}": times[f"torch_{p}_us"] / times[f"onnx_{p}_us"] for p in ("p50", "p99")}
        show(summary | {"difference": apart} | times | ratios, self.json, "export")
        return 0


def latency(policies: dict[str, Policy], reads: Policy, calls: int) -> dict[str, float]:
    """Return median and 99th percentile of a call of each policy at batch 1, us, for random observations that one of
    them reads; alternate, after some warm-up calls."""
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
    return {
        f"{name}_p{q}_us": 1e6 * float(np.percentile(values, q)) for name, values in seconds.items() for q in (50, 99)
    }
