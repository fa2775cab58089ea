"""CPU time per event of two versions: the working tree and an earlier commit, in interleaved pairs.

Both versions run the same workloads (`benchmarks.workloads`) on one PostgreSQL, each run in a fresh database and a
fresh process. Only the ratio within a pair counts, because the machine may be shared; the median of all pairs is shown.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.cpu import cpu_seconds
from benchmarks.ground import SETTINGS, Ground, fill
from benchmarks.workloads import WORKLOADS
from penstock.model.errors import PenstockError
from tests.support.servers import PostgresServer

ROOT = Path(__file__).resolve().parent.parent
PENDING = ("relay", "worker")
# A transaction per event is slow: fewer events take the same time.
FEWER = {"emit one": 20}

Pairs = Mapping[str, Sequence[tuple[float, float]]]


def compare(base: str, events: int, pairs: int, only: Sequence[str], *, as_json: bool) -> None:
    """Measure and print CPU microseconds per event of `base` and of the working tree."""
    unknown = set(only) - set(WORKLOADS)
    if unknown:
        raise PenstockError(f"unknown workload {min(unknown)!r}; supported: {', '.join(WORKLOADS)}")
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in only or WORKLOADS}
    with _checkout(base) as earlier, PostgresServer(fsync=True, settings=SETTINGS) as server:
        ground = Ground(server)
        for number in range(1, pairs + 1):
            for name, measured in found.items():
                order = (earlier, ROOT) if number % 2 else (ROOT, earlier)
                micros = {tree: _measure(ground, tree, name, events // FEWER.get(name, 1)) for tree in order}
                measured.append((micros[earlier], micros[ROOT]))
                ground.note(f"pair {number} of {pairs}, {name}: {micros[earlier]:.1f} and {micros[ROOT]:.1f} µs")
    print(json.dumps(found, indent=2) if as_json else _table(base, found))


@contextmanager
def _checkout(base: str) -> Iterator[Path]:
    """Check `base` out into a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        _git("worktree", "add", "--quiet", "--detach", str(tree), base)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> None:
    ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if ran.returncode:
        raise PenstockError(f"git {arguments[0]} failed: {ran.stderr.strip()}")


def _measure(ground: Ground, tree: Path, name: str, events: int) -> float:
    """Return the CPU microseconds per event of the process, its children and PostgreSQL."""
    path = os.pathsep.join([str(tree / "src"), str(ROOT)])
    script = "from benchmarks.workloads import main; import sys; main(sys.argv[1], sys.argv[2], int(sys.argv[3]))"
    with ground.database() as url:
        _initialise(tree, path, url)
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", script, name, url, str(events)],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            _await(process, "ready", name, tree)
            if name in PENDING:
                fill(url, events)
            before = cpu_seconds()
            _say(process)
            _await(process, "done", name, tree)
            return 1e6 * (cpu_seconds() - before) / events
        finally:
            process.communicate("\n")


def _initialise(tree: Path, path: str, url: str) -> None:
    script = "import sys, penstock; penstock.connect(sys.argv[1]).store.initialise(); print(penstock.__file__)"
    command = [sys.executable, "-P", "-c", script, url]
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    if ran.returncode or not ran.stdout.startswith(str(tree)):
        raise PenstockError(f"cannot run the version in {tree}: {ran.stderr.strip() or ran.stdout.strip()}")


def _await(process: "subprocess.Popen[str]", word: str, name: str, tree: Path) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == word:
            return
    raise PenstockError(f"the workload {name!r} ended without a result in {tree}")


def _say(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def _table(base: str, found: Pairs) -> str:
    rows = [f"| CPU per event | {base}, µs | now, µs | ratio | of each pair |", "|---|---|---|---|---|"]
    for name, measured in found.items():
        ratios = [now / then for then, now in measured]
        then, now = (median(column) for column in zip(*measured, strict=True))
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        rows.append(f"| {name} | {then:.1f} | {now:.1f} | **{median(ratios):.2f}** | {each} |")
    return "\n".join(rows)
