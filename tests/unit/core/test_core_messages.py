"""Every message is entered once: its class says all that the network must know, and some machine takes it by name."""

from __future__ import annotations

import ast
import inspect
from random import Random

import pytest

from holdfast.core.errand import Errand
from holdfast.core.node import Node
from holdfast.core.reader import Reader
from holdfast.core.stage import StageDriver
from holdfast.model import messages as m
from holdfast.model import parts
from holdfast.model.config import Config
from holdfast.model.found import Found
from holdfast.model.message import FencedBy
from holdfast.model.protection import Protection
from holdfast.model.record import NO_RECORD, first_record
from holdfast.model.topology import layered
from holdfast.runtime.net.links import BULK, FAST, key_of, lane_of
from holdfast.runtime.net.wire import decode, encode
from holdfast.sim.costs import Costs
from holdfast.sim.operators import Meter, WindowSum

SHAPE = layered(stages=1, shards=2)
MESSAGES = m.all_messages()
#: What types of a field say that it names something of the pipeline.
NAMING = {"Edge", "Asset"}
#: Positions and watermarks of edges in a capture: its shard has these edges, or the capture does not fit.
STANDS_FOR = {"start", "to", "watermarks", "outputs", "handed"}
#: What each fence reads of a message.
FENCED_FIELDS = {
    FencedBy.EPOCH: {"epoch"},
    FencedBy.PRODUCER: {"epoch", "edge"},
    FencedBy.CONSUMER: {"epoch", "consumer"},
    FencedBy.ASKED: {"epoch"},
    FencedBy.PLACE: {"since"},
    FencedBy.THIS_PLACE: {"since"},
    FencedBy.THESE_PLACES: {"shards"},
    FencedBy.LIFE: {"life", "name"},
    FencedBy.MEMBER: set(),
    FencedBy.OWN: set(),
    FencedBy.NOT_AHEAD: {"epoch", "stage"},
}


def node() -> Node:
    names = ("n0", "n1", "n2")
    first = first_record(SHAPE, names)
    return Node(
        "n0", names, SHAPE, Config(), lambda spec: WindowSum(spec, 10, Costs(), Meter()), Random(1), Found(), first, 0
    )


def is_taken_by(kind: type[m.Message]) -> list[str]:
    found = ["node"] if kind in node().handlers else []
    return found + [machine.__name__ for machine in (StageDriver, Reader, Errand) if hasattr(machine, kind.handler)]


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda k: k.__name__)
def test_every_message_has_a_machine_that_takes_it(kind):
    assert is_taken_by(kind)


@pytest.mark.parametrize("machine", [Node, StageDriver, Reader, Errand])
def test_what_takes_a_message_gets_source_message_time_and_ready(machine):
    handlers = node().handlers.values() if machine is Node else ()
    methods = [getattr(machine, kind.handler) for kind in MESSAGES if hasattr(machine, kind.handler)]
    for handler in (*handlers, *methods):
        names = [name for name in inspect.signature(handler).parameters if name != "self"]
        assert names == ["source", "message", "now_ns", "ready"]


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda k: k.__name__)
def test_all_that_a_message_names_is_looked_up_before_a_node_takes_it(kind):
    annotations = {name: text for name, text in kind.__annotations__.items() if "ClassVar" not in text}
    for name, text in annotations.items():
        types = {part.id for part in ast.walk(ast.parse(text)) if isinstance(part, ast.Name)}
        assert name in kind.names or not types & NAMING or "node" not in is_taken_by(kind) or name in STANDS_FOR


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda k: k.__name__)
def test_the_key_of_a_message_is_made_of_its_fields(kind):
    assert set(kind.key or ()) <= set(kind.__struct_fields__)


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda k: k.__name__)
def test_every_message_says_itself_what_it_is_fenced_by_and_carries_what_is_compared(kind):
    assert "fenced_by" in vars(kind), "it says so itself; () if nothing"
    has = {*kind.__struct_fields__, *kind.names}
    for by in kind.fenced_by:
        assert FENCED_FIELDS[by] <= has
        if by in (FencedBy.EPOCH, FencedBy.PLACE, FencedBy.THIS_PLACE):
            assert kind.placed


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda k: k.__name__)
def test_a_message_with_a_number_that_fences_is_fenced(kind):
    raises_or_counts_in_any = {m.Heartbeat, m.Hello}  # any life of a member that is heard is a sign of life
    numbers = {"epoch", "since", "term", "life"} & set(kind.__struct_fields__)
    assert bool(kind.fenced_by) or not numbers or kind in raises_or_counts_in_any


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda k: k.__name__)
def test_no_field_of_a_message_hides_what_every_message_has(kind):
    assert not set(kind.__struct_fields__) & {name for name in vars(m.Message) if not name.startswith("__")}


