"""Have a language model write a reward: prompt the model, try its answer, report faults, and vet a reward that runs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from robot_rl.assistant import Message, ReplyModel, fenced, message
from robot_rl.interface.pipeline import Interface
from robot_rl.interface.success import tests
from robot_rl.rewards.written.code import FUNCTIONS, METHODS, BadCode
from robot_rl.rewards.written.vetting import BAR, Played, Vetting, vet
from robot_rl.rewards.written.views import TRUE, Views
from robot_rl.util.errors import UserError

Say = Callable[[str], None]
RULES = """You write reward functions for reinforcement learning of robots, in Python with PyTorch.

Return one fenced block with one function and nothing else:

def reward(now, before, action):
    ...
    return r  # tensor of shape (n,)

It is evaluated for n environments at once, after every control period. `before["NAME"]` is a view of the state at the
start of the period and `now["NAME"]` at its end, each a float tensor (n, size). `action` (n, A) is in [-1, 1].
Rules:
- No imports, loops, if, print, classes, further functions or changes of a tensor in place. torch is there.
- Every row is judged by itself: reduce over dim=1, never over all rows; select rows by torch.where.
- Numbers stay finite for any state, zeros too.
- Functions: torch.{functions}. Methods of tensors: {methods}.
- Write staged distances, progress and small penalties. A reward of about 1 in size learns best.
- An episode ends when the task is done, and nothing is paid after that. So being almost done must not be paid more over
  time than being done: pay progress, or costs until it is done, with a bonus for done."""
AGAIN = "Return the whole function, corrected, in one fenced block."


@dataclass
class Written:
    """Best reward that a model wrote."""

    source: str
    vetting: Vetting
    rounds: int
    """Number of answers of the model up to this reward."""
    rejected: list[str] = field(default_factory=list)
    """Reason for the rejection of each rejected answer."""


def write(model: ReplyModel, messages: list[Message], played: Played, rounds: int, say: Say) -> Written:
    """Return the first reward that passes vetting on the played episodes, or else the best reward of all rounds.

    UserError if no answer can be run as a reward.
    """
    messages, best = list(messages), None
    rejected: list[str] = []
    for k in range(1, rounds + 1):
        answer = model.ask(messages)
        source = fenced(answer)
        try:
            vetting = vet(source, played)
        except BadCode as error:
            reason, request = str(error), message("user", f"This reward was rejected: {error}. {AGAIN}")
        else:
            if best is None or vetting.auc > best.vetting.auc:
                best = Written(source, vetting, k)
            if vetting.passed:
                best.rejected = rejected
                return best
            reason, request = f"it pays the success more in {vetting.auc:.1%} of pairs", _judgement(vetting)
        rejected.append(reason)
        say(f"round {k} of {rounds}: {reason}")
        messages += [message("assistant", answer), request]
    if best is None:
        raise UserError(
            f"{model.name} wrote no reward that can be run in {rounds} rounds; the last one: {rejected[-1]}. Raise "
            "--rounds, or name another --model"
        )
    best.rejected = rejected
    return best


def conversation(env: Any, goal: str) -> list[Message]:
    """Return the messages that request a reward for an environment's task; `goal` is the task in words."""
    rules = RULES.replace("{functions}", ", ".join(sorted(FUNCTIONS))).replace("{methods}", ", ".join(sorted(METHODS)))
    info, views = env.info, Views.of(env)
    lines = [f"Task: {goal}", _success(info.interface)]
    lines += [f"Control periods per second: {info.rate:g}. Longest episode: {_horizon(env)} periods."]
    lines += ["Views, by name:", views.describe()]
    if views.true.size:
        lines += [f"Those that begin with {TRUE!r} are exact, and known in simulation only."]
    lines += [f"action: (n, {info.action}): {', '.join(info.actions.names)}"]
    return [message("system", rules), message("user", "\n".join(filter(None, lines)))]


def revision(messages: list[Message], source: str, feedback: str) -> list[Message]:
    """Return the messages that request a new version of a reward, with a person's feedback."""
    request = message("user", f"A person watched what was learned, and says: {feedback}\n{AGAIN}")
    return [*messages, message("assistant", f"```python\n{source}```"), request]


def goal_of(env: Any) -> str:
    """Return the goal of an environment's task in words, empty if the task has no goal in words."""
    interface = env.info.interface
    if interface is not None:
        return str(interface.instruction)
    return getattr(getattr(env, "testbed", None), "goal", "")


def _judgement(result: Vetting) -> Message:
    """Return the message to the model about a reward that ranks episodes wrongly."""
    return message(
        "user",
        f"This reward was tried on {result.successes} episodes that succeed and {result.failures} that fail: careless, "
        "random, without motion, or given up shortly before success. Of a success and a failure with the same start, "
        f"the sum of rewards over the episode is larger for the success in {result.auc:.1%}; at least {BAR:.0%} are "
        f"needed. The mean sum is {result.success_return:.3g} for successes and {result.failure_return:.3g} for "
        f"failures; the last reward alone ranks {result.last_auc:.1%} of all pairs rightly. Successes end early, so a "
        f"reward that is positive in every period pays failures for their length. {AGAIN}",
    )


def _success(interface: Interface | None) -> str:
    if interface is None:
        return ""
    if not interface.success:
        return "It is done when the longest episode ends without a failure." + _failure(interface)
    done = f"Done when this test has held for {interface.success_hold} periods: {_test(interface.success)}"
    return done + _failure(interface)


def _failure(interface: Interface) -> str:
    return f" It fails when: {_test(interface.failure)}" if interface.failure else ""


def _test(text: str) -> str:
    """Return the text of a success or failure test: its call and its docstring."""
    name, words = tests.split(text)
    doc = " ".join((tests.get(name).__doc__ or "").split())
    return f"{name}({', '.join(words)}). {doc}"


def _horizon(env: Any) -> int | str:
    interface = env.info.interface
    if interface is not None:
        return int(interface.horizon)
    return getattr(getattr(env, "testbed", None), "horizon", "unknown")
