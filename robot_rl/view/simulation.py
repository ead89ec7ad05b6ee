"""View of one simulated robot with pause, single steps, speed, reset, randomized values, pictures and success."""

import html
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from real.teleop import Device
from robot_rl.interface.control_joints import NO_TOOL
from robot_rl.interface.observation_spec import IMAGES
from robot_rl.operators.scripted import OperatorView
from robot_rl.util.errors import ConfigError, UserError
from robot_rl.view.page import Page, table
from robot_rl.view.scene import SceneView

SPEEDS = {"1/10": 0.1, "1/4": 0.25, "1/2": 0.5, "real time": 1.0, "2 times": 2.0, "as fast as it can": float("inf")}
SHAPE = (180, 240)
"""Height and width of pictures of cameras that the policy does not use, pixels."""
FRAME_RATE = 60.0
"""Maximum frame rate, Hz."""
PAUSE_AFTER = 0.5
"""Pause after the end of an episode, s."""


class ViewActor(Protocol):
    """Source of actions in a view, such as a `ChunkExecutor` of a policy or demonstrator."""

    def act(self, observation: dict[str, Tensor], rng: torch.Generator) -> Tensor:
        """Return actions (1, A) in [-1, 1]."""

    def reset(self) -> None:
        """Begin an episode."""


