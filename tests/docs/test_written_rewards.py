"""The page on written rewards: its commands run with stored replies instead of a model."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch

from robot_rl.assistant import ModelConfig, ReplyModel, fenced
from robot_rl.cli.main import main
from robot_rl.rewards.written.code import compile_reward
from robot_rl.rewards.written.file import read_reward
from robot_rl.rewards.written.writer import conversation, goal_of, revision
from sim.make import make

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "written-rewards.md").read_text()
REPLIES = ROOT / "tests" / "robot_rl" / "rewards" / "replies"
SMALL = ["--training.num-envs", "4", "--training.steps", "40", "--threads", "1"]
OF_RECIPE = {"ppo": ["--training.rollout", "5"], "sac": ["--training.warmup", "20", "--training.learning-starts", "20"]}


def commands() -> list[list[str]]:
    lines = "\n".join(re.findall(r"^```bash\n(.*?)^```", PAGE, re.M | re.S)).splitlines()
    return [shlex.split(line)[1:] for line in lines if line]


def test_documented_commands_run(tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    first, revised = ((REPLIES / f"{name}.md").read_text() for name in ("reach", "reach-gentle"))
    Path("answer.md").write_text(first)
    (write, *_, again) = [words for words in commands() if words[:2] == ["reward", "write"]]
    model, env = ReplyModel(ModelConfig(write[write.index("--model") + 1])), make("testbed:reach", 1)
    messages = conversation(env, goal_of(env))
    model.replies.put(model.request(messages), first)
    wish = again[again.index("--feedback") + 1]
    model.replies.put(model.request(revision(messages, fenced(first), wish)), revised)
    for words in commands():
        more = [*SMALL, *OF_RECIPE[words[words.index("--recipe") + 1]]] if words[0] == "train" else []
        assert main([*words, *more]) == 0, capsys.readouterr().err
    assert json.loads(Path("runs/written/config.json").read_text())["reward"].endswith("rewards/reach.py")
    assert read_reward("rewards/reach.py").source == fenced(revised)
    assert read_reward("rewards/pasted.py").source == fenced(first)


def test_documented_reward_compiles_and_prefers_the_goal() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    near, far = ({"target_to_tip": torch.tensor([[x, 0.0]])} for x in (0.01, 0.3))
    pay = compile_reward(code)
    assert pay(near, far, torch.zeros(1, 2)) > 2 > 0 > pay(far, near, torch.zeros(1, 2))
