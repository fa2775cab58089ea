"""The rules of this repository that no linter knows, as tests: see each one's name."""

import ast
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULE_LINES = 700  # 400 is the alarm: split where there is a noun for the new half
FUNCTION_LINES = 40
NAMELESS = {"util", "utils", "helper", "helpers", "manager", "managers"}
GENERATED = re.compile(
    r"\.git|\.venv|__pycache__|build|dist|spark-warehouse|metastore_db|\..+_cache|\.hypothesis|.+\.egg-info"
)

# Functions that may be longer, as "path::name": why. Keep it short.
LONGER: dict[str, str] = {}

# The brackets keep these patterns from finding themselves.
UNFINISHED = re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X])\b")
MACHINE_PATH = re.compile(r"(?<![\w.~}\])-])/(?:roo[t]\b|wor[k]/|hom[e]/\w|User[s]/\w)")


@cache
def files() -> tuple[Path, ...]:
    """What belongs to the repository, from its root: what git has or would take, else all but the generated."""
    listed = _files_of_git() or _files_of_folder(ROOT)
    return tuple(sorted(path.relative_to(ROOT) for path in listed if path.is_file()))


def _files_of_git() -> list[Path]:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        return []
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return [ROOT / name for name in listing.stdout.split("\0") if name]


def _files_of_folder(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            if not GENERATED.fullmatch(path.name):
                yield from _files_of_folder(path)
        else:
            yield path


def modules() -> list[Path]:
    return [path for path in files() if path.suffix == ".py"]


def texts() -> Iterator[tuple[Path, str]]:
    for path in files():
        content = (ROOT / path).read_bytes()
        if b"\0" not in content:
            yield path, content.decode(errors="replace")


def source(path: Path) -> str:
    return (ROOT / path).read_text()


def found(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(path) for path in modules() if len((ast.get_docstring(ast.parse(source(path))) or "").split()) < 2]
    assert silent == []


def test_modules_stay_short() -> None:
    lengths = {str(path): len(source(path).splitlines()) for path in modules()}
    assert {path: length for path, length in lengths.items() if length > MODULE_LINES} == {}


def test_functions_stay_short() -> None:
    lengths = {
        f"{path}::{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in modules()
        for node in ast.walk(ast.parse(source(path)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: length for name, length in lengths.items() if length > FUNCTION_LINES and name not in LONGER} == {}


def test_modules_have_names_that_say_something() -> None:
    nameless = [str(path) for path in modules() for part in path.with_suffix("").parts if NAMELESS & {*part.split("_")}]
    assert nameless == []


def test_nothing_is_marked_unfinished() -> None:
    assert found(UNFINISHED) == []


def test_no_path_of_one_machine_is_written_down() -> None:
    assert found(MACHINE_PATH) == []


def test_the_changelog_has_a_place_for_what_is_next() -> None:
    assert re.search(r"^## \[Unreleased\]$", source(Path("CHANGELOG.md")), re.MULTILINE)


def test_the_patterns_find_what_they_are_for() -> None:
    assert UNFINISHED.search("# TO" + "DO: later")
    assert MACHINE_PATH.search("cd /ro" + "ot/penstock")
    assert MACHINE_PATH.search("file:///ho" + "me/someone/events")
    assert not MACHINE_PATH.search("tasks/wor" + "k/1 and ~/wor" + "k/x and /var/lib")


def test_every_module_of_tests_has_a_name_of_its_own() -> None:
    """Pytest imports them by their names alone, and stumbles over a second one only when both are run."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