class SimulationView:
    """View of environment 0 of a `TaskEnv`, with controls for its speed in the page.

    ::

        view.begin(number, seed)             # after env.reset
        while view.wait():                   # before each step; False after "reset": continue with episode `view.next`
            ... env.step(action)
            view.show(observation, action)   # after each step except the episode's last
        view.end(success)
    """

    def __init__(self, env: Any, port: int = 0, title: str = "", speed: float = 1.0, controls: bool = True):
        """Open the page of an environment, which may be wrapped. `speed` is the initial speed of simulated time;
        without `controls` the page has no buttons."""
        self.env, self.page = env, Page("robot-rl", port)
        self.title = title or env.task.name
        base = env.robot.base
        self.scene = SceneView(self.page.server, env.engine.model, base.body if base else "")
        self.rate, self.horizon = env.rate, env.task.interface.horizon
        self.next = 0
        """Number of the next episode after `wait` returns False."""
        self.episodes = self.successes = 0
        """Number of episodes that ended without a reset, and number of successes among them."""
        self.asked = ""
        """Instruction of the running episode."""
        self.number = self.seed = self.step = 0
        self.paused = False
        self._stands = False
        """Whether the simulation is paused and no step is in progress."""
        self._steps = 0
        """Number of single steps that were requested in the page and not yet taken."""
        self._reset = False
        self._changed = threading.Event()
        self._note, self._due, self._drawn = "", time.monotonic(), 0.0
        self._actions = [f"{field.name} {dim}" for field in env.pipeline.actions.fields for dim in field.dims]
        self._build(speed)
        for handle in (self._pause, self._single, self._again, self._speed, self._number):
            handle.visible = controls

    def _build(self, speed: float) -> None:
        page, gui = self.page, self.page.server.gui
        page.add_text("status")
        self._pause = gui.add_button("Pause", hint="pause or continue simulated time")
        self._single = gui.add_button("Single step", hint="advance by one control period")
        self._again = gui.add_button("Reset", hint="begin the next episode with new randomized values")
        names = {value: name for name, value in SPEEDS.items()}
        self._speed = gui.add_dropdown("Speed", tuple(SPEEDS), initial_value=names.get(speed, "real time"))
        self._number = gui.add_number("Episode", 0, min=0, step=1, hint="begin this episode")
        seen = {p.camera: (p.height, p.width) for p in self.env.task.interface.pictures}
        self._cameras = {c.name: seen.get(c.name, SHAPE) for c in self.env.task.scene.cameras}
        with page.folder("Cameras"):
            try:
                for name, shape in self._cameras.items():
                    self.env.engine.render(0, name, *shape)
            except UserError as error:  # no OpenGL; the 3D scene works without it
                self._cameras = {}
                page.add_text("cameras")
                page.text("cameras", html.escape(str(error)))
            for name, shape in self._cameras.items():
                page.add_picture(self._label(name), *shape)
        with page.folder("Action"):
            page.add_text("action")
        with page.folder("Randomized in this episode", open_=False):
            page.add_text("randomized")
        self._pause.on_click(lambda _: self.pause(not self.paused))
        self._single.on_click(lambda _: self._press_step())
        self._again.on_click(lambda _: self.reset())
        self._speed.on_update(lambda _: self._changed.set())
        self._number.on_update(lambda event: self.reset(int(self._number.value)) if event.client else None)

    def _label(self, camera: str) -> str:
        sees = any(p.camera == camera for p in self.env.task.interface.pictures)
        return f"{camera} (what the policy sees)" if sees else camera

    # ---- controls of the page ----------------------------------------------------------------------------------
    def pause(self, paused: bool = True) -> None:
        """Pause the simulation, or continue it if not `paused`, like the page's button."""
        self.paused, self._stands, self._steps = paused, False, 0
        self._pause.label = "Go on" if paused else "Pause"
        self._changed.set()

    def _press_step(self) -> None:
        if not self.paused:
            self.pause()
        self._steps += 1
        self._changed.set()

    def reset(self, number: int | None = None) -> None:
        """End the episode and begin episode `number`; default: the next."""
        self.next = self.number + 1 if number is None else number
        self._reset = True
        self._changed.set()

    # ---- calls of the simulation loop --------------------------------------------------------------------------
    def begin(self, number: int, seed: int) -> None:
        """Show the first state of an episode and its randomized values."""
        self.number, self.seed, self.step, self.next = number, seed, 0, number + 1
        self._reset, self._due = False, time.monotonic()
        self._number.value = number
        units = [r.unit for r in self.env.randomization]
        drawn = zip(self.env.episode_record(0).items(), units, strict=True)
        rows = [(name.partition("/")[2], f"{value:.4g}", "" if unit == "1" else unit) for (name, value), unit in drawn]
        self.page.text("randomized", table(rows) if rows else "nothing", now=True)
        self._draw({}, now=True)

    def wait(self) -> bool:
        """Wait until the next control period is due at the page's speed; return False after a reset."""
        while not self._reset:
            self._changed.clear()
            if self._steps:
                self._steps -= 1
                return True
            speed = SPEEDS[self._speed.value]
            left = self._due + 1 / self.rate / speed - time.monotonic()
            if not self.paused and left <= 0:
                self._due = max(self._due + 1 / self.rate / speed, time.monotonic() - 0.1)  # no burst after a delay
                return True
            if self.paused and not self._stands:
                self._stands = True
                self._say(now=True)
            self._changed.wait(0.2 if self.paused else left)  # short, so that signals are handled
            if self.paused:
                self._due = time.monotonic()
        return False

    def show(self, observation: dict[str, Tensor], action: Tensor | None = None) -> None:
        """Show the state of environment 0 after a step with actions (n, A) in [-1, 1]."""
        self.step += 1
        if action is not None:
            values = self.env.pipeline.actions.to_physical(action[:1].cpu())[0].tolist()
            units = [field.unit for field in self.env.pipeline.actions.fields for _ in field.dims]
            rows = zip(self._actions, values, units, strict=True)
            self.page.text("action", table((name, f"{value:+.4f}", unit) for name, value, unit in rows))
        self._draw(observation, now=self.paused)

    def redraw(self, observation: dict[str, Tensor]) -> None:
        """Draw the state again without counting a step."""
        self._draw(observation)

    def end(self, success: bool, counted: bool = True) -> None:
        """Show the outcome of an episode for PAUSE_AFTER."""
        if counted:
            self.episodes, self.successes = self.episodes + 1, self.successes + success
        self.step += 1
        self.note("succeeded" if success else "ended without success")
        self._changed.clear()
        self._changed.wait(min(PAUSE_AFTER, PAUSE_AFTER / SPEEDS[self._speed.value]))
        self.note("")

    def note(self, text: str) -> None:
        """Show a short text in the status, for example "recording"."""
        if text != self._note:
            self._note = text
            self._say(now=True)

    def close(self) -> None:
        self.page.close()

    # ---- drawing -----------------------------------------------------------------------------------------------
    def _draw(self, observation: dict[str, Tensor], now: bool = False) -> None:
        instruction, clock = self.env.instruction(0), time.monotonic()
        changed, self.asked = instruction != self.asked, instruction
        if now or clock - self._drawn >= 1 / FRAME_RATE:
            engine = self.env.engine
            sizes = engine.geom_sizes
            self.scene.show(engine.qpos[0], None if sizes is None else sizes[0])
            self._drawn = clock
        for name, (height, width) in self._cameras.items():
            label = self._label(name)
            if self.page.due(label) or (now and self.page.watched):
                seen = observation.get(f"{IMAGES}{name}")
                picture = self.env.engine.render(0, name, height, width) if seen is None else seen[0].cpu().numpy()
                self.page.picture(label, picture)
        self._say(now or changed)

    def _say(self, now: bool = False) -> None:
        rate = f"{self.successes} of {self.episodes}" if self.episodes else "-"
        rows = [
            ("asked", self.asked),
            ("episode", f"{self.number}, seed {self.seed}"),
            ("step", f"{self.step} of {self.horizon}"),
            ("time", f"{self.step / self.rate:.2f} s"),
            ("success so far", rate),
        ]
        note = f"<i>{html.escape(self._note)}</i>" if self._note else "<i>paused</i>" if self._stands else "&nbsp;"
        self.page.text("status", f"<b>{html.escape(self.title)}</b>{table(rows)}{note}", now)


