"""One robot with its command loop and operator, shared by episodes and the phases between them."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from real.bus import Node, Stamped, qos
from real.control.clock import Ticker
from real.control.loop import CommandLoop
from real.control.safety import STALE_GOAL, STALE_STATE, SafetyConfig
from real.episode.instruction import InstructionInput
from real.episode.intervention import Arbiter
from real.episode.pictures import Pictures, with_judged
from real.robots import open_driver
from real.robots.base import NotReady
from real.teleop.commands import Operator, OperatorInput
from real.topics import RESET_TOPIC, STALL_TOPIC
from robot_rl.interface.pipeline import Interface, Pipeline
from robot_rl.interface.state import RobotState
from robot_rl.rewards.classifier import Classifier

logger = logging.getLogger(__name__)
SILENCES = (STALE_STATE, STALE_GOAL, "silence")
"""Ends of reasons for a stop that a process that stood still may have caused; the guard reports silences too."""
RECENT = 0.5
"""Time before a stop in which a process must have stood still to be its cause, s."""
WATCH = 0.5
"""Time between looks at the writers of the robot's topics, s."""


class Rig:
    """Driver, command loop, arbiter, and the running episode's state for the policy's pipeline."""

    state: RobotState
    """Last observed state of an episode."""

    def __init__(
        self,
        node: Node,
        interface: Interface,
        cameras: tuple[str, ...],
        operator: OperatorInput | None,
        dry_run: bool,
        safety: SafetyConfig | None,
        instruction: str = "",
        classifier: Classifier | None = None,
        words: tuple[str, ...] = (),
    ):
        self.node, self.pipeline, self.classifier = node, Pipeline(interface), classifier
        self.interface, self.period = interface, 1 / interface.controller.rate
        pictures, objects = interface.pictures, self.pipeline.objects
        if classifier is not None:  # it needs no poses
            pictures = with_judged(classifier, self.pipeline)
            objects = self.pipeline.tracked(filter(None, (interface.failure,)))
        seen = tuple(p.camera for p in pictures)
        cameras = tuple(dict.fromkeys((*cameras, *seen)))
        self.driver = open_driver(node, self.pipeline.robot, objects, cameras, dry_run)
        self.driver.needed = seen
        self.pictures = Pictures(self.driver, pictures)
        self.asked = InstructionInput(node, interface, instruction, words) if interface.instructions else None
        steers = bool(self.pipeline.command.fields)
        self.arbiter = Arbiter(operator, self.pipeline.controller, steers)
        self.loop = CommandLoop(self.driver, self.pipeline, safety)
        self.loop.resting = True
        self.loop.note = lambda event, what: self.note(event, what)
        self.note: Callable[[str, Any], None] = lambda _event, _what: None
        """Called with events: phases, stops, resets, commands, takeovers, the guard."""
        self.warmups: list[Callable[[], object]] = []
        """Called in every control period while a walking robot stands up: they compute what an episode will, since the
        first call of an operation may take tenths of a second."""
        self._twin_stall = -math.inf, 0.0
        """When the twin last said that it had stood still, monotonic s, and for how long, s."""
        node.subscribe("std_msgs/msg/String", STALL_TOPIC, qos.DEFAULT, self._on_stall)
        self._watched = -math.inf
        """Time of the last look at the topics' other writers, monotonic s."""
        self.foreign_publisher = ""
        """Who sent where only this process, or only the robot, may send."""
        self.placer = node.publisher("std_msgs/msg/String", RESET_TOPIC, qos.DEFAULT)
        self.begin()

    def begin(self) -> None:
        """Begin an episode: no executed action, an open gripper, a zero command."""
        self.last_action = torch.zeros(1, self.pipeline.actions.size)
        self.command = torch.zeros(1, self.pipeline.command.size)
        self.reference: Tensor = self.pipeline.controller.reference(1)
        """(1, R) see `RobotState.reference`."""
        self.steps = 0
        self.lowest_grip_height = math.inf
        """Lowest height of the tool since the gripper began to close, m; infinite while it is open."""

    def read(self) -> RobotState:
        """Return the newest state with the command; raise NotReady if the robot fell silent, the loop ended, or
        somebody else sends on the robot's topics."""
        self.loop.check()
        self._watch(time.monotonic())
        reading, lost = self.driver.reading(), self.loop.safety.lost_timeout
        if reading is not None and time.monotonic() - reading.received > lost:
            reading = self.driver.next_reading(self.loop.safety.state_timeout)
        if reading is not None and time.monotonic() - reading.received > lost:
            kept = "is damped" if self.loop.legged else "holds"
            raise NotReady(f"no joint state for {lost:g} s: the robot {kept}; is its driver still running?")
        state = self.driver.state(self.last_action)
        if state is None:
            raise NotReady("the robot's state is incomplete; is its driver still running?")
        if self.pipeline.command.fields:
            state.command = self.command
        state.reference = self.reference
        if self.asked and (index := self.asked.index) is not None:
            state.instruction = index
        if self.interface.gait:
            state.phase = self.pipeline.phase(torch.tensor([self.steps]))
        return state

    def _watch(self, now: float) -> None:
        """Stop for foreign writers and warn of peers that cannot talk, looked for every `WATCH` seconds; stop for joint
        states that jump."""
        jumps = self.driver.jumps.many(now)
        if jumps or now - self._watched >= WATCH:
            self._watched = now
            self.driver.warn_of_mismatches()  # of those that have joined since the start, too
            self.foreign_publisher = self.driver.foreign_publisher() or self._second_device()
            if found := self.foreign_publisher or self.driver.unmatched_topics():
                self.note("foreign_publisher" if self.foreign_publisher else "unheard", found)
                self.loop.stop(found)
                raise NotReady(f"stopped: {found}")
        if jumps:
            self.loop.stop("joint states jump further than the robot can move: two robots, or a broken encoder?")

    def _on_stall(self, sample: Stamped) -> None:
        with suppress(ValueError, KeyError, TypeError):
            self._twin_stall = sample.received, float(json.loads(sample.msg.data)["seconds"])
            self.note("stall", {"process": "twin", "seconds": self._twin_stall[1]})

    def stall(self, wait: float) -> str:
        """Return which process stood still just before a stop for a silence; empty if none did. A twin says so when it
        goes on: wait that long, s, for it."""
        stopped = self.loop.stopped
        if not stopped.endswith(SILENCES):
            return ""
        begin = time.monotonic()
        while time.monotonic() - begin < wait:
            for who, (at, seconds) in (("this process", self.loop.stall), ("the twin", self._twin_stall)):
                if at > begin - RECENT:
                    return f"{who} stood still for {1000 * seconds:.0f} ms"
            if not self.on_twin:
                return ""
            time.sleep(0.005)
        reading = self.driver.reading()
        return "the twin fell silent" if reading is None or reading.received < begin else ""

    def _second_device(self) -> str:
        """Return the nodes of two teleop devices; empty if there is at most one."""
        operator = self.arbiter.operator
        return operator.other_publishers() if operator is not None and operator.devices > 1 else ""

    def look(self) -> Operator | None:
        """Read the operator's input between episodes; a stop counts there too."""
        reading = self.arbiter.operator.read() if self.arbiter.operator else None
        if reading is not None and reading.stop:
            self.loop.stop("operator")
        return reading

    def attended(self) -> bool:
        """Return whether a teleop device is open; wait half a second for one that has just started."""
        return self.node.wait_for(lambda: self.arbiter.attended, 0.5)

    def await_release(self, timeout: float = 600.0) -> None:
        """Wait until the operator resets a latched stop: reset pressed, enable button and stop released."""
        operator = self.arbiter.operator
        if operator is None or not self.attended():
            raise NotReady(
                f"the robot is stopped ({self.loop.stopped}) and no teleop device is there to reset it; "
                "start again once it is safe"
            )
        logger.warning("stopped (%s): press reset on the teleop device to continue", self.loop.stopped)
        deadline = time.monotonic() + timeout
        rate = Ticker(self.period)
        while time.monotonic() < deadline:
            rate.wait()
            self.read()
            reading = operator.read()
            if reading is not None and reading.reset and not reading.stop and not reading.held:
                self.loop.reset_stop()
                return
        raise NotReady(f"the robot is stopped ({self.loop.stopped}) and reset was not pressed within {timeout:g} s")

    def instruction(self, index: int = 0) -> str:
        """Return what is asked for; the index is that of a simulation's."""
        return self.asked.text if self.asked else self.interface.instruction

    @property
    def on_twin(self) -> bool:
        """Return whether the publisher of the joints also subscribes to the twin's reset topic. Other subscribers, such
        as a bag recorder, do not count.
        """
        return not set(self.driver.joints.writers()).isdisjoint(self.placer.readers())

    def _fresh(self) -> bool:
        """Return whether poses and frames are fresh; if not, no new goal is posted and the loop comes to hold."""
        safety, object_age = self.loop.safety, time.monotonic() - self.driver.object_poses()[1]
        objects, pictures = object_age <= safety.object_timeout, self.pictures.age() <= safety.picture_timeout
        self.loop.events.add("stale object", not objects)
        self.loop.events.add("stale view", not pictures)
        return objects and pictures

    def stale_pictures(self, cameras: Iterable[str]) -> int:
        """Return the number of these cameras with a stale frame; each is counted as an event."""
        now = time.monotonic()
        stale = sum(now - self.driver.image_received(name) > self.loop.safety.picture_timeout for name in cameras)
        self.loop.events.add("stale picture", stale)
        return stale

    def hold_action(self) -> Tensor:
        """Return the action (1, A) that holds, recorded as executed if a goal is rejected."""
        return self.pipeline.controller.hold_action(self.last_action, torch.tensor([[self.loop.width]]))

    def note_grip(self) -> None:
        """Keep the lowest height of a closed gripper, for `Homing.set_down`."""
        gripper = self.pipeline.robot.gripper
        if gripper is None or self.loop.width > gripper.width / 2:
            self.lowest_grip_height = math.inf
        else:
            self.lowest_grip_height = min(self.lowest_grip_height, float(self.state.tool_position[0, 2]))
