"""Copies of folders on another machine: which files changed, and how they are written there.

Paths of the one machine in JSON files, such as a run's config.json, become those of the other.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from robot_rl.util.files import replace_file

Stamp = tuple[int, int]
"""Time of the last change, ns, and size of a file, bytes."""
Files = dict[str, tuple[Stamp, bytes]]
"""Stamp and content of files, by their path in the folder."""
Paths = Sequence[tuple[str, str]]
"""Pairs of a path on this machine and the path of its copy."""
LARGEST = 64 * 2**20
"""Size of the files that are sent at once, bytes; a larger file is sent alone."""
COMMIT = "info.json"
"""Name of the file that says what else a dataset has: read before the other files, and written after them."""


def stamps(root: Path, names: Iterable[str] = ("",)) -> dict[str, Stamp]:
    """Return the stamps of the files in a folder, or in its parts `names`; hidden files and folders are left out."""
    found: dict[str, Stamp] = {}
    for name in names:
        for path in _files(root / name):
            stat = path.stat()
            found[str(path.relative_to(root))] = stat.st_mtime_ns, stat.st_size
    return dict(sorted(found.items(), key=lambda item: (not item[0].endswith(COMMIT), item[0])))


def changed(root: Path, known: dict[str, Stamp], names: Iterable[str] = ("",)) -> Iterator[Files]:
    """Yield the files whose stamps are not those that are `known`, a part at a time."""
    part: Files = {}
    size = 0
    for name, stamp in stamps(root, names).items():
        if known.get(name) == stamp:
            continue
        data = (root / name).read_bytes()
        if part and size + len(data) > LARGEST:
            yield part
            part, size = {}, 0
        part[name], size = (stamp, data), size + len(data)
    if part:
        yield part


def write(root: Path, files: Files, paths: Paths) -> None:
    """Write files into a folder, each at once; in JSON, replace the first path of each pair by the second."""
    for name, (_, data) in sorted(files.items(), key=lambda item: item[0].endswith(COMMIT)):
        if name.endswith(".json"):
            for ours, theirs in paths:
                data = data.replace(ours.encode(), theirs.encode())
        replace_file(root / name, data)


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        for child in path.iterdir():
            if not child.name.startswith("."):
                yield from _files(child)
