"""LeRobot datasets on disk, and replay for training."""

from robot_rl.data.dataset import Dataset, Episode
from robot_rl.data.episode import EpisodeData
from robot_rl.data.lerobot import DatasetError, Feature
from robot_rl.data.verify import verify
from robot_rl.data.writer import DatasetWriter

__all__ = ["Dataset", "DatasetError", "DatasetWriter", "Episode", "EpisodeData", "Feature", "verify"]
