"""Permissions of new files and folders: for their owner alone, even if the umask allows more.

A folder with the set-group-ID bit is shared: what is created in it has the permissions of the folder's group, too.
Files and folders that exist keep their permissions. A new file is durable once its folder is synced, too.
"""

import os
import stat
from pathlib import Path


def make_folder(path: Path) -> None:
    """Create a folder and the parents that are missing."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(0o700 | _of_group(path.parent), exist_ok=True)


def create_file(path: Path, flags: int = 0) -> int:
    """Create a file, or raise `FileExistsError`. Return a descriptor to write to it."""
    flags |= os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return os.open(path, flags, 0o600 | (_of_group(path.parent) & 0o060))


def sync_folder(path: Path) -> None:
    """Write a folder to disk: only then a file that was created in it is safe."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _of_group(folder: Path) -> int:
    """Return what a shared folder permits to its group."""
    mode = folder.stat().st_mode
    return mode & 0o070 if mode & stat.S_ISGID else 0
