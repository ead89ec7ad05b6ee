"""Home postures for robots whose files have none: far from limits and stretched postures, or standing on bent legs."""

from collections.abc import Iterator, Sequence

import numpy as np

from sim.rendering.gl import mujoco

TRIES = 2000
"""Number of random postures that are compared."""
REFINED = 10, 500
"""Number of times that a posture is refined, and of postures near the best one that are then compared."""
LOWERED = 0.8
"""Height of a hip above its foot at home, as a share of the greatest."""


class _Postures:
    """Random positions of joints within the inner 80 % of their limits."""

    def __init__(self, model: mujoco.MjModel, joints: Sequence[int]):
        self.model, self.data, self.rng = model, mujoco.MjData(model), np.random.default_rng(0)
        self.at = [int(model.jnt_qposadr[j]) for j in joints]
        limits = np.array([model.jnt_range[j] if model.jnt_limited[j] else (-np.pi, np.pi) for j in joints])
        self.limits = limits.clip(-np.pi, np.pi)
        self.width = self.limits[:, 1] - self.limits[:, 0]

    def drawn(self, count: int, near: np.ndarray | None = None, spread: float = 1.0) -> Iterator[np.ndarray]:
        """Yield positions (J,), anywhere or within a share `spread` of the limits' width of `near`; `data` has them."""
        low, high = self.limits[:, 0] + 0.1 * self.width, self.limits[:, 1] - 0.1 * self.width
        for _ in range(count):
            share = self.rng.uniform(0, 1, len(self.at))
            drawn = low + (high - low) * share if near is None else near + spread * self.width * (share - 0.5)
            yield self.place(drawn.clip(low, high))

    def place(self, posture: np.ndarray) -> np.ndarray:
        """Put the model at positions (J,), and return them."""
        self.data.qpos[self.at] = posture
        mujoco.mj_kinematics(self.model, self.data)
        return posture


def reaching(
    model: mujoco.MjModel, joints: Sequence[int], offset: np.ndarray, last: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the home (J,) of an arm, the place (3,) of its tool there, and its reach, m. `offset` is the tool in the
    frame of the world, minus the last joint, with all joints at 0; `last` is the body that carries it.

    Of random postures with the tool in front of the base and every link well above it, home has the largest product of
    manipulability (Yoshikawa 1985) and distance from the joints' limits.
    """
    postures = _Postures(model, joints)
    data, root = postures.data, int(model.body_rootid[last])
    postures.place(np.zeros(len(joints)))
    local = data.xmat[last].reshape(3, 3).T @ offset
    base = data.xmat[root].reshape(3, 3).copy()
    dofs = [int(model.jnt_dofadr[j]) for j in joints]
    anchors = np.array([data.xanchor[j] for j in joints])
    reach = float(np.linalg.norm(np.diff(anchors, axis=0), axis=1).sum() + np.linalg.norm(offset))
    best, home, place = -1.0, np.zeros(len(joints)), np.zeros(3)
    jacobian, turning = np.zeros((3, model.nv)), np.zeros((3, model.nv))
    for posture in postures.drawn(TRIES):
        tool = data.xpos[last] + data.xmat[last].reshape(3, 3) @ local
        here = (tool - data.xpos[root]) @ base
        lowest = min(((data.xanchor[j] - data.xpos[root]) @ base)[2] for j in joints[2:] or joints)
        if here[0] < 0.2 * reach or here[2] < 0.1 * reach or lowest < 0.15 * reach:
            continue
        mujoco.mj_comPos(model, data)
        mujoco.mj_jac(model, data, jacobian, turning, tool, last)
        moved = np.concatenate([jacobian[:, dofs], turning[:, dofs]])
        gram = moved @ moved.T if len(joints) >= 6 else jacobian[:, dofs] @ jacobian[:, dofs].T
        share = (posture - postures.limits[:, 0]) / postures.width
        free = (share * (1 - share)).min()
        # Ahead, not to the side: a task's objects are there.
        score = float(np.sqrt(max(np.linalg.det(gram), 0.0)) * free * np.exp(-((here[1] / (0.2 * reach)) ** 2)))
        if score > best:
            best, home, place = score, posture, here
    return home, place, reach


def standing(
    model: mujoco.MjModel, legs: Sequence[Sequence[int]], trunk: int, feet: Sequence[int]
) -> tuple[np.ndarray, float]:
    """Return the home (J,) of a robot on legs, and the height of its trunk above the feet there, m.

    Each leg is bent so that its foot is below its first joint that swings, at `LOWERED` of the greatest distance.
    """
    joints = [j for leg in legs for j in leg]
    postures = _Postures(model, joints)
    data = postures.data
    postures.place(np.zeros(len(joints)))
    turned, centre = data.xmat[trunk].reshape(3, 3).copy(), data.xpos[trunk].copy()
    hips = np.array([(data.xanchor[leg[1 if len(leg) > 2 else 0]] - centre) @ turned for leg in legs])

    def feet_now() -> np.ndarray:
        return (data.xpos[list(feet)] - centre) @ turned

    drawn = [(posture, feet_now()) for posture in postures.drawn(TRIES)]
    deepest = min(float((below[:, 2] - hips[:, 2]).min()) for _, below in drawn)
    wanted = hips + [0, 0, LOWERED * deepest]
    home, error = np.zeros(len(joints)), np.full(len(legs), np.inf)
    owner = np.repeat(np.arange(len(legs)), [len(leg) for leg in legs])
    for posture, below in drawn:
        home, error = _better(home, error, posture, np.linalg.norm(below - wanted, axis=1), owner)
    for k in range(REFINED[0]):
        for posture in postures.drawn(REFINED[1], home.copy(), 0.4 * 0.6**k):
            home, error = _better(home, error, posture, np.linalg.norm(feet_now() - wanted, axis=1), owner)
    postures.place(home)
    return home, float(-feet_now()[:, 2].mean())


def _better(
    home: np.ndarray, error: np.ndarray, posture: np.ndarray, found: np.ndarray, owner: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return home (J,) and errors (legs,) with those of a posture for each leg that is better in it; `owner` (J,) is
    the leg of each joint."""
    better = found < error
    return np.where(better[owner], posture, home), np.where(better, found, error)
