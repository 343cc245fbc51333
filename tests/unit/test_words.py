"""One word per idea, and plain English: docs/glossary.md against the tree, and turns of phrase that must not come back.

The paper's own words stay where the paper is quoted: `OWN_WORDS` says where and why.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
READ = [path for path in (*SOURCES, *PAGES) if path != GLOSSARY]


#: Where a word that we do not use is somebody else's name for the thing.
OWN_WORDS = {
    # storage copies, as the Shrink paper has them; copies of a chunk in the store, as sguard and HDFS do
    "replica": ("prescriber", "prescribe", "peace"),
}

#: Syntax that reads translated. Each was in a text that users saw.
TRANSLATED = {
    r"(?<!every )\bso often\b": "say how often: every 100 ms, this often",
    r"\bso long after\b": "this long after",
    r"\bfor so long\b": "for this time",
    r"\bwait so long\b": "wait up to this long",
    r"\bso many (seconds|shards|rows|pages|bytes|that)\b": "this many",
    r"(?<!here )\b(is|are) no (?!longer|more|less)\w": "is not a ...",
    r"\bfor ever\b": "forever, or say until when",
    r"\bit lives\b": "is alive, is kept",
    r"\bone's own\b": "your own, its own",
    r"\bgone on with\b": "continued",
    r"\bwould flap\b": "say what happens",
    r"\bcannot be had\b": "is not available",
}


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _tables(page: str) -> list[tuple[str, str]]:
    return [(a.strip(), b.strip()) for a, b in re.findall(r"^\| ([^|]+) \| ([^|]+) \|", page, re.M)]


def _without_last_table() -> str:
    return GLOSSARY.read_text().partition("## Words we do not use")[0]


WORDS = [
    word
    for cell, _ in _tables(_without_last_table())
    if cell not in ("word", "---")
    for word in cell.removesuffix(" of a shard").removesuffix(" of a stage").split(", ")
]
UNUSED = dict(row for row in _tables(GLOSSARY.read_text().partition("## Words we do not use")[2]) if row[0] != "not")
ALL_SOURCE = "\n".join(path.read_text() for path in SOURCES).lower()


@pytest.mark.parametrize("word", sorted(set(WORDS)))
def test_every_word_of_the_glossary_is_used_in_the_code(word):
    assert re.search(r"\b" + re.sub(r"[ -]", "[-_ ]?", word), ALL_SOURCE)


def test_a_word_of_the_glossary_is_explained_once():
    once = [word for word in WORDS if word not in ("epoch", "life")]  # epochs of two things; a life is also a fence
    assert sorted(once) == sorted(set(once))


@pytest.mark.parametrize("word", UNUSED)
def test_a_word_that_we_do_not_use_is_not_used(word):
    found = [
        f"{_name(path)}: {line.strip()[:100]}"
        for path in READ
        if not any(owner in _name(path) for owner in OWN_WORDS.get(word, ()))
        for line in path.read_text().splitlines()
        if re.search(rf"\b[{word[0]}{word[0].upper()}]{word[1:]}s?\b", line)
    ]
    assert found == [], f"say {UNUSED[word]}"


@pytest.mark.parametrize("turn", TRANSLATED)
def test_a_turn_of_phrase_that_reads_translated_does_not_come_back(turn):
    found = [
        f"{_name(path)}:{number}: {line.strip()[:100]}"
        for path in READ
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(turn, line)
    ]
    assert found == [], TRANSLATED[turn]


def test_the_checks_themselves_find_what_they_look_for():
    assert "shard" in WORDS
    assert "epoch" in WORDS
    assert UNUSED["replica"] == "copy"
    no = next(turn for turn in TRANSLATED if "(is|are) no " in turn)
    assert re.search(no, "it is no stream")
    assert not re.search(no, "it is no longer a stream, and there is no other")
