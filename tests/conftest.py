"""Shared fixtures and builders, small by default; tests override the parts that they are about."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from xdist.scheduler import LoadFileScheduling

import sim  # noqa: F401 - selects MuJoCo's GL library before MuJoCo is imported

torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # for learners in subprocesses, because two tests run in parallel
for _name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):
    os.environ.pop(_name, None)  # set by `make test`; some tests run make
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background, which children inherit
REALTIME = (
    "tests/real/test_remote.py",
    "tests/robot_rl/cli/test_bench_loop.py",
    "tests/robot_rl/cli/test_doctor.py::test_json_is_one",
    "tests/robot_rl/cli/test_kill.py::test_finetune",
    "tests/robot_rl/cli/test_main.py::test_help_and_lists",
    "tests/robot_rl/data/lerobot/test_round_trip.py::test_encodes_faster",
)
"""Tests that are judged by the clock, and run alone."""
TOGETHER = ("tests/sim/engines/", "tests/real/")
"""Folders that one process tests: Genesis compiles for minutes; robots' processes need a core, so never two at once."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m realtime`, import only files that may have such tests; this saves half a minute."""
    if config.option.markexpr != "realtime" or not collection_path.match("test_*.py"):
        return None
    name = collection_path.relative_to(config.rootpath).as_posix()
    listed = any(test.startswith(name) for test in REALTIME)
    return None if listed or "realtime" in collection_path.read_text("utf-8") else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark REALTIME tests for `make test`."""
    for item in items:
        if item.nodeid.startswith(REALTIME):
            item.add_marker("realtime")


class Scheduler(LoadFileScheduling):
    """Scheduler that keeps a file's tests, and those of a folder in TOGETHER, in one process."""

    def _split_scope(self, nodeid: str) -> str:
        folder = next((folder for folder in TOGETHER if nodeid.startswith(folder)), None)
        return folder or super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduler:
    return Scheduler(config, log)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Succeed without tests, because `make test ARGS=...` may select tests of one half only."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.option.markexpr:
        session.exitstatus = pytest.ExitCode.OK


