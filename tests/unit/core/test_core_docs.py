"""The transition tables are drawn into the docs from the code; HOLDFAST_REWRITE=1 draws them anew."""

from __future__ import annotations

import os
import re
from enum import Enum
from pathlib import Path

from holdfast.core import election, roles, stage
from holdfast.sim.faults import KINDS

DOCS = Path(__file__).parents[3] / "docs" / "core"


def diagram(title: str, about: str, moves: list[tuple[Enum, str, Enum]]) -> str:
    lines = [f"## {title}", "", about, "", "```mermaid", "stateDiagram-v2"]
    lines += [f"    {a.name} --> {b.name}: {label.replace(':', ';')}" for a, label, b in moves]
    lines += ["```", "", "| from | on | to |", "|---|---|---|"]
    lines += [f"| {a.value} | {label} | {b.value} |" for a, label, b in moves]
    return "\n".join(lines) + "\n"


def drawn() -> str:
    standing = [(a, t.value, b) for (a, t), b in election.TRANSITIONS.items()]
    phases = [(a, c.value, b) for (a, c), b in stage.TRANSITIONS.items()]
    copies = [(a, f"{r.value}: {act.value}", b) for (a, r), (b, act) in roles.TRANSITIONS.items()]
    conditions = [(a, c.value, b) for (a, c), b in roles.CHANGES.items()]
    parts = [
        "# Transition tables\n\nDrawn from the code by `tests/unit/core/test_core_docs.py`; do not edit.\n",
        diagram("A member's standing", "`holdfast.core.election`: who may change the record.", standing),
        diagram("A copy of a shard on a node", "`holdfast.core.roles`: the role that a new record gives.", copies),
        diagram("The state of a copy", "`holdfast.core.roles`: what it is good for, whatever the role.", conditions),
        diagram("A stage's driver", "`holdfast.core.stage`: one batch after the other.", phases),
        "## Faults of the simulator\n\n| kind | what happens |\n|---|---|\n"
        + "".join(f"| `{kind}` | {text} |\n" for kind, text in KINDS.items()),
    ]
    return "\n".join(parts)


def test_what_shows_a_trap_exists():
    """Scenarios and planted bugs by their names, rules by their texts."""
    table = (DOCS / "simulator.md").read_text().partition("## Traps")[2].partition("## Planted bugs")[0]
    cells = [line.split("|")[3] for line in table.splitlines() if re.match(r"\| \d", line)]
    assert len(cells) == 13
    tests, sources = DOCS.parents[1] / "tests", DOCS.parents[1] / "src" / "holdfast"
    known = {path.stem for path in (tests / "scenarios").glob("*.txt")}
    for path in (tests / "simulation").glob("mutants_of_*.py"):
        known |= set(re.findall(r"^def (\w+)\(", path.read_text(), re.MULTILINE))
    rules = "".join(path.read_text() for part in ("core", "sim") for path in (sources / part).rglob("*.py"))
    for cell in cells:
        named, quoted = re.findall(r"`(\w+)`", cell), re.findall(r'"([^"]+)"', cell)
        assert named or quoted
        assert set(named) <= known
        assert all(f'"{text}"' in rules for text in quoted), quoted


def test_the_docs_draw_the_tables_of_the_code():
    path = DOCS / "transitions.md"
    if os.environ.get("HOLDFAST_REWRITE"):
        path.write_text(drawn())
    assert path.read_text() == drawn()
