"""What a task is: an interface for the policy, a scene, and what differs between episodes. It names no engine."""

from __future__ import annotations

from dataclasses import dataclass, replace

from robot_rl.interface import Interface
from sim.randomization import Randomize
from sim.scenes import Scene


@dataclass(frozen=True)
class Task:
    interface: Interface
    scene: Scene
    randomization: tuple[Randomize, ...]
    """Drawn at each reset. A box without `<box>.x`, `.y` and `.yaw` stands still at its default place."""
    expert: str
    """module:function that builds a scripted demonstrator."""

    def __post_init__(self) -> None:
        cameras = tuple(camera.name for camera in self.scene.cameras)
        object.__setattr__(self, "interface", replace(self.interface, cameras=cameras))

    @property
    def name(self) -> str:
        return self.interface.task
