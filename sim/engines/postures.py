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
FLOOR, STRETCHED, FOLDED = 0.02, 0.8, 0.25
"""Lowest height of a workspace, m, and its greatest and least distance from the shoulder, as shares of the reach."""


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
    model: mujoco.MjModel, joints: Sequence[int], tool: tuple[np.ndarray, np.ndarray], last: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return the home (J,) of an arm, and the lowest and highest place (3,) of a box about its tool there, in the frame
    of the base, m; None if no posture is found. `tool`: position and quaternion with all joints at 0, carried by the
    body `last`.

    Among postures with the tool in front of the base and the links well above it, home has the largest product of
    manipulability (Yoshikawa 1985), distance from the joints' limits, and closeness of the tool's z axis to straight
    down.
    """
    postures = _Postures(model, joints)
    data, root = postures.data, int(model.body_rootid[last])
    postures.place(np.zeros(len(joints)))
    turned, matrix = data.xmat[last].reshape(3, 3).T, np.empty(9)
    mujoco.mju_quat2Mat(matrix, tool[1])
    local, axis = turned @ (tool[0] - data.xpos[last]), turned @ matrix.reshape(3, 3)[:, 2]
    base, origin = data.xmat[root].reshape(3, 3).copy(), data.xpos[root].copy()
    dofs = [int(model.jnt_dofadr[j]) for j in joints]
    chain = np.array([data.xanchor[j] for j in joints] + [tool[0]])
    shoulder = (chain[min(1, len(joints) - 1)] - origin) @ base
    reach = float(np.linalg.norm(np.diff(chain[1:], axis=0), axis=1).sum())
    jacobian, turning = np.zeros((3, model.nv)), np.zeros((3, model.nv))
    if reach <= 0:
        return None

    def score(posture: np.ndarray) -> tuple[float, np.ndarray]:
        rotation = data.xmat[last].reshape(3, 3)
        place = data.xpos[last] + rotation @ local
        here, down = (place - origin) @ base, -float((rotation @ axis) @ base[:, 2])
        lowest = min((((data.xanchor[j] - origin) @ base)[2] for j in joints[2:]), default=1.0)
        if here[0] < 0.2 * reach or here[2] < 0.1 * reach or lowest < 0.15 * reach:
            return 0.0, here
        mujoco.mj_comPos(model, data)
        mujoco.mj_jac(model, data, jacobian, turning, place, last)
        moved = np.concatenate([jacobian[:, dofs], turning[:, dofs]])[: 6 if len(joints) >= 6 else 3]
        volume = np.sqrt(max(np.linalg.det(moved @ moved.T), 0.0)) if len(joints) > 2 else 1.0
        share = (posture - postures.limits[:, 0]) / postures.width
        aside, tilt = here[1] / (0.2 * reach), np.arccos(np.clip(down, -1, 1)) / 0.4
        return float(volume * (share * (1 - share)).min() * np.exp(-(aside**2) - tilt**2)), here

    best, home, place = 0.0, np.zeros(len(joints)), np.zeros(3)
    for k in range(REFINED[0] + 1):
        near = None if k == 0 else home.copy()
        for posture in postures.drawn(TRIES if k == 0 else REFINED[1], near, 0.4 * 0.6**k):
            found, here = score(posture)
            if found > best:
                best, home, place = found, posture, here
    if best == 0.0:
        return None
    margin = reach * np.array([0.2, 0.3, 0.2])
    for _ in range(30):
        low, high = place - margin, place + margin
        low[2] = max(low[2], FLOOR)
        corners = np.array([[(low, high)[i >> k & 1][k] for k in range(3)] for i in range(8)])
        far = np.linalg.norm(corners - shoulder, axis=1)
        if far.max() < STRETCHED * reach and far.min() > FOLDED * reach:
            break
        margin *= 0.9
    return home, low, high


def standing(
    model: mujoco.MjModel, legs: Sequence[Sequence[int]], trunk: int, feet: Sequence[tuple[int, np.ndarray]]
) -> tuple[np.ndarray, float] | None:
    """Return the home (J,) of a robot on legs, and the height of its trunk above the feet there, m; None if the legs
    do not reach below the trunk. `feet`: body of each foot, and its place in that body.

    Each leg is bent so that its foot is below its first joint that swings, at `LOWERED` of the greatest distance. The
    first leg's posture is fitted; the others start from it, or from it with other signs.
    """
    joints = [j for leg in legs for j in leg]
    postures = _Postures(model, joints)
    data = postures.data
    postures.place(np.zeros(len(joints)))
    turned, centre = data.xmat[trunk].reshape(3, 3).copy(), data.xpos[trunk].copy()
    hips = np.array([(data.xanchor[leg[1 if len(leg) > 2 else 0]] - centre) @ turned for leg in legs])

    def foot(k: int) -> np.ndarray:
        body, place = feet[k]
        return (data.xpos[body] + data.xmat[body].reshape(3, 3) @ place - centre) @ turned

    first = [(posture[: len(legs[0])].copy(), foot(0)) for posture in postures.drawn(TRIES)]
    deepest = min(float(place[2] - hips[0, 2]) for _, place in first)
    wanted = hips + [0, 0, LOWERED * deepest]
    home = np.zeros(len(joints))

    def fit(k: int, starts: list[np.ndarray], spread: float) -> float:
        """Put leg k into the best posture from `starts` on; return the distance of its foot from where it should be."""
        own = slice(sum(map(len, legs[:k])), sum(map(len, legs[: k + 1])))
        low, high = postures.limits[own].T
        best, chosen = np.inf, starts[0]
        for round_ in range(REFINED[0] + 1):
            centre_of, around = chosen.copy(), spread * 0.6**round_ * postures.width[own]
            tried = starts if round_ == 0 else (
                centre_of + around * (postures.rng.uniform(0, 1, len(centre_of)) - 0.5) for _ in range(REFINED[1])
            )
            for each in tried:
                home[own] = each.clip(low, high)
                postures.place(home)
                error = float(np.linalg.norm(foot(k) - wanted[k]))
                if error < best:
                    best, chosen = error, home[own].copy()
        home[own] = chosen
        return best

    nearest = min(first, key=lambda each: float(np.linalg.norm(each[1] - wanted[0])))[0]
    errors = [fit(0, [nearest], 0.4)]
    model_leg = home[: len(legs[0])].copy()
    for k in range(1, len(legs)):
        signs = np.array(np.meshgrid(*[(1, -1)] * len(model_leg), indexing="ij")).reshape(len(model_leg), -1).T
        errors.append(fit(k, [model_leg * sign for sign in signs], 0.05))
    postures.place(home)
    height = float(-np.mean([foot(k)[2] for k in range(len(legs))]))
    if deepest >= 0 or height <= 0 or max(errors) > 0.1 * abs(deepest):
        return None
    return home, height
