"""Mass, centre of mass and inertia of a trunk with randomized values and a payload, for all engines."""

import numpy as np

PAYLOAD_PLACE = np.array([0.0, 0.0, 0.1])
"""Position of the payload in the trunk's frame, m."""
PAYLOAD_EDGE = 0.15
"""Edge length of the payload, a cube, m."""


def trunk_inertia(
    mass: float, com: np.ndarray, inertia: np.ndarray, values: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return masses (k,) kg, centres of mass (k, 3) m, inertias (k, 3, 3) kg m^2 about these centres, in trunk frame.

    `mass`, `com` (3,) and `inertia` (3, 3) are nominal; `values` (k,) have the names in `parameters.TRUNK`. The
    mass scale applies to the inertia as well; a shift of the centre of mass does not change the inertia about it.
    """
    scale, load = values["base.mass_scale"], values["payload.mass"]
    own, own_com = mass * scale, com + np.stack([values[f"base.com_{axis}"] for axis in "xyz"], 1)
    total = own + load
    centre = (own[:, None] * own_com + load[:, None] * PAYLOAD_PLACE) / total[:, None]
    cube = (load * PAYLOAD_EDGE**2 / 6)[:, None, None] * np.eye(3)
    about = inertia * scale[:, None, None] + cube
    for part, place in ((own, own_com), (load, np.broadcast_to(PAYLOAD_PLACE, own_com.shape))):
        about = about + part[:, None, None] * _point_inertia(place - centre)
    return total, centre, about


def _point_inertia(at: np.ndarray) -> np.ndarray:
    """Return the inertias (k, 3, 3) of unit masses at points (k, 3) about the origin."""
    square = (at * at).sum(1)[:, None, None] * np.eye(3)
    return square - at[:, :, None] * at[:, None, :]
