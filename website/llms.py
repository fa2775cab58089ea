"""Texts for language models, next to the site's pages: llms.txt (https://llmstxt.org), llms-full.txt and Markdown."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from website.pages import Section

SUMMARY = "Penstock delivers events from a database transaction to brokers, handlers, a data lake and stateful streams."


def copy_pages(folder: Path, site: Path, navigation: list[Section]) -> None:
    """Copy each page to the site as Markdown."""
    for section in navigation:
        for entry in section.entries:
            (site / entry.path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / entry.path, site / entry.path)


def write_lists(site: Path, navigation: list[Section]) -> None:
    """Write llms.txt, which lists the pages, and llms-full.txt, which contains them."""
    (site / "llms.txt").write_text("\n".join(_list(navigation)))
    paths = [entry.path for section in navigation for entry in section.entries]
    (site / "llms-full.txt").write_text(
        "\n\n".join(f"<!-- {path} -->\n\n{(site / path).read_text()}" for path in paths)
    )


def _list(navigation: list[Section]) -> Iterator[str]:
    yield f"# Penstock\n\n> {SUMMARY}"
    for section in navigation:
        yield f"\n## {section.title}\n"
        for entry in section.entries:
            yield f"- [{entry.title}]({entry.path})" + (f": {entry.note}" if entry.note else "")
    yield ""
