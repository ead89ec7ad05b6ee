"""Publish files atomically: a kill at any moment leaves the dataset either unchanged or with the new episodes.

```
write + fsync every file under <root>/.staging   (a kill here: no reader sees these files)
rename the data, video and episode files         (a kill here: info.json does not count these files,
rename tasks and stats, fsync the folders         and LeRobot reads only counted episodes)
rename info.json                                 the commit: now the episodes exist
```
"""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from robot_rl.data.lerobot import DatasetError
from robot_rl.util.files import sync_folder, write_file

STAGING = ".staging"
LOCK = ".lock"


class WriterLock:
    """Lock on `<root>/.lock`; the kernel releases the lock when the process ends or is killed."""

    def __init__(self, root: Path) -> None:
        fd = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 32, 0).decode(errors="replace") or "unknown"
            os.close(fd)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise DatasetError(f"{root / LOCK} cannot be locked ({error}); use a local disk") from error
            raise DatasetError(
                f"{root} is being written by process {holder}; close that writer first, or record into another folder"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        self._fd: int | None = fd

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def publish(
    root: Path, files: Mapping[str, bytes | memoryview], new: Collection[str], commit: tuple[str, bytes]
) -> None:
    """Put files in place in the given order, then the commit file; on failure, remove the new files again.

    Args:
        root: folder of the dataset.
        files: contents by path under `root`.
        new: paths in `files` that no reader opens before the commit; other files are valid before and after it.
        commit: path and content of the commit file.
    """
    staged = {name: root / STAGING / name for name in (*files, commit[0])}
    placed: list[Path] = []
    current = commit[0]
    try:
        for current, data in (*files.items(), commit):
            write_file(staged[current], data)
        for current in files:
            final = root / current
            final.parent.mkdir(parents=True, exist_ok=True)
            if current in new:
                placed.append(final)
            os.replace(staged[current], final)
        current = commit[0]
        final = root / current
        final.parent.mkdir(parents=True, exist_ok=True)
        for folder in sorted({parent for name in files for parent in (root / name).parents}):
            if folder.is_relative_to(root):
                sync_folder(folder)
        os.replace(staged[current], final)
    except BaseException as error:
        if not is_published(root, commit):
            for path in placed:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise DatasetError(f"{root / current}: {_remedy(error)}; earlier episodes are intact") from error
        raise
    else:
        with contextlib.suppress(OSError):  # already committed; without this, only a power cut could undo it
            sync_folder(final.parent)
    finally:
        clear_staging(root)


def is_published(root: Path, commit: tuple[str, bytes]) -> bool:
    """Return whether the commit file is on disk with its new content."""
    try:
        return (root / commit[0]).read_bytes() == commit[1]
    except OSError:
        return False


def clear_staging(root: Path) -> None:
    """Remove the staged files that a killed writer never renamed."""
    shutil.rmtree(root / STAGING, ignore_errors=True)


def _remedy(error: OSError) -> str:
    """Return the cause of a failed write, with a remedy, as text."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full; free some space and add the episode again"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"not allowed ({error.strerror}); make the folder writable and add the episode again"
    return f"could not be written ({error}); check the disk and add the episode again"
