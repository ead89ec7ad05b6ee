"""A `robot-rl` command on a node of a Ray cluster.

    here                                      node
    folder, inputs      -- all, at the start -->  copies
    folder/<sends>      ---- while it runs ---->  folder/<sends>
    folder/<returns>    <--- while it runs -----  folder/<returns>

The folder here is the truth. If a node is lost, the command starts again on another with what had come back, so at
most the work since its last checkpoint is repeated. The node needs robot-rl in the same version, and nothing else.
"""

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from real.launching.child import die_with
from robot_rl.cluster.copies import Files, Paths, Stamp, changed, stamps, write
from robot_rl.util.errors import ConfigError, UserError, require

logger = logging.getLogger(__name__)
ANSWER = 60.0
"""Longest wait for a node's answer, s."""
LOG = "output.log"


class Node:
    """Actor on a node of the cluster: it holds the copies and runs the command."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="robot-rl-"))
        self.process: subprocess.Popen[bytes] | None = None

    def place(self) -> tuple[str, str, str]:
        """Return the folder of the copies, the node's host name, and its version of robot-rl."""
        return str(self.home), socket.gethostname(), version("robot-rl")

    def put(self, name: str, files: Files, paths: Paths) -> None:
        """Write files of the copy `name`."""
        write(self.home / name, files, paths)

    def stamps(self, name: str, names: Sequence[str]) -> dict[str, Stamp]:
        """Return the stamps of the files in parts of the copy `name`."""
        return stamps(self.home / name, names)

    def start(self, words: Sequence[str]) -> None:
        """Start `python WORDS`; it is killed when this actor ends."""
        die = die_with(os.getpid(), signal.SIGKILL)

        def prepare() -> None:
            die()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray blocks SIGINT

        with open(self.home / LOG, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words], stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": "1"}, preexec_fn=prepare,
            )  # fmt: skip

    def results(self, name: str, known: dict[str, Stamp], names: Sequence[str]) -> tuple[int | None, Files]:
        """Return the command's exit status, None while it runs, and the next changed files of the copy `name`."""
        assert self.process is not None
        status = self.process.poll()  # first, so that the files are those of the end
        return status, next(changed(self.home / name, known, names), {})

    def said(self) -> str:
        """Return the last lines of the command's output."""
        return "\n".join((self.home / LOG).read_text(errors="replace").strip().splitlines()[-3:])

    def signal(self, number: int) -> None:
        """Send a signal to the command."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def clear(self) -> None:
        """Remove the copies."""
        shutil.rmtree(self.home, ignore_errors=True)


class Cluster:
    """Connection of this process to a Ray cluster.

    ConfigError if Ray is not installed, no cluster answers at `address`, or its version differs.
    """

    def __init__(self, address: str):
        self.ray: Any = require("ray", "a Ray cluster", "cluster")
        require_answer(address)
        try:
            self.ray.init(address, logging_level=logging.ERROR, log_to_driver=False, ignore_reinit_error=True)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"cannot join the Ray cluster at {address}: {str(error).splitlines()[0]}; if it asks for a token, as "
                "`ray start` says, set RAY_AUTH_MODE=token here too, with the same ~/.ray/auth_token"
            ) from None

    def close(self) -> None:
        self.ray.shutdown()

    def require_room(self, cpus: float, gpus: float) -> None:
        """Raise ConfigError if no node, even an idle one, has so many CPUs and GPUs."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if not any(each.get("CPU", 0) >= cpus and each.get("GPU", 0) >= gpus for each in nodes):
            raise ConfigError(
                f"no node of the Ray cluster has {cpus:g} CPUs and {gpus:g} GPUs; take another --device or --threads"
            )


