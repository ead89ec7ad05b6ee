"""Topics of episodes, guard and twins, in addition to the robot's own topics, and the ROS parameter for joint names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

INT, NUMBER, STATUS = "std_msgs/msg/Int64", "std_msgs/msg/Float64", "diagnostic_msgs/msg/DiagnosticStatus"
TEXT, BOOL, DIAGNOSTICS = "std_msgs/msg/String", "std_msgs/msg/Bool", "diagnostic_msgs/msg/DiagnosticArray"
OK, WARN, ERROR = 0, 1, 2
"""Levels of a STATUS."""
E_STOP_TOPIC = "e_stop"
"""BOOL: true stops the robot. Whoever has published it once must repeat it, see `SafetyConfig.stop_heartbeat`."""
EVENT_TOPIC = "episode_event"
"""TEXT: one of `EVENTS`, for a person's button or another program; each message counts once."""
EVENTS = {
    "success": "success", "failure": "failure", "rerecord_episode": "rerecord", "terminate_episode": "stop",
    "rerecord": "rerecord", "terminate": "stop",
}  # fmt: skip
"""Fields of `Operator` by LeRobot's names of events, and by short forms of these."""
MARKS = ("recovery", "correction")
"""Events that only go into the journal: what a person says of the moment."""
RESET_TOPIC = "twin/reset"
"""INT: seed of the next episode. A twin then resets its objects or a fallen robot."""
HOLD_TOPIC = "twin/hold"
"""TEXT: name of an object that a twin holds between the open fingers of its gripper for a while, as a person would."""
TRUTH_TOPIC = "twin/odom"
"""nav_msgs/Odometry: true motion of a twin's trunk, for tracking errors and falls."""
STALL_TOPIC = "twin/stall"
"""NUMBER: duration, s, for which a twin's process stalled, published when it resumes."""
FAULTS_TOPIC = "twin/faults"
"""TEXT: faults of a twin, latched; silent if it has none."""
EPISODE_TOPIC = "episode"
"""STATUS of an `Episode`, for operators, recorders and viewers."""
GUARD_TOPIC = "guard"
"""STATUS of a `GuardReport`, at every change and at `real.drivers.lowlevel.GUARD_RATE`."""
RECOVER_TOPIC = "recover"
"""INT: the operator lets a robot's process recover from its latched stop; the number counts the requests."""
DIAGNOSTICS_TOPIC = "/diagnostics"
"""DIAGNOSTICS, each STATUS named `<node>: <part>`: as everywhere in ROS, one topic for all namespaces."""
INSTRUCTION_TOPIC = "instruction"
"""std_msgs/String: the robot's new language instruction."""
PLAN_TOPIC = "plan"
"""nav_msgs/Path in the robot's base frame: the tool's poses that the rest of the policy's chunk asks for."""
JOINT_PREFIX = "joint_prefix"
"""ROS parameter: prefix of the driver's joint and frame names, such as fr3_, or Universal Robots' tf_prefix."""


def status(name: str, level: int, message: str, values: Mapping[str, Any]) -> Any:
    """Return a diagnostic_msgs/DiagnosticStatus; levels are `OK`, `WARN`, `ERROR`, and 3 for stale."""
    from real.bus.messages import make  # here: launch files read topics, and rosbags takes time to import

    pairs = [{"key": key, "value": str(value)} for key, value in values.items()]
    return make(STATUS, level=level, name=name, message=message, hardware_id="", values=pairs)


def diagnostics(*statuses: Any) -> Any:
    """Return a DIAGNOSTICS of now."""
    from real.bus.messages import make
    from real.bus.stamps import stamp

    return make(DIAGNOSTICS, header={"stamp": stamp()}, status=list(statuses))


def values_of(message: Any) -> dict[str, str]:
    """Return the values of a DiagnosticStatus by key."""
    return {pair.key: pair.value for pair in message.values}


@dataclass(frozen=True)
class Episode:
    """Running episode of a robot."""

    number: int
    phase: str
    """resetting, let go, waiting, running, success or failure."""
    instruction: str = ""
    control: str = ""
    """Phase of control between policy and person, see `real.episode.intervention.Phase`; empty if unknown."""
    ended: int = 0
    """Number of episodes of the session that have ended; of them `won` succeeded."""
    won: int = 0
    takeovers: int = 0
    """Number of a person's interventions in the session."""

    def message(self) -> Any:
        """Return the episode as a STATUS."""
        values = {name: value for name, value in vars(self).items() if name != "phase"}
        return status("episode", 0, self.phase, values)

    @classmethod
    def of(cls, message: Any) -> Episode:
        """Return the episode in a STATUS; ValueError for a message of another program."""
        values = values_of(message)
        ended, won, takeovers = (int(values.get(name, "0")) for name in ("ended", "won", "takeovers"))
        texts = values.get("instruction", ""), values.get("control", "")
        return cls(int(values.get("number", "")), message.message, *texts, ended, won, takeovers)


@dataclass(frozen=True)
class GuardReport:
    """Report of a guard, or of the process that holds an arm."""

    damping: str = ""
    """Reason for which commands are withheld, and the robot is damped or held; empty while commands pass."""
    latched: bool = False
    """It lasts until a legged robot stands up again, or the operator lets an arm recover."""
    damped: Mapping[str, int] = field(default_factory=dict)
    """Number of dampings by reason."""
    stalls: int = 0
    """Number of ticks that came too late."""
    warning: str = ""
    """What may soon end the run, such as a warm motor; empty if nothing."""

    def message(self, name: str = "guard", **readings: str) -> Any:
        """Return the report as a STATUS of a given name, with more values for viewers."""
        counts = {f"damped: {reason}": count for reason, count in self.damped.items()}
        values = {"latched": self.latched, "stalls": self.stalls, "warning": self.warning} | readings | counts
        level = ERROR if self.damping else WARN if self.warning else OK
        return status(name, level, self.damping or self.warning, values)

    @classmethod
    def of(cls, message: Any) -> GuardReport:
        """Return the report in a STATUS."""
        values = values_of(message)
        damped = {k.removeprefix("damped: "): int(v) for k, v in values.items() if k.startswith("damped: ")}
        warning = values.get("warning", "")
        damping = "" if message.message == warning else message.message
        return cls(damping, values.get("latched") == "True", damped, int(values.get("stalls", "0")), warning)
