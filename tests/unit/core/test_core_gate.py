"""What no right peer could have sent is refused, named, and changes nothing: the messages that once ended nodes."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from msgspec.structs import replace
from support.core import op

from holdfast.core.errand import LIMITS, Errand
from holdfast.core.node import Node
from holdfast.core.reader import Reader
from holdfast.core.ready import TICK, Ready, Received
from holdfast.core.stage import StageDriver
from holdfast.model import messages as m
from holdfast.model import notes, parts
from holdfast.model.block import Block, Digest, digest_of, shard_block
from holdfast.model.config import MS, Config
from holdfast.model.found import Found
from holdfast.model.message import EPOCH_STEP, FOREIGN_STEP, STEP
from holdfast.model.ranges import NUMBER_MAX, check_of, is_address, is_name, is_seat, is_word
from holdfast.model.record import Place, Record, first_record
from holdfast.model.topology import ReaderSpec, Topology, layered
from holdfast.runtime.net.wire import decode, encode
from holdfast.sim.operators import WindowChunk

SHAPE = layered(stages=1, shards=2, tops=1, placed=True)
NAMES = ("n0", "n1", "n2")
FIRST = first_record(SHAPE, NAMES)
ROWS = ((1, 5, 1),)
EDGES = ("s0>u0", "s0>u1")
COMMIT = parts.CommitRecord(
    query="query-0", batch=0, epoch=1, attempt=1, watermark=3, offsets=(0, 1),
    digests={EDGES[0]: digest_of(ROWS), EDGES[1]: digest_of(())}, ends={EDGES[0]: 3, EDGES[1]: 2},
)  # fmt: skip
DELIVER = m.Deliver(stage="s0", epoch=1, batch=0, attempt=1, shards={"u0": 1}, parts={EDGES[0]: ROWS}, last=None)
CAPTURE = m.Capture(
    shard="u0", epoch=1, since=1, born=1, round=1, pieces=1, state=WindowChunk(1, 0, -1, -1, {}), scan=0, rising=True,
    start={EDGES[0]: 0}, to={EDGES[0]: 0}, watermarks={EDGES[0]: -1},
    outputs=dict.fromkeys(("u0.0", "u0.dead"), parts.OutputPart(0, 0, 0, (), {})),
    handed={EDGES[0]: parts.HandedPart(0, -1, (), ())},
)  # fmt: skip


def node(name: str = "n0", topology: Topology = SHAPE) -> Node:
    """n0 runs u0 and s0, n1 runs u1 and is backup of u0 and has the ledger, n2 runs v0, backs up u1 and the ledger."""
    made = Node(name, NAMES, topology, Config(), op, Random(1), Found(), first_record(topology, NAMES), 0)
    made.start(0)
    return made


def hear(made: Node, source: str, message: m.Message) -> Ready:
    return made.step(Received(source, message), 1)


def refused(ready: Ready) -> list[str]:
    return [note.why for note in ready.notes if isinstance(note, notes.Objected)]


def changed(**places: Place | None) -> Record:
    """The next record, with these places; None: without."""
    kept = {asset: place for asset, place in {**FIRST.places, **places}.items() if place is not None}
    return replace(FIRST, version=2, term=1, places=kept)


def moved(asset: str, **fields: object) -> Record:
    return changed(**{asset: replace(FIRST.places[asset], since=2, **fields)})


HUGE = (1 << 64) - 1
#: Who sends what to n0 (u0 runs here, v0 does not); each of these ended a node, or fenced something for ever.
WRONG = {
    "a vote of a term beyond all": ("n1#1", m.Vote(term=HUGE, granted=True)),
    "a vote of a term that no election could reach": ("n1#1", m.Vote(term=STEP + 1, granted=True)),
    "a candidate of such a term": ("n1#1", m.RequestVote(term=STEP + 1, record_rank=(0, 1))),
    "a candidate with a record of a later term than its own": ("n1#1", m.RequestVote(term=2, record_rank=(3, 1))),
    "a beat of such a term": ("n1#1", m.Beat(term=STEP + 1, version=1, commit=1)),
    "a beat that has decided more than there is": ("n1#1", m.Beat(term=1, version=1, commit=2)),
    "a life that no node could have": ("n1#1", m.Hello(name="n1", life=1 << 62)),
    "a node that speaks for another": ("n1#1", m.Hello(name="n2", life=1)),
    "a suspicion of a seat that cannot be": ("n1#x", m.Suspect(name="n2", life=1)),
    "a suspicion of a seat with a life without end": ("n1#" + "9" * 5_000, m.Suspect(name="n2", life=1)),
    "a name with a life in it": ("n1#1", m.Drain(name="n1#1")),
    "a record without a ledger": ("n1#1", m.Push(record=changed(**{"s0.ledger": None}))),
    "a record without a stage": ("n1#1", m.Push(record=changed(s0=None))),
    "a record without a shard": ("n1#1", m.Append(term=1, record=changed(u0=None), commit=1)),
    "a record with what this pipeline does not have": ("n1#1", m.Push(record=changed(x=FIRST.places["u0"]))),
    "a record that gives a shard to a seat that has none": (
        "n1#1", m.Push(record=moved("u1", primary="n0#1", backup=None, epoch=2)),
    ),
    "a record that makes a backup of nothing": ("n1#1", m.Push(record=moved("u1", backup="n0#1"))),
    "a record that gives a shard to a node that does not exist": (
        "n1#1", m.Push(record=moved("u1", joining="n9#1")),
    ),
    "a record that gives a ledger to a seat": ("n1#1", m.Push(record=moved("s0.ledger", joining="n0#1"))),
    "a record of a term that is over": ("n1#1", m.Push(record=replace(changed(), version=1 << 40))),
    "a record whose epochs run ahead": ("n1#1", m.Push(record=moved("u1", primary="n2#1", backup=None, epoch=9))),
    "a record that gives a shard away at the same epoch": (
        "n1#1", m.Push(record=moved("u1", primary="n2#1", backup=None)),
    ),
    "a record that changes a place without saying so": (
        "n1#1", m.Push(record=changed(u1=replace(FIRST.places["u1"], backup=None))),
    ),
    "rows for the stage of a sink": ("r0@1", replace(DELIVER, stage="r0", shards={"u0": 1}, parts={})),
    "rows for no shard": ("s0@1", replace(DELIVER, shards={}, parts={})),
    "rows of another driver": ("s0@2", DELIVER),
    "rows for a shard that the stage does not feed": ("s0@1", replace(DELIVER, shards={"v0": 1}, parts={})),
    "rows of an epoch that no driver could have": ("s0@5000", replace(DELIVER, epoch=2 + EPOCH_STEP)),
    "a batch that does not follow": ("s0@1", replace(DELIVER, batch=7)),
    "a batch after one that was never delivered": ("s0@1", replace(DELIVER, batch=1, last=COMMIT)),
    "a seal with a hole": (
        "s0@1", m.Seal(stage="s0", epoch=1, commit=replace(COMMIT, batch=4, ends={EDGES[0]: 99}), shards={"u0": 1}),
    ),
    "a seal of what was never delivered": ("s0@1", m.Seal(stage="s0", epoch=1, commit=COMMIT, shards={"u0": 1})),
    "a seal that does not say where its edges stand": (
        "s0@1", m.Seal(stage="s0", epoch=1, commit=replace(COMMIT, ends={}), shards={"u0": 1}),
    ),
    "a ledger opened at an epoch beyond all": ("s0@1", m.LedgerOpen(stage="s0", epoch=1 << 62, query="q")),
    "a commit of another driver": ("s0@2", m.LedgerWrite(stage="s0", epoch=2, since=1, commit=COMMIT)),
    "a page of a fence beyond all": (
        "n1#1", m.LedgerCopy(ledger="s0.ledger", since=1, page=parts.LedgerPage("q", 1 << 61, None)),
    ),
    "a negative position": ("r0.0@1", m.Subscribe(edge="u0.0", consumer="r0", epoch=1, at=-1, ack=-5)),
    "an enormous position": ("r0.0@1", m.Subscribe(edge="u0.0", consumer="r0", epoch=1, at=NUMBER_MAX, ack=0)),
    "an acknowledgement ahead of what is asked for": (
        "r0.0@1", m.Subscribe(edge="u0.0", consumer="r0", epoch=1, at=1, ack=2),
    ),
    "a shard that does not read this edge": (
        "n0#1", m.Subscribe(edge="u0.0", consumer="u1", epoch=1, at=0, ack=0, seat="n0#1"),
    ),
    "a copy that speaks for another": (
        "n1#1", m.Subscribe(edge="u0.0", consumer="v0", epoch=1, at=0, ack=0, seat="n2#1"),
    ),
    "somebody else who reads for a sink": (
        "n9#1",
        m.Subscribe(edge="u0.0", consumer="r0", epoch=2, at=0, ack=0),
    ),
    "an image that says of its primary that it cannot go on": ("n1#1", m.FellBack(shard="u0", since=1, seat="n0#1")),
    "a primary that says of its image that it does not keep up": ("n2#1", m.FellBack(shard="v0", since=1, seat="n0#1")),
    "a piece that ends before it begins": (
        "task", m.Fetch(ticket=1, edge="u0.0", start=5, end=2, consumer="r0", epoch=1),
    ),
    "what only a reader takes": ("n1#1", m.Trimmed(edge="u1.0", epoch=1, first=0)),
    "a capture without edges": ("n1#1", replace(CAPTURE, start={}, to={}, watermarks={})),
    "a seat that does not hold the ledger": ("n0#1", m.LedgerCopied(ledger="s0.ledger", since=1, rank=(1, -1))),
    "news of a shard by another than its primary": ("n2#1", m.Joined(asset="u0", since=1, seat="n1#1")),
    "a watermark out of range": (
        "n1#1", m.Data(edge="u1.0", epoch=1, blocks=(Block(0, 1, (), 1 << 63),)),
    ),
    "rows that are not as many as their positions": (
        "n1#1", m.Data(edge="u1.0", epoch=1, blocks=(Block(0, 9, ROWS, 3),)),
    ),
    "blocks with a hole between them": (
        "n1#1", m.Data(edge="u1.0", epoch=1, blocks=(shard_block(0, ROWS, 3), shard_block(5, ROWS, 4))),
    ),
    "rows of a stranger": ("n9#1", m.Data(edge="u1.0", epoch=2, blocks=())),
    "rows of a copy that is not the primary": ("n2#1", m.Data(edge="u1.0", epoch=1, blocks=())),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_message_is_refused_and_named_and_changes_nothing(what: str):
    source, message = WRONG[what]
    made = node()
    ready = hear(made, source, message)
    assert len(refused(ready)) == 1
    assert (ready.persist, ready.early, ready.apply, made.record) == ([], [], [], FIRST)
    assert all(isinstance(sent, m.Refused | m.FetchRefused) for _, sent in ready.send)
    assert len(str(ready.notes[0])) < 500
    assert not refused(made.step(TICK, 100 * MS))


#: To n1, which is backup of u0.
WRONG_CAPTURES = {
    "of a primary that begins to run later": {"born": 2},
    "edges of another shard": {"start": {EDGES[1]: 0}, "to": {EDGES[1]: 0}, "watermarks": {EDGES[1]: -1}},
    "no output": {"outputs": {}},
    "nothing of what was handed over": {"handed": {}},
    "no state": {"state": None},
    "rows beside its cargo": {"outputs": {"u0.0": parts.OutputPart(0, 2, 0, (shard_block(0, ROWS, 1),), {})}},
    "cargo of another shard": {"cargo": (parts.Cargo("u1.0", (shard_block(0, ROWS, 1),)),)},
    "output that does not add up": {
        "outputs": {"u0.0": parts.OutputPart(0, 9, 0, (), {})},
        "cargo": (parts.Cargo("u0.0", (shard_block(0, ROWS, 1),)),),
    },
    "output with a hole": {
        "outputs": {"u0.0": parts.OutputPart(0, 7, 0, (), {})},
        "cargo": (parts.Cargo("u0.0", (shard_block(0, ROWS, 1),)), parts.Cargo("u0.0", (shard_block(5, ROWS, 1),))),
    },
    "a batch that is sealed and held": {
        "handed": {EDGES[0]: parts.HandedPart(0, 3, (), ())},
        "cargo": (parts.Cargo(EDGES[0], (), (parts.HeldBatch(2, 1, 1, (), Digest(0, 0)),)),),
    },
    "a held batch with the rows of another": {
        "cargo": (parts.Cargo(EDGES[0], (), (parts.HeldBatch(0, 1, 1, ROWS, Digest(9, 0)),)),),
    },
    "what was handed over elsewhere than it stands": {"handed": {EDGES[0]: parts.HandedPart(5, 1, (), ())}},
    "pieces without end": {"pieces": 1 << 40},
}


@pytest.mark.parametrize("what", WRONG_CAPTURES)
def test_a_wrong_capture_is_refused(what: str):
    made = node("n1")
    assert len(refused(hear(made, "n0#1", replace(CAPTURE, **WRONG_CAPTURES[what])))) == 1
    assert not made.host.arriving
    assert made.host.copies["u0"].pasting is None


def test_a_capture_may_be_one_seal_ahead_of_what_was_handed_over():
    """The image that was promoted has the effect of a batch whose seal was lost on its way to it (seed 2001166)."""
    held = parts.HeldBatch(0, 1, 1, ROWS, digest_of(ROWS))
    ahead = replace(CAPTURE, to={EDGES[0]: 3}, cargo=(parts.Cargo(EDGES[0], (), (held,)),))
    made = node("n1")
    assert not refused(hear(made, "n0#1", ahead))
    assert made.host.copies["u0"].pasting is not None
    assert refused(hear(node("n1"), "n0#1", replace(ahead, to={EDGES[0]: 4})))
    assert refused(hear(node("n1"), "n0#1", replace(ahead, cargo=())))


def test_a_piece_of_a_capture_that_is_out_of_range_completes_nothing():
    made = node("n1")
    hear(made, "n0#1", replace(CAPTURE, pieces=2))
    piece = m.CapturePiece(shard="u0", epoch=1, since=1, round=1, index=7, state=None)
    hear(made, "n0#1", piece)
    assert made.host.copies["u0"].pasting is None
    assert refused(hear(made, "n0#1", replace(piece, index=0)))


def test_a_capture_of_somebody_else_does_not_keep_out_the_primarys():
    made = node("n1")
    assert not refused(hear(made, "n2#1", replace(CAPTURE, epoch=9, since=9)))
    ready = hear(made, "n0#1", CAPTURE)
    assert [(to, sent.fits) for to, sent in ready.send if isinstance(sent, m.Held)] == [("n0#1", True)]


def test_what_a_right_peer_says_passes():
    made = node()
    right = [
        ("n1#1", m.Vote(term=3, granted=False)),
        ("n1#2", m.Hello(name="n1", life=2)),
        ("s0@1", DELIVER),
        ("s0@1", m.Seal(stage="s0", epoch=1, commit=replace(COMMIT, digests={**COMMIT.digests}), shards={"u0": 1})),
        ("r0.0@1", m.Subscribe(edge="u0.0", consumer="r0", epoch=1, at=0, ack=0)),
        ("guest", m.Subscribe(edge="u0.0", consumer="guest", epoch=1 << 60, at=0, ack=0)),
        ("n1#1", m.Push(record=moved("u1", primary="n2#1", backup=None, epoch=2))),
    ]
    for source, message in right:
        assert refused(hear(made, source, message)) == []
    assert made.record.version == 2


def test_a_member_of_an_accepted_record_may_speak_before_its_decision_is_heard():
    """Seed 8503231: a node that had joined ran a copy at once; its subscription overtook the beat with the decision."""
    made = node()
    asks = m.Subscribe(edge="u0.0", consumer="v0", epoch=2, at=0, ack=0, seat="n3#1")
    assert refused(hear(made, "n3#1", asks))
    joined = replace(moved("v0", primary="n3#1", backup=None, epoch=2), term=1, members={**FIRST.members, "n3": 1})
    hear(made, "n1#1", m.Append(term=1, record=joined, commit=1))
    assert made.record.version == 1
    assert not refused(hear(made, "n3#1", asks))


def test_a_life_is_known_by_what_it_said_right_and_not_by_what_was_refused():
    """A refused message under the name of a life that never was kept the right node from starting, for good."""
    made = node()
    assert refused(hear(made, "n1#2", m.Hello(name="n1#2", life=2)))
    assert refused(hear(made, "n2#7", replace(DELIVER, stage="s9")))
    assert made.lives == {}
    assert not refused(hear(made, "n1#1", m.Pull(version=0)))
    hear(made, "n9#3", m.Pull(version=0))
    assert made.lives == {"n1": 1}


def test_a_driver_ahead_of_the_record_waits_and_fences_nobody():
    """It was believed before: one message of a later epoch, and the present driver was turned away for ever."""
    made = node()
    ahead = replace(DELIVER, epoch=2)
    assert not refused(hear(made, "s0@2", ahead))
    assert made.host.copies["u0"].inboxes[EDGES[0]].held == {}
    ready = hear(made, "s0@1", DELIVER)
    assert [type(sent) for to, sent in ready.send if to == "s0@1"] == [m.Delivered]
    ledger = node("n1")
    assert hear(ledger, "s0@2", m.LedgerOpen(stage="s0", epoch=2, query="query-0")).persist == []
    assert hear(ledger, "s0@1", m.LedgerOpen(stage="s0", epoch=1, query="query-0")).persist


def test_a_port_opens_its_ledger_near_the_fence_or_not_at_all():
    """No record places a port: the epochs of its drivers are drawn above the fence of its ledger."""
    stage = replace(SHAPE.stages[0], foreign=True)
    made = node("n1", replace(SHAPE, stages=(stage, *SHAPE.stages[1:])))
    far = FOREIGN_STEP + 1
    assert refused(hear(made, f"s0@{far}", m.LedgerOpen(stage="s0", epoch=far, query="query-0")))
    near = (1 << 33) + 5
    assert hear(made, f"s0@{near}", m.LedgerOpen(stage="s0", epoch=near, query="query-0")).persist


def test_a_record_that_came_in_pieces_and_cannot_be_done_is_told_and_not_done():
    """Each of them could be: one is accepted, then another is decided; together they give a shard to nobody's copy."""
    made = node()
    later = replace(moved("u1", backup=None), version=3, term=1)
    hear(made, "n1#1", m.Append(term=1, record=later, commit=1))
    hear(made, "n1#1", m.Push(record=replace(moved("u0", primary="n1#1", backup=None, epoch=2), term=1)))
    ready = hear(made, "n1#1", m.Beat(term=1, version=3, commit=3))
    assert len(refused(ready)) == 1
    assert made.record.version == 2
    assert not refused(made.step(TICK, 100 * MS))


