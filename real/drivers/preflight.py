"""Checks of a driver before and while a robot moves: everything arrives, from one publisher, and is heard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from real import clock
from real.bus import Publisher, Subscription
from real.drivers.state import NotReady

if TYPE_CHECKING:
    from real.drivers.driver import Driver


class Preflight:
    """Checks of one driver's topics."""

    def __init__(self, driver: Driver):
        self.driver, self.node = driver, driver.node
        self._warned: set[str] = set()

    @property
    def publishers(self) -> list[Publisher]:
        """Return the publishers of commands; none in a dry run."""
        return [p for part in (self.driver.commands, self.driver.gripper) if part for p in part.publishers]

    def wait_ready(self, timeout: float = 10.0) -> None:
        """Wait for a complete state, a picture of each camera and a subscriber of the commands. Raise NotReady if any
        of them is missing after `timeout` s, or if a topic has two publishers."""
        driver, deadline = self.driver, clock.now() + timeout
        if not driver.state.wait(lambda: not self._missing(), timeout):
            missing = self._missing()
            rehearsal = f" (for a rehearsal: robot-rl twin {driver.robot.name})" if driver.parts.twin else ""
            advice = f"is the robot's driver running on this domain{rehearsal}?"
            images = driver.scene.images
            if clock.is_silent():
                advice = "nothing arrives on /clock either, and use_sim_time is true: start the simulator "
                advice += "(robot-rl twin --lockstep), or leave use_sim_time out"
            elif blind := [images[c].topic for c in driver.scene.needed if images[c].latest is None]:
                advice = f"the policy sees {' and '.join(blind)}: start the camera (a twin has those of its task: "
                advice += "robot-rl twin --task, task:=)"
            elif all(what.startswith("picture") for what in missing):
                advice = "start the camera, or go on without pictures (finetune --no-camera, deploy --video-episodes 0)"
            mismatches = "; ".join(self.node.incompatible())
            raise NotReady(f"no {' and no '.join(missing)} within {timeout:g} s; {advice} {mismatches}".rstrip())
        self.warn_of_mismatches()
        for publisher in self.publishers:
            if others := publisher.other_writers():
                raise NotReady(f"{', '.join(others)} already sends commands on {publisher.topic}; stop it first")
        # DDS forgets a killed publisher after some seconds.
        self.check_single_publisher(deadline - clock.now())
        if driver.commands:
            driver.commands.wait_executor(timeout)
        if not self.node.wait_for(lambda: not self.unmatched_topics(), max(1.0, deadline - clock.now())):
            raise NotReady(self.unmatched_topics())
        if driver.commands:
            driver.commands.wait_ready(timeout)
        if driver.gripper:
            driver.gripper.wait_ready(timeout)
        driver.state.settle()

    def warn_of_mismatches(self) -> None:
        """Log each peer with an incompatible type or QoS once."""
        for mismatch in self.node.incompatible():
            if mismatch not in self._warned:
                self._warned.add(mismatch)
                self.node.log("warn", mismatch)

    def check_single_publisher(self, patience: float = 0.0) -> None:
        """Raise NotReady if a topic has two publishers, whose states would be mixed, for `patience` seconds."""
        if not self.driver.state.wait(lambda: not self._crowded(), patience):
            raise NotReady(
                f"{self._crowded()}: two robots cannot be told apart; stop one, or give it another ROS_DOMAIN_ID or "
                "namespace (a killed one is forgotten after 10 s)"
            )

    def foreign_publisher(self) -> str:
        """Return other publishers of commands or the robot's state, with process and host; empty if none."""
        for publisher in self.publishers:
            if others := publisher.other_writers(process=True):
                return f"{' and '.join(others)} sends commands on {publisher.topic} too"
        return self._crowded(process=True)

    def unmatched_topics(self) -> str:
        """Return an error, with advice, if a topic of commands has no subscriber; empty if each has one."""
        deaf = [publisher.topic for publisher in self.publishers if not publisher.matched]
        if not deaf or not self.driver.commands:
            return ""
        return f"nobody listens on {' and '.join(deaf)}; {self.driver.commands.executor(deaf[0])}"

    def reports(self) -> list[Subscription]:
        """Return the subscriptions of topics on which only the robot may publish."""
        driver = self.driver
        own = driver.commands.reports if driver.commands else []
        return [driver.state.joints, *driver.scene.poses.values(), *driver.scene.images.values(), *own]

    def _crowded(self, process: bool = False) -> str:
        """Return a text that names a topic with two publishers, and their nodes; empty if no topic has two."""
        state = self.driver.state
        for subscription in self.reports():
            if len(subscription.writers()) > (state.publishers if subscription is state.joints else 1):
                return f"{' and '.join(subscription.writers(process))} send on {subscription.topic}"
        return ""

    def _missing(self) -> list[str]:
        return self.driver.state.missing() + self.driver.scene.missing()
