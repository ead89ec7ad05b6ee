"""Discs: guided by an image from above, a point goes to the left one of the two discs of the instructed colour.

The episode fails if the point touches any other disc.
"""

import torch
from torch import Tensor

from robot_rl.interface.language import encode
from robot_rl.interface.observation_spec import (
    IMAGES,
    LANGUAGE,
    LANGUAGE_FIELD,
    PRIVILEGED,
    ObservationField,
    ObservationSpec,
    picture_field,
)
from sim.testbeds.base import Testbed

COLOURS = {"red": (220, 40, 30), "green": (30, 170, 50), "blue": (40, 60, 220)}
INSTRUCTIONS = tuple(f"touch the {colour} disc" for colour in COLOURS)
TEXTS = encode(INSTRUCTIONS)
TOP, PIXELS = f"{IMAGES}top", 32
"""Key of the camera image, and its height and width."""
SIDE, ROWS, JITTER = 0.7, (-0.6, 0.0, 0.6), 0.12
"""Mean distance of discs from the centre line, mean positions of discs along that line, and largest random shift of a
disc in either direction, m."""
STEP, NEAR, START = 0.12, 0.12, 0.2
"""Maximum motion per step and axis, distance of contact, and largest initial coordinate of the point, m."""


BESIDE = (0.12, 0.14)
"""Error of the demonstrator of discs-beside, m: 6 cm more than the distance of contact."""


class Discs(Testbed):
    """State: point (2), left discs by colour (3 x 2), right discs by colour (3 x 2), m; index of the colour (1)."""

    name, horizon, observation, action, draws = "discs", 30, 2, 2, 21
    extra_inputs = ObservationSpec.of(**{
        PRIVILEGED: ObservationField((15,), kind="privileged"), TOP: picture_field(PIXELS, PIXELS),
        LANGUAGE: LANGUAGE_FIELD,
    })  # fmt: skip

    def start(self, u: Tensor) -> Tensor:
        n, rows = len(u), u.new_tensor(ROWS)
        point, jitter = START * (2 * u[:, :2] - 1), JITTER * (2 * u[:, 2:14].view(n, 2, 3, 2) - 1)
        across = torch.tensor([-SIDE, SIDE], device=u.device)[:, None].expand(n, 2, 3)
        along = rows[u[:, 14:20].view(n, 2, 3).argsort(2)]
        discs = torch.stack([across, along], -1) + jitter
        colour = (u[:, 20:] * len(COLOURS)).floor()
        return torch.cat([point, discs.flatten(1), colour], 1)

    def advance(self, s: Tensor, a: Tensor) -> Tensor:
        return torch.cat([(s[:, :2] + STEP * a).clamp(-1, 1), s[:, 2:]], 1)

    def observe(self, s: Tensor) -> Tensor:
        return s[:, :2]

    def observe_others(self, s: Tensor) -> dict[str, Tensor]:
        return {PRIVILEGED: s, TOP: self._picture(s), LANGUAGE: TEXTS.to(s.device)[self._colour(s)]}

    def outcome(self, s: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        touched = (self._discs(s) - s[:, None, :2]).norm(dim=2) < NEAR
        target = torch.nn.functional.one_hot(self._colour(s), 6).bool()  # the first three discs are on the left
        success, failure = (touched & target).any(1), (touched & ~target).any(1)
        return success.float(), success, failure & ~success

    def progress(self, s: Tensor) -> Tensor:
        return -(self._aim(s, torch.zeros(len(s), dtype=torch.bool, device=s.device)) - s[:, :2]).norm(dim=1)

    def expert(self, observation: Tensor, u: Tensor) -> Tensor:
        """Go to one of the two discs of the instructed colour; the side is sampled per episode."""
        way = self._aim(observation, u[:, 0] < 0.5) - observation[:, :2]
        return way / torch.maximum(way.norm(dim=1, keepdim=True), way.new_tensor(STEP))

    def _picture(self, s: Tensor) -> Tensor:
        """Return images (n, PIXELS, PIXELS, 3) uint8 of the table from above, x to the right, y down."""
        axis = torch.linspace(-1, 1, PIXELS, device=s.device)
        grid = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1)
        shown = torch.full((len(s), PIXELS, PIXELS, 3), 60, dtype=torch.uint8, device=s.device)
        colours = torch.tensor([*COLOURS.values(), *COLOURS.values(), (250, 250, 250)], dtype=torch.uint8)
        things = torch.cat([self._discs(s), s[:, None, :2]], 1)
        for k, colour in enumerate(colours.to(s.device)):
            inside = (grid - things[:, k, None, None]).norm(dim=-1) < NEAR
            shown[inside] = colour
        return shown

    @staticmethod
    def _colour(s: Tensor) -> Tensor:
        """Return the index (n,) of the instructed colour."""
        return s[:, 14].long()

    @staticmethod
    def _discs(s: Tensor) -> Tensor:
        """Return the positions of the discs (n, 6, 2), m."""
        return s[:, 2:14].view(-1, 6, 2)

    def _aim(self, s: Tensor, right: Tensor) -> Tensor:
        """Return positions (n, 2) of the left disc of the instructed colour; where `right` (n,), of the right disc."""
        return self._discs(s)[torch.arange(len(s), device=s.device), self._colour(s) + 3 * right]


class DiscsBeside(Discs):
    """Discs, with a demonstrator who stops beside the right disc, by an error of calibration."""

    name = "discs-beside"

    def expert(self, observation: Tensor, u: Tensor) -> Tensor:
        """Go to `BESIDE` next to the left disc of the instructed colour."""
        left = torch.zeros(len(observation), dtype=torch.bool, device=observation.device)
        way = self._aim(observation, left) + observation.new_tensor(BESIDE) - observation[:, :2]
        return way / torch.maximum(way.norm(dim=1, keepdim=True), way.new_tensor(STEP))
