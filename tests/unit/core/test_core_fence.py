"""One comparison, first: what each kind of fence refuses, and what a node says about it."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace
from support.core import op

from holdfast.core.fence import Behind, Fence
from holdfast.core.node import Node
from holdfast.core.ready import Ready, Received
from holdfast.model import messages as m
from holdfast.model import notes, parts
from holdfast.model.block import Digest, shard_block
from holdfast.model.config import Config
from holdfast.model.found import Found
from holdfast.model.message import FencedBy
from holdfast.model.reasons import FetchReason, HandOverReason
from holdfast.model.record import NO_RECORD, Record, first_record
from holdfast.model.topology import layered

SHAPE = layered(stages=1, shards=1, tops=1, placed=True)
NAMES = ("n0", "n1", "n2")
COMMIT = parts.CommitRecord(
    query="query-0", batch=0, epoch=4, attempt=1, watermark=0, offsets=(0, 0),
    digests={"s0>u0": Digest(0, 0)}, ends={"s0>u0": 2},
)  # fmt: skip
CAPTURE = m.Capture(
    shard="u0", epoch=5, since=4, born=4, round=1, pieces=1, state="some",
    start={"s0>u0": 0}, to={"s0>u0": 0}, watermarks={"s0>u0": 0},
    outputs=dict.fromkeys(("u0.0", "u0.dead"), parts.OutputPart(0, 0, 0, (), {})), handed={},
)  # fmt: skip
DELIVER = m.Deliver(stage="s0", epoch=5, batch=0, attempt=1, shards={"u0": 4}, parts={}, last=None)
FETCH = m.Fetch(ticket=1, edge="v0.0", start=0, end=2, consumer="r0", epoch=5)
SUBSCRIBE = m.Subscribe(edge="v0.0", consumer="r0", epoch=5, at=0, ack=0)


def record() -> Record:
    """Everything is at epoch 5, since version 4."""
    first = first_record(SHAPE, NAMES)
    places = {asset: replace(place, epoch=5, since=4) for asset, place in first.places.items()}
    places["v0"] = replace(places["v0"], backup="n2#3")
    return replace(first, version=4, members={"n0": 1, "n1": 1, "n2": 3}, places=places)


def fence(own: int | None = None) -> Fence:
    return Fence(SHAPE.producer, own, record())


#: A message that is not behind, the fence that it is of, and by which field it falls behind.
FENCED = [
    (DELIVER, FencedBy.EPOCH, {"epoch": 4}),
    (DELIVER, FencedBy.NOT_AHEAD, {"epoch": 6}),
    (m.LedgerOpen(stage="s0", epoch=5, query="q"), FencedBy.NOT_AHEAD, {"epoch": 6}),
    (DELIVER, FencedBy.THESE_PLACES, {"shards": {"u0": 3}}),
    (DELIVER, FencedBy.THESE_PLACES, {"shards": {"u0": 5}}),
    (m.Seal(stage="s0", epoch=5, commit=COMMIT, shards={}), FencedBy.EPOCH, {"epoch": 4}),
    (m.StageDown(stage="s0", epoch=5), FencedBy.EPOCH, {"epoch": 4}),
    (m.Warmed(stage="s0", since=4, seat="n2#3"), FencedBy.PLACE, {"since": 3}),
    (CAPTURE, FencedBy.EPOCH, {"epoch": 4}),
    (CAPTURE, FencedBy.PLACE, {"since": 3}),
    (m.CapturePiece(shard="u0", epoch=5, since=4, round=1, index=1, state=None), FencedBy.PLACE, {"since": 3}),
    (m.Joined(asset="u0", since=4, seat="n2#1"), FencedBy.PLACE, {"since": 3}),
    (m.Unfit(asset="u0", since=4, seat="n2#1"), FencedBy.PLACE, {"since": 3}),
    (m.Yielded(asset="s0.ledger", since=4), FencedBy.PLACE, {"since": 3}),
    (m.Data(edge="u0.0", epoch=5, blocks=()), FencedBy.PRODUCER, {"epoch": 4}),
    (m.Here(edge="u0.0", epoch=5, consumer="v0", first=0), FencedBy.PRODUCER, {"epoch": 4}),
    (m.Trimmed(edge="u0.0", epoch=5, first=0), FencedBy.PRODUCER, {"epoch": 4}),
    (m.Fetched(ticket=1, edge="u0.0", epoch=5, blocks=()), FencedBy.PRODUCER, {"epoch": 4}),
    (SUBSCRIBE, FencedBy.CONSUMER, {"epoch": 4}),
    (FETCH, FencedBy.CONSUMER, {"epoch": 4}),
    (m.Held(shard="v0", epoch=5, round=1, fits=True), FencedBy.ASKED, {"epoch": 4}),
    (m.Pasted(shard="v0", epoch=5, round=1), FencedBy.ASKED, {"epoch": 6}),
    (m.LedgerCopy(ledger="s0.ledger", since=4, page=parts.LedgerPage("q", 1, None)), FencedBy.THIS_PLACE, {"since": 5}),
    (m.LedgerCopied(ledger="s0.ledger", since=4, rank=(1, -1)), FencedBy.THIS_PLACE, {"since": 3}),
    (m.Suspect(name="n2", life=3), FencedBy.LIFE, {"life": 2}),
]


@pytest.mark.parametrize(("message", "by", "changed"), FENCED, ids=lambda x: type(x).__name__)
def test_a_message_passes_with_the_numbers_of_the_record_and_not_with_others(message, by, changed):
    assert fence().behind("n1#1", message) is None
    found = fence().behind("n1#1", replace(message, **changed))
    assert found is not None
    assert found.by is by


def test_every_kind_of_fence_is_tried_here():
    tried = {by for _, by, _ in FENCED}
    assert set(FencedBy) - tried == {FencedBy.MEMBER, FencedBy.OWN}


def test_whoever_is_not_a_member_in_this_life_may_not_suspect():
    suspect = m.Suspect(name="n2", life=3)
    assert fence().behind("n1#2", suspect) == Behind(FencedBy.MEMBER, 2, 1)
    assert fence().behind("n9#1", suspect) == Behind(FencedBy.MEMBER, 1, 0)


def test_a_newer_epoch_than_the_records_is_believed_and_never_forgotten():
    made = fence()
    assert made.behind("n0#1", m.Data(edge="u0.0", epoch=7, blocks=())) is None
    assert made.behind("n0#1", m.Data(edge="u0.0", epoch=6, blocks=())) == Behind(FencedBy.PRODUCER, 6, 7)
    made.record = NO_RECORD
    assert made.behind("n0#1", m.Here(edge="u0.0", epoch=6, consumer="v0", first=0)) is not None
    assert made.behind("n0#1", m.Data(edge="v0.0", epoch=1, blocks=())) is None


def test_a_driver_and_a_reader_take_answers_to_their_own_epoch_only():
    for epoch, taken in ((6, False), (7, True), (8, False)):
        state = m.LedgerState(stage="s0", epoch=epoch, commit=None)
        assert (fence(own=7).behind("n1", state) is None) is taken


def test_what_is_not_in_the_record_is_behind_nothing():
    guest = replace(SUBSCRIBE, consumer="guest", epoch=0)
    assert fence().behind("guest", guest) is None
    assert Fence(SHAPE.producer).behind("task", replace(FETCH, epoch=0)) is None


# --- what a node says


def node(name: str = "n1") -> Node:
    """n1 runs v0, which reads u0, is backup of u0, and has the ledger."""
    made = Node(name, NAMES, SHAPE, Config(), op, Random(1), Found(), record(), 0)
    made.host.first_version = 4
    made.start(0)
    assert made.record.version == 4
    return made


def hear(made: Node, source: str, message: m.Message) -> Ready:
    return made.step(Received(source, message), 1)


def test_an_older_driver_and_one_that_knows_another_place_are_turned_away():
    made = node()
    for message, reason in (
        (replace(DELIVER, epoch=4), HandOverReason.EPOCH_OVER),
        (replace(DELIVER, epoch=6), HandOverReason.PLACE_CHANGED),
        (replace(DELIVER, shards={"u0": 3}), HandOverReason.PLACE_CHANGED),
        (m.Seal(stage="s0", epoch=4, commit=COMMIT, shards={"u0": 4}), HandOverReason.EPOCH_OVER),
    ):
        driver = f"s0@{message.epoch}"
        ready = hear(made, driver, message)
        assert notes.TurnedAway("s0", message.epoch, 0, "n1#1", reason) in ready.notes
        assert [x.reason for to, x in ready.send if to == driver and isinstance(x, m.Refused)] == [reason]
    assert made.host.copies["u0"].inboxes["s0>u0"].held == {}
    ready = hear(made, "s0@5", DELIVER)
    assert [type(x) for to, x in ready.send if to == "s0@5"] == [m.Delivered]


def test_captures_rows_questions_and_subscriptions_of_fenced_ones_are_noted():
    made = node()
    said = [
        (replace(CAPTURE, epoch=4), notes.StaleCapture("u0", "n1#1", 4, 4)),
        (m.Data(edge="u0.0", epoch=4, blocks=(shard_block(0, (), 1),)), notes.Refused("v0", "u0.0", 4, 5)),
        (replace(SUBSCRIBE, epoch=4), notes.Fenced("v0", "v0.0", "r0", 4, 5)),
        (replace(FETCH, epoch=4), notes.Unserved("n1#1", "v0.0", (0, 2), "r0", 4, FetchReason.FENCED)),
    ]
    for message, note in said:
        assert note in hear(made, "r0@4", message).notes
    assert made.host.copies["v0"].positions() == {"u0.0": 0}
    assert made.host.runners["v0"].outlet.taps == {}


def test_answers_to_other_epochs_are_dropped_without_a_word():
    made = node()
    for message in (m.Held(shard="v0", epoch=4, round=1, fits=True), m.Pasted(shard="v0", epoch=6, round=1)):
        ready = hear(made, "n2#1", message)
        assert (ready.notes, ready.send) == ([], [])


def test_a_capture_that_waited_for_its_record_is_looked_at_again():
    """It came under a later place than the record's; by the time the record comes, that place is over, too."""
    made = node()
    hear(made, "n0#1", replace(CAPTURE, since=6))
    assert ("u0", "n0#1") in made.host.arriving
    before = record()
    places = {**before.places, "u0": replace(before.places["u0"], since=7)}
    ready = hear(made, "n0", m.Push(record=replace(before, version=7, places=places)))
    assert notes.StaleCapture("u0", "n1#1", 5, 6) in ready.notes
    assert made.host.arriving == {}
