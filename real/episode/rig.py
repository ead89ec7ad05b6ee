"""Robot driver, command loop and operator, shared by episodes and the phases between them."""

import logging
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from real import clock
from real.bus import Node, Publisher, Stamped, Subscription, qos
from real.control.loop import CommandLoop
from real.control.stop import OPERATOR, STALE_GOAL, STALE_STATE
from real.control.stop_topic import StopTopic
from real.control.timing import Ticker
from real.drivers import open_driver, parts_of
from real.drivers.state import NotReady
from real.drivers.unitree import GUARD_GONE
from real.episode.instruction import InstructionInput
from real.episode.intervention import Arbiter
from real.episode.pictures import Pictures, with_judged
from real.episode.release import Release
from real.episode.stream import Stream
from real.teleop.commands import Operator, OperatorInput
from real.topics import INT, NUMBER, RESET_TOPIC, STALL_TOPIC
from robot_rl.interface.driver import SafetyConfig
from robot_rl.interface.pipeline import Interface, Pipeline
from robot_rl.interface.robot import RobotSpec
from robot_rl.interface.state import RobotState
from robot_rl.rewards.classifier import Classifier
from robot_rl.robots import robots
from robot_rl.util.errors import ConfigError

logger = logging.getLogger(__name__)
SILENCES = (STALE_STATE, STALE_GOAL, "silence")
"""Endings of reasons for stops that a stalled process may have caused: the command loop's and the guard's."""
RECENT = 0.5
"""Maximum time between a stall and the stop that it caused, s."""
RESET = "Enter on the keyboard, Start on a gamepad"
"""Keys of teleop devices that reset a latched stop."""
WATCH = 0.5
"""Interval between checks for other publishers on the robot's topics, s."""


