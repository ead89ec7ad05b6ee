"""A Franka Research 3 on franky-sim, by its authors' model and server, with a cube on a table.

Runs with the simulators' own Python: `.venv-sims/bin/python -m benchmarks.franka.world 127.0.0.5 Q1,..,Q7`. Each line
of stdin places the cube, `x y yaw`; each line of stdout is its true pose at 30 Hz, `x y z w x y z`. With a file as
third argument, positions are recorded there, for a film.
"""

import select
import sys
import time
import xml.etree.ElementTree as ET

import mujoco
import numpy as np
import pinocchio
from franky_sim import SimulationServer
from franky_sim.mujoco_simulator import MujocoSimulator

if not hasattr(pinocchio.Frame, "parentJoint"):  # its name before pinocchio 3, which franka-sim's numpy rules out
    pinocchio.Frame.parentJoint = property(lambda frame: frame.parent)
HALF, MASS = 0.022, 0.1
"""Half edge, m, and mass, kg, of the cube: nominal values of the task."""
BEHIND = 0.02
"""Longest delay that is made up for, s: the server's own loop makes up for none, and loses a tenth of its speed."""
EVERY = 33
"""Steps of 1 ms per pose."""


def main(host: str, home: list[float], record: str = "") -> None:
    with MujocoSimulator() as sim:
        cube = ET.SubElement(sim.worldbody, "body", name="cube", pos=f"0.5 0 {HALF}")
        ET.SubElement(cube, "freejoint", name="cube")
        geom = {"type": "box", "size": f"{HALF} {HALF} {HALF}", "mass": str(MASS), "rgba": "0.8 0.2 0.2 1"}
        ET.SubElement(cube, "geom", **geom, condim="4", friction="1 0.005 0.0001")
        sim.add_robot(initial_q=home)
        with SimulationServer(sim, hostname_candidates=[host]) as server:
            model, data = sim.model, sim.data
            joint = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, "cube")
            at, dof = model.jnt_qposadr[joint], model.jnt_dofadr[joint]
            count, rows = 0, []
            try:
                begin = time.monotonic()
                while True:
                    server.run_once(False)
                    count += 1
                    begin = max(begin, time.monotonic() - count / 1000 - BEHIND)
                    time.sleep(max(0.0, begin + count / 1000 - time.monotonic()))
                    if count % EVERY:
                        continue
                    print(*(f"{number:.6f}" for number in data.qpos[at : at + 7]), flush=True)
                    if record:
                        rows.append(data.qpos.copy())
                    if select.select([sys.stdin], [], [], 0)[0]:
                        line = sys.stdin.readline()
                        if not line:
                            return
                        x, y, yaw = map(float, line.split())
                        data.qpos[at : at + 7] = [x, y, HALF, np.cos(yaw / 2), 0, 0, np.sin(yaw / 2)]
                        data.qvel[dof : dof + 6] = 0
            finally:
                if record:
                    mujoco.mj_saveLastXML(f"{record}.xml", model)
                    np.save(record, np.array(rows))


if __name__ == "__main__":
    main(sys.argv[1], [float(q) for q in sys.argv[2].split(",")], *sys.argv[3:])
