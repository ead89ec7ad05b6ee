"""Model files of MuJoCo Menagerie by name: menagerie:unitree_go2, or menagerie:unitree_go2/go2_mjx.

The package mujoco-menagerie knows names and files; it keeps downloads in a cache. Nothing is downloaded here.
"""

from pathlib import Path

from robot_rl.util.errors import UnknownName, UserError, require

PREFIX = "menagerie:"


def menagerie_file(text: str) -> Path:
    """Return the robot's file of a Menagerie model, without its scene, from the package's cache or MENAGERIE_ROOT.

    Raises UnknownName for another name, and UserError for a model that is not on this machine."""
    menagerie = require("mujoco_menagerie", use=f"robot model {text}", extra="sim")
    name, _, entry = text.removeprefix(PREFIX).partition("/")
    if name not in menagerie.names():
        raise UnknownName("MuJoCo Menagerie model", name, menagerie.names())
    robot, cache = menagerie.get(name), menagerie.Cache()
    if entry and entry not in robot.entry_names:
        raise UnknownName(f"file of {PREFIX}{name}", entry, robot.entry_names)
    if cache.root is None and not cache.is_cached(robot):
        raise UserError(
            f"robot model {text} is not on this machine: run `mujoco-menagerie path {name}` with a network, or set "
            "MENAGERIE_ROOT to a checkout of MuJoCo Menagerie"
        )
    try:
        return Path(robot.xml(entry or robot.default_model, cache))
    except menagerie.MenagerieError as error:
        raise UserError(f"robot model {text}: {error}") from None
