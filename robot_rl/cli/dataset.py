"""`robot-rl dataset`: show, check and convert a dataset."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from robot_rl.cli.options import DatasetPath, Json


@dataclass
class Info:
    """Show a dataset's features, size and tasks."""

    path: DatasetPath
    json: Json = False

    def run(self) -> int:
        from robot_rl.cli.console import print_table, printer, show
        from robot_rl.data import Dataset

        data = Dataset(self.path)
        summary: dict[str, Any] = {
            "path": str(self.path),
            "robot": data.robot_type,
            "episodes": data.num_episodes,
            "frames": data.num_frames,
            "fps": data.fps,
            "seconds": round(data.num_frames / data.fps, 3),
            "megabytes": round(sum(file.stat().st_size for file in data.files()) / 1e6, 3),
            "tasks": data.tasks,
            "features": {
                key: {"dtype": feature.dtype, "shape": list(feature.shape), "names": feature.names}
                for key, feature in data.features.items()
            },
        }
        if self.json:
            show(summary, True)
            return 0
        head = ("feature", "dtype", "shape", "names")
        rows = [
            (key, feature.dtype, "x".join(map(str, feature.shape)), ", ".join(map(str, feature.names or [])))
            for key, feature in data.features.items()
        ]
        print_table(str(self.path), head, rows, left=head)
        console = printer()
        console.print(
            f"{summary['episodes']} episodes, {summary['frames']} frames at {summary['fps']:g} fps "
            f"({summary['seconds']} s), {summary['megabytes']} MB, robot {summary['robot']}",
            highlight=False,
        )
        for task in data.tasks:
            count = sum(task in episode.tasks for episode in data.episodes)
            console.print(f"{count:6d} x {task}", highlight=False, markup=False)
        return 0


@dataclass
class Verify:
    """Check every file and row of a dataset. Exit status 1 if a file or row is damaged. Optional files that are absent
    get a note."""

    path: DatasetPath
    json: bool = False
    """Print one JSON object instead of one line per problem."""

    def run(self) -> int:
        from robot_rl.cli.console import printer, show
        from robot_rl.data import Dataset
        from robot_rl.data.verify import examine

        problems, notes = examine(self.path)
        console = printer()
        if self.json:
            show({"path": str(self.path), "problems": problems, "notes": notes}, True)
            return 1 if problems else 0
        for line in (*problems, *(f"note: {note}" for note in notes)):
            console.out(line, highlight=False)
        if not problems:
            data = Dataset(self.path)
            console.out(f"{self.path} is sound: {data.num_episodes} episodes, {data.num_frames} frames")
        return 1 if problems else 0


@dataclass
class Stats:
    """Recompute a dataset's meta/stats.json, which training with LeRobot needs and training with robot-rl does not."""

    path: DatasetPath

    def run(self) -> int:
        from rich.console import Console

        from robot_rl.data.lerobot import STATS
        from robot_rl.data.writer import write_stats

        write_stats(self.path)
        Console().out(f"wrote {self.path / STATS}")
        return 0


@dataclass
class Convert:
    """Convert a LeRobot dataset of v2.1 or v2.0 to v3.0; numbers and videos stay unchanged."""

    path: tyro.conf.Positional[Path]
    """Folder of the old dataset, with meta/ in it."""
    out: tyro.conf.Positional[Path]
    """Folder of the new dataset; it appears when the conversion is complete."""
    json: Json = False

    def run(self) -> int:
        from robot_rl.cli.console import bar, show
        from robot_rl.data import Dataset
        from robot_rl.data.convert import convert

        with bar("convert") as update:
            convert(self.path, self.out, update)
        data = Dataset(self.out)
        show({"path": str(self.out), "episodes": data.num_episodes, "frames": data.num_frames}, self.json, "dataset")
        return 0
