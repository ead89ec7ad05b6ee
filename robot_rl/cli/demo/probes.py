"""Tests that `robot-rl doctor` runs in separate processes: `python -m robot_rl.cli.demo.probes egl`."""

from __future__ import annotations

import os
import sys
import time

from robot_rl.util.errors import UserError

_SCENE = "<mujoco><worldbody><light pos='0 0 3'/><geom type='plane' size='1 1 .1'/></worldbody></mujoco>"


def egl() -> str:
    """Render 96 x 96 pixels without a screen; return frames per second."""
    os.environ["MUJOCO_GL"] = "egl"  # read when mujoco is imported
    from sim.rendering.gl import mujoco, open_renderer

    model = mujoco.MjModel.from_xml_string(_SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    with open_renderer(model, 96, 96) as renderer:
        renderer.update_scene(data)
        if not renderer.render().max():  # the first frame also compiles
            raise RuntimeError("the rendered frame is black")
        started = time.perf_counter()
        for _ in range(5):
            renderer.render()
        return f"{5 / (time.perf_counter() - started):.0f} frames/s of 96 x 96 pixels"


def bus() -> str:
    """Send one message to ourselves over the loopback interface; return how long it took."""
    os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"  # do not disturb robots on the network
    from real.bus import make, open_node, qos

    with open_node("doctor") as node:
        received = node.subscribe("std_msgs/msg/String", "~/echo", qos.COMMAND)
        publisher = node.publisher("std_msgs/msg/String", "~/echo", qos.COMMAND)
        if not node.wait_for(lambda: publisher.matched > 0, 3.0):
            raise RuntimeError("a publisher and a subscription in one process do not find each other")
        started = time.perf_counter()
        publisher.publish(make("std_msgs/msg/String", data="hello"))
        if not received.wait(timeout=2.0):
            raise RuntimeError("a message sent over the loopback interface does not arrive")
        return f"a message over loopback took {1000 * (time.perf_counter() - started):.2f} ms"


if __name__ == "__main__":
    try:
        sys.stdout.write({"egl": egl, "bus": bus}[sys.argv[1]]() + "\n")
    except UserError as error:
        sys.exit(str(error))
