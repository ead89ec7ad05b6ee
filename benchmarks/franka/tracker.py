"""Poses of an object on the topics of a tracker."""

from collections.abc import Callable, Sequence

from real.bus import make, open_node, qos
from real.bus.stamps import stamp
from real.topics import INT, RESET_TOPIC


class Tracker:
    """Publisher of an object's pose, which hears when the robot's surroundings are to be reset."""

    def __init__(self, name: str, reset: Callable[[int], None], frame: str = "base"):
        # Named as the robot's process: a robot that is reset on `twin/reset` needs no person.
        self.node = open_node("robot")
        self.poses = self.node.publisher("geometry_msgs/msg/PoseStamped", f"objects/{name}/pose", qos.DEFAULT)
        self.frame = frame
        self.node.subscribe(INT, RESET_TOPIC, qos.DEFAULT, lambda sample: reset(int(sample.msg.data)))

    def publish(self, position: Sequence[float], quat: Sequence[float] = (1.0, 0.0, 0.0, 0.0)) -> None:
        """Publish a position x y z, m, and an orientation w x y z, in the base frame."""
        place, turn = dict(zip("xyz", position, strict=True)), dict(zip("wxyz", quat, strict=True))
        header = {"stamp": stamp(), "frame_id": self.frame}
        pose = {"position": place, "orientation": turn}
        self.poses.publish(make("geometry_msgs/msg/PoseStamped", header=header, pose=pose))
