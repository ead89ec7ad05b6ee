"""Send language instructions to a robot, at once or during its episodes."""

from collections.abc import Callable, Sequence

from real.bus import Node, Stamped, make, qos
from real.clock import now
from real.topics import EPISODE_TOPIC, INSTRUCTION_TOPIC, STATUS, Episode
from robot_rl.interface.language import encode
from robot_rl.util.errors import UserError


class InstructionPublisher:
    """Publisher of language instructions for a robot."""

    def __init__(self, node: Node):
        self._node = node
        self._publisher = node.publisher("std_msgs/msg/String", INSTRUCTION_TOPIC, qos.DEFAULT)

    @property
    def subscribed(self) -> bool:
        """Return whether a robot subscribes to the topic of instructions."""
        return self._publisher.matched > 0

    def await_listener(self, timeout: float = 10.0) -> None:
        """Wait until a robot subscribes to the topic of instructions; raise UserError after `timeout` seconds."""
        if not self._node.wait_for(lambda: self.subscribed, timeout):
            raise UserError(
                f"no robot listens on {self._publisher.topic}: start `robot-rl deploy` with a policy that reads "
                "instructions, in the same ROS_DOMAIN_ID and namespace"
            )

    def say(self, text: str) -> None:
        """Publish an instruction; raise ConfigError if its text is not valid."""
        encode([text])
        self._publisher.publish(make("std_msgs/msg/String", data=text))


class CueScript:
    """Publish the first text before each episode, and the other texts during the episode, `after` seconds apart.

    With `after` 3 s::

        phase         resetting    running
        time, s                    0         3          6
        instruction   texts[0]               texts[1]   texts[2]
    """

    def __init__(self, node: Node, texts: Sequence[str], after: float, clock: Callable[[], float] = now):
        """Subscribe to the episode topic; raise ConfigError if one of the texts is not a valid instruction."""
        encode(texts)
        self.texts, self.after, self.clock = texts, after, clock
        self.voice, self._published = InstructionPublisher(node), -1
        self._now: tuple[str, float] = ("", clock())
        """Phase of the episode and its start, s."""
        node.subscribe(STATUS, EPISODE_TOPIC, qos.LATCHED, self._on_episode)

    def _on_episode(self, sample: Stamped) -> None:
        phase = Episode.of(sample.msg).phase
        if phase != self._now[0]:  # otherwise the message announces a new instruction
            self._now = phase, self.clock()

    def step(self) -> str:
        """Publish the instruction that is due and return it; return an empty string if none is due."""
        phase, since = self._now
        due = 0 if phase in ("resetting", "waiting") else self._published
        if phase == "running":
            due = min(len(self.texts) - 1, int((self.clock() - since) / self.after))
        if due == self._published or not self.voice.subscribed:
            return ""
        self._published = due
        self.voice.say(self.texts[due])
        return self.texts[due]
