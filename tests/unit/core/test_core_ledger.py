"""The ledger on its disks: a commit is on every one before it counts, and there is one of each batch."""

from __future__ import annotations

from random import Random

import pytest
from support.core import op

from holdfast.core.ledger import Ledger
from holdfast.core.node import Node
from holdfast.core.ready import Ready, Received
from holdfast.model import messages as m
from holdfast.model import parts
from holdfast.model.config import Config
from holdfast.model.found import Found, KeptPage, read
from holdfast.model.reasons import HandOverReason
from holdfast.model.record import Place, Record, first_record
from holdfast.model.topology import layered

TOPOLOGY = layered(stages=1, shards=1)
RECORD = first_record(TOPOLOGY, ("n0", "n1", "n2"))


def commit(batch: int = 3, watermark: int = 7) -> parts.CommitRecord:
    return parts.CommitRecord(
        query="query-0", batch=batch, epoch=1, attempt=1, watermark=watermark, offsets=(0, 9),
        digests={"s0>u0": parts.Digest(1, 2)}, ends={"s0>u0": 40},
    )  # fmt: skip


def sent(ready: Ready, kind: type) -> list:
    return [message for _, message in ready.send if type(message) is kind]


def ledger(name: str = "n1", place: Place | None = None) -> Ledger:
    made = Ledger("s0.ledger", name)
    made.on_place(place or Place(primary="n1", backup="n2", since=4), Ready())
    return made


def opening(made: Ledger, epoch: int = 1, query: str = "q") -> Ready:
    ready = Ready()
    made.on_ledger_open("s0@1", m.LedgerOpen(stage="s0", epoch=epoch, query=query), 0, ready)
    return ready


def copied(made: Ledger, by: str = "n2") -> Ready:
    ready = Ready()
    made.on_ledger_copied(by, m.LedgerCopied(ledger="s0.ledger", since=4, rank=made.page.rank), 0, ready)
    return ready


@pytest.mark.parametrize("order", [("n1#1", "n2#1"), ("n2#1", "n1#1")])
def test_the_ledger_answers_only_when_both_disks_have_the_page_whichever_is_first(order):
    made = ledger()
    ready = opening(made)
    assert ready.persist
    assert [(to, type(x)) for to, x in ready.early] == [("n2", m.LedgerCopy)]
    assert [(to, type(x)) for to, x in ready.send] == [("n1", m.LedgerCopied)]  # its own disk answers itself
    assert copied(made, by=order[0]).send == []
    assert [type(x) for _, x in copied(made, by=order[1]).send] == [m.LedgerState]
    assert copied(made, by=order[1]).send == []


class Disks:
    """The two nodes of a ledger: what each writes is on its disk when it is synced, and a crash forgets the rest."""

    PLACE = Place(primary="n1", backup="n2", since=4)

    def __init__(self) -> None:
        self.disk: dict[str, KeptPage] = {
            "n1": KeptPage(4, parts.LedgerPage("q", 1, commit(2))),
            "n2": KeptPage(4, parts.LedgerPage("q", 1, commit(2))),
        }
        self.told: list[m.Message] = []
        self.ledgers: dict[str, Ledger] = {}
        self.pending: dict[str, list[Ready]] = {"n1": [], "n2": []}
        for name in ("n2", "n1"):
            self.start(name)
        self.sync("n1", "n2")

    def start(self, name: str, place: Place = PLACE) -> None:
        self.ledgers[name], self.pending[name] = Ledger("s0.ledger", name, self.disk[name]), []
        self.place(name, place)

    def place(self, name: str, place: Place) -> None:
        ready = Ready()
        self.ledgers[name].on_place(place, ready)
        self.do(name, ready)

    def ask(self, message: m.LedgerOpen | m.LedgerWrite, *names: str) -> None:
        """A driver asks: the primary to open, every disk to write."""
        for name in names or (("n1", "n2") if isinstance(message, m.LedgerWrite) else ("n1",)):
            self.hear(name, f"s0@{message.epoch}", message)

    def hear(self, name: str, source: str, message: m.Message) -> None:
        ready = Ready()
        getattr(self.ledgers[name], message.handler)(source, message, 0, ready)
        self.do(name, ready)

    def do(self, name: str, ready: Ready) -> None:
        """As a driver of the core does: early messages behind earlier writes only, the rest behind this step's, too."""
        if not self.pending[name]:
            self.carry(name, ready.early)
            ready.early = []
        if ready.persist or self.pending[name]:
            self.pending[name].append(ready)
        else:
            self.carry(name, ready.send)

    def sync(self, *names: str) -> None:
        while any(self.pending[name] for name in names):
            for name in names:
                if self.pending[name]:
                    ready = self.pending[name].pop(0)
                    self.disk[name] = read({"ledger/s0.ledger": self.disk[name], **dict(ready.persist)}).ledgers[
                        "s0.ledger"
                    ]
                    self.carry(name, ready.early + ready.send)

    def carry(self, source: str, messages: list) -> None:
        for to, message in messages:
            if to in self.ledgers:
                self.hear(to, source, message)
            else:
                self.told.append(message)


