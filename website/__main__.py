"""Build the documentation site in `site`: `make docs`. A warning, such as a broken link, fails the build."""

import shutil
import sys
import time
from pathlib import Path

from sphinx.cmd.build import main as sphinx

from website.llms import copy_pages, write_lists
from website.pages import ROOT, BrokenLink, Entry, Section, add_navigation, draw_diagrams, sections, write_pages
from website.reference import write_reference

BUILD = ROOT / "build" / "website"
PAGES = BUILD / "pages"
SITE = ROOT / "site"


def main() -> int:
    """Build the site from an empty folder, and return the exit code."""
    started = time.monotonic()
    for folder in (BUILD, SITE):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    try:
        write_pages(PAGES)
    except BrokenLink as error:
        print(error, file=sys.stderr)
        return 1
    generated = write_reference(PAGES)
    navigation = complete(sections(), generated)
    copy_pages(PAGES, SITE, navigation)
    draw_diagrams(PAGES)
    add_navigation(PAGES, navigation)
    api = [entry.path for entry in generated if entry.path.startswith("reference/api/")]
    code = run_sphinx("html", SITE) or run_sphinx("text", BUILD / "text", *(PAGES / path for path in api))
    if code == 0:
        for path in api:
            shutil.copyfile((BUILD / "text" / path).with_suffix(".txt"), SITE / path)
        write_lists(SITE, navigation)
        pages = sum(1 for _ in SITE.rglob("*.html"))
        print(f"{SITE.name}/index.html and {pages - 1} more pages, in {time.monotonic() - started:.0f} s")
    return code


def complete(navigation: list[Section], generated: list[Entry]) -> list[Section]:
    """Return the navigation with the generated pages at the end of the reference, and with the changelog."""
    found = [
        Section(section.title, section.entries + (tuple(generated) if section.title == "Reference" else ()))
        for section in navigation
    ]
    return [*found, Section("Changelog", (Entry("Changelog", "changelog.md", "changes in each version"),))]


def run_sphinx(builder: str, target: Path, *files: Path) -> int:
    """Run one of Sphinx's builders, with warnings as errors, for all pages or the given ones."""
    options = ["-q", "-j", "auto", "-W", "--keep-going", "-c", str(ROOT / "website"), "-d", str(BUILD / "doctrees")]
    return int(sphinx(["-b", builder, *options, str(PAGES), str(target), *map(str, files)]))


if __name__ == "__main__":
    sys.exit(main())
