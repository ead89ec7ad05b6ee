"""Show what arrives from a gamepad and what it would command, and make its map file. Nothing is sent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from real.teleop.commands import PRESSES, Operator
from real.teleop.gamepad import Controls
from real.teleop.joystick import AXIS, BUTTON, FULL, INITIAL, Joystick
from real.teleop.layout import MAP_FILE, TRIGGERS, USES, Source, layout_of
from robot_rl.util.errors import ConfigError

PERIOD, WARM_UP = 0.05, 80
"""s; and periods in which the state at rest is learnt."""
STEP = 0.05
"""Smallest movement shown, of full deflection."""
AWAY, BACK = 0.6, 0.25
"""Distance from rest at which a control counts as moved, and as released, of full deflection."""
_ASKS = dict(
    leftx="push the left stick to the right",
    lefty="pull the left stick back",
    rightx="push the right stick to the right",
    righty="pull the right stick back",
    lefttrigger="pull the left trigger (it opens the gripper)",
    righttrigger="pull the right trigger (it closes the gripper)",
    leftshoulder="press the left shoulder button (it takes control)",
    rightshoulder="press the right shoulder button (it makes the stick lean the tool)",
    a="press A or cross (success)",
    x="press X or square (failure)",
    b="press B or circle (EMERGENCY STOP)",
    start="press Menu or Options (reset)",
)

Wait = Callable[[float], object]
Say = Callable[[str], None]


def check(device: Joystick, legged: bool, map_file: str, wait: Wait, say: Say) -> None:
    """Say each movement and what it would command, until `wait` (of seconds) returns something true.

    If `map_file` does not exist, first ask for each control and write it.
    """
    say(f"{device}, GUID {device.identity.guid}; nothing is sent, Ctrl-C ends")
    if map_file and not Path(map_file).exists() and not _make_map(device, Path(map_file), wait, say):
        return
    controls = Controls({}, legged)
    try:
        controls = Controls(layout_of(device, map_file), legged)
    except ConfigError as error:
        say(str(error))
    shown: dict[tuple[int, int], float] = {}
    released, before = False, ""
    while not wait(PERIOD):
        for kind, number, value in device.events():
            name, source = controls.take(kind, number, value), Source(kind & ~INITIAL, number)
            at = value / FULL if source.kind == AXIS else float(value)
            if abs(at - shown.get((source.kind, number), 2.0)) >= STEP:
                shown[source.kind, number] = at
                say(f"{source}: {at:+.2f}  {f'{name}, {USES[name]}' if name in USES else name or 'not used'}")
        moved = ", ".join(controls.moved())
        released |= not moved
        now = _command(controls.operator()) if released else f"refused until released: {moved}"
        if now != before and controls.layout:
            say(f"    -> {now}")
        before = now


def _command(operator: Operator) -> str:
    """Return the input as text."""
    axes = {"motion": operator.motion, "rotation": operator.rotation, "gripper": (operator.gripper,)}
    said = [f"{name} {' '.join(f'{v:+.2f}' for v in values)}" for name, values in axes.items() if any(values)]
    said += [name for name in PRESSES if getattr(operator, name)]
    return f"{'control' if operator.held else 'no control'}: {', '.join(said) or 'nothing'}"


def _make_map(device: Joystick, file: Path, wait: Wait, say: Say) -> bool:
    """Ask for each control in turn and write the device's line; return False if `wait` ended it."""
    rest: dict[int, float] = {}
    say("move every stick and trigger once, then let go of all")
    for _ in range(WARM_UP):
        if wait(PERIOD):
            return False
        rest |= {number: value / FULL for kind, number, value in device.events() if kind & AXIS}
    found: dict[str, str] = {}
    for name, words in _ASKS.items():
        say(f"{words}, and let go")
        while (text := _moved_control(device, name, rest, wait)) in found.values():
            say(f"that is {next(n for n, t in found.items() if t == text)} already; {words}")
        if not text:
            return False
        say(f"    {name}: {text}")
        found[name] = text
    pairs = ",".join(f"{name}:{text}" for name, text in found.items())
    title = device.identity.name.replace(",", " ") or "gamepad"
    file.write_text(f"{device.identity.guid},{title},{pairs},platform:Linux,\n")
    say(f"wrote {file}: give it with --map {file}, or to every command with {MAP_FILE}={file}")
    return True


def _moved_control(device: Joystick, name: str, rest: dict[int, float], wait: Wait) -> str:
    """Return the axis or button that is moved and released next, as map files name it; empty if `wait` ended it."""
    at, far = dict(rest), dict.fromkeys(rest, 0.0)
    pressed: list[int] = []
    down: set[int] = set()
    while not wait(PERIOD):
        for kind, number, value in device.events():
            if kind & AXIS:
                at[number] = value / FULL
                way = at[number] - rest.setdefault(number, 0.0)
                far[number] = max(way, far.get(number, 0.0), key=abs)
            elif value and not kind & INITIAL:
                pressed.append(number)
                down.add(number)
            else:
                down.discard(number)
        order = device.identity.sdl_order(AXIS) or list(at)
        axes = [n for n in order if abs(far.get(n, 0.0)) >= AWAY and name not in USES]
        if down or any(abs(at[n] - rest[n]) > BACK for n in axes):
            continue
        if axes:  # a trigger may be a button too
            number = max(axes, key=lambda n: abs(far[n]))
            half = name in TRIGGERS and abs(rest[number]) < 0.5
            sign = "+-"[far[number] < 0] if half else ""
            return f"{sign}a{_index(device, AXIS, number)}{'~' if far[number] < 0 and not half else ''}"
        if pressed and (name in USES or name in TRIGGERS):
            return f"b{_index(device, BUTTON, pressed[0])}"
    return ""


def _index(device: Joystick, kind: int, number: int) -> int:
    order = device.identity.sdl_order(kind)
    return order.index(number) if order else number
