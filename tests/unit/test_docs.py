"""The pages: every one can be reached from the README by links, and every path, class and command they name exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "tests/README.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
#: Where a path in a text may begin.
HOMES = ("", "src/holdfast", "tests", "docs", "bench")
#: Folders of a run, and files that a user or a run makes: named in docs, not in the tree.
MADE = re.compile(
    r"(checkpoints|nodes|late|bad|logs|late_to|in|out|holdfast-run|commits|shared)/|(run|plan|from)\.json|explain\.txt|.*\.jsonl"
)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _links(page: Path) -> list[tuple[Path, str]]:
    """(file, anchor) of every link of a page to a file of the tree."""
    found = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text())
    return [
        ((page.parent / target if target else page).resolve(), anchor)
        for target, anchor in found
        if "://" not in target
    ]


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_link_leads_to_a_file_and_to_a_heading_that_is_there(page):
    for target, anchor in _links(page):
        assert target.exists(), target
        assert not anchor or anchor in _anchors(target), f"{target}#{anchor}"


def test_every_page_can_be_reached_from_the_readme_by_links():
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            waiting.extend(target for target, _ in _links(page) if target.is_file())
    assert {_name(page) for page in PAGES} - {_name(page) for page in reached} == set()


def test_the_index_of_docs_lists_every_page():
    index = {target for target, _ in _links(ROOT / "docs" / "README.md")}
    assert {_name(page) for page in (ROOT / "docs").rglob("*.md")} - {
        _name(page) for page in index if page.exists()
    } == {"docs/README.md"}


def _paths_in(text: str) -> list[str]:
    """What stands between backquotes and looks like a file or a folder of the tree."""
    return [
        path
        for path in re.findall(r"`([\w./-]+)`", text)
        if re.search(r"\.(py|md|txt|toml|json|csv)$|^[\w.-]+/$|^(src|tests|bench|docs)/", path) and not MADE.match(path)
    ]


def _is_in_tree(path: str, page: Path) -> bool:
    homes = [page.parent, *(ROOT / home for home in HOMES)]
    if any((home / path).exists() for home in homes):
        return True
    return "/" not in path and any(part.name == path for part in (ROOT / "src").rglob(path))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_path_that_a_page_names_is_in_the_tree(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    assert [path for path in _paths_in(text) if not _is_in_tree(path, page)] == []


def test_the_five_files_of_the_readme_open_with_what_they_are():
    part = (ROOT / "README.md").read_text().partition("## Read this code in five files")[2]
    files = re.findall(r"^\d\. \[`(.+?)`\]\((.+?)\)", part, re.M)
    assert len(files) == 5
    for name, target in files:
        assert name == target
        tree = ast.parse((ROOT / target).read_text())
        assert len(ast.get_docstring(tree) or "") > 100, f"{name} does not say what it is"
        assert any(isinstance(node, ast.ClassDef | ast.Assign) for node in tree.body), f"{name} is a list of flags"


def test_the_checks_themselves_find_what_they_look_for():
    assert _paths_in("see `core/nothing.py`, `node/` and `word`") == ["core/nothing.py", "node/"]
    assert not _is_in_tree("core/nothing.py", ROOT / "README.md")
    assert _is_in_tree("core/node.py", ROOT / "README.md")
