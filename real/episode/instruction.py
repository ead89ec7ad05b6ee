"""Language instruction of a running policy, given at the start and changed by messages on a topic."""

import logging
from collections.abc import Collection

import torch
from torch import Tensor

from policies.vla.words import words_of
from real.bus import Node, Stamped, qos
from real.topics import INSTRUCTION_TOPIC
from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import LANGUAGE
from robot_rl.interface.pipeline import Interface
from robot_rl.util.errors import ConfigError

logger = logging.getLogger(__name__)


class InstructionInput:
    """Current instruction. A new instruction takes effect in the next control period, unless it is unusable: then it is
    refused and logged."""

    def __init__(self, node: Node, interface: Interface, text: str, words: Collection[str] = ()):
        """Args: `words`: words that the policy knows; (): any. Raise ConfigError for an unusable `text`."""
        known = [each.text for each in interface.instructions]
        if not text.strip():
            raise ConfigError(
                f"this policy does what it is told, and was told nothing: name an --instruction, such as {known[0]!r}"
            )
        self.known, self.words, self.changes, self.refused = known, frozenset(words), 0, 0
        self.row, self.text = self._encoded(text), text.strip()
        node.subscribe("std_msgs/msg/String", INSTRUCTION_TOPIC, qos.DEFAULT, self._on_message)

    def _on_message(self, sample: Stamped) -> None:
        try:
            row = self._encoded(sample.msg.data)
        except ConfigError as error:
            self.refused += 1
            logger.warning("%s", error)
            return
        self.changes += sample.msg.data.strip() != self.text
        self.row, self.text = row, sample.msg.data.strip()

    def _encoded(self, text: str) -> Tensor:
        """Return an instruction's text as (1, bytes) uint8; ConfigError if the policy does not know its words."""
        row = encode([text])
        if self.words and (unknown := [word for word in words_of([text]) if word not in self.words]):
            raise ConfigError(
                f"instruction {text.strip()!r} is refused: the policy does not know {', '.join(map(repr, unknown))}; "
                f"it knows {', '.join(sorted(self.words))}"
            )
        return row

    def read(self) -> dict[str, Tensor]:
        """Return the current instruction's text (1, bytes) uint8 under its observation key."""
        return {LANGUAGE: self.row}

    @property
    def index(self) -> Tensor | None:
        """Return the index (1, 1) of the current instruction in the interface, which decides the success test; None for
        an instruction that the interface does not contain."""
        text = self.text
        return torch.tensor([[float(self.known.index(text))]]) if text in self.known else None