def test_a_reader_and_a_driver_check_what_nodes_tell_them():
    reader = Reader(ReaderSpec(id="r0", edges=("u0.0",)), 1, SHAPE, Config(), FIRST, {}, 0)
    driver = StageDriver(SHAPE.stages[0], 1, Config(), FIRST, 0)
    for machine, source, message in (
        (reader, "n0#1", m.Data(edge="u1.0", epoch=1, blocks=())),
        (reader, "n9#1", m.Data(edge="u0.0", epoch=1, blocks=())),
        (reader, "n0#1", m.Data(edge="u0.0", epoch=2 + EPOCH_STEP, blocks=())),
        (reader, "n0#1", m.Trimmed(edge="u1.0", epoch=1, first=1)),
        (reader, "n0#1", m.Push(record=changed(u0=None))),
        (driver, "n0#1", m.Push(record=changed(u0=None))),
        (driver, "n1#1", m.LedgerState(stage="s0", epoch=1, commit=replace(COMMIT, digests={}))),
        (driver, "n9#1", m.LedgerState(stage="s0", epoch=1, commit=None)),
        (driver, "n0#1", m.Delivered(stage="s0", epoch=1, batch=0, attempt=1, seat="n1#1", shards={}, digests={})),
        (driver, "n0#1", m.Sealed(stage="s0", epoch=1, batch=0, seat="n0#1", shards={"v0": 1})),
    ):
        before = reader.record, driver.record, driver.phase
        assert len(refused(machine.step(Received(source, message), 1))) == 1
        assert (reader.record, driver.record, driver.phase) == before


