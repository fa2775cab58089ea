"""Import graph of `penstock`, lazy imports included: by module or package, its cycles and its transitive reduction."""

from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter

import grimp

Graph = dict[str, set[str]]
"""Names, each with the names that it imports."""


@cache
def modules() -> Graph:
    """Return all modules, each with the modules of the package that it imports at run time, lazily or not."""
    found = grimp.build_graph("penstock", cache_dir=None, exclude_type_checking_imports=True)
    return {module: found.find_modules_directly_imported_by(module) for module in found.modules}


def grouped(graph: Graph, group_of: Callable[[str], str | None]) -> Graph:
    """Return the imports between groups of modules. Modules of the group None are left out."""
    groups: Graph = {}
    for module, imported in graph.items():
        if group := group_of(module):
            others = {other for name in imported if (other := group_of(name)) and other != group}
            groups.setdefault(group, set()).update(others)
    return groups


def cycles(graph: Graph) -> Iterator[list[str]]:
    """Yield cycles until none is left. Each yielded cycle is broken by removing its last edge."""
    left = {name: set(imported) for name, imported in graph.items()}
    while cycle := _cycle(left):
        yield cycle
        left[cycle[-2]].discard(cycle[-1])


def _cycle(graph: Graph) -> list[str]:
    """Return one cycle in the direction of imports, its first name repeated at the end; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def reduced(graph: Graph) -> Graph:
    """Return the transitive reduction of a graph without cycles: no edge that a longer path implies."""
    below: Graph = {}
    for name in TopologicalSorter(graph).static_order():
        below[name] = graph[name].union(*(below[other] for other in graph[name]))
    return {name: others - set().union(*(below[other] for other in others)) for name, others in graph.items()}
