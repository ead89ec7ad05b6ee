"""Run the steps of checks on the nodes of a Ray cluster (`bench methods --ray`)."""

import signal
from pathlib import Path
from typing import IO

from robot_rl.bench.methods import ROOT, Runner, Step
from robot_rl.cluster.remote import Cluster, RemoteCommand


class ClusterRunner(Runner):
    """Run steps on nodes, one CPU each. A step whose node is lost goes on from its last checkpoint on another."""

    def __init__(self, work: Path, address: str):
        super().__init__(work)
        self.cluster = Cluster(address)
        self.cluster.require_room(1, 0)

    def execute(self, step: Step, log: IO[bytes]) -> int:
        # Data have notes beside their folder.
        folder = step.made.parent if step.words[0] == "collect" else step.made
        folder.mkdir(parents=True, exist_ok=True)
        words = [str(ROOT / word) if (ROOT / word).is_file() else word for word in step.words]
        named = [path for word in words if (path := Path(word)).is_absolute() and path.exists()]
        inputs = [path for path in named if not path.is_relative_to(folder)]
        command = RemoteCommand(self.cluster, lambda: ["-m", "robot_rl.cli.main", *words], folder, inputs)
        status, said = command.run(lambda: signal.SIGTERM if self.stopped.is_set() else 0, self.stopped.wait)
        log.write(f"{said}\n".encode())
        return status

    def close(self) -> None:
        self.cluster.close()
