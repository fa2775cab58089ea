"""Configuration of Sphinx for the documentation site."""

import inspect
import re
from typing import Any

import penstock

project = "Penstock"
release = penstock.__version__
author = copyright = "the Penstock contributors"
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 6

html_theme = "furo"
html_title = project
html_copy_source = False
html_show_sphinx = False
smartquotes = False  # they would turn the hyphens of --option into a dash

default_role = "code"
# Members of Penstock's own base classes are described; those of the bases named here are not.
autodoc_default_options = {"members": True, "inherited-members": "object, str, tuple, Enum, BaseException, Protocol"}
autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
add_module_names = False
python_use_unqualified_type_names = True

CODE = re.compile(r"(`+)([^`]+)\1")
# Docstrings that Python writes for named tuples.
AUTOMATIC = re.compile(r"Alias for field number|Create new instance of|Initialize self\.")


def to_rst(_app: Any, _kind: str, _name: str, value: Any, _options: Any, lines: list[str]) -> None:
    """Turn the Markdown of a docstring into reStructuredText: code in a line, and indented blocks of code.

    Docstrings that the authors of Penstock did not write are left out.
    """
    if "\n".join(lines).strip() == inspect.getdoc(type(value)):
        lines.clear()
    found: list[str] = []
    for line in lines:
        code = line.startswith("    ")
        if code and found and not found[-1] and not (len(found) > 1 and found[-2].startswith(("    ", "::"))):
            found += ["::", ""]
        if not AUTOMATIC.match(line):
            found.append(line if code else CODE.sub(r"``\2``\\ ", line))
    lines[:] = found


def skip_tests(_app: Any, _kind: str, name: str, _value: Any, _skip: bool, _options: Any) -> bool | None:
    """Leave out the tests of the conformance suites."""
    return True if name.startswith("test_") else None


def setup(app: Any) -> None:
    """Register the functions above."""
    app.connect("autodoc-process-docstring", to_rst)
    app.connect("autodoc-skip-member", skip_tests)
