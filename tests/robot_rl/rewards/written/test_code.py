"""Compiling written rewards: the allowed subset of Python, run-time faults and the sandbox."""

from typing import Any

import pytest
import torch

from robot_rl.rewards.written.code import BadCode, compile_reward, evaluate, names_read
from robot_rl.rewards.written.sandbox import check_rewards, try_reward

VIEWS = {"tip": 2, "goal": 2}


def source(*lines: str) -> str:
    return "def reward(now, before, action):\n" + "".join(f"    {line}\n" for line in lines)


def transitions(rows: int = 12) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(0)
    now, before = ({name: torch.randn(rows, size, generator=rng) for name, size in VIEWS.items()} for _ in range(2))
    return {"now": now, "before": before, "action": torch.rand(rows, 2, generator=rng)}


def paid(*lines: str) -> torch.Tensor:
    t = transitions()
    return evaluate(compile_reward(source(*lines), VIEWS), t["now"], t["before"], t["action"])


def test_a_reward_is_computed_for_all_rows() -> None:
    t = transitions()
    text = 'WEIGHT = 2.0\n\ndef reward(now: dict, before, action) -> "torch.Tensor":\n    """Distance."""\n'
    text += '    gap: float = now["tip"] - now["goal"]\n    r = -gap.norm(dim=1)\n    r -= WEIGHT * action[:, 0] ** 2\n'
    text += '    near = (gap.norm(dim=1) < 0.5) & (before["tip"][..., 1] > 0)\n'
    text += "    return torch.where(near, r + 1, torch.stack([r, r * 2], dim=1).amin(dim=1))\n"
    tip = t["now"]["tip"].clone()
    reward = evaluate(compile_reward(text, VIEWS), t["now"], t["before"], t["action"])
    gap = (t["now"]["tip"] - t["now"]["goal"]).norm(dim=1)
    r = -gap - 2 * t["action"][:, 0] ** 2
    near = (gap < 0.5) & (t["before"]["tip"][:, 1] > 0)
    assert torch.allclose(reward, torch.where(near, r + 1, 2 * r)) and (r < 0).all()
    assert torch.equal(t["now"]["tip"], tip), "-= does not change its argument"
    assert names_read(text) == ["tip", "goal"]
    text = "NEAR = 0.5 * (1 + 0.2)\nFAR = -3\n" + source("return action[:, 0] * NEAR + FAR")
    reward = evaluate(compile_reward(text, VIEWS), t["now"], t["before"], t["action"])
    assert torch.allclose(reward, t["action"][:, 0] * 0.6 - 3), "constants computed from numbers"


@pytest.mark.parametrize(("line", "said"), [
    ("import os", "Import is not allowed; torch is there"),
    ("while True: x = 1", "While is not allowed; write it without a loop"),
    ("for i in action: x = i", "For is not allowed"),
    ("if action.sum() > 0: x = 1", "If is not allowed; use torch.where"),
    ("x = [a for a in action]", "lists|ListComp"),
    ("x = lambda: 1", "Lambda is not allowed"),
    ("x = open('/etc/passwd')", "call functions as torch.NAME"),
    ("x = torch.load('weights')", "torch.load is not allowed"),
    ("x = action.__class__", "attribute '__class__' is not allowed"),
    ("x = action.data", "attribute 'data' is not allowed"),
    ("x = torch.os.system('id')", "is not allowed"),
    ("x = action.zero_()", r"\.zero_ is not allowed"),
    ("x = torch.clamp(action, 0, 1, out=action)", "may not be given 'out'"),
    ("action[:, 0] = 0", "assign to a name"),
    ("now['tip'] = action", "assign to a name"),
    ("torch = action", "'torch' may not be assigned"),
    ("__builtins__ = 1", "may not be assigned"),
    ("x = __builtins__", "'__builtins__' is not there"),
    ("x = reward(now, before, action)", "call functions as torch.NAME"),
    ("x = now", "now is read as"),
    ("k = 'tip'", "no number below 1e9"),
    ("x = now['tap']", "no view 'tap'; did you mean tip"),
    ("x = now[action]", "now is read as"),
    ("x = 2 ** 2 ** 2 ** 9", "a power is a number of at most 8"),
    ("x = 1e300", "no number below 1e9"),
    ("x = 1 << 40", "LShift is not allowed"),
    ("x = 0 < action < 1", "compare two values"),
    ("x = (action > 0) and (action < 1)", "BoolOp is not allowed; use &"),
    ("x = [0] * 1000000", "lists and tuples may only be arguments"),
    ("x = f'{action}'", "JoinedStr is not allowed"),
    ("global x", "Global is not allowed"),
    ("def inner(): return 1", "reward"),
    ("class A: pass", "ClassDef is not allowed"),
    ("yield action", "Yield is not allowed"),
    ("(x := action)", "NamedExpr is not allowed"),
    ("x = y", "'y' is not there"),
])  # fmt: skip
def test_forbidden_code_is_refused_before_it_runs(line: str, said: str) -> None:
    with pytest.raises(BadCode, match=said):
        compile_reward(source(line, "return action[:, 0]"), VIEWS)


