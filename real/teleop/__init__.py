"""Operator input: devices, the message that they send, and the reader of this message.

::

    publishing   with until_signal() as wait, closing(Gamepad()) as device: stream(node, device, "panda", 30.0, wait)
    receiving    inputs = OperatorInput(node, "panda");  operator = inputs.read()   # None: no device
"""

from real.teleop.commands import AXES, BUTTONS, PRESSES, RELEASED, Operator, OperatorInput, from_joy, joy_topic, to_joy
from real.teleop.gamepad import Gamepad
from real.teleop.keyboard import Keyboard
from real.teleop.stream import Device, DeviceInput, Finished, stream, until_signal

__all__ = [
    "AXES", "BUTTONS", "PRESSES", "RELEASED", "Device", "DeviceInput", "Finished", "Gamepad", "Keyboard",
    "Operator", "OperatorInput", "from_joy", "joy_topic", "stream", "to_joy", "until_signal",
]  # fmt: skip
