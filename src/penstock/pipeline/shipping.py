"""Sends Penstock itself to a cluster's executors: the same code on both sides, and nothing of it to install there.

What it needs beside itself, the client libraries of the store and the brokers, has compiled parts and must be
on the nodes: in their Python, or in an environment that Spark unpacks there (docs/spark.md).
"""

import atexit
import shutil
import tempfile
import zipfile
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


@cache
def parcel() -> Path:
    """The package as a zip file, which stays as long as this process: executors fetch it whenever they start."""
    folder = tempfile.mkdtemp(prefix="penstock-ship-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return pack(Path(folder))


def pack(folder: Path) -> Path:
    """The package as a zip file in this folder."""
    path = folder / "penstock.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(PACKAGE.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, Path("penstock") / file.relative_to(PACKAGE))
    return path
