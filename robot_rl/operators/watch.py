"""When a scripted operator takes over from a policy and gives control back."""

from __future__ import annotations

from torch import Tensor

PATIENCE = 1.2
"""Seconds without progress before the operator takes over."""
LONGEST = 5.0
"""Seconds of one correction before the policy gets another try."""
PROGRESS = 0.004
"""Metres nearer to the object, or higher with it, that count as progress."""

BESIDE = 0.015
"""Metres to the side of the object at which open fingers will not come down around it."""
ABOVE = 0.045
"""Metres above the object below which the policy will no longer correct that."""
GLANCE = 0.1
"""Seconds of coming down beside the object before the operator takes over."""


class Watch:
    """Decide when the operator has control: for `LONGEST` after a lack of progress, or when the fingers come down
    beside the object."""

    def __init__(self) -> None:
        self.reset(0.0)

    def reset(self, now: float) -> None:
        """Start anew, without control."""
        self.best, self.improved, self.aligned = float("-inf"), now, now
        self.began: float | None = None
        """When control was taken, s."""

    def __call__(self, offset: Tensor, height: float, width: float, now: float) -> bool:
        """Return whether the operator has control.

        `offset` (3,) is from the tool to the object and `height` that of the object, m; `width` is the gripper's
        opening, 0 to 1.
        """
        score = 3 * height - float(offset.norm())
        if score > self.best + PROGRESS:
            self.best, self.improved = score, now
        missing = float(offset[:2].norm()) > BESIDE and float(offset[2]) > -ABOVE and width > 0.6
        if not missing:
            self.aligned = now
        if self.began is None and (now - self.improved > PATIENCE or now - self.aligned > GLANCE):
            self.began = now
        elif self.began is not None and now - self.began > LONGEST:
            self.reset(now)
        return self.began is not None
