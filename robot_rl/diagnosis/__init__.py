"""Compare a run of a robot with its replay in simulation, and name the causes of shaking.

`measure` turns a run's log into numbers, `find` judges them; `robot-rl doctor --log` prints both.
"""

from robot_rl.data.motion import read_motion
from robot_rl.diagnosis.findings import Cause, find
from robot_rl.diagnosis.measures import Measures, measure, replayable
from robot_rl.diagnosis.replay import LONGEST

__all__ = ["LONGEST", "Cause", "Measures", "find", "measure", "read_motion", "replayable"]
