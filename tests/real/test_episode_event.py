"""Events of the topic `episode_event` count like presses of the buttons, each exactly once, also without a device."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
import torch

from real.bus import make, qos
from real.control.stop import OPERATOR
from real.episode.env import RobotEnv
from real.teleop.commands import Operator, OperatorInput
from real.topics import EVENT_TOPIC, EVENTS, TEXT
from sim.tasks import tasks
from tests.real.conftest import LockstepArm

Build = Callable[..., Any]
STILL = torch.tensor([[0.0, 0.0, 0.0, 1.0]])


@pytest.mark.parametrize("device", [False, True], ids=["without a device", "with a device"])
@pytest.mark.parametrize(("word", "field"), EVENTS.items())
def test_each_message_is_one_press(nodes: Build, eventually: Build, word: str, field: str, device: bool) -> None:
    node, panel = nodes("policy"), nodes("panel")
    with closing(OperatorInput(node, "panda")) as inputs:
        publisher = panel.publisher(TEXT, EVENT_TOPIC, qos.DEFAULT)
        assert panel.wait_for(lambda: publisher.matched == 1, 10.0)
        for _ in range(2):
            if device:
                inputs.receive(Operator(held=True, motion=(0.5, 0.0, 0.0)), 7.0)
            publisher.publish(make(TEXT, data=word))
            seen: list[Any] = []
            eventually(lambda seen=seen: seen.append(inputs.read(7.0)) or getattr(seen[-1], field, False), word)
            assert seen[-1].held == device, "motion goes on"
            assert not getattr(inputs.read(7.0), field, False), "once"
            assert not (field == "rerecord" and seen[-1].reset), "clears no stop"


def test_unknown_words_are_named_once_and_a_later_event_still_counts(
    nodes: Build, eventually: Build, caplog: pytest.LogCaptureFixture
) -> None:
    node, panel = nodes("policy"), nodes("panel")
    with closing(OperatorInput(node, "panda")) as inputs:
        publisher = panel.publisher(TEXT, EVENT_TOPIC, qos.DEFAULT)
        assert panel.wait_for(lambda: publisher.matched == 1, 10.0)
        for word in ("intervention", "intervention", "Success", "success"):
            publisher.publish(make(TEXT, data=word))
        reading: list[Any] = []
        eventually(lambda: reading.append(inputs.read(7.0)) or reading[-1])
    assert reading[-1] == Operator(success=True)
    assert [r.getMessage().split(" on ")[0] for r in caplog.records] == ["ignored 'intervention'", "ignored 'Success'"]


@pytest.fixture
def episode(simulated: Any) -> Iterator[tuple[RobotEnv, Callable[[str], dict[str, Any]]]]:
    """Start an episode; the function publishes a word and steps until it has an effect."""
    arm = LockstepArm(simulated.node("arm"))
    simulated.run(arm.tick)
    interface = replace(tasks.get("panda-lift").interface, success="lifted:cube:9", horizon=2000)
    inputs, panel = OperatorInput(simulated.node("ears"), "panda"), simulated.node("panel")
    publisher = panel.publisher(TEXT, EVENT_TOPIC, qos.DEFAULT)
    with closing(RobotEnv(simulated.node("policy"), interface, operator=inputs)) as env:
        assert panel.wait_for(lambda: publisher.matched == 1, 10.0)
        env.activate()
        env.reset(seed=0)

        def send(word: str) -> dict[str, Any]:
            for _ in range(3):
                assert not counted(env.step(STILL)[4])
            publisher.publish(make(TEXT, data=word))
            for _ in range(500):
                *_, terminated, truncated, infos = env.step(STILL)
                if counted(infos):
                    return infos | {"terminated": bool(terminated), "truncated": bool(truncated)}
            raise AssertionError(word)

        yield env, send


def counted(infos: dict[str, Any]) -> bool:
    return bool(infos["marked"] | infos["discarded"] | infos["success"])


@pytest.mark.parametrize("word", ["success", "failure"])
def test_marks_end_the_episode(episode: Any, word: str) -> None:
    env, send = episode
    infos = send(word)
    assert infos["marked"].item() and infos["terminated"] and infos["success"].item() == (word == "success")
    env.reset(seed=1)
    assert not counted(env.step(STILL)[4]), "the next episode is not marked"


def test_rerecord_discards_and_terminate_latches_a_stop(episode: Any) -> None:
    env, send = episode
    infos = send("rerecord")
    assert infos["discarded"].item() and not env.loop.stopped
    assert not env.step(STILL)[4]["discarded"].item(), "once"
    infos = send("terminate")
    assert infos["discarded"].item() and env.loop.stopped == OPERATOR and infos["truncated"]
