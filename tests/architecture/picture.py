"""The picture of the imports as Mermaid: one flow chart of all packages, one of the packages inside the pipeline."""

import re
from collections.abc import Callable
from pathlib import Path

from tests.architecture import imports

GroupOf = Callable[[str], str | None]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "architecture.md"
BEGIN = "<!-- Written by `make architecture`. -->"
END = "<!-- End of the written part. -->"
BLOCK = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)

# Stores import these modules of `web`, whose other modules import stores: one node would close a cycle.
SERVER = {"web.server", "web.guard"}


def package_of(module: str) -> str | None:
    """Return the node of a module in the picture of all packages: the first part of its name below `penstock`."""
    name = module.removeprefix("penstock.")
    if module == "penstock" or name == "__main__":
        return None
    return "web.server" if name in SERVER else name.split(".")[0]


def pipeline_part_of(module: str) -> str | None:
    """Return the node of a module in the picture of the pipeline."""
    name = module.removeprefix("penstock.pipeline.")
    return None if name == module else name.split(".")[0]


def chart(graph: imports.Graph) -> str:
    """Return the flow chart of a graph, from the importing to the imported, without nodes that have no edge."""
    left = imports.reduced(graph)
    edges = [f"    {name} --> {other}" for name in sorted(left) for other in sorted(left[name])]
    return "\n".join(["```mermaid", "flowchart TD", *edges, "```"])


def block() -> str:
    """Return the written part of the page."""
    packages = imports.grouped(imports.modules(), package_of)
    pipeline = imports.grouped(imports.modules(), pipeline_part_of)
    return "\n\n".join(
        [BEGIN, "Imports between packages:", chart(packages), "Imports inside `pipeline/`:", chart(pipeline), END]
    )


def written() -> str:
    """Return the part as it stands in the page; empty if the page has none."""
    found = BLOCK.search(PAGE.read_text())
    return found[0] if found else ""


def write() -> None:
    """Write the part of the page anew."""
    PAGE.write_text(BLOCK.sub(lambda _: block(), PAGE.read_text()))
