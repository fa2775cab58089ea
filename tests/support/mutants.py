"""A mutation check: changes one operator, constant or branch of the core at a time, and runs the matching tests.

If `PENSTOCK_MUTANT` names a mutant, importing this module before all others replaces the mutant's module. Run as a
program, it samples mutants, runs the tests of each, and prints the mutants that no test detected.
"""

import argparse
import ast
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "PENSTOCK_MUTANT"
SAMPLE = 200
PROCESSES = 2
# Time limit of a mutant's tests, as a multiple of the normal time. A mutant that exceeds it loops or hangs: detected.
PATIENCE = 4.0
LEAST_SECONDS = 30.0
PASSED = 0
RUN = "import sys, tests.support.mutants, pytest; sys.exit(pytest.main(sys.argv[1:]))"
TOO_LATE = "was imported before it could be changed"

STORE = ("tests/store/test_sqlite.py",)
STREAMS = (
    *("tests/streams/test_watermarks.py", "tests/streams/test_engine.py", "tests/streams/test_timers.py"),
    *("tests/streams/test_windows.py", "tests/streams/test_situations.py", "tests/streams/test_batch_handlers.py"),
    *("-k", "not postgresql and not rocksdb"),
)
TESTS: dict[str, Sequence[str]] = {
    "penstock.model.lifecycle": ("tests/core", *STORE),
    "penstock.model.retry": ("tests/core", "tests/publish/test_dispatch.py"),
    "penstock.publish.dispatch.dispatch": ("tests/publish/test_dispatch.py",),
    "penstock.store.sql.store": STORE,
    "penstock.store.sql.multi_statement": STORE,
    "penstock.store.sql.outcome_rows": STORE,
    "penstock.store.sql.verbs.settle": STORE,
    "penstock.store.sql.sqlite.dialect": STORE,
    "penstock.store.sql.sqlite.statements": STORE,
    "penstock.streams.engine.watermarks": STREAMS,
    "penstock.streams.engine.work": STREAMS,
    "penstock.streams.engine.timer_work": STREAMS,
    "penstock.streams.engine.partition": STREAMS,
}

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
# For SQL statements, which contain the conditions of a claim, a settle and a reap.
SQL = {
    " <= ": " < ",
    " < ": " <= ",
    " >= ": " > ",
    " > ": " >= ",
    " <> ": " = ",
    " AND ": " OR ",
    " OR ": " AND ",
    "NOT EXISTS": "EXISTS",
    "EXISTS": "NOT EXISTS",
    "IS NULL": "IS NOT NULL",
    "IS NOT NULL": "IS NULL",
    " + 1": " + 2",
    " - 1": " - 2",
    "max(": "min(",
    "min(": "max(",
    " DESC": "",
    "WHERE NOT ": "WHERE ",
}
SQL_OPERATOR = re.compile("|".join(map(re.escape, sorted(SQL, key=len, reverse=True))))