def write(batch: int, epoch: int = 1, since: int = 4) -> m.LedgerWrite:
    return m.LedgerWrite(stage="s0", epoch=epoch, since=since, commit=commit(batch))


def states(made: Disks, kind: type = m.LedgerWritten) -> list[int]:
    return [x.commit.batch for x in made.told if isinstance(x, kind) and x.commit]


def test_both_disks_of_a_ledger_write_at_the_same_time_and_each_says_so_when_it_has_it():
    made = Disks()
    made.ask(write(3))
    assert all(made.pending.values())  # neither has waited for the other
    assert states(made) == []
    made.sync("n2")
    assert states(made) == [3]
    made.sync("n1")
    assert states(made) == [3, 3]
    made.ask(write(3))  # once more: both have it
    assert not any(made.pending.values())
    assert states(made) == [3, 3, 3, 3]


def test_a_ledger_that_died_before_its_own_write_takes_over_what_its_backup_has():
    made = Disks()
    made.ask(write(3))
    made.sync("n2")
    made.start("n1")  # it lost the write, and is still the primary
    assert made.disk["n1"].page.commit == commit(2)
    made.sync("n1", "n2")
    assert made.disk["n1"] == made.disk["n2"] == KeptPage(4, parts.LedgerPage("q", 1, commit(3)))
    assert made.ledgers["n1"].in_step()
    made.ask(write(3))  # the driver asks again
    made.sync("n1", "n2")
    assert states(made) == [3, 3, 3]


def test_a_commit_that_only_the_backup_has_is_not_dropped_by_the_next_driver():
    made = Disks()
    made.ask(write(3))
    made.sync("n2")
    made.start("n1", Place(primary=None))  # back, but it does not know its place yet
    ready = Ready()
    made.ledgers["n1"].on_place(Disks.PLACE, ready)
    ready.send = []  # the network loses what it tells its backup
    made.ask(m.LedgerOpen(stage="s0", epoch=2, query="q"))
    made.sync("n1", "n2")
    assert states(made, m.LedgerState) == [3]
    assert made.disk["n1"] == made.disk["n2"] == KeptPage(4, parts.LedgerPage("q", 2, commit(3)))


@pytest.mark.parametrize("name", ["n1", "n2"])
def test_a_commit_that_one_disk_has_when_its_driver_dies_is_what_the_next_one_finds(name):
    made = Disks()
    made.ask(write(3), name)
    made.sync("n1", "n2")
    made.ask(m.LedgerOpen(stage="s0", epoch=2, query="q"))
    made.ask(write(4), *({"n1", "n2"} - {name}))  # of the first one, which is not dead: it is too late for it
    made.sync("n1", "n2")
    assert states(made, m.LedgerState) == [3]
    assert made.disk["n1"].page == made.disk["n2"].page == parts.LedgerPage("q", 2, commit(3))


def test_a_driver_that_is_fenced_at_one_disk_only_leaves_nothing_that_is_not_found():
    made = Disks()
    ready = Ready()
    made.ledgers["n1"].on_ledger_open("s0@2", m.LedgerOpen(stage="s0", epoch=2, query="q"), 0, ready)
    late, ready.early = ready.early, []  # the copy to the other disk is slow
    made.do("n1", ready)
    made.ask(write(3))
    made.sync("n1", "n2")
    assert [x.reason for x in made.told if isinstance(x, m.Refused)] == [HandOverReason.EPOCH_OVER]
    assert states(made) == [3]  # by the other: not enough
    made.carry("n1", late)
    made.sync("n1", "n2")
    assert states(made, m.LedgerState) == [3]
    assert made.disk["n1"].page == made.disk["n2"].page == parts.LedgerPage("q", 2, commit(3))


def test_whoever_takes_over_from_a_ledger_that_died_while_it_wrote_answers_with_the_commit():
    made = Disks()
    made.ask(write(3))
    made.sync("n2")
    made.place("n2", Place(primary="n2", epoch=2, since=5))
    made.ask(write(3, since=5), "n2")
    made.sync("n2")
    assert states(made) == [3, 3]
    made.ask(m.LedgerOpen(stage="s0", epoch=2, query="q"), "n2")
    made.sync("n2")
    assert states(made, m.LedgerState) == [3]


def test_a_commit_that_only_the_primary_has_comes_to_the_backup():
    made = Disks()
    made.pending["n2"].append(Ready())  # a disk that hangs
    made.ask(write(3))
    made.sync("n1")
    made.start("n2")
    made.sync("n1", "n2")
    assert made.disk["n2"].page.commit == commit(2)  # the driver was not told by both, and it may be that it never is
    ready = Ready()
    made.ledgers["n1"].on_tick(ready)
    made.do("n1", ready)
    made.sync("n1", "n2")
    assert made.disk["n2"].page.commit == commit(3)
    assert made.ledgers["n1"].in_step()


