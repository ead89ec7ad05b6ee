"""Mass, centre of mass and inertia of a trunk with a payload, compared with MuJoCo's for an attached box."""

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engines.trunk import PAYLOAD_EDGE, PAYLOAD_PLACE, trunk_inertia
from sim.parameters import nominal

small = st.floats(-0.1, 0.1)
values = st.fixed_dictionaries(
    {f"base.com_{axis}": small for axis in "xyz"}
    | {"base.mass_scale": st.floats(0.5, 2.0), "payload.mass": st.floats(0.01, 10.0)}
)


def mass_matrix(mass: float, com: np.ndarray, inertia: np.ndarray, payload: float = 0.0) -> np.ndarray:
    """Return the mass matrix (6, 6) of a free body with this centre of mass and inertia, and of a box fixed to it."""
    spec = mujoco.MjSpec()
    body = spec.worldbody.add_body(
        name="trunk", mass=mass, ipos=com, explicitinertial=True,
        fullinertia=[inertia[0, 0], inertia[1, 1], inertia[2, 2], inertia[0, 1], inertia[0, 2], inertia[1, 2]],
    )  # fmt: skip
    body.add_freejoint()
    if payload:
        load = body.add_body(name="payload", pos=PAYLOAD_PLACE)
        load.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=[PAYLOAD_EDGE / 2] * 3, mass=payload)
    model = spec.compile()
    data, full = mujoco.MjData(model), np.zeros((6, 6))
    mujoco.mj_forward(model, data)
    mujoco.mj_fullM(model, data, full)
    return full


def random_inertia(seed: int, mass: float) -> np.ndarray:
    """Return the inertia of random points, which is physically possible."""
    points = np.random.default_rng(seed).normal(scale=0.1, size=(20, 3))
    return mass / 20 * sum(p @ p * np.eye(3) - np.outer(p, p) for p in points - points.mean(0))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(values, st.integers(0, 1000), st.floats(1.0, 15.0))
def test_trunk_with_payload_has_mujocos_mass_matrix(values: dict[str, float], seed: int, mass: float) -> None:
    com, inertia = np.random.default_rng(seed + 1).normal(scale=0.03, size=3), random_inertia(seed, mass)
    arrays = {name: np.array([v, nominal(name)]) for name, v in values.items()}
    total, centre, about = trunk_inertia(mass, com, inertia, arrays)
    assert total[1] == mass and np.allclose(centre[1], com) and np.allclose(about[1], inertia), "nominal values"
    scale = values["base.mass_scale"]
    shifted = com + [values[f"base.com_{axis}"] for axis in "xyz"]
    wanted = mass_matrix(mass * scale, shifted, inertia * scale, values["payload.mass"])
    assert total[0] == pytest.approx(wanted[0, 0])
    assert np.allclose(mass_matrix(total[0], centre[0], about[0]), wanted, rtol=1e-6, atol=1e-9)
