"""Rules of the source tree: the order of packages, sizes, types and spelling."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import compensate

SOURCE = Path(compensate.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

LAYERS = [
    {"errors", "_version"},
    {"files", "extras"},
    {"core", "data"},
    {"terms", "encoders", "models"},
    {"methods"},
    {"training"},
    {"auditing"},
    {"plots", "estimators", "integrations"},
    {"demo"},
    {"cli"},
    {"__main__"},
]
"""A package imports itself and packages of earlier layers."""
APART = [({"core", "terms", "methods"}, {"data", "encoders", "models"}), ({"data"}, {"core", "terms", "methods"})]
"""Packages of the first set import none of the second, whatever their layers."""

LONGEST = 1_000
FILES_AT_MOST, LINES_AT_MOST = 143, 38_560
"""The budget of the package; lower it with the code. A new capability may raise it by the lines that it earns."""
BRITISH = re.compile(
    r"(?i)colour|behaviour|neighbour|centre|labelled|catalogue|"
    r"(general|initial|maxim|minim|normal|optim|parameter|penal|random|regular|standard|summar|token)is(e|ing|ation)"
)
"""Spellings that torch and scikit-learn do not use either."""


def module_of(path: Path) -> str:
    return ".".join(("compensate", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {module_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes, those inside functions too, without imports for type checkers."""
    for child in ast.iter_child_nodes(node):
        checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        for part in child.orelse if checking else [child]:
            yield part
            yield from statements(part)


def imported(tree: ast.Module) -> set[str]:
    modules = set()
    for node in statements(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            modules |= (inner & MODULES.keys()) or {node.module}
    return modules & MODULES.keys()


GRAPH = {name: imported(tree) - {name} for name, tree in MODULES.items()}


def package(module: str) -> str:
    return module.split(".")[1]


def layer(module: str) -> int:
    return next(number for number, packages in enumerate(LAYERS) if package(module) in packages)


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_no_import_cycle():
    """With imports inside functions."""
    try:
        assert len(list(TopologicalSorter(GRAPH).static_order())) == len(GRAPH)
    except CycleError as error:
        pytest.fail(f"cycle: {' -> '.join(error.args[1])}")


def test_imports_follow_the_order_of_packages():
    against = set()
    for name, wanted in GRAPH.items():
        for other in wanted - {"compensate"}:
            if name == "compensate" or package(name) == package(other):
                continue
            apart = any(package(name) in first and package(other) in second for first, second in APART)
            if apart or layer(other) >= layer(name):
                against.add((name.removeprefix("compensate."), other.removeprefix("compensate.")))
    assert not against


def test_no_file_is_too_long():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert not {path.name: length for path, length in lengths.items() if length > LONGEST}
    assert len(FILES) <= FILES_AT_MOST
    assert sum(lengths.values()) <= LINES_AT_MOST


def test_audits_are_built_in_one_module():
    places = {name for name, tree in MODULES.items() for function, _ in calls(tree) if function == "Audit"}
    assert len(places) == 1, places


def test_info_and_config_are_types():
    """Fields are attributes, not strings that index a dictionary."""
    for name, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                keyed = ast.unparse(node.value).split(".")[-1] in ("info", "config") and isinstance(
                    node.slice.value, str
                )
                assert not keyed, f"{name}, line {node.lineno}: {ast.unparse(node)}"


def test_names_have_american_spelling():
    for name, tree in MODULES.items():
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        defined |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        defined |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | {name}
        assert not {word for word in defined if BRITISH.search(word)}, name


def test_nothing_is_evaluated_and_no_shell_is_started():
    for path, tree in MODULES.items():
        for name, node in calls(tree):
            assert name not in ("eval", "exec", "compile", "os.system", "os.popen"), f"{path}: {name}"
            if name == "torch.load":  # with this, torch builds tensors and nothing else
                assert any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in node.keywords), path
            assert not name.startswith(("subprocess.", "os.exec", "os.spawn", "pickle.load")), f"{path}: {name}"
            assert not any(k.arg in ("shell", "allow_pickle") and ast.unparse(k.value) == "True" for k in node.keywords)


def test_a_call_of_logcomp_enters_few_functions_and_files():
    criterion = compensate.methods.logcomp(num_samples=1000, num_classes=10)
    u, y, index = torch.randn(128, 10, requires_grad=True), torch.arange(128) % 10, torch.arange(128)
    criterion(u, y, index).backward()  # the first call finds statistics and buffers
    entered: list[tuple[str, int]] = []

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            entered.append((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    sys.setprofile(note)
    criterion(u, y, index)
    sys.setprofile(None)
    files = [file for file, _ in entered]
    assert len(set(entered)) <= 40
    assert len(set(files)) <= 7
    assert sum(a != b for a, b in pairwise(files)) <= 30


def test_an_audit_of_texts_imports_few_modules(tmp_path):
    code = """import sys, compensate
texts = [f"{'good' if k % 2 else 'bad'} film number {k}" for k in range(60)]
compensate.audit(texts, [str(k % 2) for k in range(60)], encoder="none")
print(sum(name.startswith("compensate.") for name in sys.modules))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert int(done.stdout) <= 60
