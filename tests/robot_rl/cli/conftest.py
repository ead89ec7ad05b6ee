"""Run commands in an empty folder, and build small datasets and policies for panda-lift."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from policies.base import Size
from policies.bundle import Bundle, save_bundle
from policies.diffusion import DiffusionConfig, DiffusionPolicy
from robot_rl.cli.main import main
from robot_rl.data import DatasetWriter
from robot_rl.data.recording import features
from robot_rl.interface.environment import EnvInfo
from robot_rl.interface.pipeline import Pipeline
from sim.tasks import tasks

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in an empty folder; return exit status, stdout and stderr, including output of native code."""
    monkeypatch.chdir(tmp_path)

    def call(*argv: object) -> tuple[int, str, str]:
        capfd.readouterr()
        try:
            code = main([str(word) for word in argv])
        except SystemExit as end:  # raised by tyro
            code = end.code if isinstance(end.code, int) else 1
        finally:
            torch.set_num_threads(1)
        return code, *capfd.readouterr()

    return call


@pytest.fixture(scope="session")
def check_error() -> Callable[..., str]:
    """Check that a command failed with one sentence for the user that contains all given words; return stderr."""

    def check(code: int, out: str, err: str, *words: object, status: int = 2, one_line: bool = True) -> str:
        assert code == status, (code, out, err)
        assert err.startswith("robot-rl: ") and "Traceback" not in err and "(a defect" not in err, err
        assert err.count("\n") == 1 or not one_line, err
        for word in words:
            assert str(word) in err, err
        return err

    return check


@pytest.fixture
def fails(run: Run, check_error: Callable[..., str]) -> Callable[..., str]:
    """Run a command that must fail, see `check_error`; return stderr."""

    def call(argv: Sequence[object], *words: object, status: int = 2, one_line: bool = True) -> str:
        return check_error(*run(*argv), *words, status=status, one_line=one_line)

    return call


@pytest.fixture(scope="session")
def write_demos() -> Callable[..., Path]:
    """Write a dataset of random actions and states for panda-lift."""
    task = tasks.get("panda-lift").interface
    pipeline = Pipeline(task)

    def write(root: Path, episodes: int = 3, steps: int = 12) -> Path:
        rng = torch.Generator().manual_seed(0)
        columns = features(EnvInfo.of(pipeline))
        with DatasetWriter.create(root, fps=20, features=columns, robot_type="panda") as writer:
            for _ in range(episodes):
                last = torch.zeros(steps, 1, dtype=torch.bool)
                last[-1] = True
                action = pipeline.actions.to_physical(2 * torch.rand(steps, 4, generator=rng) - 1)
                state = 2 * torch.rand(steps, pipeline.observer.spec.size, generator=rng) - 1
                episode = {
                    "observation.state": pipeline.observer.spec.to_physical(state), "action": action,
                    "action.policy": action, "next.reward": last.float(), "next.success": last, "next.done": last,
                    "intervention": torch.zeros(steps, 1, dtype=torch.bool),
                    "shield": torch.zeros(steps, 1, dtype=torch.long), "state_age": torch.zeros(steps, 1),
                }  # fmt: skip
                writer.add_episode(episode, task.instruction)
        return root

    return write


@pytest.fixture(scope="session")
def save_policy() -> Callable[[Path, Path], Path]:
    """Save a bundle of a small diffusion policy for panda-lift that names a dataset."""
    task = tasks.get("panda-lift").interface
    pipeline = Pipeline(task)

    def save(folder: Path, dataset: Path) -> Path:
        torch.manual_seed(0)
        config = DiffusionConfig(hidden=16, layers=1, train_steps=10, sample_steps=2)
        policy = DiffusionPolicy(Size(pipeline.observer.spec.size, 4), config)
        save_bundle(Bundle(policy, task, pipeline.robot.fingerprint(), {"dataset": str(dataset)}), folder)
        return folder

    return save
