"""Imports have no cycles; `lint-imports` checks the layers in pyproject.toml."""

from graphlib import TopologicalSorter

import pytest


def test_imports_have_no_cycle() -> None:
    grimp = pytest.importorskip("grimp")
    packages = ("robot_rl", "policies", "sim", "real")
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError, naming the cycle
