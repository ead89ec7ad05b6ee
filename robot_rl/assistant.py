"""Chat with a language or vision-language model and store its answers in a folder.

The file of an answer is named by the hash of its request, so a repeated request needs no network:

<sha256>.json   {"request": ..., "answer": ...}
"""

import base64
import hashlib
import http.client
import ipaddress
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import numpy as np

from robot_rl.util import strict_json
from robot_rl.util.errors import ConfigError, UserError
from robot_rl.util.files import replace_file
from robot_rl.util.limits import Interval, NonNegativeFloat, PositiveFloat, PositiveInt

LARGEST = 4_000_000
"""Largest answer, bytes."""


class Refused(Exception):  # noqa: N818 - it reads as a sentence
    """A request got no usable answer.

    Attributes:
        kind: kind of failure: unreachable, timeout, refused or nonsense.
        wait: time to wait that the server requests, s; None: the server gave no time.
        again: whether the same request may succeed later.
    """

    def __init__(self, kind: str, message: str, again: bool = True, wait: float | None = None):
        self.kind, self.again, self.wait = kind, again, wait
        super().__init__(message)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuse redirects, since a redirected request would send the API key to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def post(url: str, body: dict[str, Any], headers: dict[str, str], seconds: float) -> Any:
    """Send `body` as JSON and return the server's JSON answer; `Refused` if `seconds` pass without a valid answer."""
    deadline = time.monotonic() + seconds
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"} | headers, method="POST")
    local = (request.host or "").rpartition("@")[2].startswith(("localhost", "127.", "[::1]"))
    proxy = [urllib.request.ProxyHandler({})] if local else []  # no proxy for requests to this machine
    try:
        with urllib.request.build_opener(_NoRedirects, *proxy).open(request, timeout=seconds) as response:
            text = _read(response, deadline, seconds)
    except urllib.error.HTTPError as error:
        raise _status(error, deadline, seconds) from None
    except TimeoutError:
        raise Refused("timeout", f"gave no answer within {seconds:g} s") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise Refused("timeout", f"could not be connected to within {seconds:g} s") from None
        raise Refused("unreachable", f"cannot be reached ({error.reason})") from None
    except (OSError, http.client.HTTPException) as error:
        raise Refused("unreachable", f"broke the connection off ({error or type(error).__name__})") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Refused("nonsense", f"answered with something other than JSON: {_shown(text)}") from None


def _read(response: Any, deadline: float, seconds: float) -> bytes:
    """Read the body of a response; the time limit holds for the whole body."""
    parts, size = [], 0
    while part := response.read1(65536):
        parts.append(part)
        size += len(part)
        if size > LARGEST:
            raise Refused("nonsense", f"answered with more than {LARGEST / 1e6:g} MB", again=False)
        if time.monotonic() > deadline:
            raise Refused("timeout", f"had not finished its answer after {seconds:g} s")
    if getattr(response, "length", None):
        raise Refused("unreachable", f"broke the connection off after {size} bytes of its answer")
    return b"".join(parts)


def _status(error: urllib.error.HTTPError, deadline: float, seconds: float) -> Refused:
    """Return the error for a response with an HTTP error status, with the start of the response's body."""
    try:
        excerpt = _shown(_read(error, deadline, seconds))
    except (Refused, OSError, http.client.HTTPException):
        excerpt = ""
    wait = error.headers.get("Retry-After", "")
    again = error.code in (408, 425, 429) or error.code >= 500
    message = f"refused with status {error.code} {error.reason}" + (f": {excerpt}" if excerpt else "")
    return Refused("refused", message, again, float(wait) if wait.isdecimal() else None)


def _shown(text: bytes) -> str:
    excerpt = " ".join(text.decode(errors="replace").split())
    return repr(excerpt[:160] + ("..." if len(excerpt) > 160 else ""))


KEY = "ROBOT_RL_MODEL_KEY"
"""Environment variable with the API key, which is sent to the server and never stored."""
LONGEST_WAIT = 30.0
"""Longest wait between two tries, s, even if the server requests a longer one."""
Role = Literal["system", "user", "assistant"]
Message = dict[str, Any]
"""Message of a chat completion: {"role": ..., "content": text or list of parts}."""
Request = dict[str, Any]
"""Body of a chat completion request."""


class ModelFailure(UserError):  # noqa: N818 - it reads as a sentence
    """A model's server failed in the last try: unreachable, late, refusing, or with an invalid answer.

    Attributes:
        kind: unreachable, timeout, refused or nonsense.
    """

    def __init__(self, kind: str, message: str):
        self.kind = kind
        super().__init__(message)


