"""Modules import each other in one direction; the layers are in pyproject.toml, for `lint-imports`."""

from __future__ import annotations

from graphlib import TopologicalSorter

import pytest


def test_no_module_imports_itself_in_a_circle() -> None:
    grimp = pytest.importorskip("grimp")
    packages = ("robot_rl", "policies", "sim", "real")
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError, with the circle
