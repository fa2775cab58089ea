"""Pages of `docs` as the site needs them: navigation, links that leave `docs`, and diagrams as pictures."""

import os
import re
import shutil
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
CHANGELOG = ROOT / "CHANGELOG.md"
REPOSITORY = "https://github.com/penstock/penstock"

# Links outside code: the first two alternatives match code, so that the third doesn't.
LINK = re.compile(r"^ *(```|~~~).*?^ *\1|(`+)[^\n]+?\2|\]\((?P<target>[^)\s]+)", re.MULTILINE | re.DOTALL)
SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:")
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
ENTRY = re.compile(r"^(?:\| )?\[([^\]]+)\]\(([^)\s]+\.md)\)(?:(?: \| |: )(.+?))?(?: \|)?$", re.MULTILINE)
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VIEW_BOX = re.compile(r'viewBox="\S+ \S+ (\S+) (\S+)"')


class BrokenLink(Exception):
    """A link to a file that does not exist."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A page in the navigation."""

    title: str
    path: str
    """Path in the site's folder of pages."""
    note: str = ""
    """What the page is about, from the table that lists the page."""


@dataclass(frozen=True, slots=True)
class Section:
    """A group of pages in the navigation."""

    title: str
    entries: tuple[Entry, ...]


def sources() -> dict[Path, str]:
    """Return the files that are pages of the site, with their paths in the site's folder of pages."""
    pages = {path: str(path.relative_to(DOCS)) for path in sorted(DOCS.rglob("*.md"))}
    return pages | {INDEX: "index.md", CHANGELOG: "changelog.md"}


def sections() -> list[Section]:
    """Return the navigation: the sections of `docs/README.md`, with the pages that these sections list."""
    _, *parts = SECTION.split(INDEX.read_text())
    return [Section(title, _entries(text)) for title, text in zip(parts[::2], parts[1::2], strict=True)]


def _entries(text: str) -> tuple[Entry, ...]:
    return tuple(Entry(title, path, note) for title, path, note in ENTRY.findall(text) if not path.startswith("../"))


def rewritten(page: Path) -> str:
    """Return the text of a page. Links to files that are not pages of the site lead to the repository."""
    return LINK.sub(lambda match: _link(page, match), page.read_text())


def _link(page: Path, match: re.Match[str]) -> str:
    target = match["target"]
    if target is None or target.startswith("#") or SCHEME.match(target):
        return match[0]
    path, hash_sign, anchor = target.partition("#")
    return f"]({_address(page, path)}{hash_sign}{anchor}"


def _address(page: Path, path: str) -> str:
    file = (page.parent / path).resolve()
    pages = sources()
    if file in pages:
        return os.path.relpath(pages[file], Path(pages[page]).parent)
    if not file.exists():
        raise BrokenLink(f"{page.relative_to(ROOT)}: no such file: {path}")
    return f"{REPOSITORY}/{'tree' if file.is_dir() else 'blob'}/main/{file.relative_to(ROOT)}"


def write_pages(folder: Path) -> None:
    """Write all pages to an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    for source, path in sources().items():
        page = folder / path
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(rewritten(source))


def add_navigation(folder: Path, navigation: list[Section]) -> None:
    """Append the tables of contents, which only the site's builder needs, to the first page."""
    with (folder / "index.md").open("a") as index:
        for section in navigation:
            paths = "\n".join(entry.path.removesuffix(".md") for entry in section.entries)
            index.write(f"\n```{{toctree}}\n:hidden:\n:caption: {section.title}\n\n{paths}\n```\n")


def draw_diagrams(folder: Path) -> None:
    """Replace each Mermaid diagram with its picture, so that the site needs neither a script nor another host."""
    for page in folder.rglob("*.md"):
        text = page.read_text()
        if DIAGRAM.search(text):
            page.write_text(DIAGRAM.sub(lambda match: f"![Diagram](/{_draw(folder, match[1])})", text))


def _draw(folder: Path, source: str) -> str:
    """Write the picture of a diagram with a size and a background of its own, and return its name."""
    import mermaidx

    svg = mermaidx.render(source, config={"htmlLabels": False, "flowchart": {"htmlLabels": False}}).svg()
    size = VIEW_BOX.search(svg)
    assert size
    svg = svg.replace('width="100%"', f'width="{size[1]}" height="{size[2]}"', 1)
    name = f"diagram-{sha256(source.encode()).hexdigest()[:12]}.svg"
    (folder / name).write_text(svg.replace("background-color: transparent", "background-color: white", 1))
    return name
