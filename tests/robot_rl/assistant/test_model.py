"""Model client: requests, stored answers, retries, and servers that are late, refuse or give invalid answers."""

import base64
import json
import time
from typing import Any

import cv2
import numpy as np
import pytest

from robot_rl.assistant import ModelConfig, ModelFailure, ReplyModel, data_url, fenced, message
from robot_rl.util.errors import ConfigError, UserError


def ask(config: ModelConfig, text: str = "hello", **settings: Any) -> tuple[str, ReplyModel]:
    model = ReplyModel(config, first_wait=0.0, **settings)
    return model.ask([message("user", text)]), model


def test_a_stored_answer_needs_no_server(model_server: Any, model_config: ModelConfig) -> None:
    model_server.answers = ["one", "two"]
    answer, model = ask(model_config)
    assert answer == "one" and model.summary() == {"model_asked": 1, "model_answered": 1}
    request = model_server.asked[0]
    assert request["path"] == "/v1/chat/completions" and request["model"] == "canned" and request["temperature"] == 0
    assert "Authorization" not in model_server.headers[0]
    elsewhere = ModelConfig("http://127.0.0.1:9/v1#canned", model_config.replies)
    answer, model = ask(elsewhere)
    assert answer == "one" and model.summary() == {"model_asked": 1, "model_stored": 1}
    assert ask(model_config, "hello!")[0] == "two"
    assert len(model_server.asked) == 2


def test_local_requests_bypass_the_proxy(model_server: Any, model_config: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    model_server.answers = ["here"]
    assert ask(model_config)[0] == "here"


def test_pictures_are_sent_as_png(model_server: Any, model_config: ModelConfig) -> None:
    picture = np.random.default_rng(0).integers(0, 255, (6, 8, 3), np.uint8)
    model_server.answers = ["a square"]
    ReplyModel(model_config).ask([message("user", "what is it?", picture)])
    text, image = model_server.asked[0]["messages"][0]["content"]
    kind, _, data = image["image_url"]["url"].partition(",")
    png = np.frombuffer(base64.b64decode(data), np.uint8)
    assert text == {"type": "text", "text": "what is it?"} and kind == "data:image/png;base64"
    assert np.array_equal(cv2.imdecode(png, cv2.IMREAD_COLOR)[:, :, ::-1], picture)
    with pytest.raises(ValueError, match="uint8"):
        data_url(np.zeros((6, 8), np.uint8))


def test_the_key_is_sent_but_not_stored(model_server: Any, model_config: ModelConfig, monkeypatch: Any) -> None:
    monkeypatch.setenv("ROBOT_RL_MODEL_KEY", "s3cret")
    model_server.answers = ["fine"]
    ask(model_config)
    assert model_server.headers[0]["Authorization"] == "Bearer s3cret"
    assert all("s3cret" not in file.read_text() for file in model_config.replies.iterdir())
    with pytest.raises(ConfigError, match="unencrypted; use https"):
        ReplyModel(ModelConfig("http://example.org/v1#m"))


def late(handler: Any) -> None:
    handler.rfile.raw.readinto(bytearray(1))  # returns when the client disconnects


def dripping(handler: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    deadline = time.monotonic() + 5
    try:
        while time.monotonic() < deadline:
            handler.wfile.write(b" ")
            time.sleep(0.02)
    except OSError:
        pass


def redirecting(handler: Any) -> None:
    handler.send_response(302)
    handler.send_header("Location", "http://127.0.0.1:9/")
    handler.end_headers()


def cut(handler: Any) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"{")


@pytest.mark.parametrize(("answer", "tries", "kind", "words"), [
    (late, 2, "timeout", "gave no answer within 0.3 s, tried 2 times; raise --timeout"),
    (dripping, 2, "timeout", "had not finished its answer after 0.3 s"),
    ((200, b"<html>hello"), 2, "nonsense", "other than JSON: '<html>hello', tried 2 times; check that the URL"),
    ((200, b'{"choices": []}'), 2, "nonsense", "no choices"),
    ((200, b'{"choices": [{"message": {"content": " "}}]}'), 2, "nonsense", "an empty message"),
    ((500, b"out of memory"), 2, "refused", "status 500 Internal Server Error: 'out of memory', tried 2 times"),
    ((404, b"no such model"), 1, "refused", "404 Not Found: 'no such model'; check the model's name 'canned'"),
    (redirecting, 1, "refused", "status 302"),
    (cut, 2, "unreachable", "broke the connection off after 1 bytes"),
], ids=["late", "dripping", "no json", "no choices", "empty", "error", "unknown", "redirect", "cut"])  # fmt: skip
def test_failures_of_the_server_are_counted_and_reported(
    answer: Any, tries: int, kind: str, words: str, model_server: Any, model_config: ModelConfig
) -> None:
    model_server.answers = [answer]
    timeout = 0.3 if kind == "timeout" else 20.0
    model = ReplyModel(ModelConfig(model_config.model, model_config.replies, timeout, tries=2), first_wait=0.0)
    with pytest.raises(ModelFailure) as failure:
        model.ask([message("user", "hello")])
    assert failure.value.kind == kind and words in str(failure.value) and model_server.url in str(failure.value)
    assert model.summary() == {"model_asked": 1, f"model_{kind}": tries}
    assert not list(model_config.replies.glob("*")), "invalid answers are not stored"


def test_tries_are_repeated_with_growing_waits(model_server: Any, model_config: ModelConfig) -> None:
    waits: list[float] = []
    model_server.answers = [(503, b""), (200, b"nonsense"), "there"]
    model = ReplyModel(model_config, first_wait=0.5, sleep=waits.append)
    assert model.ask([message("user", "hello")]) == "there" and waits == [0.5, 1.0]
    assert model.summary() == {"model_asked": 1, "model_answered": 1, "model_refused": 1, "model_nonsense": 1}
    with pytest.raises(ModelFailure, match=r"cannot be reached .*; start the server, correct --model, or store"):
        ask(ModelConfig("http://127.0.0.1:9/v1#m", model_config.replies, tries=1), "another")


@pytest.mark.parametrize("model", ["", "qwen", "http://host/v1", "ftp://host/v1#m", "http://:1/v1#m", "http://a:b#m"])
def test_invalid_model_urls_are_refused(model: str) -> None:
    with pytest.raises(ConfigError, match="write URL#NAME"):
        ReplyModel(ModelConfig(model))
    with pytest.raises(ConfigError, match="put a key into ROBOT_RL_MODEL_KEY"):
        ReplyModel(ModelConfig("https://me:word@host/v1#m"))


@pytest.mark.parametrize("damage", ["", "[]", '{"answer": 3}', '{"answer": ""}'])
def test_a_damaged_stored_answer_is_reported(damage: str, model_server: Any, model_config: ModelConfig) -> None:
    model_server.answers = ["fine"]
    ask(model_config)
    (file,) = model_config.replies.iterdir()
    assert json.loads(file.read_text())["answer"] == "fine"
    file.write_text(damage)
    with pytest.raises(UserError, match=f"{file.name} is damaged .*; remove it"):
        ask(model_config)


def test_the_last_fenced_block_of_an_answer_is_extracted() -> None:
    assert fenced("Sure!\n```python\na = 1\n```\nOr:\n```\nb = 2\n```\nDone.") == "b = 2\n"
    assert fenced("a = 1") == "a = 1\n"
