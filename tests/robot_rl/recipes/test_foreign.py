"""Mistakes in a recipe of another package are named before training starts, with what to do."""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from policies.base import check_class
from robot_rl.recipes import recipes
from robot_rl.recipes.job import Job
from robot_rl.util.errors import ConfigError, UnknownName
from sim.make import describe

PACKAGE = '''
from dataclasses import dataclass, field
import torch
from torch import nn
from policies.base import Policy
from robot_rl.recipes.recipe import CloningRecipe, OffPolicyRecipe
from robot_rl.learning.algorithms.actor_critic import ActorCriticConfig

@dataclass(frozen=True)
class LinearConfig:
    bias: bool = True

class Linear(Policy):
    class_name, config_class = "my_lab_{name}.linear:Linear", LinearConfig
    horizon = execute = 1

    def __init__(self, size, config):
        super().__init__()
        self.size, self.config = size, config
        self.map = nn.Linear(size.observation, size.action, config.bias)

    def loss(self, observation, chunk, rng):
        return self.map(observation["observation.state"]).square().mean(-1)

    def act(self, observation, rng):
        return self.map(observation["observation.state"])[:, None]

@dataclass(frozen=True)
class LinearBC(CloningRecipe):
    """Clone with a linear policy."""

    policy: LinearConfig = field(default_factory=LinearConfig)

    def make_policy(self, job):
        return Linear(job.size, self.policy)

@dataclass(frozen=True)
class LinearRL(OffPolicyRecipe):
    """Learn a linear policy."""

    policy: LinearConfig = field(default_factory=LinearConfig)
    agent: ActorCriticConfig = field(default_factory=ActorCriticConfig)

    def make_policy(self, job):
        return Linear(job.size, self.policy)
'''
NUMBERS = itertools.count()
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write the package, with changes (old text, new text), and return the module's name."""
    name = next(NUMBERS)
    monkeypatch.setenv("ROBOT_RL_IMPORTS", "")
    monkeypatch.syspath_prepend(tmp_path)

    def made(*changes: tuple[str, str]) -> str:
        text = PACKAGE.replace("{name}", str(name))
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        folder = tmp_path / f"my_lab_{name}"
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / "linear.py").write_text(text)
        return f"my_lab_{name}.linear"

    yield made
    for module in [m for m in sys.modules if m.startswith(f"my_lab_{name}")]:
        del sys.modules[module]


def build(path: str) -> object:
    job = Job(describe("testbed:reach"), lambda _: None, None, 0, Path("nowhere"), None, lambda *_: None)
    return recipes.get(path)().build(job)


def test_a_recipe_of_another_package_is_built(write: Write) -> None:
    assert type(build(f"{write()}:LinearBC")).__name__ == "Cloning"


@pytest.mark.parametrize(("change", "message"), [
    (('linear:Linear"', 'linear:Linaer"'), "no 'Linaer'; did you mean Linear"),
    (("class_name, config_class", "name, config_class"), r"Linear defines no class_name, .*linear:Linear"),
    (("    def loss(", "    def cost("), "Linear has no method loss"),
])  # fmt: skip
def test_a_policy_that_could_not_be_saved_or_cloned_is_refused(
    write: Write, change: tuple[str, str], message: str
) -> None:
    path = write(change)
    with pytest.raises(ConfigError, match=message):
        build(f"{path}:LinearBC")


def test_a_subclass_is_not_saved_as_its_parent(write: Write) -> None:
    path = write()
    build(f"{path}:LinearBC")
    mine = type("Mine", (sys.modules[path].Linear,), {"__module__": path})
    with pytest.raises(ConfigError, match=r"Mine.class_name is .*linear:Linear', another class; set it to .*:Mine'"):
        check_class(mine)


def test_an_actor_critic_refuses_a_policy_without_an_actor(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"Linear has no actor.*derive it from ActorPolicy"):
        build(f"{write()}:LinearRL")


@pytest.mark.parametrize("name", ["Linear", "LinearConfig"])
def test_what_is_no_recipe_is_refused(write: Write, name: str) -> None:
    path = f"{write()}:{name}"
    with pytest.raises(ConfigError, match=rf"{path}' is no recipe: name a dataclass that derives from .*Recipe"):
        recipes.get(path)


def test_a_recipe_without_decorator_is_refused(write: Write) -> None:
    path = write(("@dataclass(frozen=True)\nclass LinearBC", "class LinearBC"))
    with pytest.raises(ConfigError, match=r"has settings \(policy\) and no @dataclass\(frozen=True\)"):
        recipes.get(f"{path}:LinearBC")


def test_wrong_paths_are_explained(write: Write) -> None:
    path = write()
    with pytest.raises(ConfigError, match=rf"if it is an import path, write {path}:LinearBC"):
        recipes.get(f"{path}.LinearBC")
    with pytest.raises(ConfigError, match="did you mean LinearBC"):
        recipes.get(f"{path}:linearbc")
    with pytest.raises(ConfigError, match=rf"needs module {path}s, which cannot be found"):
        recipes.get(f"{path}s:LinearBC")
    with pytest.raises(UnknownName, match=r"did you mean .*rlpd"):
        recipes.get("RLPD")
