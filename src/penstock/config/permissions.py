"""Creation of files and folders that only their owner can access, even if the umask allows more.

A folder with the set-group-ID bit is shared: files and folders created in it also get the folder's group permissions.
Existing files and folders keep their permissions. A new file is durable only after its folder is synced.
"""

import os
import stat
from pathlib import Path


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(0o700 | _of_group(path.parent), exist_ok=True)


def create_file(path: Path, flags: int = 0) -> int:
    """Create a file and return a descriptor for writing; raise `FileExistsError` if the file exists."""
    flags |= os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return os.open(path, flags, 0o600 | (_of_group(path.parent) & 0o060))


def sync_folder(path: Path) -> None:
    """Sync a folder to disk, which makes the files created in the folder durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _of_group(folder: Path) -> int:
    """Return the group permissions of a shared folder; 0 for other folders."""
    mode = folder.stat().st_mode
    return mode & 0o070 if mode & stat.S_ISGID else 0
