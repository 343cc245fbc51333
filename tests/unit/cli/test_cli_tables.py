"""Tables of `holdfast status` in a terminal of 80 columns."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table

from holdfast.cli.tables import fitted
from holdfast.cli.watch import status_view


def shown(view: object, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(view)
    return console.export_text()


def place(**changed: object) -> dict:
    seats = {"primary": "n0#1", "backup": "n1#1", "joining": None, "epoch": 1, "mode": "passive", "stage": False}
    return {**seats, "wants_backup": True, **changed}


def a_status() -> dict:
    figures = {
        "load_percent": 31.4, "backup_load_percent": 2.0, "rows_in": 12_345_678, "rows_out": 1_234_567,
        "outputs": {"e": {"next": 5, "trimmed": 3}}, "state_bytes": 123_456_789, "watermark_us": 1_795_116_186_577_208,
    }  # fmt: skip
    segments = {"n1": {"expected_ms": 4.2, "shards": ["a"]}, "n2": {"expected_ms": 12.6, "shards": ["b", "c"]}}
    driver = {"last": {"event": "batch", "progress": {"batchId": 1234, "processedRowsPerSecond": 4321.0}}}
    standing_by = {"warmth": "session up", "take_over_s": 12.4}
    nodes = {
        "n0": {"recovery": {"segments": segments}, "drivers": {"talkers_in": driver}},
        "n1": {"drivers": {"talkers_in": standing_by}},
    }
    return {
        "record": {"version": 3, "places": {"talkers-10": place(), "talkers_in": place(stage=True)}},
        "coordinator": "n0", "shards": {"talkers-10": figures}, "stages": {}, "gaps": [],
        "unprotected": ["talkers-10 has no backup"], "nodes": nodes, "preparing": [], "silent": [],
    }  # fmt: skip


def test_names_and_places_are_whole_in_a_terminal_of_80_columns():
    """Every shard was called `tal…`, on nodes that nobody could tell from each other."""
    text = shown(status_view("p", a_status(), 80), 80)
    assert "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    for cell in (
        "talkers-10",
        "passive",
        "talkers_in",
        "n1#1 (session up, 12.4 s)",
        "13 ms on n2 (2 shards), 4 ms on n1",
    ):
        assert cell in text


def test_a_wide_terminal_shows_every_column():
    text = shown(status_view("p", a_status(), 200), 200)
    assert all(name in text for name in ("epoch", "backup's", "memory of stages", "2026-11-19 19:23:06"))


def test_what_a_live_view_cuts_at_the_end_of_the_screen_is_the_longest_table():
    """On 24 lines nothing was seen but shards."""
    lines = shown(status_view("p", a_status(), 80, live=True), 80).splitlines()
    at = [
        next(i for i, line in enumerate(lines) if word in line)
        for word in ("one more failure", "talkers_in", "talkers-10 │")
    ]
    assert at == sorted(at)


def test_a_table_that_cannot_fit_keeps_what_it_is_about():
    table = Table()
    for name in ("shard", "epoch"):
        table.add_column(name)
    table.add_row("a-very-long-name-of-an-operator-0", "1", style="yellow")
    found = fitted(table, 20, ("epoch",))
    assert [column.header for column in found.columns] == ["shard"]
    assert found.rows[0].style == "yellow"
    assert "".join(line.strip("│ ") for line in shown(found, 20).splitlines() if "│" in line) == (
        "a-very-long-name-of-an-operator-0"
    )
