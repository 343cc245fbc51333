"""What the core may not do, as tests: layers, sizes, words."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[3] / "src" / "holdfast"
PURE = sorted(path for part in ("model", "logs", "core") for path in (SRC / part).rglob("*.py"))
MINE = [*PURE, *sorted((SRC / "sim").rglob("*.py")), SRC / "cli" / "sim.py"]

FORBIDDEN = {"time", "threading", "asyncio", "socket", "pyspark", "pyarrow", "os", "subprocess", "datetime"}
BELOW = {
    "model": ("holdfast.model", "holdfast.errors"),
    "logs": ("holdfast.model", "holdfast.errors", "holdfast.logs"),
    "core": ("holdfast.model", "holdfast.errors", "holdfast.logs", "holdfast.core"),
}


def imports(path: Path) -> list[tuple[str, str]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.extend((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.extend((node.module, alias.name) for alias in node.names)
    return found


@pytest.mark.parametrize("path", PURE, ids=lambda p: p.stem)
def test_nothing_that_decides_knows_a_clock_a_thread_or_chance(path):
    for module, name in imports(path):
        assert module.split(".")[0] not in FORBIDDEN
        assert module != "random" or name == "Random"


@pytest.mark.parametrize("path", PURE, ids=lambda p: p.stem)
def test_imports_point_down(path):
    allowed = BELOW[path.relative_to(SRC).parts[0]]
    for module, _ in imports(path):
        assert not module.startswith("holdfast") or module.startswith(allowed)


@pytest.mark.parametrize("path", MINE, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_modules_are_read_in_one_sitting_and_say_what_they_are(path):
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) < 500
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 80


@pytest.mark.parametrize("path", PURE, ids=lambda p: p.stem)
def test_no_set_is_walked(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.For | ast.comprehension):
            assert not isinstance(node.iter, ast.Set | ast.SetComp)