def test_a_reader_does_not_take_rows_from_a_member_that_may_be_a_twin_by_now_and_does_not_call_that_hostile():
    """It came back with a record from before the mode changed, to an address that the twin knows (seed 31000093)."""
    reader = Reader(ReaderSpec(id="r0", edges=("u0.0",)), 1, SHAPE, Config(), FIRST, {}, 0)
    block = replace(shard_block(0, (), 5, 1, None), rows=())
    ready = reader.step(Received("n1#1", m.Data(edge="u0.0", epoch=1, blocks=(block,))), 1)
    assert reader.latest() == {"u0.0": 0}
    assert not refused(ready)


def test_a_task_takes_all_that_it_asked_for_or_nothing():
    asked = m.Fetch(ticket=1, edge="u0.0", start=0, end=4, consumer="r0", epoch=1)
    made = Errand(asked, "u0", "n0", 1, NAMES, LIMITS, 0)
    made.step(TICK, 0)
    half = m.Fetched(ticket=1, edge="u0.0", epoch=1, blocks=(shard_block(0, ROWS, 1),))
    assert len(refused(made.step(Received("n0", half), 1))) == 1
    assert not made.over
    whole = replace(half, blocks=(shard_block(0, ROWS, 1), shard_block(2, ROWS, 2)))
    assert not refused(made.step(Received("n0", whole), 1))
    assert made.answer == whole


