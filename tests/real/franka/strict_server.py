"""franka-sim with all its limits, whose state on the wire can be changed: run with the simulators' own Python.

Each line of stdin is JSON: fields of the robot's state that replace the simulated ones. `abort`: end the motion as the
robot does, with these numbers of errors. `version`: refuse new clients, as a robot of this version does. `cut`: end the
connection.
"""

import json
import socket
import sys
import threading

from franka_sim import FrankaSimServer
from franka_sim.franka_protocol import ConnectStatus
from franka_sim.robot_state import RobotState

said, refused = {}, {"version": None}
pack, respond = RobotState.pack_state, FrankaSimServer.send_response


def packed(state):
    true = {name: state.state[name] for name in said if name in state.state}
    state.state.update(said)
    try:
        return pack(state)
    finally:
        state.state.update(true)


def responded(self, *words, **fields):
    if refused["version"]:
        fields |= {"status": ConnectStatus.kIncompatibleLibraryVersion, "version": refused["version"]}
    respond(self, *words, **fields)


def listen(server):
    for line in sys.stdin:
        fields = json.loads(line)
        refused["version"] = fields.pop("version", None)
        abort = fields.pop("abort", None)
        if fields.pop("cut", False):
            server.client_socket.shutdown(socket.SHUT_RDWR)
        said.clear()
        said.update(fields)
        if abort is not None:
            server._abort_with_error(abort, "as told")


RobotState.pack_state, FrankaSimServer.send_response = packed, responded
server = FrankaSimServer(gripper_object_width=0.04, enforce_comm_constraints=True, enforce_motion_limits=True)
threading.Thread(target=listen, args=[server], daemon=True).start()
try:
    server.start()
finally:
    server.stop()
