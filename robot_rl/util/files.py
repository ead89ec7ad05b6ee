"""Atomic writes of files and folders: a killed process never leaves a partial file under its final name."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path


def write_file(path: Path, data: bytes | memoryview) -> None:
    """Write and fsync a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` atomically at the end of the `with` block, unless an error occurs. An
    OSError names `path`."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a new empty folder that replaces `path` at the end of the `with` block, unless an error occurs."""
    part, old = (path.with_name(f".{path.name}.{os.getpid()}.{end}") for end in ("part", "old"))
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        yield part
        for written in (*part.iterdir(), part):  # before the rename, in case of a power failure
            sync_folder(written)
        if path.exists():
            path.rename(old)
        try:
            part.rename(path)
        except BaseException:
            if old.exists():
                old.rename(path)
            raise
        sync_folder(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def sync_folder(path: Path) -> None:
    """Fsync a folder or file, so that renames in the folder survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file's content atomically."""
    with replacing(path) as part:
        part.write_bytes(data)


def description_sha256(path: Path) -> str:
    """Return the sha256 of a JSON file that describes weights, not counting its provenance."""
    meta = {name: value for name, value in json.loads(path.read_bytes()).items() if name != "provenance"}
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def file_name(text: str) -> str:
    """Convert the name of a task or recipe to a part of a file name."""
    return re.sub(r"[^\w.-]", ".", text)[:100].lstrip(".") or "unnamed"


def leaks(root: Path, allowed: Iterable[Path] = ()) -> Iterator[str]:
    """Yield an error message for each symbolic link out of a folder, and each entry that is neither file nor folder.

    Datasets and bundles from others are checked before they are read or written. Links into the folders `allowed` are
    accepted.
    """
    homes = [os.path.realpath(folder) for folder in (root, *allowed)]
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:  # removed by a running writer
                continue
            end = os.path.realpath(path) if stat.S_ISLNK(mode) else homes[0]
            if not any(os.path.commonpath([home, end]) == home for home in homes):
                yield f"{path} is a link out of {root}, which is not followed; copy what it leads to (cp -rL)"
            if not (stat.S_ISLNK(mode) or stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                yield f"{path} is neither a file nor a folder; restore {root} from a copy"
