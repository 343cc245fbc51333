"""Nodes that no file of the others names: an address in the record first, then a member, and gone for good at last."""

from __future__ import annotations

import msgspec
import pytest
from test_core_placement import no_news

from holdfast.core.election import Election, Standing
from holdfast.core.membership import Membership
from holdfast.core.placement import Draft, Reports, plan
from holdfast.core.ready import Ready
from holdfast.core.tickets import Tickets
from holdfast.core.witness import Witness
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.config import MS, Config
from holdfast.model.record import ROSTER_MAX, Place, Record
from holdfast.model.successor import record_objection

CONFIG = Config()
PEERS = ("a", "b", "c")
AT = "grpc://127.0.0.1:7"


def record(members=PEERS, roster: dict[str, str] | None = None, **more) -> Record:
    places = {"u": Place(primary="a#1", backup="b#1")}
    return Record(version=4, term=1, members=dict.fromkeys(members, 1), places=places, roster=roster or {}, **more)


def membership(known: Record) -> tuple[Membership, Reports]:
    election, reports = Election("a", CONFIG, 1, None, known), Reports()
    election.commit, election.decided = known.version, known
    return Membership("a", PEERS, election, lambda: reports), reports


def after(known: Record, **reported) -> Draft | None:
    reports = Reports()
    for name, value in reported.items():
        setattr(reports, name, value)
    return plan(known, reports, no_news(), CONFIG)


def judged(made: Membership, now_ns: int, **hellos: int) -> dict[str, int]:
    reports = Reports()
    reports.hellos = dict(hellos)
    made.judge(reports, now_ns)
    return dict(reports.hellos)


def test_who_is_let_in_has_an_address_in_the_record_and_no_vote():
    made = after(record(), let_in={"d": AT})
    assert made is not None
    assert made.roster == {"d": AT}
    assert sorted(made.members) == ["a", "b", "c"]


def test_a_member_changes_alone_and_the_roster_waits():
    made = after(record(roster={"d": AT}), hellos={"d": 1}, let_in={"e": AT})
    assert made is not None
    assert sorted(made.members) == ["a", "b", "c", "d"]
    assert "e" not in made.roster


def test_a_member_gets_no_other_address():
    made = after(record((*PEERS, "d"), {"d": AT}), let_in={"d": "grpc://127.0.0.1:8"})
    assert made is None or made.roster == {"d": AT}


def test_who_holds_something_is_not_sent_away():
    made = after(record(draining=("b",)), sent_away={"b": None})
    assert made is None or "b" not in made.roster
    made = after(record(draining=("c",)), sent_away={"c": None})
    assert made is not None
    assert (made.roster, sorted(made.members), made.draining) == ({"c": ""}, ["a", "b"], ())


def test_hellos_of_strangers_and_of_those_who_have_left_are_not_heard():
    made, _ = membership(record(roster={"c": "", "d": AT}))
    for name in PEERS:
        made.election.contacts[name] = 0
    assert judged(made, 0, b=2, c=9, d=1, x=1) == {"b": 2, "d": 1}


def test_nobody_is_added_while_the_others_could_not_go_on_without_the_new_one():
    """Of three one is silent: four members need three."""
    made, _ = membership(record(roster={"d": AT}))
    made.election.contacts["b"] = 0
    assert judged(made, 0, d=1) == {}
    made.election.contacts["c"] = 0
    assert judged(made, 0, d=1) == {"d": 1}
    assert judged(made, CONFIG.misses_max * CONFIG.heartbeat_ns + MS, d=1) == {}


def test_nobody_is_sent_away_whom_the_others_need_for_a_majority():
    """Of four two are heard besides: with three heard, three are left, and all of them can go on."""
    made, reports = membership(record((*PEERS, "d")))
    made.election.contacts["b"] = 0
    reports.sent_away = {"d": None}
    made.judge(reports, 0)
    assert reports.sent_away == {}
    made.election.contacts["c"] = 0
    reports.sent_away = {"d": None}
    made.judge(reports, 0)
    assert reports.sent_away == {"d": None}


@pytest.mark.parametrize(("members", "heard", "may"), [(1, 0, True), (2, 1, True), (2, 0, False), (4, 2, True)])
def test_how_many_must_be_heard(members: int, heard: int, may: bool):
    election = Election("n0", CONFIG, 1, None, record(tuple(f"n{i}" for i in range(members))))
    election.contacts.update({f"n{i}": 0 for i in range(1, heard + 1)})
    assert election.can_add(0) is may


def test_who_has_left_and_says_hello_gets_the_record():
    known = record(roster={"c": ""})
    made, reports = membership(known)
    ready = Ready()
    made.on_hello("c#3", m.Hello(name="c", life=3), 0, ready)
    assert ready.send == [("c", m.Push(record=known))]
    assert reports.hellos == {}


