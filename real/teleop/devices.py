"""The devices of a person, by name."""

import os
from dataclasses import replace

from real.teleop.commands import PRESSES, Operator
from real.teleop.gamepad import Gamepad
from real.teleop.keyboard import Keyboard
from real.teleop.spacemouse import SpaceMouse, connect

MARKS = "y / n   the episode succeeded / failed     x   EMERGENCY STOP     enter   reset     q   quit\n"


class WithKeys:
    """Device whose marks, stop and reset are also keys of the terminal, whose motion keys move nothing."""

    def __init__(self, device: SpaceMouse, keyboard: Keyboard):
        self.device, self.keyboard, self.help = device, keyboard, device.help + MARKS

    def read(self) -> Operator:
        """Return the device's input with the keyboard's presses."""
        own, keys = self.device.read(), self.keyboard.read()
        return replace(own, **{name: getattr(own, name) or getattr(keys, name) for name in PRESSES})

    def begin(self) -> None:
        """Begin an episode."""
        self.device.begin()

    def close(self) -> None:
        """Close both. Idempotent."""
        self.device.close()
        self.keyboard.close()


Hand = Keyboard | Gamepad | SpaceMouse | WithKeys
"""Device with a `help` text."""


def open_device(name: str, legged: bool = False, path: str = "", map_file: str = "") -> Hand:
    """Open the keyboard, a gamepad or a spacemouse; `path` and `map_file` as of `Gamepad`. UserError if it
    cannot be used."""
    if name == "keyboard":
        return Keyboard(legged=legged)
    if name == "gamepad":
        return Gamepad(path, legged, map_file)
    mouse = SpaceMouse(connect(path), legged)
    try:
        return WithKeys(mouse, Keyboard(legged=legged)) if os.isatty(0) else mouse
    except BaseException:
        mouse.close()
        raise