def test_a_driver_that_waits_while_a_later_one_is_found_on_the_other_disk_is_refused():
    made = Disks()
    made.ask(m.LedgerOpen(stage="s0", epoch=2, query="q"))
    made.sync("n2")
    made.start("n1", Place(primary=None))
    ready = Ready()
    made.ledgers["n1"].on_place(Disks.PLACE, ready)
    made.ask(m.LedgerOpen(stage="s0", epoch=1, query="q"))  # this life of the ledger does not know better yet
    made.sync("n1", "n2")
    assert [x.reason for x in made.told if isinstance(x, m.Refused)] == [HandOverReason.EPOCH_OVER]
    assert states(made, m.LedgerState) == []


def test_an_older_driver_is_refused_and_a_foreign_query_too():
    made = ledger()
    opening(made, epoch=2)
    for ready in (opening(made, epoch=1), opening(made, epoch=2, query="other")):
        assert isinstance(ready.send[0][1], m.Refused)
    assert reason(made, 0) == HandOverReason.EPOCH_OVER


def reason(made: Ledger, batch: int, watermark: int = 7, epoch: int = 1) -> HandOverReason | None:
    """Why it does not take a commit; None: it does."""
    ready = Ready()
    asked = m.LedgerWrite(stage="s0", epoch=epoch, since=4, commit=commit(batch, watermark))
    made.on_ledger_write(f"s0@{epoch}", asked, 0, ready)
    ((_, answer),) = ready.send
    return answer.reason if isinstance(answer, m.Refused) else None


def test_a_commit_is_never_replaced_and_none_may_be_skipped():
    made = ledger()
    opening(made)
    copied(made)
    assert reason(made, 0, 1) is None
    assert reason(made, 0, 2) == HandOverReason.NOT_OPENED
    assert made.page.commit == commit(0, 1)
    assert reason(made, 5) == HandOverReason.NOT_OPENED
    assert reason(made, 1, epoch=9) == HandOverReason.NOT_OPENED
    assert made.page.commit == commit(0, 1)


def test_a_disk_that_joins_takes_no_commit_before_it_has_the_page():
    made = ledger("n2", Place(primary="n1", joining="n2", since=4))
    assert reason(made, 0) == HandOverReason.NOT_OPENED
    page = parts.LedgerPage("q", 1, None)
    made.on_ledger_copy("n1", m.LedgerCopy(ledger="s0.ledger", since=4, page=page), 0, Ready())
    assert reason(made, 0) is None


@pytest.mark.parametrize("since", [3, 5])
def test_a_disk_takes_no_commit_under_another_place_than_it_knows(since):
    made = Node("n1", ("n0", "n1", "n2"), TOPOLOGY, Config(), op, Random(1), Found(), RECORD, 0)
    place = Place(primary="n1", backup="n2", since=4)
    made.start(0)
    made._on_record(
        Record(version=4, term=1, members=RECORD.members, places={**RECORD.places, "s0.ledger": place}), 0, Ready()
    )
    made.step(Received("s0@1", m.LedgerOpen(stage="s0", epoch=1, query="query-0")), 0)
    ready = made.step(Received("s0@1", write(0, since=since)), 0)
    refused = m.Refused(stage="s0", epoch=1, batch=0, reason=HandOverReason.PLACE_CHANGED, version=4)
    assert ("s0@1", refused) in ready.send
    assert sent(made.step(Received("s0@1", write(0)), 0), m.LedgerWritten)


def test_who_is_not_the_primary_or_is_moving_refuses():
    assert opening(ledger("n2")).send[0][1].reason == "not the ledger"
    assert reason(ledger("n3"), 0) == HandOverReason.NOT_THE_LEDGER
    moving = ledger(place=Place(primary="n1", backup="n2", since=4, moving=True))
    assert opening(moving).send[0][1].reason == "not the ledger"
    assert reason(moving, 0) == HandOverReason.NOT_THE_LEDGER
    assert moving.yielded() is None
    copied(moving)
    assert moving.yielded() == m.Yielded(asset="s0.ledger", since=4)


def test_a_copy_is_kept_and_an_old_one_is_nothing():
    made = ledger("n2")
    page = parts.LedgerPage("q", 2, commit(3))
    ready = Ready()
    made.on_ledger_copy("n1", m.LedgerCopy(ledger="s0.ledger", since=4, page=page), 0, ready)
    assert ready.persist == [("ledger/s0.ledger", KeptPage(4, page))]
    made.on_ledger_copy("n1", m.LedgerCopy(ledger="s0.ledger", since=4, page=parts.LedgerPage("q", 1, None)), 0, ready)
    assert made.page == page


def test_who_joins_starts_from_nothing_unless_it_restarted_while_joining():
    joining = Place(primary="n1", joining="n2", since=6)
    page = parts.LedgerPage("q", 2, commit(3))
    stale, restarted = (Ledger("s0.ledger", "n2", KeptPage(since, page)) for since in (4, 6))
    for made in (stale, restarted):
        made.on_place(joining, Ready())
    assert stale.page.commit is None
    assert restarted.page == page


def test_a_joining_holder_is_reported_when_it_has_everything():
    made = ledger(place=Place(primary="n1", joining="n2", since=4))
    opening(made)
    assert made.report() is None
    copied(made)
    assert made.report() == "n2"
