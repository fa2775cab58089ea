"""Report of a benchmark run, as a table or as JSON."""

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.plan import Figure, Measured, Part, Plan

PACKAGES = ("penstock", "pyspark", "psycopg", "pgqueuer", "asyncpg")


@dataclass(frozen=True, slots=True)
class Report:
    """Plan, environment and results of a run."""

    plan: Plan
    machine: Mapping[str, Any]
    settings: Mapping[str, str]
    parts: Mapping[Part, Measured]
    seconds: float

    @property
    def figures(self) -> list[Figure]:
        return [figure for part in self.parts.values() for figure in part.figures]

    def to_json(self) -> str:
        return json.dumps(
            {
                "machine": self.machine,
                "postgresql": self.settings,
                "plan": asdict(self.plan),
                "figures": documents(self.figures),
                "details": {str(part): measured.details for part, measured in self.parts.items()},
                "seconds": round(self.seconds, 1),
            },
            indent=2,
        )

    def to_text(self) -> str:
        machine = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self.machine.items())
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        return "\n".join([*table(self.figures), "", f"Machine: {machine}", f"PostgreSQL: {settings}"])


def documents(figures: Iterable[Figure]) -> list[dict[str, Any]]:
    """Return the figures for JSON."""
    return list(map(_document, figures))


def table(figures: Iterable[Figure]) -> list[str]:
    """Return the lines of a Markdown table of the figures."""
    return _table([("", "measured", "target", "reached"), *map(_row, figures)])


def describe_machine() -> dict[str, Any]:
    """Describe the machine, and the versions of the packages in the relay's benchmarks."""
    return {**describe(), **{name: version(name) for name in PACKAGES}}


def describe() -> dict[str, Any]:
    """Describe the machine."""
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(aliased=True),
        "python": platform.python_version(),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _document(figure: Figure) -> dict[str, Any]:
    return {
        "name": figure.name,
        "value": figure.value,
        "unit": figure.unit,
        "target": None if figure.target is None else figure.target.limit,
        "at_least": None if figure.target is None else figure.target.at_least,
        "reached": figure.reached,
    }


def _row(figure: Figure) -> tuple[str, str, str, str]:
    target = "" if figure.target is None else f"{'≥' if figure.target.at_least else '≤'} {figure.target.limit:g}"
    reached = {None: "", True: "yes", False: "NO"}[figure.reached]
    return figure.name, f"{_digits(figure.value)} {figure.unit}", target, reached


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table with padded columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    first, *others = (_line(row, widths) for row in rows)
    return [first, rule, *others]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"
