"""Rules that the source tree keeps."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import compensate

SOURCE = Path(compensate.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
LONGEST = 1000
BRITISH = re.compile(
    r"(?i)colour|behaviour|neighbour|centre|labelled|catalogue|"
    r"(general|initial|maxim|minim|normal|optim|parameter|penal|random|regular|standard|summar|token)is(e|ing|ation)"
)
"""Spellings that names do not have; torch and scikit-learn do not have them either."""

INNER = ["errors", "core", "methods", "training", "auditing", "cli"]
"""Each may import those before it, and none that come after."""


def module_of(path: Path) -> str:
    return ".".join(("compensate", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {module_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def imported(tree: ast.Module) -> set[str]:
    """The modules that are imported as the file is read: not within functions, not for type checkers."""
    found = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inner & MODULES.keys()) or {node.module}
    return found & MODULES.keys()


GRAPH = {name: imported(tree) - {name} for name, tree in MODULES.items()}


def test_no_import_goes_in_a_circle():
    assert len(GRAPH) > 150
    assert len(list(TopologicalSorter(GRAPH).static_order())) == len(GRAPH)


def test_inner_rooms_do_not_import_outer_ones():
    for name, wanted in GRAPH.items():
        rooms = [module.split(".")[1] for module in (name, *wanted) if "." in module]
        if name != "compensate" and rooms[0] in INNER:
            outer = INNER[INNER.index(rooms[0]) + 1 :]
            assert not set(rooms[1:]) & set(outer), f"{name} imports {set(rooms[1:]) & set(outer)}"


def test_no_file_is_longer_than_can_be_kept_in_mind():
    long = {path.name: size for path in FILES if (size := len(path.read_text(encoding="utf-8").splitlines())) > LONGEST}
    assert not long, f"more than {LONGEST} lines: split by idea"


def test_names_have_american_spelling():
    for name, tree in MODULES.items():
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        defined |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        defined |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | {name}
        found = {word for word in defined if BRITISH.search(word)}
        assert not found, name
