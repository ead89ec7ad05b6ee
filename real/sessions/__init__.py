"""Sessions on a robot: deploy a policy, fine-tune it, record demonstrations. A command and a lifecycle node run them.

Building a session loads and checks everything (configure); `activate` starts the stream of commands; `run` moves the
robot; `close` stops it and writes what was recorded.
"""

from typing import Protocol


class Session(Protocol):
    """A session on one robot."""

    def activate(self) -> None:
        """Start sending commands; the robot stays where it is."""

    def close(self) -> None:
        """Stop the robot and write all results to disk."""
