"""Random mutations of a valid dataset and a valid bundle: each result must be read, or refused with one sentence.

Every mutation is tried in its own process, with limits of time and memory. An audit hook reports what Python opens for
writing, removes, renames or starts outside the mutated folder; a canary file beside this folder must not change.
"""

import json
import os
import random
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

import sim.tasks  # noqa: F401 - here, so that the many processes need not
from policies.bundle import load_bundle
from robot_rl.data import Dataset, DatasetWriter, verify
from robot_rl.data.lerobot import DTYPES
from robot_rl.robots import robots
from robot_rl.util.errors import UserError

torch.set_num_threads(1)  # a fork inherits no threads

SECONDS, MEMORY = 20, 3 * 2**30
"""Limits of one mutation: processor time, s, and memory beyond what the imports take, bytes."""
CHANGES = (
    "open",
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.symlink",
    "os.link",
    "os.truncate",
    "shutil.rmtree",
)
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn")


def nasty(rng: random.Random, canary: Path) -> Any:
    """Return a random value that is invalid in most places, such as a huge number or a path to the canary."""
    deep: Any = []
    for _ in range(rng.choice((1, 50, 300))):
        deep = [deep]
    numbers = [-1, 0, 1, 2, 10**9, 10**18, -(10**30), 10**400, 1e308, 0.5, *map(float, ("inf", "-inf", "nan"))]
    paths = [
        "",
        ".",
        "..",
        "../canary/x",
        "../../canary",
        str(canary / "x"),
        "canary:X",
        "os:system",
        "gym:canary:X-v0",
    ]
    texts = ["{video_key}", "{chunk_index:0999999999d}", "a\0b", "\n", "\ud800", "x" * 10_000]
    trees = [None, True, [], {}, [[]], [1, "a", None], {"a": {}}, ["..", "/"], deep]
    values: list[Any] = [*numbers, *paths, *texts, *trees]
    return rng.choice(values)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a JSON tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [found for key, value in items for found in ((*path, key), *places(value, (*path, key)))]


def mutate_json(file: Path, rng: random.Random, canary: Path) -> str:
    """Change one to three values of a JSON file, or the names of values; return what was done."""
    tree, done = json.loads(file.read_text()), []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        paths = places(tree)
        if not paths:
            break
        *way, last = rng.choice(paths)
        parent = tree
        for key in way:
            parent = parent[key]
        what, value = rng.choice(("set", "set", "set", "drop", "rename")), nasty(rng, canary)
        if what == "drop":
            del parent[last]
        elif what == "rename" and isinstance(parent, dict):
            parent[value if isinstance(value, str) else repr(value)[:40]] = parent.pop(last)
        else:
            parent[last] = value
        done.append(f"{what} {'/'.join(map(str, (*way, last)))} {str(value)[:40]!r}")
    text = json.dumps(tree, ensure_ascii=True).replace("Infinity", rng.choice(("Infinity", "1e400")))
    file.write_text(text)
    return "; ".join(done)


def mutate_bytes(file: Path, rng: random.Random, canary: Path) -> str:
    """Cut a file short, flip or insert bytes, or replace its header or content; return what was done."""
    data = bytearray(file.read_bytes())
    what = rng.choice(("cut", "flip", "insert", "replace", "header"))
    at = rng.randrange(max(1, len(data)))
    if what == "cut":
        del data[at:]
    elif what == "flip":
        for _ in range(rng.choice((1, 8, 64))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif what == "insert":
        data[at:at] = bytes(rng.randrange(256) for _ in range(16))
    elif what == "header":
        data[:8] = rng.choice((0, 2**31, 2**62)).to_bytes(8, "little")
    else:
        data = bytearray(rng.choice((b"", b"null", b"[" * 100_000, b'{"a":' * 100_000, b"\xff" * 100, b"PAR1PAR1")))
    file.write_bytes(data)
    return f"{what} at {at}"


def mutate_parquet(file: Path, rng: random.Random, canary: Path) -> str:
    """Drop a column of a parquet file, or write values of any type into it; return what was done."""
    table = pq.read_table(file)
    name = rng.choice(table.column_names)
    at, value = table.column_names.index(name), nasty(rng, canary)
    if rng.random() < 0.2:
        pq.write_table(table.remove_column(at), file)
        return f"drop {name}"
    values = table[name].to_pylist()
    values = [value] * len(values) if rng.random() < 0.5 else [value, *values[1:]]
    try:
        column = pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeError, ValueError):
        column = pa.array([str(v).encode("utf8", "replace").decode() for v in values])
    try:
        pq.write_table(table.set_column(at, name, column), file)
    except pa.ArrowException:  # a type that parquet lacks
        pq.write_table(table.remove_column(at), file)
    return f"set {name} {str(value)[:40]!r}"