def test_two_messages_of_one_key_say_the_same():
    first = m.Subscribe(edge="u0.0", consumer="r0", epoch=1, at=0, ack=0)
    later = m.Subscribe(edge="u0.0", consumer="r0", epoch=2, at=9, ack=4)
    other = m.Subscribe(edge="u0.0", consumer="r1", epoch=1, at=0, ack=0)
    assert key_of("n0", first) == key_of("n0", later)
    assert len({key_of("n0", first), key_of("n0", other), key_of("n1", first)}) == 3
    assert key_of("n0", m.Pull(version=1)) == key_of("n0", m.Pull(version=2)) != key_of("n0", m.Push(record=NO_RECORD))
    beat = m.Vote(term=1, granted=True)
    assert key_of("n0", beat) != key_of("n0", beat)


def test_rows_and_state_travel_apart_from_all_the_rest():
    bulk = {kind for kind in MESSAGES if kind.bulk}
    assert bulk == {m.Data, m.Fetched, m.Capture, m.CapturePiece, m.Deliver}
    assert all(kind.heavy for kind in bulk)
    assert lane_of(m.Data(edge="u0.0", epoch=1, blocks=())) == BULK
    assert lane_of(m.Pull(version=1)) == FAST


def test_a_node_hears_only_what_a_part_of_it_takes_and_what_names_things_that_it_has():
    made = node()
    made.start(0)

    def is_heard(message: m.Message, source: str = "n1#1") -> bool:
        return not made.gate.objection(source, message)

    assert is_heard(m.Data(edge="u1.0", epoch=1, blocks=()))
    assert not is_heard(m.Data(edge="nowhere.0", epoch=1, blocks=()))
    assert not is_heard(m.Trimmed(edge="u1.0", epoch=1, first=3))
    assert is_heard(m.LedgerOpen(stage="s0", epoch=1, query="q"), "s0@1")
    assert not is_heard(m.LedgerOpen(stage="r0", epoch=1, query="q"), "r0@1")
    assert not is_heard(m.Push(record=NO_RECORD))
    assert is_heard(m.Pasted(shard="u0", epoch=1, round=1))
    assert is_heard(m.StageDown(stage="s0", epoch=1), "n0#1")
    assert not is_heard(m.StageDown(stage="u0", epoch=1), "n0#1")
    assert not is_heard(m.Joined(asset="elsewhere", since=1, seat="n1#1"))
    assert is_heard(m.Joined(asset="s0.ledger", since=1, seat="n1"))
    assert is_heard(m.Loads(running={"u0": 1, "s0": 1}, images={"u1": 1}))
    assert not is_heard(m.Loads(running={"elsewhere": 1}, images={}))
    assert not is_heard(m.Loads(running={}, images={"s0": 1}))
    assert is_heard(m.Loads(running={}, images={}, memory={"s0": 1}))
    assert not is_heard(m.Loads(running={}, images={}, memory={"u0": 1}))
    assert is_heard(m.Loads(running={}, images={}, captures={"u0": 1}))
    assert not is_heard(m.Loads(running={}, images={}, captures={"s0": 1}))


def test_a_node_without_a_record_takes_only_what_leads_to_one_and_tells_tasks_to_go_elsewhere():
    early = {kind for kind in MESSAGES if kind.before_record}
    assert early == {m.Push, m.Append, m.Appended, m.Beat, m.Vote, m.RequestVote, m.Hello, m.Pull, m.Fetch}


def test_whatever_is_entered_can_be_decoded():
    message = m.Drain(name="n1")
    assert decode(encode("operator", "n0", message), "operator") == ("operator", "n0", message)


def test_messages_survive_the_wire():
    commit = parts.CommitRecord(query="q", batch=0, epoch=1, attempt=1, watermark=3, offsets=(0, 4), late=1)
    for message in (
        m.Heartbeat(life=1, version=2),
        m.LedgerCopy(ledger="s0.ledger", since=1, page=parts.LedgerPage("q", 1, commit)),
        m.Push(record=first_record(SHAPE, ("n0", "n1", "n2"))),
        m.SetProtection(operator="u0", protection=Protection(mode="none", period_ns=5_000_000)),
        m.Held(shard="u0", epoch=1, round=2, fits=False),
        m.Unfit(asset="u0", since=3, seat="n1#1"),
        m.Loads(running={"u0": 5, "s0": 7}, images={"u1": 0}),
    ):
        assert decode(encode("n1#1", "n0", message), "n1#1") == ("n1#1", "n0", message)
