"""An empty start: who may, where its inputs go on, what consumers and tasks are told of the gap."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.fetch import decide
from holdfast.core.hand_over import HandOver
from holdfast.core.host import Host
from holdfast.core.load import LoadView
from holdfast.core.placement import Reports, plan
from holdfast.core.reader import Reader
from holdfast.core.ready import Ready, Received
from holdfast.core.roles import TRANSITIONS, Role, State
from holdfast.logs.inbox import Inbox
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.block import Block, Gap, base_of, digest_of, elements, shard_block
from holdfast.model.config import Config
from holdfast.model.parts import CommitRecord, GapFound
from holdfast.model.protection import Protection
from holdfast.model.record import Place, Record, first_record
from holdfast.model.topology import ReaderSpec, layered
from holdfast.sim.costs import Costs
from holdfast.sim.operators import Meter, WindowSum

TOPOLOGY = layered(stages=1, shards=1)
EDGE, BASE = "s0>u0", base_of(2)
ROW = (1, 72, 3)


def commit(batch: int = 4, attempt: int = 1, rows=(ROW,), highest: int = 77, watermark: int = 60) -> CommitRecord:
    return CommitRecord(
        query="query-0", batch=batch, epoch=1, attempt=attempt, watermark=watermark, offsets=(0, 1),
        digests={EDGE: digest_of(rows)}, ends={EDGE: 40}, highest=highest,
    )  # fmt: skip


def left(mode: str, **fields) -> Place:
    """What becomes of `u0` when the node of its primary leaves."""
    first = first_record(TOPOLOGY, ("n0", "n1", "n2"), own={"u0": Protection(mode=mode)})
    places = {**first.places, "u0": replace(first.places["u0"], **fields)}
    reports, loads = Reports(), LoadView()
    reports.suspects["n0"] = 1
    made = plan(replace(first, places=places), reports, loads, Config())
    assert made is not None
    return made.places["u0"]


def test_only_a_shard_whose_mode_lets_it_starts_empty_elsewhere():
    place = left("none")
    assert place.primary in ("n1#1", "n2#1")
    assert (place.epoch, place.empty, place.starts_empty, place.backup) == (2, 2, True, None)
    assert left("none", joining="n1#1").starts_empty  # an image that is only being brought up is of no use
    assert not left("passive").starts_empty
    alone = left("passive", backup=None)
    assert (alone.primary, alone.empty) == ("n0#1", 0)


@pytest.mark.parametrize("state", State)
def test_every_copy_can_be_told_to_start_empty(state):
    assert TRANSITIONS[state, Role.EMPTY][0] is State.PRIMARY
    assert TRANSITIONS[state, Role.EMPTY_MOVING][0] is State.YIELDING


def landing(*, heard: CommitRecord | None = None) -> Host:
    made = Host("a#1", TOPOLOGY, Config(), lambda spec: WindowSum(spec, 10, Costs(), Meter()))
    places = {"u0": Place(primary="a#1", epoch=2, since=5, mode="none", empty=2)}
    places |= {"s0": Place(primary="b#1", is_stage=True), "s0.ledger": Place(primary="b")}
    made.on_record(Record(version=5, term=1, members={"a": 1, "b": 1}, places=places), 0, Ready())
    if heard is not None:
        seal = m.Seal(stage="s0", epoch=1, commit=heard, shards={"u0": 5})
        HandOver(made).on_seal("s0@1", seal, 0, Ready())
    return made


def test_it_lands_behind_the_first_commit_that_it_hears_of_and_says_so_on_its_output():
    made = landing()
    assert made.copies["u0"].landing
    assert made.edges() == {}
    made = landing(heard=commit())
    copy = made.copies["u0"]
    assert not copy.landing
    assert (copy.positions(), copy.watermark, copy.gap) == ({EDGE: 40}, 60, 78)
    assert list(copy.outputs[0].blocks) == [Block(BASE, BASE + 1, (), 60, -1, 79, Gap(80, jump=True))]


def test_a_record_that_comes_later_lets_it_go_on():
    made = landing(heard=commit())
    copy, record = made.copies["u0"], made.record
    place = replace(record.places["u0"], joining="b#1", since=6)
    made.on_record(replace(record, version=6, places={**record.places, "u0": place}), 0, Ready())
    assert made.copies["u0"] is copy
    place = replace(place, epoch=4, empty=4, since=8, joining=None)  # it missed that it was given away, and lost there
    made.on_record(replace(record, version=8, places={**record.places, "u0": place}), 0, ready := Ready())
    assert made.copies["u0"] is not copy
    assert [type(note) for note in ready.notes] == [notes.Dropped, notes.Promoted]


def test_an_edge_goes_on_before_a_batch_that_is_held_and_after_one_that_is_not():
    def box() -> Inbox:
        made = Inbox(EDGE, False)
        made.landing = True
        return made

    held = box()
    held.hold(4, 1, 1, (ROW,))
    block = held.seal(commit())
    assert block is not None
    assert (block.start, block.end, held.last, held.landing) == (37, 40, 4, False)
    other = box()
    other.hold(4, 1, 1, (ROW,))
    assert other.seal(commit(attempt=2)) is None
    assert (other.next, other.last, other.held, other.landing) == (40, 4, {}, True)
    late = replace(commit(batch=9), ends={EDGE: 90})  # whoever spoke first had been overtaken
    assert other.seal(late) is None
    assert (other.next, other.last) == (90, 9)


def test_a_task_gets_less_only_when_its_reader_knows_of_the_gap():
    made = landing(heard=commit())
    asked = m.Fetch(ticket=1, edge="u0.0", start=400, end=500, consumer="r0", epoch=1)
    refused = decide(made, replace(asked, consumer="g0"), 0)
    assert isinstance(refused, m.FetchRefused)  # nobody follows the edge for it
    follow = m.Subscribe(edge="u0.0", consumer="r0", epoch=1, at=500, ack=400)
    made.on_subscribe("r0", follow, 0, ready := Ready())
    assert [x.blocks[0].jumps for _, x in ready.send if isinstance(x, m.Data)] == [True]
    assert decide(made, asked, 0) is None
    made.on_subscribe("r0", replace(follow, at=BASE + 1), 0, Ready())
    answers = [decide(made, replace(asked, end=end), 0) for end in (500, BASE + 1)]
    assert [len(x.blocks) for x in answers if isinstance(x, m.Fetched)] == [0, 1]


def test_a_reader_keeps_a_gap_from_what_it_has_committed_on():
    record = first_record(TOPOLOGY, ("n0",))
    spec = ReaderSpec(id="r0", edges=("u0.0",))
    reader = Reader(spec, 1, TOPOLOGY, Config(), record, {"u0.0": 0}, 0, {"u0.0": 3})
    before = (shard_block(0, (ROW,), 10), shard_block(2, (ROW,), 20))
    reader.step(Received("n0#1", m.Data(edge="u0.0", epoch=1, blocks=before)), 0)
    reader.commit({"u0.0": 2}, 0)
    gap = shard_block(BASE, (), 60, 79, Gap(80, jump=True))
    ready = reader.step(Received("n0#1", m.Data(edge="u0.0", epoch=2, blocks=(gap,))), 0)
    found = GapFound(consumer="r0", edge="u0.0", position=BASE, start=10, to=80)
    assert ready.persist == [(found.key, found)]
    assert reader.latest() == {"u0.0": BASE + 1}
    assert reader.pieces({"u0.0": 2}, {"u0.0": BASE + 1})[0].rows == 1
    assert [x.at for _, x in ready.send if isinstance(x, m.Subscribe)] == [BASE + 1]
    assert elements(17, BASE + 5) == 5
    hole = shard_block(BASE + 9, (), 70, 79, Gap(90))
    reader.step(Received("n0#1", m.Data(edge="u0.0", epoch=2, blocks=(hole,))), 0)
    assert reader.latest() == {"u0.0": BASE + 1}  # only an empty start is jumped to
