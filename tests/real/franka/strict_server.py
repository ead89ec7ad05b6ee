"""franka-sim with all its limits, whose state on the wire can be changed: run with the simulators' own Python.

Each line of stdin is JSON: fields of the robot's state that replace the simulated ones. `abort`: end the motion as the
robot does, with these numbers of errors. `version`: refuse new clients, as a robot of this version does. `cut`: end the
connection. `jump`: add these radians to the joint positions. `late`: send states that many cycles late; until then, and
with 0 always, the last one again. The argument is a file that keeps the true time, s, and joint positions, rad.
"""

import json
import mmap
import os
import socket
import struct
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from franka_sim import FrankaSimServer
from franka_sim.franka_protocol import ConnectStatus
from franka_sim.robot_state import RobotState

said, refused = {}, {"version": None}
wire = {"jump": 0.0, "late": None}
kept = deque()
truth = None
if len(sys.argv) > 1:
    Path(sys.argv[1]).write_bytes(bytes(64))
    with Path(sys.argv[1]).open("r+b") as file:
        truth = mmap.mmap(file.fileno(), 64)
pack, respond = RobotState.pack_state, FrankaSimServer.send_response


def packed(state):
    if truth:
        truth[:64] = struct.pack("8d", time.time(), *state.state["q"])
    told = said | ({"q": [q + wire["jump"] for q in state.state["q"]]} if wire["jump"] else {})
    true = {name: state.state[name] for name in told if name in state.state}
    state.state.update(told)
    try:
        kept.append(pack(state))
    finally:
        state.state.update(true)
    late = wire["late"]
    while len(kept) > 1 and (late is None or len(kept) > late > 0):
        kept.popleft()
    return kept[0]


def responded(self, *words, **fields):
    if refused["version"]:
        fields |= {"status": ConnectStatus.kIncompatibleLibraryVersion, "version": refused["version"]}
    respond(self, *words, **fields)


def listen(server):
    for line in sys.stdin:
        fields = json.loads(line)
        refused["version"] = fields.pop("version", None)
        abort = fields.pop("abort", None)
        wire.update(jump=fields.pop("jump", 0.0), late=fields.pop("late", None))
        if fields.pop("cut", False):
            server.client_socket.shutdown(socket.SHUT_RDWR)
        said.clear()
        said.update(fields)
        if abort is not None:
            server._abort_with_error(abort, "as told")


sys.setswitchinterval(1e-4)  # its threads hand Python's lock over within a cycle, not after the default 5 ms
with suppress(PermissionError):  # a robot's controller does not depend on this computer's load
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
RobotState.pack_state, FrankaSimServer.send_response = packed, responded
server = FrankaSimServer(gripper_object_width=0.04, enforce_comm_constraints=True, enforce_motion_limits=True)
threading.Thread(target=listen, args=[server], daemon=True).start()
try:
    server.start()
finally:
    server.stop()