def test_a_late_node_counts_when_what_was_pushed_to_it_has_arrived():
    """Or one that nobody reaches is added and voted out forever."""
    known = record(roster={"d": AT})
    made, reports = membership(known)
    made.election.standing = Standing.COORDINATOR
    ready = Ready()
    made.on_hello("d#1", m.Hello(name="d", life=1), 0, ready)
    assert (ready.send, reports.hellos) == ([("d", m.Push(record=known))], {})
    later = msgspec.structs.replace(known, version=9)
    made.election.accepted = made.election.decided = later
    made.on_hello("d#1", m.Hello(name="d", life=1, version=4), 0, ready)  # the cluster need not stand still for it
    assert reports.hellos == {"d": 1}
    reports.hellos.clear()
    member = msgspec.structs.replace(later, version=10, members={**later.members, "d": 1})
    made.election.accepted = made.election.decided = member
    made.on_hello("d#1", m.Hello(name="d", life=1, version=4), 0, ready)
    assert reports.hellos == {"d": 1}
    reports.hellos.clear()
    made.election.accepted = made.election.decided = msgspec.structs.replace(later, version=11)  # voted out
    made.on_hello("d#1", m.Hello(name="d", life=1, version=10), 0, ready)
    assert reports.hellos == {}
    made.on_hello("b#2", m.Hello(name="b", life=2), 0, ready)  # in the files
    assert reports.hellos == {"b": 2}
    made.election.standing = Standing.FOLLOWER
    made.on_hello("d#1", m.Hello(name="d", life=1, version=11), 0, ready)
    assert reports.hellos == {"b": 2}


def test_a_node_greets_those_of_its_file_and_of_the_roster():
    made, _ = membership(record(roster={"d": AT}))
    assert made.to_greet() == ["b", "c", "d"]
    assert made.knows("d")
    assert not made.knows("x")


def test_nobody_is_let_in_where_the_store_votes():
    made, reports = membership(record())
    made.on_let_in("operator", m.LetIn(name="d", address=AT), 0, Ready())
    assert reports.let_in == {"d": AT}
    reports.let_in.clear()
    made.election.witness = Witness("a", Tickets(MS), made.election, MS)
    made.on_let_in("operator", m.LetIn(name="d", address=AT), 0, Ready())
    assert reports.let_in == {}


def test_a_roster_has_so_many_names_and_no_more():
    full = {f"x{i}": AT for i in range(ROSTER_MAX - 1)}
    draft = after(record(roster=full), let_in={"d": AT, "e": AT, "x1": "grpc://127.0.0.1:8"})
    assert draft is not None
    assert sorted(draft.roster.items() - full.items()) == [("d", AT), ("x1", "grpc://127.0.0.1:8")]
    made, reports = membership(record())
    for i in range(ROSTER_MAX + 5):
        made.on_let_in("operator", m.LetIn(name=f"x{i}", address=AT), 0, Ready())
    assert len(reports.let_in) == ROSTER_MAX


def test_nobody_leaves_for_whose_name_the_roster_has_no_room():
    """The record with it would be refused by all who hear it, and no later one would be decided."""
    full = {f"x{i}": "" for i in range(ROSTER_MAX)}
    draft = after(record(roster=full, draining=("c",)), sent_away={"c": None})
    assert draft is None or (draft.roster, sorted(draft.members)) == (full, ["a", "b", "c"])
    draft = after(record((*PEERS, "x3"), {**full, "x3": AT}, draining=("x3",)), sent_away={"x3": None})
    assert draft is not None
    assert (draft.roster, sorted(draft.members)) == (full, ["a", "b", "c"])


def test_what_changes_in_the_roster_is_told():
    made, _ = membership(record(roster={"d": AT}))
    draft, ready = after(record(roster={"d": AT}), let_in={"e": AT}), Ready()
    assert draft is not None
    draft.roster["d"] = ""
    made.tell(draft, ready)
    assert ready.notes == [notes.SentOff("a", "d", 5), notes.Invited("a", "e", AT, 5)]


@pytest.mark.parametrize("address", ["", "a\nb", "x" * 301, "grpc://a\ud800:1"])
def test_an_address_is_a_word(address: str):
    assert m.LetIn(name="d", address=address).objection("operator", None)  # type: ignore[arg-type]
    assert not m.LetIn(name="d", address=AT).objection("operator", None)  # type: ignore[arg-type]


def test_a_record_with_an_address_that_cannot_be_is_refused():
    class RecordView:
        topology = type(
            "T", (), {"placed": frozenset({"u"}), "operators": frozenset(), "has_store": False, "shard": {}}
        )
        is_node, term = False, 1

    RecordView.record = record()  # type: ignore[attr-defined]
    too_many = dict.fromkeys((f"x{i}" for i in range(ROSTER_MAX + 1)), AT)
    assert "more than 256" in record_objection(record(roster=too_many), RecordView())  # type: ignore[arg-type]
    assert "listens where none can" in record_objection(record(roster={"d": "a\nb"}), RecordView())  # type: ignore[arg-type]