def require_answer(address: str) -> None:
    """Raise ConfigError if nothing listens at a Ray address, HOST:PORT of a head or ray://HOST:PORT of its clients."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"--ray {address}: give HOST:6379 from a node of the cluster, or ray://HOST:10001")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {address} ({error.strerror or error}); start one: ray start --head"
        ) from None


@dataclass
class RemoteCommand:
    """A command whose folder is copied to a node, and back while it runs."""

    cluster: Cluster
    words: Callable[[], Sequence[str]]
    """Returns the arguments of Python at each start; in them, the paths of `folder` and `inputs` become the node's."""
    folder: Path
    inputs: Sequence[Path] = ()
    sends: Sequence[str] = ()
    """Parts of the folder that are copied to the node while the command runs."""
    returns: Sequence[str] = ("",)
    """Parts of the folder that are copied back; "": all."""
    cpus: float = 1
    gpus: float = 0
    every: float = 0.5
    """Seconds between two copies."""
    losses: int = field(default=0, init=False)
    """Number of nodes that were lost."""

    def run(self, stop: Callable[[], int] = lambda: 0, wait: Callable[[float], Any] = time.sleep) -> tuple[int, str]:
        """Run the command to its end, on another node if one is lost; return exit status and last output.

        `stop` returns the number of a signal to send to the command, or 0.
        """
        while True:
            try:
                return self._attempt(stop, wait)
            except (self.cluster.ray.exceptions.RayError, ConnectionError, TimeoutError) as error:
                if number := stop():
                    return 128 + number, "stopped while no node answered"
                self.losses += 1
                logger.warning("a node was lost (%s); starting again on another", str(error).splitlines()[0])
                wait(self.every)

    def _attempt(self, stop: Callable[[], int], wait: Callable[[float], Any]) -> tuple[int, str]:
        ray = self.cluster.ray
        node = ray.remote(Node).options(num_cpus=self.cpus, num_gpus=self.gpus).remote()
        try:
            placed = node.place.remote()
            while not ray.wait([placed], timeout=1.0)[0]:
                if number := stop():
                    return 128 + number, "stopped while it waited for a node"
            home, host, theirs = ray.get(placed)
            if theirs != version("robot-rl"):
                raise UserError(f"{host} has robot-rl {theirs}, not {version('robot-rl')} as here; make them equal")
            logger.info("%s runs on %s", self.folder.name, host)
            return self._follow(node, Path(home), stop, wait)
        finally:
            ray.kill(node)

    def _follow(
        self, node: Any, home: Path, stop: Callable[[], int], wait: Callable[[float], Any]
    ) -> tuple[int, str]:  # fmt: skip
        copies = {path.resolve(): f"{k}/{path.name}" for k, path in enumerate((self.folder, *self.inputs))}
        paths = [(str(here), str(home / there)) for here, there in copies.items()]
        paths.sort(key=lambda pair: -len(pair[0]))
        sent: dict[str, Stamp] = {}
        for here, there in copies.items():
            for files in changed(here if here.is_dir() else here.parent, {}, ("",) if here.is_dir() else (here.name,)):
                self._ask(node.put, there if here.is_dir() else str(Path(there).parent), files, paths)
                sent |= {name: stamp for name, (stamp, _) in files.items()} if here == self.folder.resolve() else {}
        own = copies[self.folder.resolve()]
        known: dict[str, Stamp] = self._ask(node.stamps, own, self.returns)
        self._ask(node.start, [_translated(word, paths) for word in self.words()])
        back = [(there, here) for here, there in paths]
        told = 0
        while True:
            if (number := stop()) and not told:
                told = number
                self._ask(node.signal, number)
            for files in changed(self.folder, sent, self.sends) if self.sends else ():
                self._ask(node.put, own, files, paths)
                sent |= {name: stamp for name, (stamp, _) in files.items()}
            status, files = self._ask(node.results, own, known, self.returns)
            write(self.folder, files, back)
            known |= {name: stamp for name, (stamp, _) in files.items()}
            if not files and status is not None:
                said = self._ask(node.said)
                self._ask(node.clear)
                return status, str(said)
            if not files:
                wait(self.every)

    def _ask(self, method: Any, *args: object) -> Any:
        return self.cluster.ray.get(method.remote(*args), timeout=ANSWER)


def _translated(word: str, paths: Paths) -> str:
    for here, there in paths:
        if word == here or word.startswith(here + os.sep):
            return there + word[len(here) :]
    return word
