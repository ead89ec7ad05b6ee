"""Show a device's input and the commands that would result, and make a gamepad's map file. Nothing is sent."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from real.teleop.commands import PRESSES, Operator
from real.teleop.gamepad import Controls
from real.teleop.joystick import AXIS, BUTTON, FULL, INITIAL, Joystick
from real.teleop.layout import MAP_FILE, TRIGGERS, USES, Source, layout_of
from real.teleop.stream import Device, Finished
from robot_rl.util.errors import ConfigError

PERIOD = 0.05
"""Time between two readings of the gamepad, s."""
WARM_UP = 80
"""Number of readings that determine the rest positions of sticks and triggers."""
STEP = 0.05
"""Smallest movement shown, as a fraction of full deflection."""
AWAY, BACK = 0.6, 0.25
"""Distance from rest above which a control counts as moved, and below which as released; 1: full deflection."""
_PROMPTS = dict(
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
    """Print each movement of a control and the resulting command, until `wait(seconds)` returns a true value. If
    `map_file` does not exist, first prompt for each control and write the file."""
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
            position = value / FULL if source.kind == AXIS else float(value)
            if abs(position - shown.get((source.kind, number), 2.0)) >= STEP:
                shown[source.kind, number] = position
                say(f"{source}: {position:+.2f}  {f'{name}, {USES[name]}' if name in USES else name or 'not used'}")
        moved = ", ".join(controls.moved())
        released |= not moved
        command = _command(controls.operator()) if released else f"refused until released: {moved}"
        if command != before and controls.layout:
            say(f"    -> {command}")
        before = command


def watch(device: Device, wait: Wait, say: Say) -> None:
    """Print each change of what a device would command, until `wait(seconds)` returns a true value or it ends."""
    say("nothing is sent, q or Ctrl-C ends")
    before = ""
    with suppress(Finished):
        while not wait(PERIOD):
            if (command := _command(device.read())) != before:
                say(f"    -> {command}")
            before = command


def _command(operator: Operator) -> str:
    """Return a description of operator input."""
    axes = {"motion": operator.motion, "rotation": operator.rotation, "gripper": (operator.gripper,)}
    parts = [f"{name} {' '.join(f'{v:+.2f}' for v in values)}" for name, values in axes.items() if any(values)]
    parts += [name for name in PRESSES if getattr(operator, name)]
    return f"{'control' if operator.held else 'no control'}: {', '.join(parts) or 'nothing'}"


def _make_map(device: Joystick, file: Path, wait: Wait, say: Say) -> bool:
    """Prompt for each control and write the device's line of a map file; return False if `wait` ended the prompts."""
    rest: dict[int, float] = {}
    say("move every stick and trigger once, then let go of all")
    for _ in range(WARM_UP):
        if wait(PERIOD):
            return False
        rest |= {number: value / FULL for kind, number, value in device.events() if kind & AXIS}
    controls: dict[str, str] = {}
    for name, prompt in _PROMPTS.items():
        say(f"{prompt}, and let go")
        while (text := _moved_control(device, name, rest, wait)) in controls.values():
            say(f"that is {next(n for n, t in controls.items() if t == text)} already; {prompt}")
        if not text:
            return False
        say(f"    {name}: {text}")
        controls[name] = text
    pairs = ",".join(f"{name}:{text}" for name, text in controls.items())
    title = device.identity.name.replace(",", " ") or "gamepad"
    file.write_text(f"{device.identity.guid},{title},{pairs},platform:Linux,\n")
    say(f"wrote {file}: give it with --map {file}, or to every command with {MAP_FILE}={file}")
    return True


def _moved_control(device: Joystick, name: str, rest: dict[int, float], wait: Wait) -> str:
    """Return the next axis or button that is moved and released, in a map file's notation; empty if `wait` ended the
    search."""
    position, peak = dict(rest), dict.fromkeys(rest, 0.0)
    pressed: list[int] = []
    down: set[int] = set()
    while not wait(PERIOD):
        for kind, number, value in device.events():
            if kind & AXIS:
                position[number] = value / FULL
                deflection = position[number] - rest.setdefault(number, 0.0)
                peak[number] = max(deflection, peak.get(number, 0.0), key=abs)
            elif value and not kind & INITIAL:
                pressed.append(number)
                down.add(number)
            else:
                down.discard(number)
        order = device.identity.sdl_order(AXIS) or list(position)
        axes = [n for n in order if abs(peak.get(n, 0.0)) >= AWAY and name not in USES]
        if down or any(abs(position[n] - rest[n]) > BACK for n in axes):
            continue
        if axes:  # before buttons: a trigger may be both
            number = max(axes, key=lambda n: abs(peak[n]))
            half = name in TRIGGERS and abs(rest[number]) < 0.5
            sign = "+-"[peak[number] < 0] if half else ""
            return f"{sign}a{_index(device, AXIS, number)}{'~' if peak[number] < 0 and not half else ''}"
        if pressed and (name in USES or name in TRIGGERS):
            return f"b{_index(device, BUTTON, pressed[0])}"
    return ""


def _index(device: Joystick, kind: int, number: int) -> int:
    order = device.identity.sdl_order(kind)
    return order.index(number) if order else number
