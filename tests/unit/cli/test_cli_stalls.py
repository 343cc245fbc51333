"""`holdfast status --stalls`: what it makes of what nodes say."""

from __future__ import annotations

from rich.console import Console

from holdfast.cli.stalls import part, stalls_view
from holdfast.core.detect.stalls import BUSY, SAMPLE_NS, Stalls


def told(*taken: float) -> dict:
    made = Stalls(BUSY, 0)
    for i, some in enumerate(taken):
        made.sample(i * SAMPLE_NS, (i + 1) * SAMPLE_NS, some)
    return made.told()


def shown(answers: dict) -> str:
    console = Console(width=200, record=True, file=None, quiet=False)
    with console.capture() as capture:
        console.print(stalls_view("netmon", answers))
    return capture.get()


def test_each_node_has_a_line_for_itself_and_one_for_its_machine():
    answer = {
        "node": told(0.0, 0.0), "machine": told(0.1, 1.0, 1.0, 0.1, 1.0, 0.2),
        "run_queue_share": 0.015, "steal_share": 0.25, "own_share": 0.0004,
    }  # fmt: skip
    text = shown({"n0": answer, "n1": {}})
    assert [line for line in text.splitlines() if "its machine" in line and "50.0%" in line]
    assert "the node" in text
    assert "n0: its loop waited for a CPU 1.50% of the time; 25.00% of its machine went to others" in text
    assert "looking costs 0.040% of a core" in text
    assert "n1 has not come up yet" in text


def test_a_part_of_no_stalls_is_not_a_number():
    found = told(0.0)
    assert part(found["lengths"], 10) == "-"
    assert part(told(1.0, 0.0)["lengths"], 1) == "100%"
