"""The architecture page matches the code: its diagrams, its tree, and the modules that it names."""

import re

import pytest

from tests.architecture import imports, picture, tree

MODULE = re.compile(r"`([\w/]+(?:/|\.py))`")


def test_diagrams_show_existing_imports() -> None:
    if picture.written() != picture.block():
        pytest.fail("the imports changed; write the picture anew with `make architecture`", pytrace=False)


@pytest.mark.parametrize("group_of", [picture.package_of, picture.pipeline_part_of])
def test_packages_have_no_import_cycles(group_of: picture.GroupOf) -> None:
    packages = imports.grouped(imports.modules(), group_of)
    assert [" -> ".join(cycle) for cycle in imports.cycles(packages)] == []


def test_tree_lists_every_package_once() -> None:
    shown, on_disk = tree.shown(), tree.on_disk()
    assert sorted(shown) == sorted(set(shown))
    assert set(shown) - set(on_disk) == set(), "remove them from the tree in docs/internals/architecture.md"
    assert set(on_disk) - set(shown) == set(), "add them to the tree in docs/internals/architecture.md"


def test_modules_named_on_page_exist() -> None:
    named = MODULE.findall(picture.PAGE.read_text())
    assert len(named) > 10
    roots = [tree.PACKAGE, *tree.PACKAGE.parents[:2]]
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []
