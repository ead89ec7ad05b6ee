"""Operator input: devices, the message that they send, and the reader of this message.

::

    publishing   with until_signal() as wait, closing(Gamepad()) as device: stream(node, device, "panda", 30.0, wait)
    receiving    inputs = OperatorInput(node, "panda");  operator = inputs.read()   # None: no device
"""

from real.teleop.commands import AXES, BUTTONS, PRESSES, RELEASED, Operator, OperatorInput, from_joy, joy_topic, to_joy
from real.teleop.devices import open_device
from real.teleop.gamepad import Gamepad
from real.teleop.keyboard import Keyboard
from real.teleop.spacemouse import SpaceMouse
from real.teleop.stream import Device, DeviceInput, Finished, stream, until_signal

__all__ = [
    "AXES", "BUTTONS", "PRESSES", "RELEASED", "Device", "DeviceInput", "Finished", "Gamepad", "Keyboard",
    "Operator", "OperatorInput", "SpaceMouse", "from_joy", "joy_topic", "open_device", "stream", "to_joy",
    "until_signal",
]  # fmt: skip