def play(env: Any, actor: ViewActor, view: SimulationView, episodes: int = 0, seed: int = 0) -> None:
    """Run episodes of one environment in the view, episode k with seed + k; `episodes` 0: without end."""
    number = 0
    while not episodes or view.episodes < episodes:
        rng = torch.Generator().manual_seed(seed)
        actor.reset()
        observation, _ = env.reset(seed=seed + number)
        view.begin(number, seed + number)
        done = success = False
        while not done and view.wait():
            action = actor.act(observation, rng)
            observation, _, terminated, truncated, infos = env.step(action)
            done, success = bool(terminated[0] | truncated[0]), bool(infos["success"][0])
            if "intervention" in infos:
                view.note("you have control" if infos["intervention"][0] else "")
            if infos.get("handed_back"):
                actor.reset()  # drop the chunk planned before the person's correction
            if not done:  # after `done`, the environment has already begun the next episode
                view.show(observation, infos.get("executed", action))
        if done:
            view.end(success)
        number = view.next


class RecordingView:
    """Callback for `real.sessions.recording.Recording` that draws the environment after every control period."""

    def __init__(self, say: Callable[[str], None], port: int = 0):
        """`say` is called with the page's address once the page is open."""
        self.say, self.port = say, port
        self.view: SimulationView | None = None
        self._state = ""

    def __call__(self, env: Any) -> None:
        """Show the current state of a `RehearsalEnv`, which waits for the person before its first step."""
        if self.view is None:
            self.view = SimulationView(env.env, self.port, f"{env.env.task.name}, recording", controls=False)
            self.say(self.view.page.address)
        state = "recording" if env.steps else "waiting for your first input"
        if not env.steps and self._state != state:
            self.view.begin(self.view.number + 1, env.env.seed)
        self._state = state
        self.view.note(state)
        self.view.show(env.observation) if env.steps else self.view.redraw(env.observation)

    def close(self) -> None:
        if self.view is not None:
            self.view.close()


class Person:
    """Person as the operator of `InterventionWrapper`, in control while the enable button is held, as on a robot."""

    def __init__(self, env: Any, device: Device, reset: Callable[[], None]):
        """Call `reset` when the device's reset button is pressed. Raises ConfigError if the actions move no tool."""
        if not env.pipeline.controller.twist_limit.any():
            kind = env.pipeline.interface.controller.kind
            raise ConfigError(
                f"{NO_TOOL.format(kind)}; a walking robot is steered on its twin: launch quadruped twin:=true "
                "teleop:=keyboard view:=true"
            )
        self.env, self.device, self._reset_pressed = env, device, reset
        self._down = False

    def reset(self) -> None:
        """Begin an episode (no effect)."""

    def __call__(self, view: OperatorView, step: float) -> tuple[bool, Tensor]:
        """Return whether the person has control, and the action (1, A). Raises `Finished` when the person quits."""
        operator = self.device.read()
        if operator.reset and not self._down:
            self._reset_pressed()
        self._down = operator.reset
        twist = torch.tensor([[*operator.motion, *operator.rotation]])
        gripper = torch.tensor([[operator.gripper]])
        action = self.env.pipeline.controller.from_twist(twist, gripper, self.env.hold_action())
        return operator.held, action