@pytest.fixture(autouse=True)
def signals_restored() -> Iterator[None]:
    """Undo what a command that runs within the test does to signals, which would be lost for later tests."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGTSTP, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seed torch's global generator, from which network weights are drawn."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def ordinary_process() -> Iterator[None]:
    """Undo process settings: real-time scheduling and a disabled garbage collector of command loops, and Genesis'
    flushing of subnormal numbers to 0."""
    interval = sys.getswitchinterval()
    torch.set_flush_denormal(False)
    yield
    gc.enable()
    gc.unfreeze()
    sys.setswitchinterval(interval)
    if sys.platform == "linux" and os.sched_getparam(0).sched_priority:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@pytest.fixture
def learners() -> Callable[[Path], list[int]]:
    """Return the ids of learner processes of a run folder."""

    def find(folder: Path) -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(folder).encode() in words and b"robot_rl.cli.learner" in words:
                found.append(int(entry.name))
        return found

    return find


@pytest.fixture
def panda() -> Any:
    from robot_rl.robots import robots

    return robots.get("panda")


@pytest.fixture
def state_at(panda: Any) -> Callable[..., Any]:
    """Build the measured state of Pandas at joint positions (n, 7), with forward kinematics."""
    from robot_rl.interface.kinematics import Kinematics
    from robot_rl.interface.state import RobotState

    def build(q: torch.Tensor, **views: Any) -> RobotState:
        n = len(q)
        state = RobotState(
            q,
            torch.zeros_like(q),
            torch.zeros(n, 4),
            tool_position=Kinematics(panda).forward(q)[0],
            gripper_width=torch.full((n, 1), 0.08),
        )
        return replace(state, **views)

    return build


@pytest.fixture
def go2() -> Any:
    from robot_rl.robots import robots

    return robots.get("go2")


@pytest.fixture
def standing(go2: Any) -> Callable[..., Any]:
    """Build the true state, with all views, of n Go2s that stand at home on level ground."""
    from robot_rl.interface.state import RobotState

    def build(n: int = 2, **views: Any) -> RobotState:
        feet = len(go2.base.feet)
        state = RobotState(
            torch.tensor(go2.home).repeat(n, 1),
            torch.zeros(n, 12),
            torch.zeros(n, 12),
            base_quat=torch.tensor([1.0, 0.0, 0.0, 0.0]).repeat(n, 1),
            base_angular_velocity=torch.zeros(n, 3),
            command=torch.zeros(n, 3),
            phase=torch.zeros(n, 1),
            base_position=torch.tensor([0.0, 0.0, go2.base.height]).repeat(n, 1),
            base_velocity=torch.zeros(n, 3),
            foot_position=torch.tensor([0.0, 0.0, go2.base.foot_radius]).repeat(n, feet),
            foot_velocity=torch.zeros(n, 3 * feet),
            foot_force=torch.full((n, feet), 37.0),
            joint_torque=torch.zeros(n, 12),
        )
        return replace(state, **views)

    return build


def _shipped(name: str) -> Callable[..., Any]:
    from sim.tasks import tasks

    def build(randomization: Any = None, commands: Any = None, **interface: Any) -> Any:
        shipped = tasks.get(name)
        drawn = shipped.randomization if randomization is None else tuple(randomization)
        return replace(
            shipped,
            interface=replace(shipped.interface, **interface),
            randomization=drawn,
            commands=commands or shipped.commands,
        )

    return build


@pytest.fixture
def task() -> Callable[..., Any]:
    """Build the shipped lift task; keywords replace fields of its interface, `randomization` that of the task."""
    return _shipped("panda-lift")


@pytest.fixture
def walk() -> Callable[..., Any]:
    """Build the shipped Go2 task; `commands` replaces the schedule, other keywords as for `task`."""
    return _shipped("go2-velocity")


@pytest.fixture
def diffusion() -> Callable[..., Any]:
    """Build a tiny diffusion policy."""
    from policies.base import Size
    from policies.diffusion import DiffusionConfig, DiffusionPolicy

    def build(observation: int = 3, action: int = 2, **config: Any) -> DiffusionPolicy:
        numbers: dict[str, Any] = dict(horizon=4, execute=2, hidden=16, layers=1, train_steps=10, sample_steps=5)
        return DiffusionPolicy(Size(observation, action), DiffusionConfig(**(numbers | config)))

    return build


@pytest.fixture
def residual(diffusion: Callable[..., Any]) -> Callable[..., Any]:
    """Build a tiny residual policy on a tiny diffusion policy; keywords go to the actor."""
    from policies.networks.gaussian import GaussianConfig
    from policies.residual import ResidualConfig, ResidualPolicy

    def build(
        observation: int = 3, action: int = 2, scale: float = 0.5, base: Any = None, **actor: Any
    ) -> ResidualPolicy:
        numbers: dict[str, Any] = dict(hidden=(16,), std=0.1, zero_init=True)
        config = ResidualConfig(scale, GaussianConfig(**(numbers | actor)))
        return ResidualPolicy(base or diffusion(observation, action), config)

    return build


@pytest.fixture
def agent(residual: Callable[..., Any]) -> Callable[..., Any]:
    """Build a tiny actor-critic on a tiny residual policy, for returns in [0, 1]; keywords go to its config."""
    from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticConfig

    def build(policy: Any = None, seed: int = 0, **config: Any) -> ActorCritic:
        numbers: dict[str, Any] = dict(hidden=(16, 16))
        return ActorCritic(policy or residual(), ActorCriticConfig(**(numbers | config)), seed, (0.0, 1.0))

    return build


@pytest.fixture
def verdict() -> Callable[..., Any]:
    """Build a success classifier with constant output for pictures `others`, (height, width) by camera."""
    from policies.base import Size
    from policies.networks.encoder import EncoderConfig
    from robot_rl.interface.observation_spec import ObservationSpec, picture_field
    from robot_rl.rewards.classifier import Classifier, Measured, NetworkConfig, SuccessNetwork

    def build(
        always: bool = True, hold: int = 3, rate: float = 20.0, measured: Any = Measured(40, 20, 20, 20),  # noqa: B008
        state: int = 0, instructions: tuple[str, ...] = ("lift the cube",), **others: tuple[int, int],
    ) -> Classifier:  # fmt: skip
        fields = {f"observation.images.{name}": picture_field(*size) for name, size in others.items()}
        config = NetworkConfig(EncoderConfig((8, 8), 16, 2), 16)
        network = SuccessNetwork(Size(state, 0, ObservationSpec.of(**fields)), config)
        last: Any = network.head[-1]
        torch.nn.init.zeros_(last.weight)
        torch.nn.init.constant_(last.bias, 5.0 if always else -5.0)
        return Classifier(network.eval(), 0.8, hold, rate, instructions, 0.95, measured)

    return build


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Build run folders that are closed after the test."""
    from robot_rl.training.run import Run

    opened = []

    def build(name: str = "run", config: Any = None, resume: bool = False) -> Run:
        opened.append(Run(tmp_path / name, config or {}, resume))
        return opened[-1]

    yield build
    for one in opened:
        one.close()


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[..., tuple[str, subprocess.Popen[str]]]]:
    """Start `robot-rl serve BUNDLE` on a free port; return address and process."""
    started: list[subprocess.Popen[str]] = []

    def start(bundle: Path, *options: str) -> tuple[str, subprocess.Popen[str]]:
        command = [sys.executable, "-m", "robot_rl.cli.main", "serve", str(bundle), "--port", "0", *options]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        assert started[-1].stderr is not None
        first = started[-1].stderr.readline()
        address = re.search(r"ws://\S+:\d+", first)
        assert address, first + started[-1].stderr.read()
        return address[0], started[-1]

    yield start
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate(timeout=60)


