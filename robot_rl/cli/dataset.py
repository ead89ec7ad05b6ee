"""`robot-rl dataset`: show, check and convert a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro


@dataclass
class Info:
    """Show what a dataset holds."""

    path: tyro.conf.Positional[Path]
    """Folder of the dataset, with meta/ in it."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Print the summary; return the exit status."""
        from rich.table import Table

        from robot_rl.cli.console import printer, show
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
        console = printer()
        if self.json:
            show(summary, True)
            return 0
        table = Table(title=str(self.path), title_justify="left")
        table.add_column("feature")
        table.add_column("dtype")
        table.add_column("shape")
        table.add_column("names", overflow="fold")
        for key, feature in data.features.items():
            names = ", ".join(map(str, feature.names or []))
            table.add_row(key, feature.dtype, "x".join(map(str, feature.shape)), names)
        console.print(table)
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
    """Check every file and row of a dataset; exit status 1 when something is damaged. What is only absent, and nothing
    here needs, is noted."""

    path: tyro.conf.Positional[Path]
    """Folder of the dataset, with meta/ in it."""
    json: bool = False
    """Print one JSON object instead of one line per problem."""

    def run(self) -> int:
        """Print every problem and note; return the exit status."""
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
    """Compute a dataset's meta/stats.json anew: LeRobot needs it to train, robot-rl does not."""

    path: tyro.conf.Positional[Path]
    """Folder of the dataset, with meta/ in it."""

    def run(self) -> int:
        """Write the file; return the exit status."""
        from rich.console import Console

        from robot_rl.data.lerobot import STATS
        from robot_rl.data.writer import write_stats

        write_stats(self.path)
        Console().out(f"wrote {self.path / STATS}")
        return 0


@dataclass
class Convert:
    """Make a LeRobot v3.0 dataset of one of v2.1 or v2.0; numbers and videos stay as they are."""

    path: tyro.conf.Positional[Path]
    """Folder of the old dataset, with meta/ in it."""
    out: tyro.conf.Positional[Path]
    """Folder of the new one; it appears when all of it is written."""
    json: bool = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        """Convert; return the exit status."""
        from robot_rl.cli.console import bar, show
        from robot_rl.data import Dataset
        from robot_rl.data.convert import convert

        with bar("convert") as update:
            convert(self.path, self.out, update)
        data = Dataset(self.out)
        show({"path": str(self.out), "episodes": data.num_episodes, "frames": data.num_frames}, self.json, "dataset")
        return 0