def test_what_is_out_of_range_is_refused_where_it_is_decoded_too():
    for message in (m.Vote(term=HUGE, granted=True), m.Data(edge="u0.0", epoch=1, blocks=(Block(-1, 1, (), 0),))):
        with pytest.raises(Exception, match="cannot be read"):
            decode(encode("n1#1", "n0", message), "n1")
    body = {"type": "SetProtection", "operator": "u0", "protection": {"mode": "nonsense"}}
    raw = bytearray(encode("n1#1", "n0", m.Pull(version=1)))
    encoded = msgspec.msgpack.encode(["n1#1", "n0", body])
    from holdfast.runtime.net import wire

    raw = wire._HEAD.pack(b"HF", wire.PROTOCOL, wire.xxhash.xxh3_64_intdigest(encoded)) + encoded
    with pytest.raises(Exception, match="unknown mode"):
        decode(raw, "n1")


def test_the_types_of_fields_say_what_they_may_be():
    check = check_of(m.Data)
    assert check is not None
    assert check(m.Data(edge="u0.0", epoch=1, blocks=(Block(0, 1, (), 0),))) == ""
    assert "blocks: start: -1" in check(m.Data(edge="u0.0", epoch=1, blocks=(Block(-1, 1, (), 0),)))
    assert [is_address(text) for text in ("n1", "n1#2", "s0@3", "fetch@7", "probe-1")] == [True] * 5
    assert not any(is_address(text) for text in ("", "n1#x", "n1#0", "n1#", "n 1", "n1#-1", "n1#1#1", "x" * 999))


def test_half_a_surrogate_pair_is_in_no_name_and_no_word():
    """JSON can say it, and no journal can write it."""
    assert [is_right("n\udc00") for is_right in (is_name, is_seat, is_address, is_word)] == [False] * 4
    assert [is_right("\u00fc\U0001f600") for is_right in (is_name, is_seat, is_address, is_word)] == [True] * 4
