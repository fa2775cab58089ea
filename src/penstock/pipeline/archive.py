"""The class-data archive: Spark's classes as Java has loaded them once, mapped into memory at the next start.

Writing one takes Java seconds, so a background process of low priority does it, once for each pair of Java and Spark.
`PENSTOCK_SPARK_ARCHIVE=off` does without.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.pipeline.gateway import spark_home
from penstock.pipeline.java import cache_folder, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.streams.context import Context
    from penstock.streams.event import StreamEvent

VARIABLE = "PENSTOCK_SPARK_ARCHIVE"
# However low its priority, making an archive slowed the very start that asked for it by a quarter.
WAIT_SECONDS = 15.0
# An archive has 170 MB, and that of an environment which was deleted since is of no use to anyone.
UNUSED_SECONDS = 30 * 86_400.0
NOW = "--now"


def enabled(environment: Mapping[str, str] = os.environ) -> bool:
    return environment.get(VARIABLE, "on").lower() not in ("off", "0", "no", "false")


def archive_path(java_home: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Java accepts an archive only for the very jars and the very Java that wrote it: the name says which."""
    jars = spark_home(environment) / "jars"
    key = f"{java_home.resolve()} {_stamp(java_home / 'bin' / 'java')} {jars.resolve()} {_stamp(jars)}"
    return cache_folder(environment) / f"spark-{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def use_options(archive: Path) -> tuple[str, ...]:
    """By which Java uses the archive, if there is one. Its time says when that was last."""
    if not archive.exists():
        return ()
    with suppress(OSError):
        os.utime(archive)
    return (f"-XX:SharedArchiveFile={archive}",)


def make_in_background(archive: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Have the archive made for the next start, unless that was tried before."""
    if archive.exists() or _tried(archive).exists() or not enabled(environment):
        return
    subprocess.Popen(
        [sys.executable, "-m", "penstock.pipeline.archive"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**environment, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        start_new_session=True,
    )


def make(environment: Mapping[str, str] = os.environ, *, patient: bool = False) -> None:
    """Run a small program on Spark and have Java write down the classes that it used. Where another process is at it
    already, whoever is `patient` waits for that."""
    java_home = find_java(environment)
    archive = archive_path(java_home, environment)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with _alone(archive.with_suffix(".lock"), patient=patient) as alone:
        if not alone or archive.exists() or _tried(archive).exists():
            return
        _tried(archive).touch()  # also when it fails: this Java won't do better at the next start
        fresh = archive.with_suffix(".new")
        base = _base(java_home, archive)
        _rehearse((*base, f"-XX:ArchiveClassesAtExit={fresh}"))
        if fresh.exists():
            fresh.replace(archive)
            _tried(archive).unlink()
    sweep(archive.parent)


def sweep(folder: Path) -> None:
    """Remove archives that no Java has used for long, with what was made for them."""
    for archive in folder.glob("spark-*.jsa"):
        if "." not in archive.stem and _last_used(archive) < time.time() - UNUSED_SECONDS:
            for file in folder.glob(f"{archive.stem}.*"):
                file.unlink(missing_ok=True)


def _last_used(archive: Path) -> float:
    try:
        return archive.stat().st_mtime
    except FileNotFoundError:  # another process sweeps, too
        return time.time()


def _rehearse(options: tuple[str, ...]) -> None:
    """What a relay does, and a stream."""
    from penstock.pipeline.session import open_session
    from penstock.pipeline.slices import rest, run_slices

    spark = open_session("local[2]", "penstock-archive", java_options=options)
    process = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    run_slices(spark, rest, None, parallelism=2, slice_seconds=0.1, on_slice=lambda number, _: number < 3)
    with tempfile.TemporaryDirectory(prefix="penstock-archive-") as folder:
        _stream(spark, Path(folder))
    spark.stop()
    process.stdin.close()
    process.wait()


def _stream(spark: "SparkSession", folder: Path) -> None:
    from penstock.outbox import connect
    from penstock.pipeline.stream_app import Streams
    from penstock.pipeline.streaming import run_streams

    app = Streams(f"sqlite:///{folder}/penstock.db", state=f"sqlite:///{folder}/state")
    app.stream("rehearsal", parts=2)(_count)
    with connect(app.store) as outbox:
        outbox.store.initialise()
        outbox.emit("rehearsed", {}, queue="rehearsal", partition_key="one")
    run_streams(app, spark=spark, once=True)


def _count(_: "StreamEvent", context: "Context") -> None:
    context.state["count"] = context.state.get("count", 0) + 1


def _base(java_home: Path, archive: Path) -> tuple[str, ...]:
    """A Java that was packaged without an archive of its own classes needs one first, to build on."""
    real = java_home.resolve()
    if any((real / "lib" / "server").glob("classes*.jsa")):
        return ()
    base = archive.with_suffix(".base.jsa")
    command = [str(java_home / "bin" / "java"), "-XX:+UseSerialGC", "-Xshare:dump", f"-XX:SharedArchiveFile={base}"]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=120)
    return (f"-XX:SharedArchiveFile={base}",) if base.exists() else ()


def _tried(archive: Path) -> Path:
    return archive.with_suffix(".tried")


def _stamp(path: Path) -> str:
    """Changes when the file or folder is replaced."""
    return str(path.resolve().stat().st_mtime_ns)


@contextmanager
def _alone(lock: Path, *, patient: bool) -> Iterator[bool]:
    """Whether this process is the only one here; the lock goes with the process, however that ends."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if patient else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


if __name__ == "__main__":
    if sys.argv[1:] != [NOW]:
        os.nice(19)
        time.sleep(WAIT_SECONDS)
    elif not archive_path(find_java()).exists():
        print("Preparing Spark's classes, once, so that Java starts in half the time: a minute ...", flush=True)
    make(patient=sys.argv[1:] == [NOW])