class Rig:
    """Driver, command loop, arbiter and the state of the running episode."""

    state: RobotState
    """Last observed state of the episode."""

    def __init__(
        self, node: Node, interface: Interface, cameras: tuple[str, ...], operator: OperatorInput | None, dry_run: bool,
        safety: SafetyConfig | None, instruction: str = "", classifier: Classifier | None = None,
        words: tuple[str, ...] = (), robot: RobotSpec | None = None,
    ):  # fmt: skip
        robot = robot or robots.get(interface.robot)
        accepted, executor = parts_of(robot).commands.accepts, f"robot {robot.name!r} (driver {robot.driver.driver})"
        self.pipeline = Pipeline(interface, robot, accepted=accepted, executor=executor)
        if self.pipeline.observer.scan:
            raise ConfigError(
                f"policies of task {interface.task!r} observe height_scan, which no driver measures; take a policy of "
                "a task without it"
            )
        self.node, self.classifier, self.stream = node, classifier, Stream()
        self.interface, self.period = interface, 1 / interface.controller.rate
        pictures, objects = interface.pictures, self.pipeline.objects
        if classifier is not None:  # needs no object poses for success
            pictures = with_judged(classifier, self.pipeline)
            objects = self.pipeline.tracked(filter(None, (interface.failure,)))
        seen = tuple(p.camera for p in pictures)
        cameras = tuple(dict.fromkeys((*cameras, *seen)))
        self.driver = open_driver(node, robot, objects, cameras, dry_run)
        self.driver.scene.needed = seen
        self.pictures = Pictures(self.driver, pictures)
        self.instructions = InstructionInput(node, interface, instruction, words) if interface.instructions else None
        steers = bool(self.pipeline.command.fields)
        self.arbiter = Arbiter(operator, self.pipeline.controller, steers)
        self.loop = CommandLoop(self.driver, self.pipeline, safety)
        self.loop.resting = True
        self.note = self.loop.note = self.stream.note
        self.stop_topic = StopTopic(node, self.loop)
        if isinstance(operator, OperatorInput):
            operator.on_mark = lambda word: self.note("mark", word)
        self.warmups: list[Callable[[], object]] = []
        """Functions called in each control period of standing up, as their first calls may take tenths of a second."""
        self.each_period: list[Callable[[], object]] = []
        """Functions called whenever the state has been read: at least once per control period, between episodes too."""
        self._twin_stall = -math.inf, 0.0
        """Arrival of the twin's last stall report, s, and the stall's duration, s."""
        node.subscribe(NUMBER, STALL_TOPIC, qos.DEFAULT, self._on_stall)
        self._watched = -math.inf
        """Time of the last check for other publishers, s."""
        self.foreign_publisher = ""
        """Unexpected publisher on a topic on which only this process or the robot may publish; empty if none."""
        self.placer = node.publisher(INT, RESET_TOPIC, qos.DEFAULT)
        self.falls = self.stalls = 0
        """`falls`: number of episodes in which a legged robot fell, or was damped other than by a person. `stalls`:
        number of episodes that a stall ended."""
        self.state_age = 0.0
        """Age of the joint state at the last `read`, s."""
        self.begin()

    @property
    def wires(self) -> list[Publisher | Subscription]:
        """Return the publishers and subscriptions on which this process and the robot depend."""
        preflight, operator = self.driver.preflight, self.arbiter.operator
        heard = [*operator.subscriptions[:1], operator.events] if isinstance(operator, OperatorInput) else []
        return [*preflight.publishers, *preflight.reports(), *self.stop_topic.subscriptions[:1], *filter(None, heard)]

    def begin(self) -> None:
        """Clear the state of the last episode: no executed action, an open gripper, a zero command."""
        self.last_action = torch.zeros(1, self.pipeline.actions.size)
        self.command = torch.zeros(1, self.pipeline.command.size)
        self.reference: Tensor = self.pipeline.controller.reference(1)
        """Reference of the controller, (1, R); see `RobotState.reference`."""
        self.steps = 0
        self.lowest_grip_height = math.inf
        """Lowest height of the tool since the gripper began to close, m; infinite while the gripper is open."""

    def read(self) -> RobotState:
        """Return the robot's newest state. NotReady if the state is too old, the command loop has ended, or another
        process publishes on one of the robot's topics."""
        self.loop.check()
        self._watch(clock.now())
        reading, lost = self.driver.reading(), self.loop.safety.lost_timeout
        if reading is not None and clock.now() - reading.received > lost:
            reading = self.driver.state.next_reading(self.loop.safety.state_timeout)
            if reading is None or clock.now() - reading.received > lost:
                kept = "is damped" if self.loop.sinks else "holds"
                raise NotReady(f"no joint state for {lost:g} s: the robot {kept}; is its driver still running?")
        state = self.driver.observe(self.last_action, reading)
        if state is None:
            raise NotReady("the robot's state is incomplete; is its driver still running?")
        self.state_age = clock.now() - reading.received if reading else 0.0
        if self.pipeline.command.fields:
            state.command = self.command
        state.reference = self.reference
        if self.instructions and (index := self.instructions.index) is not None:
            state.instruction = index
        if self.interface.gait:
            state.phase = self.pipeline.phase(torch.tensor([self.steps]))
        for call in self.each_period:
            call()
        return state

    def _watch(self, now: float) -> None:
        """Check for foreign publishers, QoS mismatches and unheard commands every `WATCH` s. Stop for foreign
        publishers, unheard commands and jumps of joints."""
        jumps = self.driver.state.jumps.many(now)
        if jumps or now - self._watched >= WATCH:
            self._watched = now
            self.driver.watch()
            self.driver.preflight.warn_of_mismatches()
            operator = self.arbiter.operator
            second_device = operator.other_publishers() if operator is not None and operator.devices > 1 else ""
            self.foreign_publisher = self.driver.preflight.foreign_publisher() or second_device
            if fault := self.foreign_publisher or self.driver.preflight.unmatched_topics():
                self.note("foreign_publisher" if self.foreign_publisher else "unheard", fault)
                self.loop.stop(fault)
                raise NotReady(f"stopped: {fault}")
        if jumps:
            self.loop.stop(
                "joint states jump further than the robot can move: two robots, a broken encoder, or a driver that "
                "changes commands?"
            )

    def _on_stall(self, sample: Stamped) -> None:
        self._twin_stall = sample.received, float(sample.msg.data)
        self.note("stall", {"process": "twin", "seconds": self._twin_stall[1]})

    def stall(self, wait: float) -> str:
        """Return a description of the process whose stall caused the last stop; empty if the stop had another cause.
        Wait up to `wait` s for a twin's report."""
        stopped = self.loop.stopped
        if not stopped.endswith(SILENCES):
            return ""
        begin = clock.now()
        while clock.now() - begin < wait:
            for process, (end, seconds) in (("this process", self.loop.stall), ("the twin", self._twin_stall)):
                if end > begin - RECENT:
                    return f"{process} stood still for {1000 * seconds:.0f} ms"
            if not self.on_twin:
                return ""
            clock.sleep(0.005)
        reading = self.driver.reading()
        return "the twin fell silent" if reading is None or reading.received < begin else ""

    def vanished(self) -> str:
        """Return whether the robot or its guard sends nothing any more, as a reason; empty if both do."""
        now, reading = clock.now(), self.driver.reading()
        if reading is None or now - reading.received > self.loop.safety.state_timeout:
            return "the robot sends no state"
        return GUARD_GONE if self.driver.objection(now) == GUARD_GONE else ""

    def look(self) -> Operator | None:
        """Read the operator's input between episodes; if stop is pressed, latch a stop."""
        reading = self.arbiter.operator.read() if self.arbiter.operator else None
        if reading is not None and reading.stop:
            self.loop.stop(OPERATOR)
        return reading

    def attended(self) -> bool:
        """Return whether a teleop device is connected; wait half a second for a device that has just started."""
        return self.node.wait_for(lambda: self.arbiter.attended, 0.5)

    def await_release(self, timeout: float = 600.0) -> None:
        """Wait until the operator resets a latched stop, as `Release` judges."""
        operator = self.arbiter.operator
        if operator is None or not self.attended():
            raise NotReady(
                f"the robot is stopped ({self.loop.stopped}) and no teleop device is there to reset it; once it is "
                f"safe, start one in another terminal (robot-rl teleop keyboard --robot {self.pipeline.robot.name}) "
                f"and this again, then press its reset: {RESET}"
            )
        logger.warning("stopped (%s): once it is safe, press reset on the teleop device (%s)", self.loop.stopped, RESET)
        deadline = clock.now() + timeout
        rate, resets = Ticker(self.period), Release(self)
        while clock.now() < deadline:
            rate.wait()
            self.read()
            if resets(operator.read()):
                self.loop.reset_stop()
                self._await_recovery(rate)
                if not self.loop.stopped:
                    return
                logger.warning("not recovered (%s): press reset again once that is over", self.loop.stopped)
                resets = Release(self)
        raise NotReady(f"the robot is stopped ({self.loop.stopped}) and reset was not pressed within {timeout:g} s")

    def _await_recovery(self, rate: Ticker) -> None:
        """Wait until the robot has recovered or will not; meanwhile it may send no states."""
        while self.loop.recovering:
            self.loop.check()
            self.look()
            rate.wait()

    def instruction(self, index: int = 0) -> str:
        """Return the current instruction; `index`, which selects an environment in simulation, is ignored."""
        return self.instructions.text if self.instructions else self.interface.instruction

    @property
    def on_twin(self) -> bool:
        """Return whether the publisher of joint states also subscribes to the reset topic, as only a twin does."""
        return not set(self.driver.state.joints.writers()).isdisjoint(self.placer.readers())

    def _fresh(self) -> bool:
        """Return whether object poses and pictures are fresh; if not, `step` posts no goal and the robot holds."""
        safety, object_age = self.loop.safety, clock.now() - self.driver.scene.object_poses()[1]
        objects, pictures = object_age <= safety.object_timeout, self.pictures.age() <= safety.picture_timeout
        self.loop.events.add("stale object", not objects)
        self.loop.events.add("stale view", not pictures)
        return objects and pictures

    def stale_pictures(self, cameras: Iterable[str]) -> int:
        """Return the number of the given cameras whose newest frame is stale; count each as an event."""
        now = clock.now()
        stale = sum(now - self.driver.scene.image_received(name) > self.loop.safety.picture_timeout for name in cameras)
        self.loop.events.add("stale picture", stale)
        return stale

    def hold_action(self) -> Tensor:
        """Return the action (1, A) that holds the pose. It is recorded as executed if a goal is rejected."""
        return self.pipeline.controller.hold_action(self.last_action, torch.tensor([[self.loop.width]]))

    def note_grip(self) -> None:
        """Update the lowest height of the tool while the gripper is closed, for `Homing.set_down`."""
        gripper = self.pipeline.robot.gripper
        if gripper is None or self.loop.width > gripper.width / 2:
            self.lowest_grip_height = math.inf
        else:
            self.lowest_grip_height = min(self.lowest_grip_height, float(self.state.tool_position[0, 2]))
