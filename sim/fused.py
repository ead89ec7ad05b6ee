"""Methods whose many small operations become a few loops of machine code: traced once, compiled by PyTorch's inductor.

Every operation on a batch costs some microseconds whatever its size. For hundreds of robots that is most of what
surrounds their physics.
"""

from __future__ import annotations

import itertools
import operator
import os
import shutil
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from robot_rl.interface.state import RobotState, leaves
from robot_rl.util.errors import Misfit

Method = TypeVar("Method", bound=Callable[..., Any])


@contextmanager
def plainly() -> Iterator[None]:
    """On one thread, without gradients, and with tensors that can be changed in place whatever mode the caller is in.

    Tensors of a thousand rows are too short to share between threads. Whoever waits for a second one waits long where
    other processes want the cores: steps took ten times as long beside one.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(False), torch.no_grad():
            yield
    finally:
        torch.set_num_threads(threads)


class Fusible(Protocol):
    """What has fused methods."""

    graphs: dict[str, Graph] | None
    """What became of each; None: they run as they are written."""

    @property
    def remembered(self) -> tuple[str, ...]:
        """All attributes, "part.name" for those of a part, whose tensors or states these methods read or write."""


def fused(method: Method) -> Method:
    """Compile a method of a `Fusible`, at its first call and for the shapes of that call.

    Its arguments, results and what it remembers are tensors, states of robots, and lists and dicts of them. It may not
    decide by numbers in tensors, and takes every other tensor for a constant.
    """

    @wraps(method)
    def call(self: Any, *arguments: Any) -> Any:
        if self.graphs is None:
            return method(self, *arguments)
        graph = self.graphs.get(method.__name__)
        if graph is None:
            graph = self.graphs[method.__name__] = Graph(self, method, arguments)
        return graph(self, arguments)

    return call  # type: ignore[return-value]


class Graph:
    """A method as a function from all tensors that it reads to those that it makes."""

    def __init__(self, owner: Fusible, method: Callable[..., Any], arguments: Sequence[Any]):
        from torch._guards import TracingContext, tracing
        from torch._inductor import compile as compiled
        from torch._subclasses import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        names, self._what = owner.remembered, f"{type(owner).__name__}.{method.__name__}"
        self._read = attrgetter(*names)
        before = self._read(owner)
        numbered = _numbered([list(before), list(arguments)])
        # Copies, for what is the same tensor now need not be in the next call.
        inputs = [t.clone(memory_format=torch.contiguous_format) for t in self._given(owner, arguments)]

        def run(*traced: Tensor) -> list[Tensor]:
            remembered, passed = _map(numbered, traced.__getitem__)
            try:
                write(owner, names, remembered)
                result, after = method(owner, *passed), self._read(owner)
            finally:
                write(owner, names, before)
            places = {id(t): ~k for k, t in enumerate(traced)}
            outputs: list[Tensor] = []

            def place(made: Tensor) -> int:
                if id(made) not in places:
                    places[id(made)] = len(outputs)
                    outputs.append(made)
                return places[id(made)]

            self._result = _map(result, place)
            """Of the result's tensors, the number of the output or, ~k, of the input."""
            same = _map(numbered[0], operator.inv)
            self._changed = {n: v for n, v, old in zip(names, _map(list(after), place), same, strict=True) if v != old}
            """The same of what is remembered otherwise than before."""
            return outputs

        meant = run(*inputs)  # also fills caches, which must not keep what is traced
        try:
            graph = make_fx(run, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
        except RuntimeError as error:
            raise Misfit(
                f"{self._what} cannot be compiled: {str(error).splitlines()[0]}; "
                "a task's functions may not look at the numbers in tensors; leave compiled out"
            ) from error
        entries = graph.graph.find_nodes(op="placeholder")
        self._used = [k for k, node in enumerate(entries) if node.users]
        for node in entries:
            if not node.users:
                graph.graph.erase_node(node)
        graph.recompile()
        used: list[Any] = [inputs[k] for k in self._used]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of PyTorch about itself
            # Without an environment of shapes inductor keeps nothing on disk of what it makes. With one it takes sizes
            # for variables, which makes slower loops, unless it is given tensors that know better.
            fake = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
            known: list[Any] = [fake.from_tensor(t, static_shapes=True) for t in used]
            with tracing(TracingContext(fake)):
                self._run = compiled(graph, known, {"size_asserts": False})
        self._shapes = [t.shape for t in used]
        if not all(map(_alike, self._run(*used), meant)):
            raise Misfit(f"{self._what} comes out otherwise when it is compiled; leave compiled out")

    def _given(self, owner: Any, arguments: Sequence[Any]) -> list[Tensor]:
        given = leaves(self._read(owner))
        _map(arguments, given.append)
        return given

    def __call__(self, owner: Any, arguments: Sequence[Any]) -> Any:
        """Do to the owner what the method does, and return what it returns."""
        given = self._given(owner, arguments)
        used = [given[k].contiguous() for k in self._used]
        if [t.shape for t in used] != self._shapes:  # machine code would read past their ends
            both = zip(used, self._shapes, strict=True)
            other = next(f"{tuple(t.shape)} where it had {tuple(shape)}" for t, shape in both if t.shape != shape)
            raise Misfit(f"{self._what} was compiled for tensors of other shapes: {other}")
        outputs = self._run(*used)
        tensors = [*outputs, *reversed(given)]  # the last is number ~0
        write(owner, self._changed, [_map(value, tensors.__getitem__) for value in self._changed.values()])
        return _map(self._result, tensors.__getitem__)


def _alike(made: Tensor, meant: Tensor) -> bool:
    """The same numbers, but for rounding and for what hangs on it, such as on which side of a bound one lies."""
    if made.shape != meant.shape or made.dtype != meant.dtype:
        return False
    near = torch.isclose(made.double(), meant.double(), rtol=1e-3, atol=1e-3, equal_nan=True)
    return int((~near).sum()) <= 0.01 * near.numel()


def check_compiler() -> None:
    """Refuse where nothing can be compiled."""
    try:
        from torch.utils import cpp_extension  # noqa: F401
    except Exception as error:
        raise Misfit(
            f"PyTorch cannot compile environments here ({type(error).__name__}: {error}); "
            "import torch.utils.cpp_extension before other packages, Genesis for one"
        ) from error
    compiler = os.environ.get("CXX", "g++")
    if not shutil.which(compiler):
        raise Misfit(f"to compile environments takes a C++ compiler, and there is no {compiler!r}; install g++")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise Misfit("to compile environments takes Python's header files, which are missing; install python3-dev")


def write(owner: Any, names: Iterable[str], values: Iterable[Any]) -> None:
    """Give attributes, "part.name" for those of a part, their values."""
    for name, value in zip(names, values, strict=True):
        part, _, last = name.rpartition(".")
        setattr(attrgetter(part)(owner) if part else owner, last, value)


def _map(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The same tree of lists, dicts and states, with other leaves."""
    kind = type(tree)
    if isinstance(tree, Tensor) or kind is int:
        return change(tree)
    if kind is dict:
        return {key: _map(item, change) for key, item in tree.items()}
    if kind is RobotState:
        return tree.map(lambda _, view: change(view))
    return kind([_map(item, change) for item in tree])


def _numbered(tree: Any) -> Any:
    """The same tree with the numbers of its leaves."""
    numbers = itertools.count()
    return _map(tree, lambda _: next(numbers))