@pytest.mark.parametrize(("text", "said"), [
    ("", "define one function"),
    ("I cannot write a reward.", "return one Python function"),
    ("def reward(a, b): return a", r"the function is reward\(now, before, action\)"),
    ("def reward(now, before, action=1): return action", "without defaults"),
    ("@staticmethod\ndef reward(now, before, action): return action", "decorators"),
    ("async def reward(now, before, action): return action", "AsyncFunctionDef"),
    ("def reward(now, before, action): x = 1", "ends with `return`"),
    (source("return action[:, 0]") + source("return action[:, 0]"), "define one function"),
    (source("return action[:, 0]") + "action.sum()\n", "only one function"),
    ("def reward(now, before, action):\n  return " + "-" * 5000 + "1", "parts|read"),
    (source("return " + "1 + " * 6000 + "1"), "characters"),
    ("\0", "cannot be read|return one"),
    ("A = (9 ** 9) ** 9\n" + source("return action[:, 0]"), "a constant is a number"),
    ("A = [0] * 1000000000\n" + source("return action[:, 0]"), "a constant is a number"),
    ("A = torch.zeros_like(3)\n" + source("return action[:, 0]"), "a constant is a number"),
])  # fmt: skip
def test_sources_without_one_reward_function_are_refused(text: str, said: str) -> None:
    with pytest.raises(BadCode, match=said):
        compile_reward(text, VIEWS)


def test_failing_code_is_reported_with_its_line() -> None:
    with pytest.raises(BadCode, match="line 3 fails: RuntimeError"):
        paid("x = 1.0", "return action @ action")
    with pytest.raises(BadCode, match=r"returns \(12, 2\) for n = 12"):
        paid("return action")
    with pytest.raises(BadCode, match="returns int for n = 12"):
        paid("return 1")


@pytest.mark.parametrize(("line", "said"), [
    ("return torch.log(action[:, 0] - 2)", "nan for a recorded transition"),
    ("return 1 / (now['tip'] - before['tip']).norm(dim=1)", "inf for a robot at rest"),
    ("return 1 / now['tip'][:, 0]", "inf for values that are all 0"),
    ("return action[:, 0] - action[:, 0].mean()", "depends on the others"),
    ("return action[:, 0] / action.norm()", "nan|depends on the others"),
])  # fmt: skip
def test_non_finite_rewards_and_rewards_that_mix_rows_are_refused(line: str, said: str) -> None:
    with pytest.raises(BadCode, match=said):
        check_rewards(compile_reward(source(line), VIEWS), transitions())


def test_the_sandbox_stops_a_reward_at_its_limits() -> None:
    many = transitions(20_000)
    with pytest.raises(BadCode, match="takes more than 1 s for 20000 rows|takes more than 2 GB|memory"):
        try_reward(source("x = action[:, :1] @ action[None, :, 0]", "return (x @ x @ x)[:, 0]"), many, seconds=1)
