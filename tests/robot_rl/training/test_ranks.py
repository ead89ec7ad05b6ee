"""Two processes of torchrun learn together: same losses as one process, one run folder, clean stops.

Real processes over loopback.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from robot_rl.cli.main import main
from robot_rl.training.run import has_ended, read_metrics
from robot_rl.util import ranks
from robot_rl.util.errors import ConfigError

pytestmark = pytest.mark.timeout(400)
UPDATES = ["--training.updates", "100", "--training.batch", "32", "--training.log-every", "10"]
FLOW = ["testbed:fork-fast", "--recipe", "flow-bc", *UPDATES, "--training.checkpoint-every", "20"]
RECIPES = {
    "diffusion-bc": ["testbed:fork-fast", "--recipe", "diffusion-bc", *UPDATES],
    "vla-sft": [
        "testbed:discs", "--recipe", "vla-sft", *UPDATES, "--policy.horizon", "4", "--policy.execute", "4",
        "--policy.encoder.width", "32", "--policy.encoder.channels", "8", "16", "--policy.encoder.layers", "1",
        "--policy.encoder.shift", "2", "--policy.encoder.state-dropout", "0.3", "--agent.lr", "1e-4",
    ],
    "ppo": [
        "testbed:reach", "--recipe", "ppo", "--training.num-envs", "64", "--training.rollout", "24",
        "--training.steps", "7600", "--agent.epochs", "5",
    ],
}  # fmt: skip
"""100 gradient steps of each recipe; of ppo 5 rollouts with 20 each."""


def torchrun(words: Sequence[str]) -> "subprocess.Popen[str]":
    """Start a `robot-rl` command in two processes that learn together."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        [*launcher, "--nproc-per-node", "2", "-m", "robot_rl.cli.main", *words], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """Return the exit status and the output of a process, which is killed after five minutes."""
    try:
        output, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    return process.returncode, output


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record demonstrations of the clones' two tasks."""
    root = tmp_path_factory.mktemp("demos")
    for task in ("fork-fast", "discs"):
        collect = ["collect", f"testbed:{task}", "--skill", "STEADY", "--episodes", "12", "--out", str(root / task)]
        assert main(collect) == 0
    return root


def command(demos: Path, words: Sequence[str], out: Path) -> list[str]:
    """Return the command that trains with `words` into `out`, without bfloat16, whose rounding depends on the rows."""
    data = [] if "ppo" in words else ["--dataset", str(demos / words[0].removeprefix("testbed:"))]
    fixed = ["--seed", "3", "--threads", "1", "--device", "cpu", "--precision", "highest"]
    return ["train", *words, *data, *fixed, "--out", str(out)]


def losses(run: Path) -> torch.Tensor:
    """Return the rows of a run's losses."""
    names = ("bc/loss", "ppo/surrogate", "ppo/value_loss", "ppo/kl", "ppo/lr")
    return torch.tensor([[row[name] for name in names if name in row] for row in read_metrics(run)])


@pytest.mark.parametrize("name", RECIPES)
def test_two_ranks_learn_what_one_process_learns(demos: Path, tmp_path: Path, name: str) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    code, output = ended(torchrun(command(demos, RECIPES[name], two)))
    assert code == 0, output
    assert main(command(demos, RECIPES[name], one)) == 0
    assert len(losses(one)) >= 5
    torch.testing.assert_close(losses(two), losses(one), rtol=1e-5, atol=1e-5)
    assert {path.name for path in one.iterdir()} == {path.name for path in two.iterdir()}


def test_a_stopped_pair_resumes_to_the_same_end(demos: Path, tmp_path: Path) -> None:
    longer = [*FLOW, "--training.updates", "600", "--training.checkpoint-every", "60"]
    words = command(demos, longer, tmp_path / "two")
    process = torchrun(words)
    deadline = time.monotonic() + 120
    while not (tmp_path / "two" / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, output = ended(process)
    assert "stopped by SIGTERM at step" in output and output.count("which is saved") == 1, output
    assert not has_ended(tmp_path / "two")
    code, output = ended(torchrun([*words, "--resume"]))
    assert code == 0, output
    assert main(command(demos, longer, tmp_path / "one")) == 0
    torch.testing.assert_close(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-3, atol=1e-5)


def test_a_killed_rank_ends_the_others_and_leaves_the_checkpoint(demos: Path, tmp_path: Path) -> None:
    words = command(demos, [*FLOW, "--training.updates", "100000"], tmp_path)
    process = torchrun(words)
    deadline = time.monotonic() + 120
    while not (tmp_path / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    code, output = ended(process)
    assert code == 1, output
    assert all(not Path(f"/proc/{child}").exists() for child in children)
    assert read_metrics(tmp_path)[-1]["step"] >= 20


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["testbed:reach", "--recipe", "sac"], "recipe sac learns in one process; start it without torchrun"),
        (["testbed:reach", "--recipe", "ppo", "--curriculum", "rarl"], "--curriculum is for one process"),
        ([*FLOW, "--seeds", "0..1"], "--seeds is for one process"),
    ],
)
def test_what_ranks_cannot_do_is_said(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("robot_rl.util.ranks.LAUNCHED", 2)
    assert main(["train", *words]) == 2
    assert said in capfd.readouterr().err


def test_environments_that_two_ranks_cannot_share_are_refused(demos: Path, tmp_path: Path) -> None:
    code, output = ended(torchrun(command(demos, [*RECIPES["ppo"], "--training.num-envs", "7"], tmp_path / "run")))
    assert code != 0 and "--training.num-envs is 7, which 2 processes cannot share equally" in output, output
    assert not (tmp_path / "run").exists()


def test_a_draw_has_the_rows_of_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    one = ranks.drawn(torch.rand, (6, 2), ranks.generator(3), torch.device("cpu"))
    monkeypatch.setattr("robot_rl.util.ranks.count", lambda: 3)
    parts = []
    for rank in range(3):
        monkeypatch.setattr("robot_rl.util.ranks.rank", lambda rank=rank: rank)
        rng = ranks.generator(3)
        parts.append(ranks.drawn(torch.rand, (2, 2), rng, torch.device("cpu")))
    assert torch.equal(torch.cat(parts), one)
    with pytest.raises(ConfigError, match=r"--training\.batch is 32, which 3 processes"):
        ranks.share(32, "--training.batch")
