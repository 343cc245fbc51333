"""What a node says about itself: what its failure would cost, and what captures cost, estimated beside measured."""

from __future__ import annotations

import json
from random import Random

from support.core import op

from holdfast.core.agenda import images_of
from holdfast.core.node import Node
from holdfast.core.protect.tally import Cost
from holdfast.model.config import MS, Config
from holdfast.model.found import Found
from holdfast.model.ids import name_of
from holdfast.model.notes import Recovered
from holdfast.model.record import first_record
from holdfast.model.topology import layered
from holdfast.runtime.node.events import EventLog
from holdfast.runtime.node.status import status
from holdfast.runtime.node.story import Story

SIX = layered(stages=1, shards=6)
NAMES = ("n0", "n1", "n2")


def node(scheduler: str = "min_max") -> Node:
    first = first_record(SIX, NAMES)
    made = Node("n0", NAMES, SIX, Config(scheduler=scheduler), op, Random(1), Found(), first, 0)
    made.start(0)
    return made


def test_a_node_says_who_would_recover_what_and_how_long_that_would_take():
    made = node()
    mine = {shard: made.record.places[shard] for shard in made.host.runners}
    for i, shard in enumerate(sorted(mine), 1):
        guard = images_of(made.host.runners[shard])
        assert guard is not None
        guard.kept_ns -= i * 10 * MS
    told = status(made, 0)["recovery"]
    assert sorted(shard for each in told["segments"].values() for shard in each["shards"]) == sorted(mine)
    for backup, each in told["segments"].items():
        assert all(name_of(mine[shard].backup or "") == backup for shard in each["shards"])
        assert each["expected_ms"] == sum(10.0 * (sorted(mine).index(shard) + 1) for shard in each["shards"])
    assert told["expected_ms"] == max(each["expected_ms"] for each in told["segments"].values())
    assert told["segments"][told["worst"]]["expected_ms"] == told["expected_ms"]
    assert told["scheduler"] == "min_max"
    json.dumps(status(made, 0))


def test_captures_and_pastes_are_told_as_estimated_and_measured():
    made = node()
    shard = sorted(made.host.runners)[0]
    guard = images_of(made.host.runners[shard])
    assert guard is not None
    guard.tally.capture, guard.tally.paste = Cost(2 * MS, 3 * MS), Cost(4 * MS, 5 * MS)
    told = status(made, 0)["shards"][shard]
    assert told["capture_ms"] == {"estimated": 2.0, "measured": 3.0}
    assert told["paste_ms"] == {"estimated": 4.0, "measured": 5.0}
    images = [told for told in status(made, 0)["shards"].values() if told["role"] == "backup"]
    assert images
    assert all("expected_recovery_ms" not in told for told in images)


def test_a_recovery_is_an_event_with_what_was_expected(tmp_path):
    events = EventLog(tmp_path / "events", "n1")
    Story(events, lambda name: None).tell([Recovered("n0", "n1#1", 3, 40 * MS, 52 * MS, 61 * MS)])
    line = events.since(0)[-1]
    assert line["event"] == "recovered"
    assert (line["expected_ms"], line["worked_ms"], line["took_ms"]) == (40.0, 52.0, 61.0)
    text = "n1#1 has caught up with 3 shards of n0: 52 ms of work in 61 ms, 40 ms were expected."
    assert line["text"] == text
