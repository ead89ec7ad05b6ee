"""Policy pictures on a robot: newest frame of each camera, resized and checked for staleness.

A frame is cropped about its centre to the picture's aspect ratio and downsampled by area interpolation. A simulated
camera with the same vertical field of view gives the same picture. Faults of a camera, whose frame is then not used:

missing       the camera sends nothing
frozen        a frame is repeated with its old stamp, or with the same pixels after the arm has moved
wrong         a frame is smaller than the picture, or has an unsupported encoding or a byte count unlike its size
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from real import clock
from real.bus.stamps import taken
from real.drivers.driver import Driver
from real.drivers.state import NotReady
from robot_rl.interface.observation_spec import IMAGES, ObservationSpec, picture_field
from robot_rl.interface.pipeline import Picture, Pipeline
from robot_rl.rewards.classifier import Classifier
from robot_rl.util.errors import UserError

MOVED = 0.05
"""Motion of a joint after which a camera must show a different picture, rad."""


@dataclass
class _View:
    """Newest usable frame of one camera."""

    picture: np.ndarray
    """Frame resized to the policy's picture, (H, W, 3) uint8."""
    joints: np.ndarray
    """Joint positions when this picture first appeared, (J,) rad."""


class Pictures:
    """Reader of the robot's cameras for the given pictures of an interface."""

    def __init__(self, driver: Driver, pictures: tuple[Picture, ...]):
        self.driver, self.pictures = driver, {p.camera: p for p in pictures}
        self._views: dict[str, _View] = {}
        self._seen = dict.fromkeys(self.pictures, -math.inf)
        """Arrival of each camera's newest usable frame, s."""
        self._taken = dict.fromkeys(self.pictures, -math.inf)
        """Stamp of each camera's newest usable frame, s of ROS time."""
        self.used = -math.inf
        """Stamp of the oldest frame that `read` returned last, s of ROS time."""
        self._handled = dict.fromkeys(self.pictures, -math.inf)
        self._stamps: dict[str, tuple[int, int]] = {}
        self._faults: dict[str, str] = {}

    def check(self) -> None:
        """Raise NotReady for a camera without a usable frame. Call `Preflight.wait_ready` before."""
        self.look()
        for camera in self.pictures:
            if camera not in self._views:
                raise NotReady(self._complaint(camera))

    def look(self) -> None:
        """Process each camera's newest frame, if it is new."""
        for camera in self.pictures:
            sample = self.driver.scene.images[camera].latest
            if sample is None or sample.received == self._handled[camera]:
                continue
            self._handled[camera] = sample.received
            if not (fault := self._take(camera)):
                self._seen[camera] = sample.received
                self._taken[camera] = taken(sample.msg.header.stamp, sample.received)
            self._faults[camera] = fault

    def age(self) -> float:
        """Return the age of the oldest of the cameras' newest usable frames, s; 0 without pictures."""
        self.look()
        return clock.now() - min(self._seen.values()) if self._seen else 0.0

    def read(self, limit: float) -> dict[str, Tensor]:
        """Return the pictures (1, H, W, 3) uint8 by key; NotReady if a picture is older than `limit` s."""
        self.look()
        now = clock.now()
        for camera, seen in self._seen.items():
            if now - seen > limit:
                raise NotReady(f"for {limit:g} s {self._complaint(camera)}")
        self.used = min(self._taken.values(), default=-math.inf)
        return {p.key: torch.from_numpy(self._views[c].picture.copy())[None] for c, p in self.pictures.items()}

    def newest(self, camera: str) -> np.ndarray | None:
        """Return a camera's newest usable frame (H, W, 3) uint8 at the picture's size; None before the first."""
        return self._views[camera].picture if camera in self._views else None

    def _complaint(self, camera: str) -> str:
        topic, fault = self.driver.scene.images[camera].topic, self._faults.get(camera)
        fault = fault or "sends nothing new; is its driver still running?"
        return f"the policy has no usable picture on {topic}: camera {camera!r} {fault}"

    def _take(self, camera: str) -> str:
        """Process a camera's newest frame; return its fault, empty if the frame is usable."""
        wanted, sample = self.pictures[camera], self.driver.scene.images[camera].latest
        assert sample is not None
        stamp = int(sample.msg.header.stamp.sec), int(sample.msg.header.stamp.nanosec)
        if any(stamp) and self._stamps.get(camera) == stamp:
            return f"repeats the frame of {stamp[0]}.{stamp[1]:09d}"
        self._stamps[camera] = stamp
        try:
            frame = self.driver.scene.image(camera)
        except (UserError, ValueError) as error:
            return f"sent an invalid image ({error})"
        assert frame is not None
        if frame.shape[0] < wanted.height or frame.shape[1] < wanted.width:
            return (
                f"sends {frame.shape[1]}x{frame.shape[0]} pixels, and the policy sees {wanted.width}x{wanted.height}: "
                "set the camera to a larger picture"
            )
        picture, reading = resized(frame, wanted.height, wanted.width), self.driver.reading()
        joints = np.zeros(0) if reading is None else reading.position
        before = self._views.get(camera)
        if before is not None and np.array_equal(before.picture, picture):
            moved = before.joints.shape == joints.shape and np.abs(joints - before.joints).max(initial=0.0) > MOVED
            return "shows the same although the arm has moved" if moved else ""
        self._views[camera] = _View(picture, joints)
        return ""


def with_judged(classifier: Classifier, pipeline: Pipeline) -> tuple[Picture, ...]:
    """Return the policy's pictures and those that only the classifier reads. Raise ConfigError if the classifier was
    fitted to other observations."""
    seen, interface = pipeline.observation_spec, pipeline.interface
    others = {key: shape for key, shape in classifier.network.reads.pictures.items() if key not in seen}
    seen |= ObservationSpec.of(**{key: picture_field(*shape[:2]) for key, shape in others.items()})
    classifier.require_fit(seen, interface.controller.rate, interface)
    more = (Picture(key.removeprefix(IMAGES), height, width) for key, (height, width, _) in others.items())
    return (*interface.pictures, *more)


def resized(frame: np.ndarray, height: int, width: int) -> np.ndarray:
    """Crop a frame (h, w, 3) uint8 about its centre to the aspect ratio height:width and downsample it by area."""
    h, w = frame.shape[:2]
    rows, columns = min(h, round(w * height / width)), min(w, round(h * width / height))
    top, left = (h - rows) // 2, (w - columns) // 2
    frame = frame[top : top + rows, left : left + columns].copy()
    if frame.shape[:2] == (height, width):
        return frame
    pixels = torch.from_numpy(frame).permute(2, 0, 1)[None].float()
    averaged = torch.nn.functional.interpolate(pixels, (height, width), mode="area").round()[0]
    return averaged.to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
