"""Links of README, CHANGELOG, CONTRIBUTING and the pages under docs: every target file and every heading exists.

The files that CONTRIBUTING lists exist as well. README links to our repository on GitHub, so that the links also work
on PyPI; these links are checked as local files.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob(".github/**/*.md")])
OWN_URL = re.compile(r"https://github\.com/penstock/penstock/(?:blob|tree)/main/")
OTHER_URL = re.compile(r"[a-z][a-z0-9+.-]*:")
FENCE = re.compile(r"^ *(```|~~~).*?^ *\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(.+?)\1")
LINK = re.compile(r"\]\(<?([^)\s>]+)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
LISTED_FILE = re.compile(r"`((?:src|tests|docs|services|examples)/[^`<> ]+)`")
NAMED_ANCHOR = re.compile(r"<a\s[^>]*?(?:id|name)=\"([^\"]+)\"")


def links(text: str) -> list[str]:
    """Return the targets of all links outside code."""
    prose = CODE.sub("code", FENCE.sub("", text))
    return ["".join(match.groups("")) for match in LINK.finditer(prose)]


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub generates for the headings of a page, and explicit anchors."""
    prose = FENCE.sub("", text)
    seen: Counter[str] = Counter()
    found = set(NAMED_ANCHOR.findall(prose))
    for heading in HEADING.findall(prose):
        name = slug(heading)
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def slug(heading: str) -> str:
    """Return a heading's anchor: lower case, a hyphen for each space, no punctuation except hyphens and underscores."""
    shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")


@cache
def anchors_of(page: Path) -> set[str]:
    return anchors(page.read_text())


def dead_links(page: Path) -> Iterator[str]:
    for link in links(page.read_text()):
        target, own = OWN_URL.subn("", link)
        if not own and OTHER_URL.match(target):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT if own else page.parent) / path if path else page
        if not file.exists():
            yield f"{link}: no such file"
        elif anchor and not (file.is_file() and anchor in anchors_of(file)):
            yield f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    assert list(dead_links(page)) == []


def test_readme_links_are_absolute() -> None:
    """PyPI shows README without the repository's files."""
    relative = [link for link in links((ROOT / "README.md").read_text()) if not re.match(r"https://|#", link)]
    assert relative == []


def test_repository_address_equals_package_metadata() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        changelog = tomllib.load(file)["project"]["urls"]["Changelog"]
    assert OWN_URL.sub("", changelog) == "CHANGELOG.md"


def test_index_lists_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / link.partition("#")[0]).resolve() for link in links(index.read_text())}
    pages = {path for path in PAGES if path.is_relative_to(index.parent)} - {index}
    assert sorted(str(page.relative_to(ROOT)) for page in pages - listed) == []


def test_files_listed_for_contributors_exist() -> None:
    listed = LISTED_FILE.findall((ROOT / "CONTRIBUTING.md").read_text())
    assert len(listed) > 50
    assert [name for name in listed if not (ROOT / name).exists()] == []


def test_links_in_code_are_ignored() -> None:
    text = "[a](b.md#c) [d](https://e) ![f](g.png)\n\n```\n[x](y)\n```\n`[x](y)` [`i`](j.md)\n[h]: k/l.md"
    assert links(text) == ["b.md#c", "https://e", "g.png", "j.md", "k/l.md"]


@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ("How fast", "how-fast"),
        ("Webhooks: `https://` and `http://`", "webhooks-https-and-http"),
        ("What happens when …", "what-happens-when-"),
        ("The `event_id`, and [links](x.md)", "the-event_id-and-links"),
        ("Größe & Zeit", "größe--zeit"),
    ],
)
def test_slugs_follow_github(heading: str, expected: str) -> None:
    assert slug(heading) == expected


def test_repeated_headings_are_numbered() -> None:
    assert anchors('# A\n## B\n## B\n```\n# C\n```\n<a id="d"></a>') == {"a", "b", "b-1", "d"}
