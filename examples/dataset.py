"""Read a LeRobot dataset."""

from robot_rl.data import Dataset

data = Dataset("datasets/panda-lift")
print(data.num_episodes, "episodes at", data.fps, "Hz:", ", ".join(data.features))
actions = data.column("action")
for episode in data.episodes[:3]:
    rows = actions[episode.start : episode.start + episode.length]
    print(episode.index, episode.tasks, rows.mean(0).tolist())
