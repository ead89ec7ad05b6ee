"""`robot-rl tell`: say instructions to a robot."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import tyro

from robot_rl.util.limits import PositiveFloat

if TYPE_CHECKING:
    from real.teleop.talk import InstructionPublisher


@dataclass
class Tell:
    """Tell a robot or its twin what to do, while it runs a policy that reads instructions.

    One instruction is said at once. Of several, the first is said before each episode and the others in its course,
    until Ctrl-C. Without any, each line that is typed is said."""

    instructions: tyro.conf.Positional[tuple[str, ...]] = ()
    """What to say: robot-rl tell "lift the green ball"."""
    after: PositiveFloat = 3.0
    """Time from the begin of an episode to the second instruction, and from each to the next, s."""
    ros_args: tyro.conf.Suppress[list[str]] = field(default_factory=list)

    def run(self) -> int:
        """Say everything; return the exit status."""
        from real.bus import open_node
        from real.teleop import until_signal
        from real.teleop.talk import CueScript, InstructionPublisher

        with open_node("tell", ros_args=self.ros_args) as node:
            if len(self.instructions) > 1:
                script = CueScript(node, self.instructions, self.after)
                _show(f"tells, in each episode, {self.after:g} s apart: " + "; ".join(self.instructions))
                with until_signal() as wait:
                    while not wait(0.02):
                        if said := script.step():
                            _show(f"told: {said}")
                return 0
            voice = InstructionPublisher(node)
            if self.instructions:
                voice.await_listener()
                voice.say(self.instructions[0])
                return 0
            return _converse(voice)


def _converse(voice: InstructionPublisher) -> int:
    """Say each line of the terminal; one that no robot would take is refused."""
    from robot_rl.util.errors import ConfigError

    voice.await_listener()
    _show("type what to do and press Enter; Ctrl-D ends")
    for line in sys.stdin:
        try:
            voice.say(line)
        except ConfigError as error:
            _show(str(error))
    return 0


def _show(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
