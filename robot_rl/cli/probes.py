"""What `robot-rl doctor` tries in a process of its own, for a broken GL or DDS may hang or crash.

`python -m robot_rl.cli.probes egl` writes one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

_SCENE = """<mujoco><worldbody><light pos="0 0 3"/><geom type="plane" size="1 1 .1"/>
<body pos="0 0 .2"><geom type="box" size=".1 .1 .1" rgba="1 0 0 1"/></body></worldbody></mujoco>"""


def egl() -> dict[str, Any]:
    """Render 96 x 96 pixels without a screen; give the renderer's name and its frames per second."""
    os.environ["MUJOCO_GL"] = "egl"  # read when mujoco is imported
    import mujoco

    model = mujoco.MjModel.from_xml_string(_SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    with mujoco.Renderer(model, 96, 96) as renderer:
        from OpenGL import GL

        renderer.update_scene(data)
        lit = int(renderer.render().max())  # the first frame also compiles
        frames = 5
        started = time.perf_counter()
        for _ in range(frames):
            renderer.update_scene(data)
            renderer.render()
        rate = frames / (time.perf_counter() - started)
        name = (GL.glGetString(GL.GL_RENDERER) or b"?").decode()
    if not lit:
        raise RuntimeError(f"{name} draws only black")
    return {"renderer": name, "frames_per_s": round(rate, 1)}


def bus() -> dict[str, Any]:
    """Send one message to ourselves over the loopback interface, as robot and policy would."""
    os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"  # disturb no robot on the network
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
        took = time.perf_counter() - started
    return {"round_trip_ms": round(1000 * took, 2)}


PROBES: dict[str, Callable[[], dict[str, Any]]] = {"egl": egl, "bus": bus}


def main(argv: list[str]) -> int:
    """Run one probe; what went wrong is in the object too, as `error`."""
    try:
        result = PROBES[argv[0]]()
    except Exception as error:  # whatever it is, the parent reports it
        result = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(result) + "\n")
    return int("error" in result)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
