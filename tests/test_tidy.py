"""Rules of this repository that no linter checks, one test for each."""

import ast
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODULE_LINES = 700
ALARM_LINES = 400  # `make check` lists longer modules: split one if there is a noun for the new half
FUNCTION_LINES = 40
NAMELESS = {"util", "utils", "helper", "helpers", "manager", "managers"}
GENERATED = re.compile(
    r"\.git|\.venv|__pycache__|build|dist|site|spark-warehouse|metastore_db|\..+_cache|\.hypothesis|.+\.egg-info"
)

# Words that had several meanings or hid a common term: see docs/glossary.md. Their plurals are refused as well.
RETIRED = {
    *("bell", "desk", "door", "edition", "errand", "handing", "hands", "heart", "keeping", "kin", "ledger"),
    *("looking", "lull", "moment", "nobody", "somebody", "steering", "tally", "tell", "told", "trouble", "turn"),
    *("whoever", "words"),
}
RETIRED_CLASSES = {"Line", "Lines"}  # in other names, a line is a line of text

# Permitted names that contain a retired word, each with its reason. Keep it short.
LEGITIMATE: dict[str, str] = {}

# Permitted functions above the limit, as "path::name", each with its reason. Keep it short.
LONGER: dict[str, str] = {}

# The brackets prevent these patterns from matching this file.
UNFINISHED = re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X])\b")
MACHINE_PATH = re.compile(r"(?<![\w.~}\])-])/(?:roo[t]\b|wor[k]/|hom[e]/\w|User[s]/\w)")


@cache
def files() -> tuple[Path, ...]:
    """Return the repository's files, relative to its root: all but ignored ones; without git, all but generated."""
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


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(source(path))


def product() -> list[Path]:
    return [path for path in modules() if path.parts[:2] == ("src", "penstock")]


def listed(offenders: Iterable[str]) -> str:
    """Return the message of a failed rule with all offenders, which pytest would abbreviate."""
    return "\n".join(["", *offenders])


def long_modules(limit: int) -> list[str]:
    lengths = {path: len(source(path).splitlines()) for path in modules()}
    return [f"{path}: {length} lines" for path, length in lengths.items() if length > limit]


def words(name: str) -> set[str]:
    """Return the words of a name in snake case or camel case, in lower case."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def is_retired(name: str) -> bool:
    singular = {re.sub(r"ies$", "y", word).removesuffix("s") for word in words(name)}
    retired = (words(name) | singular) & RETIRED or {name.strip("_")} & RETIRED_CLASSES
    return bool(retired) and name not in LEGITIMATE


def names(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each class, function, argument, attribute and constant of a module."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        if isinstance(node, ast.ClassDef | ast.Module):
            yield from _assigned(node.body)


def _assigned(body: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    for statement in body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for node in (node for target in targets for node in ast.walk(target)):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.lineno, node.id


def classes(path: Path) -> list[ast.ClassDef]:
    return [node for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)]


def found(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()}"
        for path, text in texts()
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_every_module_has_docstring() -> None:
    silent = [str(path) for path in modules() if len((ast.get_docstring(tree(path)) or "").split()) < 2]
    assert silent == []


def test_modules_stay_short() -> None:
    found = long_modules(MODULE_LINES)
    assert found == [], listed(found)


def test_functions_stay_short() -> None:
    lengths = {
        f"{path}::{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in modules()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: length for name, length in lengths.items() if length > FUNCTION_LINES and name not in LONGER} == {}


def test_no_module_has_generic_name() -> None:
    nameless = [str(path) for path in modules() for part in path.with_suffix("").parts if NAMELESS & {*part.split("_")}]
    assert nameless == []


def test_class_names_are_unique() -> None:
    places: dict[str, list[str]] = {}
    for path in product():
        for node in classes(path):
            places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    found = [f"{name}: {', '.join(where)}" for name, where in sorted(places.items()) if len(where) > 1]
    assert found == [], listed(found)


def test_names_have_no_retired_word() -> None:
    found = [
        f"{path}:{line}: {name}"
        for path in product()
        for line, name in sorted({(1, path.stem), (1, path.parent.name), *names(tree(path))})
        if is_retired(name)
    ]
    assert found == [], listed(found)


def test_legitimate_names_exist() -> None:
    """An exception must be removed together with its name."""
    used = {name for path in product() for _, name in [(0, path.stem), *names(tree(path))]}
    assert LEGITIMATE.keys() - used == set()


def test_nothing_is_marked_unfinished() -> None:
    assert found(UNFINISHED) == []


def test_no_file_contains_machine_path() -> None:
    assert found(MACHINE_PATH) == []


def test_changelog_has_unreleased_section() -> None:
    assert re.search(r"^## \[Unreleased\]$", source(Path("CHANGELOG.md")), re.MULTILINE)


def test_patterns_match_intended_texts() -> None:
    assert UNFINISHED.search("# TO" + "DO: later")
    assert MACHINE_PATH.search("cd /ro" + "ot/penstock")
    assert MACHINE_PATH.search("file:///ho" + "me/someone/events")
    assert not MACHINE_PATH.search("tasks/wor" + "k/1 and ~/wor" + "k/x and /var/lib")


def test_retired_words_are_found_in_all_kinds_of_names() -> None:
    code = (
        "class Bell:\n    told = 1\nasync def f(door, *, _turns):\n    self.doors = lull = 0\nTROUBLE_A, b = 0, words"
    )
    retired = {name for _, name in names(ast.parse(code)) if is_retired(name)}
    assert retired == {"Bell", "told", "door", "_turns", "doors", "TROUBLE_A"}
    assert [
        name for name in ("returned", "MyHeartbeat", "word", "LINES", "LineReader", "line") if is_retired(name)
    ] == []
    assert is_retired("_Line")
    assert words("HTTPLine_of2Texts") == {"http", "line", "of", "texts"}


def test_base_names_of_test_modules_are_unique() -> None:
    """Pytest imports test modules by base name alone, and fails on a duplicate only if both modules run."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


if __name__ == "__main__":
    for module in long_modules(ALARM_LINES):
        print(f"  more than {ALARM_LINES} lines: {module}")
