"""Every scenario file replays to its trace, byte for byte; HOLDFAST_REWRITE=1 writes traces anew, to review as a diff.

A file is a TOML scenario, a line `--- trace`, and the whole trace. `shows` holds whatever the trace says: a rewrite
cannot lose what the scenario is about.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from holdfast.sim.runner import retrace
from holdfast.sim.scenario import parse_scenario

FILES = sorted(Path(__file__).parent.glob("*.txt"))
MARK = "\n--- trace\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario_replays_to_its_trace(path: Path) -> None:
    script, _, expected = path.read_text().partition(MARK)
    outcome, trace = retrace(parse_scenario(script, path.name))
    lines = [*trace.lines, "violation: " + outcome.violation if outcome.violation else "all held"]
    made = "\n".join(lines) + "\n"
    assert not outcome.violation
    for text in tomllib.loads(script).get("shows", ()):
        assert any(text in line for line in lines), f"the trace does not show {text!r}"
    if os.environ.get("HOLDFAST_REWRITE"):
        path.write_text(script + MARK + made)
    else:
        assert made == expected, f"trace changed; HOLDFAST_REWRITE=1 rewrites it: {path}"


def test_every_scenario_says_what_it_must_show() -> None:
    silent = [path.name for path in FILES if not tomllib.loads(path.read_text().partition(MARK)[0]).get("shows")]
    assert silent == []
