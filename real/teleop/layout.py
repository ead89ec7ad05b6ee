"""Layout of a gamepad's axes and buttons, from the device's identity or a map file.

A gamepad's layout depends on its driver: a PlayStation pad's triggers have with one driver the numbers of the right
stick with another. joydev does not name axes, so unknown devices are refused. Names and map files are those of SDL's
gamecontrollerdb.txt, one line per device::

    030000004c050000c405000011010000,PS4,leftx:a0,lefty:a1,rightx:a2,righty:a5,lefttrigger:a3, ... ,platform:Linux,
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from real.teleop.joystick import AXIS, BUTTON, FULL, Identity, Joystick
from robot_rl.util.errors import ConfigError

MAP_FILE = "SDL_GAMECONTROLLERCONFIG_FILE"
"""Environment variable for a map file, as in SDL."""
STICKS, TRIGGERS = ("leftx", "lefty", "rightx", "righty"), ("lefttrigger", "righttrigger")
USES = {
    "leftshoulder": "hold", "rightshoulder": "tilt", "a": "success", "x": "failure", "b": "stop", "start": "reset",
}  # fmt: skip
"""Function of each button, by SDL's name of the button."""
CONTROLS = (*STICKS, *TRIGGERS, *USES)


@dataclass(frozen=True)
class Source:
    """Axis or button that a control uses."""

    kind: int
    """Kind of the source: AXIS or BUTTON."""
    number: int
    sign: int = 1
    """-1: the axis is reversed."""
    half: bool = False
    """The control is a trigger that uses half an axis; its rest position is the middle of the axis."""

    def position(self, value: int, trigger: bool) -> float:
        """Convert an event's value to a stick's position, -1 to 1 (right and back positive), or a trigger's, 0 to 1."""
        if self.kind == BUTTON:
            return float(value != 0)
        position = self.sign * max(value / FULL, -1.0)
        return position if not trigger else max(position, 0.0) if self.half else (position + 1.0) / 2.0

    def __str__(self) -> str:
        return f"{'axis' if self.kind == AXIS else 'button'} {self.number}"


Layout = dict[str, Source]

# Kernel codes. _XBOX follows the gamepad specification (Documentation/input/gamepad.rst), except for X: Xbox drivers
# report the north code, PlayStation drivers the west code for square.
_XBOX = {
    "leftx": 0x00, "lefty": 0x01, "rightx": 0x03, "righty": 0x04, "lefttrigger": 0x02, "righttrigger": 0x05,
    "leftshoulder": 0x136, "rightshoulder": 0x137, "a": 0x130, "b": 0x131, "x": 0x133, "start": 0x13B,
}  # fmt: skip
_PLAYSTATION = _XBOX | {"x": 0x134}
_XBOX_BLUETOOTH = _XBOX | {"rightx": 0x02, "righty": 0x05, "lefttrigger": 0x0A, "righttrigger": 0x09}
_PLAYSTATION_WITHOUT_DRIVER = {
    "leftx": 0x00, "lefty": 0x01, "rightx": 0x02, "righty": 0x05, "lefttrigger": 0x03, "righttrigger": 0x04,
    "leftshoulder": 0x134, "rightshoulder": 0x135, "a": 0x131, "b": 0x132, "x": 0x130, "start": 0x139,
}  # fmt: skip
_XBOX_DRIVERS = ("xpad", "xpadneo", "xone-gip-gamepad")
_XBOX_VIRTUAL = ("045e:028e", "28de:11ff")
"""Vendor and product ids of pads that programs such as Steam emulate without a driver."""
_XBOX_BLUETOOTH_IDS = ("045e:02fd", "045e:0b05", "045e:0b13", "045e:0b20", "045e:0b21", "045e:0b22")
_SONY, _SPECIFIED = 0x054C, 0x8000
"""Sony's vendor id; version bit with which Sony's drivers mark the codes of the gamepad specification."""
_SONY_IDS = ("054c:05c4", "054c:09cc", "054c:0ba0", "054c:0ce6", "054c:0df2")
"""Ids of DualShock 4 (two models), its wireless adapter, DualSense and DualSense Edge."""


