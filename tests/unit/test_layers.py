"""The layers, kept by one test: who may import whom is the table in ARCHITECTURE.md, which is read here.

Below the drivers nothing knows a clock, a thread, a socket or Spark; what decides (model, logs, peace, core) knows no
file and no Arrow either, and walks no set, because its order would differ from run to run.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "holdfast"

#: What decides, and runs unchanged in the simulator and on real nodes.
DECIDES = ("model", "logs", "peace", "core")
PURE = ("errors", "kernelcache", *DECIDES, "state", "operators", "pipeline", "checkpoint")
IMPURE_MODULES = (
    "time",
    "threading",
    "asyncio",
    "socket",
    "selectors",
    "subprocess",
    "multiprocessing",
    "concurrent",
    "pyspark",
    "pyarrow.flight",
)
NOT_FOR_WHAT_DECIDES = (*IMPURE_MODULES, "os", "io", "pathlib", "datetime", "pyarrow", "numpy", "numba")


def layers_in(page: str) -> dict[str, set[str]]:
    """The rows `| part | what | may import |` of a page, from the bottom up."""
    rows = re.findall(r"^\| `(\w+)` \| .+? \|(.*)\|$", page, re.M)
    return {part: set(re.findall(r"`(\w+)`", below)) for part, below in rows}


LAYERS = layers_in((ROOT / "ARCHITECTURE.md").read_text().partition("## Layers")[2].partition("\n## ")[0])


def _only_for_types(tree: ast.Module) -> set[ast.AST]:
    """Everything under `if TYPE_CHECKING:`."""
    return {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }


def imports_of(source: str, package: str = "holdfast") -> Iterator[str]:
    """Full names of all that a module of this package imports, also deep inside functions."""
    tree = ast.parse(source)
    skipped = _only_for_types(tree)
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            yield from (".".join([*above, *filter(None, [node.module]), alias.name]) for alias in node.names)


def _random_globals(source: str) -> list[str]:
    """Uses of the module-wide generator of `random`; an injected `random.Random` is fine."""
    tree = ast.parse(source)
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and ast.unparse(node.value) == "random" and node.attr != "Random")
        or (isinstance(node, ast.ImportFrom) and node.module == "random" and {a.name for a in node.names} != {"Random"})
    ]


def _sets_walked(source: str) -> list[str]:
    """Loops over a set that is written down in the loop itself."""
    return [
        ast.unparse(node.iter)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.For | ast.comprehension) and isinstance(node.iter, ast.Set | ast.SetComp)
    ]


def _imports(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


def _modules(parts: tuple[str, ...] | None = None) -> list[Path]:
    found = sorted(p for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py")
    return found if parts is None else [p for p in found if _part(p) in parts]


def _part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _package(path: Path) -> str:
    return ".".join(("holdfast", *path.parent.relative_to(SOURCE).parts))


def _name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_the_table_names_every_part_of_the_tree_and_points_down():
    assert set(LAYERS) == {_part(path) for path in _modules()}
    below: set[str] = set()
    for part, allowed in LAYERS.items():
        assert allowed <= below, f"{part} stands below {allowed - below} in ARCHITECTURE.md"
        below.add(part)


@pytest.mark.parametrize("path", _modules(), ids=_name)
def test_imports_point_down(path):
    allowed = LAYERS[_part(path)] | {_part(path), "__version__"}
    for name in imports_of(path.read_text(), _package(path)):
        if _imports(name, "holdfast"):
            target = [*name.split("."), "__version__"][1]
            assert target in allowed, f"{_part(path)} may not import {name}: see Layers in ARCHITECTURE.md"


@pytest.mark.parametrize("path", _modules(PURE), ids=_name)
def test_pure_layers_know_no_clock_thread_socket_or_cluster(path):
    source = path.read_text()
    for name in imports_of(source, _package(path)):
        assert not any(_imports(name, module) for module in IMPURE_MODULES), f"a pure layer imports {name}"
    assert _random_globals(source) == [], "inject a random.Random"


@pytest.mark.parametrize("path", _modules(DECIDES), ids=_name)
def test_what_decides_knows_no_file_and_walks_no_set(path):
    source = path.read_text()
    for name in imports_of(source, _package(path)):
        assert not any(_imports(name, module) for module in NOT_FOR_WHAT_DECIDES), f"what decides imports {name}"
    assert _sets_walked(source) == []


def _only_collects(tree: ast.Module) -> bool:
    """Whether a package's own file does nothing but import names and list them."""
    return all(isinstance(node, ast.Import | ast.ImportFrom | ast.With | ast.Assign | ast.Expr) for node in tree.body)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("__init__.py")), ids=_name)
def test_every_public_name_of_a_package_is_in_its_all(path):
    tree = ast.parse(path.read_text())
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module not in ("__future__", "holdfast.kernelcache")
        for alias in node.names
    }
    package = importlib.import_module(_package(path))
    declared = list(getattr(package, "__all__", []))
    assert all(hasattr(package, name) for name in declared)
    assert len(declared) == len(set(declared))
    if _only_collects(tree):
        assert sorted(imported) == sorted(set(declared) - {"__version__"})
    else:
        assert declared, "a package with code of its own says what of it is public"


def test_the_checks_themselves_find_what_they_look_for():
    source = "import time as t\ndef f():\n    from pyarrow import flight\nimport random\nrandom.shuffle([])\n"
    found = list(imports_of(source))
    assert found == ["time", "random", "pyarrow.flight"]
    assert _random_globals(source) == ["random.shuffle"]
    assert _random_globals("import random\nr = random.Random(3)\n") == []
    assert _sets_walked("for x in {1, 2}:\n    pass\n") == ["{1, 2}"]
    assert _sets_walked("for x in [1, 2]:\n    pass\n") == []
    assert list(imports_of("from . import a\nfrom ..b import c\n", "holdfast.x.y")) == [
        "holdfast.x.y.a",
        "holdfast.x.b.c",
    ]
    assert list(imports_of("if TYPE_CHECKING:\n    import time\n")) == []
    assert layers_in("| `a` | low | |\n| `b` | high | `a` |\n") == {"a": set(), "b": {"a"}}
    assert "runtime" not in LAYERS["sim"]
    assert "sim" not in LAYERS["runtime"] | LAYERS["spark"]
    assert not {"state", "operators"} & LAYERS["core"]
