"""Ask a model, and keep what it answered."""

from __future__ import annotations

import ipaddress
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from robot_rl.assistant.http import Refused, post
from robot_rl.assistant.messages import Message
from robot_rl.assistant.replies import Replies, Request
from robot_rl.util.errors import ConfigError, UserError
from robot_rl.util.limits import Interval, NonNegativeFloat, PositiveFloat, PositiveInt

KEY = "ROBOT_RL_MODEL_KEY"
"""Environment variable with the key of a model's server. It is sent to the server, and nowhere written."""
LONGEST_WAIT = 30.0
"""s between two tries at most, whatever a server asks for."""


class ModelFailure(UserError):  # noqa: N818 - it reads as a sentence
    """A model's server that cannot be reached, is late, refuses, or answers nonsense, however often it is asked.

    Attributes:
        kind: unreachable, timeout, refused or nonsense.
    """

    def __init__(self, kind: str, message: str):
        self.kind = kind
        super().__init__(message)


@dataclass(frozen=True)
class ModelConfig:
    """A language model behind a URL."""

    model: str = ""
    """URL#NAME of a model: its server's base URL, such as http://127.0.0.1:8080/v1, and its name there."""
    replies: Path = Path("replies")
    """Folder of its answers; what was answered before is not asked again."""
    timeout: PositiveFloat = 120.0
    """Limit of one try, s."""
    tries: Annotated[int, Interval(ge=1, le=10)] = 3
    """How often a question is asked before the model counts as failed."""
    temperature: NonNegativeFloat = 0.0
    """Randomness of its answers."""
    max_tokens: PositiveInt = 4096
    """Length of an answer at most, tokens."""

    def parts(self) -> tuple[str, str]:
        """Return the URL of chat completions, and the model's name; ConfigError for a wrong one."""
        wanted = "write URL#NAME, such as http://127.0.0.1:8080/v1#qwen2.5"
        base, _, name = self.model.partition("#")
        try:
            url = urlsplit(base)
            fine = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
        except ValueError:
            fine = False
        if not fine or not name:
            raise ConfigError(f"--model {self.model!r} names no model; {wanted}")
        if url.username or url.password or url.query:
            raise ConfigError(f"--model has a password or query in its URL; {wanted}, and put a key into {KEY}")
        return base.rstrip("/") + "/chat/completions", name


@dataclass
class Counts:
    """How a model behaved."""

    asked: int = 0
    """Questions."""
    stored: int = 0
    """Answers from the folder."""
    answered: int = 0
    """Answers of the server."""
    unreachable: int = 0
    timeout: int = 0
    refused: int = 0
    nonsense: int = 0


class ReplyModel:
    """A model behind a URL, whose answers are stored in a folder."""

    def __init__(self, config: ModelConfig, first_wait: float = 1.0, sleep: Callable[[float], None] = time.sleep):
        """`first_wait`: s before the second try, doubled at each further one. ConfigError for a wrong URL."""
        self.config, self.first_wait, self.sleep = config, first_wait, sleep
        self.url, self.name = config.parts()
        self.replies, self.counts = Replies(config.replies), Counts()
        self.key = os.environ.get(KEY, "")
        if self.key and self.url.startswith("http:") and not _local(urlsplit(self.url).hostname or ""):
            raise ConfigError(f"{self.url} would get the key of {KEY} unencrypted; use https, or unset {KEY}")

    def request(self, messages: Sequence[Message]) -> Request:
        """Return the request, without the URL, since a server may move; its hash is the key of the stored answer."""
        settings = {"temperature": self.config.temperature, "max_tokens": self.config.max_tokens}
        return {"model": self.name, "messages": list(messages)} | settings

    def ask(self, messages: Sequence[Message]) -> str:
        """Return the model's answer, stored or new; `ModelFailure` after the last try."""
        request = self.request(messages)
        self.counts.asked += 1
        if (found := self.replies.get(request)) is not None:
            self.counts.stored += 1
            return found
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        for k in range(self.config.tries):
            try:
                answer = _answer(post(self.url, request, headers, self.config.timeout))
            except Refused as error:
                setattr(self.counts, error.kind, getattr(self.counts, error.kind) + 1)
                if not error.again or k + 1 == self.config.tries:
                    tried = f", tried {k + 1} times" if k else ""
                    raise ModelFailure(error.kind, f"{self.url} {error}{tried}; {self._remedy(error.kind)}") from None
                self.sleep(min(LONGEST_WAIT, error.wait or self.first_wait * 2**k))
            else:
                self.counts.answered += 1
                self.replies.put(request, answer)
                return answer
        raise AssertionError("at least one try")

    def summary(self) -> dict[str, int]:
        """Return the counts that are not 0."""
        return {f"model_{name}": count for name, count in asdict(self.counts).items() if count}

    def _remedy(self, kind: str) -> str:
        return {
            "unreachable": f"start the server, correct --model, or store an answer in {self.replies.folder}",
            "timeout": "raise --timeout, or name a faster --model",
            "refused": f"check the model's name {self.name!r}, the URL and the key in {KEY}",
            "nonsense": "check that the URL speaks OpenAI's chat completions, as .../v1 does, or name another --model",
        }[kind]


def _answer(found: object) -> str:
    """Return the text of a chat completion."""
    try:
        text = found["choices"][0]["message"]["content"]  # type: ignore[index]
    except (KeyError, IndexError, TypeError):
        raise Refused("nonsense", f"answered with no choices[0].message.content: {str(found)[:160]!r}") from None
    if not isinstance(text, str) or not text.strip():
        raise Refused("nonsense", "answered with an empty message")
    return text


def _local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def fenced(answer: str) -> str:
    """Return the last fenced block of an answer, or all of it where there is none: models talk around their code."""
    blocks = re.findall(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```", answer, re.M | re.S)
    return str(blocks[-1] if blocks else answer).strip() + "\n"