def _codes(pad: Identity) -> dict[str, int]:
    """Return the kernel code of each control; empty for an unknown device."""
    if pad.vendor == _SONY:
        if pad.version & _SPECIFIED:
            return _PLAYSTATION
        return _PLAYSTATION_WITHOUT_DRIVER if pad.ids in _SONY_IDS and pad.driver != "sony" else {}
    if pad.driver in _XBOX_DRIVERS or (pad.ids in _XBOX_VIRTUAL and not pad.driver):
        return _XBOX
    return _XBOX_BLUETOOTH if pad.ids in _XBOX_BLUETOOTH_IDS else {}


def known_layout(pad: Identity) -> Layout:
    """Return the layout of a device by its identity; empty if the device is unknown or lacks a control."""
    layout = {}
    for name, code in _codes(pad).items():
        kind, codes = (BUTTON, pad.buttons) if name in USES else (AXIS, pad.axes)
        if code not in codes:
            return {}
        layout[name] = Source(kind, codes.index(code))
    return layout


def mapped_layout(pad: Identity, file: str) -> Layout:
    """Return a device's layout from its line of a map file; empty without such a line. ConfigError for a bad line."""
    try:
        lines = Path(file).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the gamepad map {file} cannot be read: {error}") from error
    for line in lines:
        guid, *fields = line.strip().split(",")
        guid = guid.lower()[:4] + "0000" + guid.lower()[8:]  # without the name's checksum
        given = dict(field.split(":", 1) for field in fields if ":" in field)
        if guid == pad.guid and given.get("platform", "Linux") == "Linux":
            layout = {name: _source(pad, name, given.get(name, ""), file) for name in CONTROLS}
            places = [(source.kind, source.number) for source in layout.values()]
            shared = [name for name, place in zip(layout, places, strict=True) if places.count(place) > 1]
            if shared:
                what = f"{' and '.join(shared)} to {layout[shared[0]]}"
                raise ConfigError(f"{file}: the line of {pad.guid} maps {what}; give each its own")
            return layout
    return {}


def _source(pad: Identity, name: str, text: str, file: str) -> Source:
    match = re.fullmatch(r"([+-]?)([ab])(\d+)(~?)", text)
    kind = AXIS if match and match[2] == "a" else BUTTON
    fits = match and (kind == AXIS if name in STICKS else name in TRIGGERS or kind == BUTTON)
    if not match or not fits or (match[1] and name not in TRIGGERS):
        valid = "an axis such as a0" if name in STICKS else "a button such as b0" if name in USES else "a2 or b6"
        raise ConfigError(f"{file}: the line of {pad.guid} maps {name} to {text or 'nothing'}; write {valid}")
    number, order = int(match[3]), pad.sdl_order(kind)
    if pad.axes and number >= len(order):
        raise ConfigError(f"{file}: {name}:{text}, but {pad} has only {len(order)} of them")
    sign = -1 if match[1] == "-" or match[4] else 1
    return Source(kind, order[number] if order else number, sign, bool(match[1]))


def layout_of(device: Joystick, map_file: str = "") -> Layout:
    """Return a device's layout from `map_file`. Without `map_file`, look in the file that `MAP_FILE` names, then at the
    device's identity. Raises ConfigError for a device without a layout."""
    pad, given = device.identity, map_file or os.environ.get(MAP_FILE, "")
    layout = mapped_layout(pad, given) if given else {}
    if not layout and not map_file:
        layout = known_layout(pad)
    if not layout:
        why = f"has no line in {map_file}" if map_file else "is of no known kind"
        raise ConfigError(
            f"{device}, {why}: its axes and buttons cannot be identified. `robot-rl teleop gamepad --check --map FILE` "
            f"makes a map; or take the line of {pad.guid} for Linux out of SDL's gamecontrollerdb.txt. Then give "
            f"--map FILE, or set {MAP_FILE}=FILE"
        )
    return layout