@dataclass(frozen=True)
class ModelConfig:
    """Language model at a URL."""

    model: str = ""
    """Model as URL#NAME: base URL of the server, such as http://127.0.0.1:8080/v1, and model's name on the server."""
    replies: Path = Path("replies")
    """Folder of stored answers; a stored answer is used again without a request to the server."""
    timeout: PositiveFloat = 120.0
    """Time limit of one try of a request, s."""
    tries: Annotated[int, Interval(ge=1, le=10)] = 3
    """Number of tries of a request before the model counts as failed."""
    temperature: NonNegativeFloat = 0.0
    """Sampling temperature."""
    max_tokens: PositiveInt = 4096
    """Longest answer, tokens."""

    def parts(self) -> tuple[str, str]:
        """Return the URL of chat completions and the model's name; ConfigError unless `model` has the form URL#NAME."""
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
    """Numbers of requests by outcome."""

    asked: int = 0
    """All requests."""
    stored: int = 0
    """Requests with an answer from the folder of stored answers."""
    answered: int = 0
    """Requests with an answer from the server."""
    unreachable: int = 0
    timeout: int = 0
    refused: int = 0
    nonsense: int = 0


class ReplyModel:
    """Client of a model at a URL. The client stores the model's answers in a folder."""

    def __init__(self, config: ModelConfig, first_wait: float = 1.0, sleep: Callable[[float], None] = time.sleep):
        """Raise ConfigError for a wrong URL. `first_wait`: wait before the second try, s; each further wait doubles."""
        self.config, self.first_wait, self.sleep = config, first_wait, sleep
        self.url, self.name = config.parts()
        self.replies, self.counts = Replies(config.replies), Counts()
        self.key = os.environ.get(KEY, "")
        if self.key and self.url.startswith("http:") and not _local(urlsplit(self.url).hostname or ""):
            raise ConfigError(f"{self.url} would get the key of {KEY} unencrypted; use https, or unset {KEY}")

    def request(self, messages: Sequence[Message]) -> Request:
        """Return the request, whose hash identifies the stored answer. It has no URL, since a server may move."""
        settings = {"temperature": self.config.temperature, "max_tokens": self.config.max_tokens}
        return {"model": self.name, "messages": list(messages)} | settings

    def ask(self, messages: Sequence[Message]) -> str:
        """Return the model's answer to messages, stored or new; `ModelFailure` if all tries of the request fail."""
        request = self.request(messages)
        self.counts.asked += 1
        if (stored := self.replies.get(request)) is not None:
            self.counts.stored += 1
            return stored
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
        """Return the nonzero counts of requests by outcome."""
        return {f"model_{name}": count for name, count in asdict(self.counts).items() if count}

    def _remedy(self, kind: str) -> str:
        """Return advice to the user for a kind of failure."""
        return {
            "unreachable": f"start the server, correct --model, or store an answer in {self.replies.folder}",
            "timeout": "raise --timeout, or name a faster --model",
            "refused": f"check the model's name {self.name!r}, the URL and the key in {KEY}",
            "nonsense": "check that the URL speaks OpenAI's chat completions, as .../v1 does, or name another --model",
        }[kind]


def _answer(completion: object) -> str:
    """Return the text of a chat completion."""
    try:
        text = completion["choices"][0]["message"]["content"]  # type: ignore[index]
    except (KeyError, IndexError, TypeError):
        raise Refused("nonsense", f"answered with no choices[0].message.content: {str(completion)[:160]!r}") from None
    if not isinstance(text, str) or not text.strip():
        raise Refused("nonsense", "answered with an empty message")
    return text


def _local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def fenced(answer: str) -> str:
    """Return the last fenced code block of an answer, or the whole answer if it has no code block."""
    blocks = re.findall(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```", answer, re.M | re.S)
    return str(blocks[-1] if blocks else answer).strip() + "\n"


class Replies:
    """Folder with one answer per request. A user or a test may store answers there, for use without a model."""

    def __init__(self, folder: Path):
        self.folder = folder

    def file(self, request: Request) -> Path:
        """Return the path of a request's answer."""
        text = json.dumps(request, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()}.json"

    def get(self, request: Request) -> str | None:
        """Return the stored answer to a request; None if no answer is stored; UserError if its file is damaged."""
        file = self.file(request)
        try:
            answer = json.loads(file.read_bytes())["answer"]
            if not isinstance(answer, str) or not answer.strip():
                raise ValueError("it holds no answer")
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"{file} is damaged ({error}); remove it, and the model is asked again") from None
        return answer

    def put(self, request: Request, answer: str) -> Path:
        """Store the answer to a request by atomic rename; return the path of its file."""
        file = self.file(request)
        replace_file(file, strict_json.dumps({"request": request, "answer": answer}, indent=2).encode())
        return file


def message(role: Role, text: str, *pictures: np.ndarray) -> Message:
    """Return a message with a text and pictures, each uint8 (height, width, 3) RGB."""
    if not pictures:
        return {"role": role, "content": text}
    parts = [{"type": "image_url", "image_url": {"url": data_url(picture)}} for picture in pictures]
    return {"role": role, "content": [{"type": "text", "text": text}, *parts]}


def data_url(picture: np.ndarray) -> str:
    """Encode a picture, uint8 (height, width, 3) RGB, as a PNG data URL; ValueError for another array."""
    import cv2

    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or not picture.size:
        raise ValueError(f"a picture is uint8 (height, width, 3), not {picture.dtype} {picture.shape}")
    done, png = cv2.imencode(".png", picture[:, :, ::-1])
    if not done:
        raise ValueError(f"a picture of shape {picture.shape} cannot be written as PNG")
    return "data:image/png;base64," + base64.b64encode(png.tobytes()).decode()
