"""Import MuJoCo even if its GL library cannot be loaded: only rendering then raises an error.

MuJoCo loads the library named by MUJOCO_GL at its import and may raise any error. Modules of `sim` import MuJoCo from
this module.
"""

import os
import warnings

from robot_rl.util.errors import UserError

BACKEND = os.environ.get("MUJOCO_GL", "").strip().lower()
DEVICE = "MUJOCO_EGL_DEVICE_ID"
_missing: Exception | None = None
try:
    import mujoco
except (AttributeError, ImportError, OSError, TypeError) as error:  # any error of PyOpenGL and ctypes
    _missing = error
    os.environ["MUJOCO_GL"] = "disable"
    try:
        import mujoco
    except ImportError as broken:  # GL is not the cause
        reason = str(broken).partition(". ")[0]
        raise UserError(
            f"MuJoCo cannot be imported ({reason}); install its packages again, in one version: pip install "
            "--force-reinstall --no-deps -c constraints.txt mujoco mujoco-core mujoco-studio"
        ) from None
    finally:
        os.environ["MUJOCO_GL"] = BACKEND
from mujoco import batch  # noqa: E402 - after the guarded import

__all__ = ["batch", "mujoco", "open_renderer"]

_REMEDIES = {
    "egl": "install EGL (Debian: apt-get install libegl1 libgl1 libopengl0 libgl1-mesa-dri)",
    "osmesa": "install OSMesa (Debian: apt-get install libosmesa6), or unset MUJOCO_GL to render with EGL",
}


def open_renderer(model: mujoco.MjModel, height: int, width: int) -> mujoco.Renderer:
    """Return an offscreen renderer; raise UserError with reason and remedy if no renderer can be opened."""
    try:
        if _missing is not None:
            raise _missing
        with warnings.catch_warnings():
            warnings.filterwarnings("error", module="glfw")  # GLFW reports errors as warnings, then crashes
            return mujoco.Renderer(model, height, width)
    except Exception as error:  # the GL stack may raise anything: ImportError, AttributeError, RuntimeError
        # Messages of AttributeError and PyOpenGL do not help the user.
        said = "" if isinstance(error, AttributeError) or _platform_differs() else f" ({error})"
        raise UserError(
            f"cannot open an offscreen renderer with MUJOCO_GL={BACKEND or 'glfw'}{said}; {_remedy(str(error))}, "
            "or go without pictures: --image-size 0, --no-camera, no --video"
        ) from None


def _platform_differs() -> bool:
    """Return whether PYOPENGL_PLATFORM and MUJOCO_GL name different libraries."""
    return BACKEND in _REMEDIES and os.environ.get("PYOPENGL_PLATFORM", BACKEND) != BACKEND


def _remedy(said: str) -> str:
    if _platform_differs():
        return f"unset PYOPENGL_PLATFORM, which is {os.environ['PYOPENGL_PLATFORM']!r}"
    number = os.environ.get(DEVICE, "")
    if BACKEND == "egl" and (DEVICE in said or not number.isdigit() and number):
        return f"set {DEVICE}, which is {number!r}, to the number of an EGL device, from 0 on, or unset it"
    if BACKEND in _REMEDIES:
        return _REMEDIES[BACKEND]
    if BACKEND in ("0", "off", "false", "disable", "disabled"):
        return "unset MUJOCO_GL, which forbids pictures"
    display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    seen = f"no display answers at {display!r}" if display else "there is no display: DISPLAY is not set"
    return f"{seen}; unset MUJOCO_GL to render without one"
