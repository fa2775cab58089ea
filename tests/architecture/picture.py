"""Mermaid diagrams of the imports: a flow chart of all packages, and a flow chart of the packages in the pipeline."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.architecture import imports

GroupOf = Callable[[str], str | None]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "architecture.md"
BEGIN = "<!-- Written by `make architecture`. -->"
END = "<!-- End of the written part. -->"
BLOCK = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)


def package_of(module: str) -> str | None:
    """Return the node of a module in the diagram of all packages: the first part of its name below `penstock`."""
    if module in ("penstock", "penstock.__main__"):
        return None
    return "web.server" if module in server() else module.split(".")[1]


@cache
def server() -> set[str]:
    """Return the modules of `web` that stores import. The other modules import stores, so one node would be a cycle."""
    stores = [module for module in imports.modules() if module.startswith("penstock.store.")]
    used = set[str]().union(*(imports.modules()[module] for module in stores))
    return {name for name in used if name.startswith("penstock.web.")}


def pipeline_part_of(module: str) -> str | None:
    """Return the node of a module in the diagram of the pipeline."""
    name = module.removeprefix("penstock.pipeline.")
    return None if name == module else name.split(".")[0]


def chart(graph: imports.Graph) -> str:
    """Return the flow chart of a graph, with arrows from the importing node. Nodes without edges are omitted."""
    left = imports.reduced(graph)
    edges = [f"    {name} --> {other}" for name in sorted(left) for other in sorted(left[name])]
    return "\n".join(["```mermaid", "flowchart TD", *edges, "```"])


def block() -> str:
    """Return the generated block of the page."""
    packages = imports.grouped(imports.modules(), package_of)
    pipeline = imports.grouped(imports.modules(), pipeline_part_of)
    return "\n\n".join(
        [BEGIN, "Imports between packages:", chart(packages), "Imports inside `pipeline/`:", chart(pipeline), END]
    )


def written() -> str:
    """Return the generated block that the page contains; empty if the page has none."""
    found = BLOCK.search(PAGE.read_text())
    return found[0] if found else ""


def write() -> None:
    """Replace the generated block of the page."""
    PAGE.write_text(BLOCK.sub(lambda _: block(), PAGE.read_text()))
