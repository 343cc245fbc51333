"""The layers of docs/STYLE as a test: imports point down, and below the drivers nothing knows a clock or a socket."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"

#: From the bottom up. A part may import what is below its line, and what stands to its left in its own line if the
#: line allows it.
LAYERS: list[tuple[bool, tuple[str, ...]]] = [
    (True, ("errors", "kernelcache", "model")),
    (True, ("state", "logs", "operators")),
    (True, ("core", "pipeline")),
    (True, ("jvm",)),
    (False, ("prescriber", "sim")),
    (True, ("runtime", "spark")),  # a stage's driver is a process of the runtime
    (True, ("examples", "cli")),
]
#: The two worlds of the core do not know each other, whatever the order of the lines says.
STRANGERS = {"runtime": {"sim"}, "spark": {"sim"}}
PURE = {part for _, line in LAYERS[:3] for part in line}
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


def _allowed(part: str) -> set[str]:
    below: set[str] = set()
    for neighbours, line in LAYERS:
        if part in line:
            own = set(line[: line.index(part)]) if neighbours else set()
            return (below | {part} | own) - STRANGERS.get(part, set())
        below |= set(line)
    raise AssertionError(f"src/holdfast/{part} has no place in LAYERS: say where it belongs")


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


def _imports(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


def _modules() -> list[Path]:
    return sorted(p for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py" and p.name != "__main__.py")


def _part(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _package(path: Path) -> str:
    return ".".join(("holdfast", *path.parent.relative_to(SOURCE).parts))


def _name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", _modules(), ids=_name)
def test_imports_point_down(path):
    allowed = _allowed(_part(path))
    for name in imports_of(path.read_text(), _package(path)):
        if _imports(name, "holdfast"):
            target = [*name.split("."), "__version__"][1]
            assert target in allowed or target == "__version__", f"{_part(path)} may not import {name}"


@pytest.mark.parametrize("path", [p for p in _modules() if _part(p) in PURE], ids=_name)
def test_pure_layers_know_no_clock_thread_socket_or_cluster(path):
    source = path.read_text()
    for name in imports_of(source, _package(path)):
        assert not any(_imports(name, module) for module in IMPURE_MODULES), f"a pure layer imports {name}"
    assert _random_globals(source) == [], "inject a random.Random"


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
    assert list(imports_of("from . import a\nfrom ..b import c\n", "holdfast.x.y")) == [
        "holdfast.x.y.a",
        "holdfast.x.b.c",
    ]
    assert list(imports_of("if TYPE_CHECKING:\n    import time\n")) == []
    assert "operators" not in _allowed("state")
    assert "state" in _allowed("operators")
    assert "runtime" not in _allowed("sim")
    with pytest.raises(AssertionError, match="no place"):
        _allowed("utils")