def mutate_link(file: Path, rng: random.Random, canary: Path) -> str:
    """Replace a file, or the folder that it is in, by a link into the canary."""
    path = rng.choice((file, file.parent) if file.parent != canary.with_name("forged") else (file,))
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(rng.choice((canary, canary / "x", Path("../canary"))))
    return "link"


def mutate(folder: Path, rng: random.Random, canary: Path) -> str:
    """Mutate one file of a folder; return what was done."""
    file = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    kinds: list[Callable[[Path, random.Random, Path], str]] = [mutate_bytes]
    kinds += [mutate_json] * 6 if file.suffix == ".json" else []
    kinds += [mutate_parquet] * 4 if file.suffix == ".parquet" else []
    kinds += [mutate_link] if rng.random() < 0.2 else []
    return f"{file.relative_to(folder)}: {rng.choice(kinds)(file, rng, canary)}"


def use_dataset(folder: Path) -> None:
    """Use a dataset as the commands `dataset verify`, `train` and `collect --resume` do."""
    verify(folder)
    data = Dataset(folder)
    data.columns([key for key, feature in data.features.items() if feature.dtype in DTYPES])
    for camera in data.cameras:
        data.frames(camera, range(min(4, data.num_frames)))
    _ = data.stats
    with DatasetWriter.append(folder) as writer:
        assert writer.num_episodes == data.num_episodes


def use_bundle(folder: Path) -> None:
    """Load a bundle as the commands `evaluate` and `deploy` do."""
    bundle = load_bundle(folder)
    bundle.check_robot(robots.get("panda"))


def child(use: Callable[[Path], None], folder: Path, said: Path) -> None:
    """Use a mutated folder and write the outcome to the file `said`: read, refused, or a failure."""
    home, outside = os.path.realpath(folder), []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in STARTS:
            outside.append(event)
        elif event in CHANGES and isinstance(arguments[0], str | bytes | os.PathLike):
            at = arguments[-1] if event != "open" and isinstance(arguments[-1], int) and arguments[-1] >= 0 else None
            base = os.readlink(f"/proc/self/fd/{at}") if at is not None else ""  # names relative to an open folder
            path = os.path.realpath(os.path.join(base, os.fsdecode(arguments[0])))
            writes = event != "open" or (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR))
            if path.startswith(str(folder.with_name("canary"))) or (
                writes and "torchinductor_" not in path and not path.startswith((home + os.sep, "/dev/"))
            ):
                outside.append(f"{event} {path}")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    signal.alarm(10 * SECONDS)  # one that waits for ever takes no processor time
    sys.addaudithook(watch)
    try:
        use(folder)
        ended = "read"
    except UserError as error:
        ended = "refused" if len(str(error).splitlines()) < 3 else f"failure: {str(error)[:300]}"
    except BaseException:
        ended = "failure: " + traceback.format_exc()[-1500:]
    if outside:
        ended = f"failure: outside: {outside[:3]}"
    said.write_bytes(ended.encode("utf8", "replace"))


def attempt(use: Callable[[Path], None], valid: Path, work: Path, seed: int) -> str:
    """Try one mutation of a copy of `valid`; return "read", "refused" or "failure: …"."""
    rng, folder, canary = random.Random(seed), work / "forged", work / "canary"
    shutil.rmtree(work, ignore_errors=True)
    canary.mkdir(parents=True)
    (canary / "x").write_text("mine")
    shutil.copytree(valid, folder)
    what = mutate(folder, rng, canary)
    if (pid := os.fork()) == 0:
        try:
            os.dup2(os.open(work / "log", os.O_WRONLY | os.O_CREAT), 2)
            child(use, folder, work / "said")
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    said = (
        (work / "said").read_text()
        if (work / "said").exists()
        else f"failure: ended by {signal.Signals(status & 127).name}"
    )
    if [path.name for path in canary.iterdir()] != ["x"] or (canary / "x").read_text() != "mine":
        said = "failure: the canary changed"
    return said if not said.startswith("failure") else f"{said}\n({what})"
