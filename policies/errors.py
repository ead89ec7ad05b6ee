"""Errors of bundles."""

from __future__ import annotations

from robot_rl.util.errors import ConfigError


class BundleError(ConfigError):
    """A bundle that is missing, damaged, or made for something else."""


class WrongBundle(BundleError):  # noqa: N818 - it reads as a sentence
    """A sound bundle for something else."""
