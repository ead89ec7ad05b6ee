"""franka-sim as a process: a Franka Research 3 that aborts motions by reflex where the robot does."""

import os
import socket
import subprocess
import time
from pathlib import Path

LIMITS = ("--enforce-motion-limits", "--enforce-comm-constraints")
RUN = """
import os, sys
from contextlib import suppress
from franka_sim.run_server import main
sys.setswitchinterval(1e-4)  # its threads hand Python's lock over within a cycle, not after the default 5 ms
with suppress(PermissionError):  # a robot's controller does not depend on this computer's load
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
main()
"""


def answers(host: str, port: int = 1337) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex((host, port)) == 0


def start(python: Path, folder: Path, host: str, command: tuple[str | Path, ...] = ()) -> subprocess.Popen[str]:
    """Start the simulator with its log in `folder`, and wait until it answers at `host`.

    Args: `python`: Python of the simulators. `command`: what it runs, instead of franka-sim with all its limits.
    """
    found = [python, "-c", "import franky_sim; print(franky_sim.__path__[0])"]
    assets = Path(subprocess.run(found, capture_output=True, text=True, check=True).stdout.strip()) / "assets"
    (folder / "fr3.xml").symlink_to(assets / "fr3.xml")
    (folder / "assets").symlink_to(assets / "meshes")  # as the file says
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [python, *(command or ("-c", RUN, *LIMITS))], stdin=subprocess.PIPE, stdout=log,
            stderr=log, env=os.environ | {"FR3_MJCF": str(folder / "fr3.xml")}, text=True,
        )  # fmt: skip
    end = time.monotonic() + 60
    while not answers(host):
        assert process.poll() is None and time.monotonic() < end, (folder / "log").read_text()
        time.sleep(0.1)
    return process
