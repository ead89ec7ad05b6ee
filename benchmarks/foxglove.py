"""Compare a session's bag, message by message, as the Foxglove app's libraries and as Python's `mcap` read it.

    robot-rl deploy runs/improve --robot panda --twin --episodes 2 --video-episodes 0 --bag --out runs/with-bag
    python -m benchmarks.foxglove runs/with-bag/bag

The app reads MCAP with the npm packages @mcap/core and @mcap/nodejs, and ROS 2 messages with @foxglove/rosmsg and
@foxglove/rosmsg2-serialization; `npm` installs them to --work. Needs Node.js. Results:
benchmarks/results/foxglove.json. Passed: every message is there in both, with equal topic, time and fields.
"""

import argparse
import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory

from robot_rl.training.run import provenance, write_json

RESULTS = Path(__file__).parent / "results" / "foxglove.json"
PACKAGES = ("@mcap/core@2.2.2", "@mcap/nodejs@1.0.2", "@foxglove/rosmsg@5.0.5", "@foxglove/rosmsg2-serialization@3.1.0")


def plain(value: Any) -> Any:
    """Return a decoded message as JSON would hold it."""
    if hasattr(value, "__slots__"):
        return {name: plain(getattr(value, name)) for name in value.__slots__}
    if isinstance(value, bytes):
        return list(value)
    if isinstance(value, list | tuple) or hasattr(value, "tolist"):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def theirs(file: Path, work: Path) -> list[list[Any]]:
    """Return topic, time and content of each message, as Foxglove's libraries read them."""
    work.mkdir(parents=True, exist_ok=True)
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", *PACKAGES], cwd=work, check=True)
    script = Path(__file__).with_suffix(".mjs")
    done = subprocess.run(["node", script, file.resolve()], cwd=work, check=True, capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def ours(file: Path) -> list[list[Any]]:
    """The same, as Python's `mcap` reads them."""
    with open(file, "rb") as stream:
        reader = make_reader(stream, decoder_factories=[DecoderFactory()])
        found = reader.iter_decoded_messages()
        return [[channel.topic, str(raw.log_time), plain(message)] for _, channel, raw, message in found]


def main() -> int:
    """Compare a bag; return 1 if a message differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bag", type=Path, help="folder of the bag")
    parser.add_argument("--work", type=Path, default=Path("runs/foxglove"), help="folder of the npm packages")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results")
    options = parser.parse_args()
    (file,) = options.bag.glob("*.mcap")
    here, there = ours(file), theirs(file, options.work)
    # Messages of one time come in any order of topics.
    pairs = zip(*(sorted(each, key=lambda row: row[:2]) for each in (here, there)), strict=False)
    differ = [pair for pair in pairs if pair[0] != pair[1]]
    for one, other in differ[:3]:
        sys.stderr.write(f"{one}\n{other}\n")
    result = {"packages": PACKAGES, "messages": dict(Counter(topic for topic, *_ in here)), "differ": len(differ)}
    result["passed"] = len(here) == len(there) > 0 and not differ
    write_json(options.out, result | {"provenance": provenance()})
    sys.stderr.write(f"{len(here)} and {len(there)} messages, {len(differ)} differ\n")
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
