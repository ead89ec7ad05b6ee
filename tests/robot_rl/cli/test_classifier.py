"""`robot-rl classifier`, and `train` with a classifier."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robot_rl.recipes.job import open_job
from robot_rl.rewards.classifier import ClassifierWrapper, Measured, save_classifier

Build = Callable[..., Any]
Run = Callable[..., tuple[int, str, str]]
SMALL = ["--network.encoder.channels", "8", "8", "--network.hidden", "16", "--held-out", "0.5", "--batch", "16"]
TRAIN = ["train", "panda-lift-cameras", "--recipe", "rlpd", "--training.demo-share", "0", "--training.num-envs", "1"]
TRAIN += ["--training.capacity", "64", "--training.steps", "12", "--training.warmup", "4", "--training.batch", "4"]
TRAIN += ["--training.learning-starts", "8"]


def test_fit_and_show(corner: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "classifier"
    words = ["classifier", "fit", corner, "--out", out, *SMALL, "--steps", 60, "--lr", 3e-3, "--margin", 0.2, "--json"]
    code, said, _ = run(*words)
    result = json.loads(said)
    assert code == 0 and result["pays_rewards"] and result["precision"]["mean"] >= 0.95
    assert result["held_out_episodes"] == 12 and result["recall"]["low"] < result["recall"]["mean"]
    code, said, _ = run("classifier", "show", out, "--json")
    shown = json.loads(said)
    assert code == 0 and shown["dataset"] == {"path": str(corner), "episodes": 24}
    assert all(shown[key] == result[key] for key in ("threshold", "recall", "hold"))
    assert "light the corner" in run("classifier", "show", out)[1]


def test_imprecise_classifier_is_saved_but_refused_for_training(corner: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "classifier"
    code, _, said = run("classifier", "fit", corner, "--out", out, *SMALL, "--steps", 1, "--lr", 1e-9)
    assert code == 1 and "may not pay rewards" in said and "record more episodes" in said
    assert "pays_rewards" in run("classifier", "show", out)[1]
    code, _, said = run(*TRAIN, "--classifier", out, "--out", tmp_path / "run")
    assert code == 2 and "may not pay rewards" in said and not (tmp_path / "run").exists()


def test_fit_refuses_unsuitable_input(marked_dataset: Build, tmp_path: Path, run: Run, corner: Path) -> None:
    few = marked_dataset(tmp_path / "few", successes=20, failures=3)
    for words, expected in (
        ((few,), "3 failures are too few"),
        ((tmp_path / "nothing",), "nothing"),
        ((corner, "--cameras", "side"), "no camera 'side'"),
        ((corner, "--at-least", "0.5"), "--at-least is 0.5"),
        ((corner, "--device", "tpu"), "unknown device 'tpu'"),
    ):
        code, _, said = run("classifier", "fit", *words, "--out", tmp_path / "out", "--steps", 1)
        assert code == 2 and expected in said and not (tmp_path / "out").exists(), said
    (tmp_path / "mine").mkdir()
    code, _, said = run("classifier", "fit", corner, "--out", tmp_path / "mine", "--steps", 1)
    assert code == 2 and "is no classifier, so it is not replaced" in said
    assert run("classifier", "show", tmp_path)[0] == 2


def test_train_uses_the_classifier_for_success_and_rewards(verdict: Build, tmp_path: Path, run: Run) -> None:
    save_classifier(verdict(front=(96, 96)), tmp_path / "classifier")
    code, _, said = run(*TRAIN, "--classifier", "classifier", "--out", "run", "--json")
    assert code == 0, said
    settings = json.loads((tmp_path / "run" / "config.json").read_text())
    assert settings["classifier"] == str(tmp_path / "classifier")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["train/success"] == 1.0 and rows[-1]["train/true_success"] == 0.0, "it accepts every frame"
    job = open_job(settings, None, lambda *_: None)
    env = job.make_env(1)
    assert isinstance(env, ClassifierWrapper) and job.info == env.info
    env.close()
    code, _, said = run(*TRAIN, "--out", "run", "--resume")
    assert code == 2 and "classifier was" in said


def test_scripted_operator_works_with_a_classifier(verdict: Build, tmp_path: Path, run: Run) -> None:
    save_classifier(verdict(front=(96, 96)), tmp_path / "classifier")
    words = ["train", "panda-lift-cameras", "--recipe", "hil-serl", "--training.demo-share", "0"]
    words += ["--training.steps", "10", "--training.capacity", "256", "--operator.rule", "random"]
    words += ["--classifier", "classifier", "--out", "run"]
    code, said, wrong = run(*words, "--json")
    assert code == 0, wrong
    assert json.loads(said)["success"] == 1.0 and json.loads(said)["true_success"] == 0.0


def test_train_refuses_an_unsuitable_classifier(verdict: Build, tmp_path: Path, run: Run) -> None:
    save_classifier(verdict(front=(96, 96)), tmp_path / "good")
    save_classifier(verdict(front=(96, 96), measured=Measured(40, 20, 20, 10)), tmp_path / "weak")
    for task, recipe, folder, expected in (
        ("panda-lift", "rlpd", "good", "reads observation.images.front of 96x96 pixels, which is not there"),
        ("gym:Pendulum-v1", "sac", "good", "ends its episodes by itself"),
        ("panda-lift-cameras", "diffusion-bc", "good", "does nothing with --classifier"),
        ("panda-lift-cameras", "rlpd", "weak", "may not pay rewards"),
        ("panda-lift-cameras", "rlpd", "absent", "is no classifier"),
    ):
        code, _, said = run("train", task, "--recipe", recipe, "--classifier", folder)
        assert code == 2 and expected in said, said
    assert not (tmp_path / "runs").exists()