@pytest.fixture
def foreign() -> Iterator[Callable[..., str]]:
    """Start a policy server that handles connections by a function; return the address."""
    from websockets.sync.server import Server, ServerConnection
    from websockets.sync.server import serve as listen

    running: list[tuple[Server, threading.Thread]] = []
    connections: list[ServerConnection] = []

    def start(talk: Callable[[ServerConnection], Any]) -> str:
        def watched(connection: ServerConnection) -> None:
            connections.append(connection)
            talk(connection)

        server = listen(watched, "127.0.0.1", 0, compression=None, max_size=None)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        running.append((server, thread))
        return f"ws://127.0.0.1:{server.socket.getsockname()[1]}"

    yield start
    for server, thread in running:
        server.shutdown()
        thread.join()
    for connection in connections:  # the connection's thread would keep this process alive
        connection.close_socket()


@pytest.fixture
def same() -> Callable[[Any, Any], bool]:
    """Compare two trees of dicts, lists and tensors bit for bit, with NaN equal to NaN."""
    import numpy as np

    def compare(a: Any, b: Any) -> bool:
        if isinstance(a, torch.Tensor) and a.dtype == torch.bfloat16:  # not supported by numpy
            return a.dtype == b.dtype and compare(a.float(), b.float())
        if isinstance(a, torch.Tensor | np.ndarray):
            left, right = np.asarray(a), np.asarray(b)
            return (
                type(a) is type(b) and left.dtype == right.dtype and np.array_equal(left, right, left.dtype.kind == "f")
            )
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(compare(a[k], b[k]) for k in a)
        if isinstance(a, list | tuple):
            return len(a) == len(b) and all(compare(x, y) for x, y in zip(a, b, strict=True))
        return type(a) is type(b) and (a == b or a != a and b != b)

    return compare


class _Operators(TorchFunctionMode):
    """Calls operators directly whose Python bindings refuse fake CUDA tensors, such as `x[...]`."""

    DIRECT: ClassVar[dict[Any, Any]] = {
        torch.Tensor.__invert__: torch.bitwise_not,
        torch.Tensor.contiguous: torch.ops.aten.contiguous,
        torch.Tensor.copy_: torch.ops.aten.copy_,
    }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__ and args[0].is_cuda:
            return self._view(*args)
        if func is torch.Tensor.__setitem__ and args[0].is_cuda:
            target, key, value = args
            key = key if isinstance(key, tuple) else (key,)
            value = torch.as_tensor(value, dtype=target.dtype, device=getattr(value, "device", target.device))
            if any(isinstance(k, torch.Tensor | list) for k in key):
                view = self._view(target, tuple(k for k in key if not isinstance(k, torch.Tensor | list)) or (...,))
                return torch.ops.aten.index_put_(view, [k for k in key if isinstance(k, torch.Tensor | list)], value)
            return torch.ops.aten.copy_(self._view(target, key), value)
        return self.DIRECT.get(func, func)(*args, **(kwargs or {}))

    @staticmethod
    def _view(x: torch.Tensor, key: Any) -> torch.Tensor:
        keys, dim, tensors = list(key) if isinstance(key, tuple) else [key], 0, {}
        if ... in [k if k is ... else 0 for k in keys]:
            at = next(i for i, k in enumerate(keys) if k is ...)
            taken = sum(k is not None and k is not ... for k in keys)
            keys[at : at + 1] = [slice(None)] * (x.dim() - taken)
        for k in keys:
            if k is None:
                x, dim = torch.ops.aten.unsqueeze(x, dim), dim + 1
            elif isinstance(k, slice):
                x, dim = torch.ops.aten.slice(x, dim, k.start, k.stop, k.step or 1), dim + 1
            elif isinstance(k, torch.Tensor | list):
                tensors[dim] = torch.as_tensor(k, device=x.device) if isinstance(k, list) else k
                dim += 1
            else:
                x = torch.ops.aten.select(x, dim, k)
        if tensors:
            x = torch.ops.aten.index(x, [tensors.get(d) for d in range(max(tensors) + 1)])
        return x


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Reset the number of threads, because sums differ in the last bit with another number."""
    torch.set_num_threads(1)


@pytest.fixture
def fake_cuda() -> Iterator[torch.device]:
    """Fake CUDA tensors with shape, dtype and device but no values.

    Mixing devices raises, as on a GPU. Reading a value on the host raises too, because a GPU would have to synchronize.
    """
    with FakeTensorMode(), _Operators(), torch.no_grad():
        yield torch.device("cuda", 0)