class Mutator(ast.NodeTransformer):
    """Applies the change with the chosen number; without a number, only counts the possible changes."""

    def __init__(self, chosen: int | None = None, *, sql: bool = False) -> None:
        self.count = 0
        self.change = ""
        self._chosen = chosen
        self._sql = sql

    def _mutate(self, node: ast.expr, mutant: ast.expr) -> ast.expr:
        """Return the mutant of a node if its number is the chosen one."""
        self.count += 1
        if self.count - 1 != self._chosen:
            return node
        before, after = ast.unparse(node), ast.unparse(ast.fix_missing_locations(ast.copy_location(mutant, node)))
        self.change = f"line {node.lineno}: {before}  →  {after}"
        return mutant

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        other = COMPARISONS[type(node.ops[0])]()
        return self._mutate(node, ast.Compare(node.left, [other, *node.ops[1:]], node.comparators))

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if type(node.op) not in OPERATORS:
            return node
        return self._mutate(node, ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return self._mutate(node, ast.BoolOp(other, node.values))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return self._mutate(node, node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        match node.value:
            case bool():
                return self._mutate(node, ast.Constant(not node.value))
            case int() | float():
                return self._mutate(node, ast.Constant(node.value + 1))
            case str() if self._sql:
                return self._mutate_sql(node, node.value)
        return node

    def _mutate_sql(self, node: ast.Constant, text: str) -> ast.expr:
        """Return a statement with the chosen operator changed."""
        mutant: ast.expr = node
        for found in SQL_OPERATOR.finditer(text):
            changed = text[: found.start()] + SQL[found[0]] + text[found.end() :]
            self.count += 1
            if self.count - 1 == self._chosen:
                near = " ".join(text[max(0, found.start() - 40) : found.end() + 40].split())
                self.change = f"line {node.lineno}: {found[0].strip()}  →  {SQL[found[0]].strip()} in: {near}"
                mutant = ast.copy_location(ast.Constant(changed), node)
        return mutant

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        """Skip docstrings."""
        return node if isinstance(node.value, ast.Constant) else self._visit_fields(node)

    def _visit_fields(self, node: ast.Expr) -> ast.Expr:
        self.generic_visit(node)
        return node

    def visit_If(self, node: ast.If) -> ast.stmt:
        if ast.unparse(node.test) == "TYPE_CHECKING":
            return node
        self.generic_visit(node)
        self.count += 1
        if self.count - 1 != self._chosen:
            return node
        self.change = f"line {node.lineno}: if {ast.unparse(node.test)}  →  if the opposite"
        return ast.If(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.body = [self.visit(statement) for statement in node.body]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.args = self.visit(node.args)
        node.body = [self.visit(statement) for statement in node.body]
        return node


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change to one module."""

    module: str
    number: int

    @property
    def tree(self) -> tuple[ast.Module, str]:
        """The changed module, and a description of the change."""
        mutator = mutator_of(self.module, self.number)
        tree = ast.fix_missing_locations(mutator.visit(ast.parse(source_of(self.module).read_text())))
        return tree, mutator.change

    def __str__(self) -> str:
        return f"{self.module}:{self.number}"


def mutator_of(module: str, chosen: int | None = None) -> Mutator:
    return Mutator(chosen, sql=module.endswith(".statements"))


def source_of(module: str) -> Path:
    return Path(__file__).resolve().parents[2] / "src" / f"{module.replace('.', '/')}.py"


# The import hook, in the process that runs the tests.


class _Finder(MetaPathFinder):
    """Finds the mutated module; leaves all other modules to the usual finders."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._mutant.module:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None
        spec.loader = _Loader(self._mutant)
        return spec


class _Loader(SourceLoader):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def get_filename(self, fullname: str) -> str:
        return str(source_of(fullname))

    def get_data(self, path: Any) -> bytes:
        return Path(path).read_bytes()

    def get_code(self, fullname: str) -> Any:
        return compile(self._mutant.tree[0], self.get_filename(fullname), "exec", dont_inherit=True)


if chosen := os.environ.get(VARIABLE):
    name, _, number = chosen.rpartition(":")
    assert name not in sys.modules, f"{name} {TOO_LATE}"
    sys.meta_path.insert(0, _Finder(Mutant(name, int(number))))


# The program.


def mutants() -> Iterator[Mutant]:
    for module in TESTS:
        mutator = mutator_of(module)
        mutator.visit(ast.parse(source_of(module).read_text()))
        yield from (Mutant(module, number) for number in range(mutator.count))


def survives(mutant: Mutant | None, module: str, seconds: float | None = None) -> bool:
    """Run the tests of a module with a mutant. Return True if all tests pass in time."""
    command = [sys.executable, "-c", RUN, "-x", "-q", "-n0", *TESTS[module]]
    environment = {**os.environ, VARIABLE: "" if mutant is None else str(mutant), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ran = subprocess.run(command, env=environment, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return False
    assert TOO_LATE.encode() not in ran.stderr, ran.stderr.decode()
    return ran.returncode == PASSED


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=SAMPLE, help="Number of mutants; default 200.")
    parser.add_argument("--seed", type=int, default=1, help="Seed of the sample; default 1.")
    parser.add_argument(
        "--only", metavar="MODULE", help="Mutants of this module alone, such as penstock.model.lifecycle."
    )
    given = parser.parse_args(arguments)
    found = [mutant for mutant in mutants() if given.only in (None, mutant.module)]
    sample = random.Random(given.seed).sample(found, min(given.sample, len(found)))
    started = time.monotonic()
    survivors = list(_survivors(sample, _time_limits(dict.fromkeys(mutant.module for mutant in sample))))
    for mutant in sorted(survivors, key=str):
        print(f"survived {mutant}: {mutant.tree[1]}")
    share = 100 * (1 - len(survivors) / len(sample))
    minutes = (time.monotonic() - started) / 60
    print(f"{len(sample)} of {len(found)} mutants, {share:.1f} % killed, {minutes:.0f} minutes (seed {given.seed})")


def _time_limits(modules: Iterable[str]) -> dict[str, float]:
    """Run the tests without any change. Return the time limit of each module's tests in seconds."""
    limits: dict[str, float] = {}
    for module in modules:
        started = time.monotonic()
        if not survives(None, module):
            sys.exit(f"the tests of {module} fail without any change: {' '.join(TESTS[module])}")
        limits[module] = LEAST_SECONDS + PATIENCE * (time.monotonic() - started)
    return limits


def _survivors(sample: Sequence[Mutant], limits: Mapping[str, float]) -> Iterator[Mutant]:
    with ThreadPoolExecutor(PROCESSES) as pool:
        results = pool.map(lambda mutant: survives(mutant, mutant.module, limits[mutant.module]), sample)
        for place, (mutant, survived) in enumerate(zip(sample, results, strict=True), 1):
            print(f"{place} of {len(sample)}: {mutant} {'survived' if survived else 'killed'}", flush=True)
            if survived:
                yield mutant


if __name__ == "__main__":
    main()
