"""Synthetic run folders of a demonstration, with the format and size of real ones."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_rl.data.video import encode_video
from robot_rl.util.statistics import wilson

COMMIT = "4d2df976a1c0e8b5d9f3a2b4c6d8e0f1a2b3c4d5-dirty"
EDGES = [0, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]


def evaluation(label: str, where: str, successes: int, episodes: int = 200) -> dict[str, Any]:
    low, high = wilson(successes, episodes)
    return {
        "label": label, "where": where, "seed": 1_000_000_000, "episodes": episodes, "success": successes / episodes,
        "success_low": low, "success_high": high, "steps": 61.375, "steps_of_successes": 44.25,
        "action_change": 0.0871, "seconds": 14.2,
    }  # fmt: skip


def write(folder: Path, minute: int, command: str, **parts: Any) -> Path:
    """Write a run folder with a JSON file per part, and JSON Lines files for metrics and episodes."""
    folder.mkdir(parents=True)
    parts.setdefault("provenance", {
        "commit": COMMIT, "python": "3.12.4", "command": ["robot-rl", *command.split()],
        "versions": {"robot-rl": "0.1.0", "torch": "2.9.1", "mujoco": "4.0.0", "diffusers": "0.42.0"},
        "machine": {"cpu": "AMD EPYC 9R14 96-Core Processor", "cores": 2, "system": "Linux"},
        "started": f"2026-11-20T14:{minute:02d}:00",
    })  # fmt: skip
    for name, value in parts.items():
        if name in ("metrics", "episodes"):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in value))
        else:
            (folder / f"{name.replace('_', '-')}.json").write_text(json.dumps(value))
    return folder


def loop(rng: random.Random, worst: float, learner: str) -> dict[str, Any]:
    def one(scale: float) -> dict[str, Any]:
        counts = [round(36_000 * s * rng.uniform(0.8, 1.2)) for s in (0.1, 0.22, 0.43, 0.2, 0.04, 0.008, 0.001)]
        counts += [round(9 * scale), round(2 * scale)]
        return {
            "rate": 200.0, "seconds": 180.0, "ticks": sum(counts), "late_share": sum(counts[7:]) / sum(counts),
            "missed": 0, "drift_us": 3.1, "histogram": {"edges_us": EDGES, "counts": counts},
            "lateness_us": {"p50": 34.1 * scale, "p99": 310.0 * scale, "p999": 880.4 * scale, "max": worst * scale},
        }  # fmt: skip

    return one(1.0) | {
        "bare": one(0.45), "learner": learner, "goals": 3600,
        "shield": {"position": 41, "workspace": 9, "stale goal": 2},
        "inference_ms": {"p50": 7.31, "p99": 11.8, "max": 19.2}, "state_age_ms": {"p50": 2.4, "p99": 6.0, "max": 9.7},
    }  # fmt: skip


def video(hue: int, size: tuple[int, int] = (240, 320)) -> bytes:
    """Encode 12 frames of a ball that crosses a gradient."""
    height, width = size
    ys, xs = np.mgrid[:height, :width]
    frames = []
    for t in range(12):
        image = np.stack([xs * 110 // width + 40, ys * 110 // height + 60, np.full(size, hue)], -1).astype(np.uint8)
        image[(xs - 30 - 22 * t) ** 2 + (ys - 150 + 8 * t) ** 2 < 300] = 235, 120, 60
        frames.append(image)
    return encode_video(frames, 10)


def make_demo(root: Path) -> Path:
    """Write the runs collect, imitate, improve, deploy-before, finetune and deploy-after (not in sorted order)."""
    rng = random.Random(0)
    randomization = [
        {"parameter": "object mass", "low": 0.05, "high": 0.2, "unit": "kg", "distribution": "uniform"},
        {"parameter": "friction", "low": 0.6, "high": 1.2, "unit": "1", "distribution": "uniform"},
        {"parameter": "action delay", "low": 0, "high": 2, "unit": "control periods", "distribution": "integers"},
        {"parameter": "joint position noise", "low": 0, "high": 0.002, "unit": "rad", "distribution": "normal"},
    ]
    config = {"task": "panda-lift", "seed": 7}
    dataset = {"path": "datasets/panda-lift", "episodes": 60, "frames": 5214, "new_episodes": 60, "new_attempts": 78,
               "success_of_demonstrator": 0.769, "fps": 20}  # fmt: skip
    write(root / "collect", 1, "collect panda-lift", config=config | {"recipe": "collect"}, dataset=dataset,
          randomization=randomization)  # fmt: skip
    cloning = [{"step": s, "seconds": s / 60, "bc/loss": 0.9 / (1 + s / 150) + 0.02 * rng.random(), "bc/lr": 1e-3 / s}
               for s in range(100, 3100, 100)]  # fmt: skip
    write(root / "imitate", 3, "train panda-lift --recipe diffusion-bc", config=config | {"recipe": "diffusion-bc"},
          metrics=cloning, evaluation=evaluation("cloned policy", "simulation", 117))  # fmt: skip
    improving = []
    for s in range(0, 41_600, 1600):
        p = 0.58 + 0.41 * (1 - 2.718 ** (-max(0, s - 5000) / 7000)) + rng.uniform(-0.02, 0.01)
        row = {"step": s, "seconds": s / 250, "train/success": p, "critic/q": 0.6 * p, "actor/q": 0.66 * p,
               "critic/loss": 0.03 / (1 + s / 4000) + 0.001, "actor/entropy": -3 + s / 1e5}  # fmt: skip
        improving.append(row)
    improve = write(root / "improve", 5, "train panda-lift --recipe resfit --base runs/demo/imitate/bundle",
                    config=config | {"recipe": "resfit", "agent": {"critic": {"hidden": [256, 256]}, "discount": 0.97}},
                    metrics=improving, randomization=randomization,
                    evaluation=evaluation("after reinforcement", "simulation", 199))  # fmt: skip
    (improve / "bundle").mkdir()
    (improve / "bundle" / "policy.json").write_text(json.dumps({
        "policy": {"class": "residual", "base": {"class": "diffusion"}}, "robot": {"name": "panda"},
        "interface": {"task": "panda-lift"},
    }))  # fmt: skip
    write(root / "deploy-before", 9, "deploy runs/demo/improve/bundle --robot panda", loop=loop(rng, 1900, "absent"),
          evaluation=evaluation("deployed, zero-shot", "twin", 29, 40))  # fmt: skip
    episodes = []
    for i in range(44):
        learnt = 1 - 2.718 ** (-i / 14)
        helped = rng.random() > 0.35 + 0.6 * learnt
        episodes.append({
            "index": i, "seconds": 4.1 * i + 4, "success": rng.random() < 0.8 + 0.18 * learnt, "steps": 70,
            "intervention_steps": rng.randint(8, 40) if helped else 0, "takeovers": int(helped),
            "policy_version": i // 2,
        })  # fmt: skip
    write(root / "finetune", 10, "finetune runs/demo/improve/bundle --robot panda --recipe hil-serl", episodes=episodes,
          config=config | {"recipe": "hil-serl"}, loop=loop(rng, 4100, "running beside"))  # fmt: skip
    write(root / "deploy-after", 14, "deploy runs/demo/finetune/bundle --robot panda", loop=loop(rng, 1700, "absent"),
          evaluation=evaluation("deployed, after corrections", "twin", 37, 40))  # fmt: skip
    for run, name, hue, caption in (
        ("imitate", "before.mp4", 90, "The cloned policy misses the cube."),
        ("improve", "after.mp4", 150, "After reinforcement, same seed."),
        ("finetune", "correction.mp4", 190, "On the twin: the operator takes over as the policy stalls."),
    ):
        (root / run / "videos").mkdir()
        (root / run / "videos" / name).write_bytes(video(hue))
        (root / run / "videos" / "captions.json").write_text(json.dumps({name: caption}))
    return root


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demonstration's folder, read-only for tests."""
    return make_demo(tmp_path_factory.mktemp("runs") / "20261120-demo")
