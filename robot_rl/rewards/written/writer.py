"""Have a model write a reward: try what it answers, tell it what was wrong, and vet what runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from robot_rl.assistant import Message, ReplyModel, fenced, message
from robot_rl.rewards.written.code import BadCode
from robot_rl.rewards.written.prompt import complaint, judgement, wish
from robot_rl.rewards.written.vetting import Played, Vetting, vet
from robot_rl.util.errors import UserError

Say = Callable[[str], None]


@dataclass
class Written:
    """The best reward that a model wrote."""

    source: str
    vetting: Vetting
    rounds: int
    """Answers that it took, or all of them if none passed."""
    rejected: list[str] = field(default_factory=list)
    """Why each answer before was no reward, or a bad one."""


def revision(messages: list[Message], source: str, feedback: str) -> list[Message]:
    """Return the conversation that asks for another version of a reward."""
    return [*messages, message("assistant", f"```python\n{source}```"), wish(feedback)]


def write(model: ReplyModel, messages: list[Message], played: Played, rounds: int, say: Say) -> Written:
    """Return the first reward that ranks the played episodes well enough, else the best of all rounds.

    UserError where no answer was a reward at all.
    """
    messages, best = list(messages), None
    rejected: list[str] = []
    for k in range(1, rounds + 1):
        answer = model.ask(messages)
        source = fenced(answer)
        try:
            found = vet(source, played)
        except BadCode as error:
            said, asked = str(error), complaint(error)
        else:
            if best is None or found.auc > best.vetting.auc:
                best = Written(source, found, k)
            if found.passed:
                best.rejected = rejected
                return best
            said, asked = f"it pays the success more in {found.auc:.1%} of pairs", judgement(found)
        rejected.append(said)
        say(f"round {k} of {rounds}: {said}")
        messages += [message("assistant", answer), asked]
    if best is None:
        raise UserError(
            f"{model.name} wrote no reward that can be run in {rounds} rounds; the last one: {rejected[-1]}. Raise "
            "--rounds, or name another --model"
        )
    best.rejected = rejected
    return best
