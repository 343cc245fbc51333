"""The size rule and the name rule, for the whole tree: what reads in one sitting, and one meaning per class name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted(path for part in ("src", "tests", "bench") for path in (ROOT / part).rglob("*.py"))
LINES_MAX = 500
FUNCTION_LINES_MAX = 80
#: Still to be split.
TOO_LONG = {
    "tests/properties/test_operator_images.py": 560,
}
#: A note may have the name of the message or the event that it tells of: the idea is the same one.
NOTES = "src/holdfast/model/notes.py"
STAGE_NOTES = "src/holdfast/model/stage_notes.py"
MESSAGES = {"src/holdfast/model/messages.py", "src/holdfast/model/stream_messages.py"}
TOLD_BY_NOTES = {*MESSAGES, "src/holdfast/core/ready.py"}


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _long_functions(tree: ast.Module) -> list[str]:
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_a_module_says_what_it_is_and_reads_in_one_sitting(path):
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module opens with what it is"
    assert len(text.splitlines()) <= TOO_LONG.get(_name(path), LINES_MAX)
    assert _long_functions(tree) == []


def _classes(modules: list[Path]) -> dict[str, list[str]]:
    """Where each name of a class is defined, for classes that are not inside a function."""
    found = defaultdict(list)
    for path in modules:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(_name(path))
    return found


def _one_idea(where: list[str]) -> bool:
    notes = {NOTES, STAGE_NOTES} & set(where)
    return len(where) == 1 or (len(where) == 2 and len(notes) == 1 and not set(where) - TOLD_BY_NOTES - notes)


def test_a_class_name_has_one_meaning_in_the_whole_tree():
    found = {name: where for name, where in _classes(MODULES).items() if not _one_idea(where)}
    assert found == {}


def test_the_checks_themselves_find_what_they_look_for():
    long = "def f():\n" + "    pass\n" * FUNCTION_LINES_MAX
    assert _long_functions(ast.parse(long)) == ["f"]
    assert _long_functions(ast.parse("def f():\n    pass\n")) == []
    assert _one_idea(["src/holdfast/model/messages.py", NOTES])
    assert not _one_idea(["src/holdfast/spark/fetch.py", NOTES])
