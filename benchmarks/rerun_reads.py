"""Compare a session's bag and a dataset, number by number, as rerun's readers and as we read them.

    python -m venv runs/rerun && runs/rerun/bin/pip install rerun-sdk==0.41.0
    robot-rl deploy runs/improve --robot panda --twin --episodes 2 --video-episodes 0 --bag --out runs/with-bag
    python -m benchmarks.rerun_reads runs/with-bag/bag datasets/panda-lift --python runs/rerun/bin/python

rerun's viewer opens both with these readers (`rerun FILE.mcap`, `rerun DATASET`); for some videos it needs ffmpeg.
Passed: every joint state and every frame's numbers are there, equal, and in order, and every message and picture is
there. rerun shows no columns of integers and truth values. Results: benchmarks/results/rerun.json.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory

from robot_rl.data import Dataset
from robot_rl.training.run import provenance, write_json

RESULTS = Path(__file__).parent / "results" / "rerun.json"
READ = """
import json, sys
from rerun.chunk import McapReader
from rerun.experimental import LeRobotReader

def numbers(chunks):
    rows, scalars = {}, {}
    for chunk in chunks:
        batch, path = chunk.to_record_batch(), chunk.entity_path
        for name in batch.schema.names:
            if name.endswith("Scalars:scalars"):
                scalars.setdefault(path, []).extend(batch.column(name).to_pylist())
        if not chunk.is_static:
            rows[path] = rows.get(path, 0) + chunk.num_rows
    return {"rows": rows, "scalars": scalars}

bag, dataset = sys.argv[1:]
reader = LeRobotReader(dataset)
read = {"bag": numbers(McapReader(bag).stream()), "episodes": [numbers(reader.stream(e)) for e in reader.episodes()]}
json.dump(read, sys.stdout)
"""
"""Program for rerun's Python: it prints numbers and rows by topic or column."""


def of_bag(file: Path, theirs: dict[str, Any]) -> dict[str, Any]:
    """Return the differences of a bag."""
    with open(file, "rb") as stream:
        found = list(make_reader(stream, decoder_factories=[DecoderFactory()]).iter_decoded_messages())
    states: dict[str, list[Any]] = {}
    for _, channel, _, message in found:
        for name in ("position", "velocity", "effort") if hasattr(message, "velocity") else ():
            states.setdefault(f"{channel.topic}/{name}", []).append(list(getattr(message, name)))
    counts = Counter(channel.topic for _, channel, _, _ in found)
    fewer = {topic: count for topic, count in counts.items() if theirs["rows"].get(topic, 0) < count}
    differ = [
        topic for topic, rows in states.items()
        if any(rows) and not np.array_equal(np.array(rows), np.array(theirs["scalars"].get(topic, [])))
    ]  # fmt: skip
    return {"messages": dict(counts), "missing": fewer, "numbers": sum(map(len, states.values())), "differ": differ}


def of_dataset(root: Path, theirs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the differences of a dataset."""
    data, differ = Dataset(root), []
    pictures = [name for name, feature in data.features.items() if feature.is_video]
    vectors = [name for name in data.features if name not in pictures and f"/{name}" in theirs[0]["scalars"]]
    columns, missing, first = data.columns(vectors), [], 0
    for k, (episode, read) in enumerate(zip(data.episodes, theirs, strict=True)):
        rows = slice(first, first := first + episode.length)
        for name in vectors:
            ours = columns[name][rows].double().numpy().reshape(episode.length, -1)
            shown = np.asarray(read["scalars"][f"/{name}"], np.float64).reshape(episode.length, -1)
            differ += [] if np.array_equal(ours, shown, equal_nan=True) else [f"{name}, episode {k}"]
        missing += [f"{name}, episode {k}" for name in pictures if read["rows"].get(f"/{name}", 0) < episode.length]
    facts = {"episodes": data.num_episodes, "frames": data.num_frames, "columns": vectors, "pictures": pictures}
    return facts | {"missing": missing, "differ": differ}


def main() -> int:
    """Compare; return 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bag", type=Path, help="folder of the bag")
    parser.add_argument("dataset", type=Path, help="LeRobot dataset")
    parser.add_argument("--python", type=Path, required=True, help="Python with rerun-sdk")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    options = parser.parse_args()
    (file,) = options.bag.glob("*.mcap")
    command = [options.python, "-c", READ, file, options.dataset]
    theirs = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    result: dict[str, Any] = {"bag": of_bag(file, theirs["bag"])}
    result |= {"dataset": of_dataset(options.dataset, theirs["episodes"])}
    result |= {"passed": not any(each[name] for each in result.values() for name in ("missing", "differ"))}
    write_json(options.out, result | {"provenance": provenance()})
    sys.stderr.write(json.dumps(result) + "\n")
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
