"""Dead letters: numbered and captured like output, written under a ticket, kept until they are in a file."""

from __future__ import annotations

import pytest
from support.core import ONE, feed, place, receive, record, take

from holdfast.core.host import Host
from holdfast.core.ready import Done, Ready, SetAside
from holdfast.errors import MemoryLimitError
from holdfast.model.config import SECOND, Config
from holdfast.model.topology import ShardSpec
from holdfast.sim.costs import Costs
from holdfast.sim.operators import Meter, WindowSum

CONFIG = Config(queue_memory_max=3)


def small(spec: ShardSpec) -> WindowSum:
    """Sums above 5 do not fit."""
    return WindowSum(spec, 10, Costs(), Meter(), sum_max=5)


class Setting:
    """A host whose shard sets something aside with every batch, and what it asks for."""

    def __init__(self, seat: str = "a#1", factory=small) -> None:
        self.host = Host(seat, ONE, CONFIG, factory)
        self.asked: list[SetAside] = []
        self.noted: list[str] = []
        self.batches = 0
        self.on_record(1, place())

    @property
    def copy(self):
        return self.host.copies["u0"]

    def took(self, ready: Ready) -> None:
        self.asked += [effect for effect in ready.apply if isinstance(effect, SetAside)]
        self.noted += [note.word for note in ready.notes]

    def on_record(self, version: int, shard, now_ns: int = 0) -> None:
        ready = Ready()
        self.host.on_record(record(version, shard), now_ns, ready)
        self.took(ready)

    def feed(self) -> None:
        """One window with a sum of 1 and one with a sum of 9."""
        i = self.batches
        feed(self.copy, "s0>u0", 4 * i, [(1, 10 * i, 1), (2, 10 * i, 9)], 10 * i + 10, i)
        self.batches += 1

    def step(self, batches: int = 1) -> None:
        for _ in range(batches):
            self.feed()
        ready = Ready()
        self.host.runners["u0"].pump(0, ready)
        self.took(ready)

    def done(self, ticket: int, *, ok: bool = True, now_ns: int = 0) -> None:
        ready = Ready()
        self.host.on_done(Done(ticket=ticket, ok=ok, why="" if ok else "full."), now_ns, ready)
        self.took(ready)

    def tick(self, now_ns: int) -> None:
        ready = Ready()
        self.host.on_tick(now_ns, ready)
        self.took(ready)

    def positions(self) -> list[list[int]]:
        return [[block.start for block in effect.blocks] for effect in self.asked]


def test_what_is_set_aside_is_not_emitted_and_has_positions_of_its_own():
    made = Setting()
    made.step()
    assert [block.rows for block in made.copy.outputs[0].blocks] == [((1, 9, 1),)]
    assert [(block.start, block.rows) for block in made.copy.dead.blocks] == [(0, ((2, 9, 9),))]
    assert made.noted.count("set-aside") == 1


def test_dead_letters_are_kept_until_their_write_is_done_and_one_write_is_under_way_at_a_time():
    made = Setting()
    made.step()
    made.step()
    assert made.positions() == [[0]]
    made.done(made.asked[0].ticket)
    assert made.positions() == [[0], [2]]
    assert (made.copy.dead.trimmed, made.noted.count("dead-kept")) == (2, 1)
    made.done(made.asked[0].ticket)  # again: it means nothing any more
    assert made.copy.dead.trimmed == 2


def test_a_refused_write_is_told_once_and_tried_again():
    made = Setting()
    made.step()
    for i in range(3):
        made.done(made.asked[-1].ticket, ok=False, now_ns=i * CONFIG.spill_retry_ns)
        assert made.copy.dead.trimmed == 0
        made.tick((i + 1) * CONFIG.spill_retry_ns)
        assert made.positions() == [[0]] * (i + 2)
    assert made.noted.count("dead-refused") == 1
    made.done(made.asked[-1].ticket)
    assert made.copy.dead.trimmed == 2


def test_a_shard_whose_dead_letters_cannot_be_written_waits():
    made = Setting()
    made.step(4)
    assert made.copy.dead.next == 4  # three elements fit, but for one step
    assert len(made.copy.inboxes["s0>u0"].sealed) == 2
    made.done(made.asked[-1].ticket)
    assert made.copy.dead.next > 4


def test_a_promoted_copy_writes_what_nobody_said_was_written():
    primary, backup = Setting(), Setting("b#1")
    primary.step()
    backup.feed()
    messages = take(primary.host.runners["u0"].guards[0])["b#1"]
    receive(backup.host, messages)
    assert [block.rows for block in backup.copy.dead.blocks] == [((2, 9, 9),)]
    assert backup.asked == []
    backup.on_record(2, place(2, primary="b#1", backup=None, epoch=2))
    assert backup.positions() == [[0]]
    assert backup.asked[0].blocks == primary.asked[0].blocks


def test_a_copy_that_stops_forgets_its_ticket():
    made = Setting()
    made.step()
    made.on_record(2, place(2, primary="b#1", backup=None, joining="a#1", epoch=2))
    made.done(made.asked[0].ticket)
    assert "dead-kept" not in made.noted


class NoRoom(WindowSum):
    """Has no memory for rows until it is given some."""

    __slots__ = ("room",)

    def step(self, edge, rows, watermark):
        if rows and not getattr(self, "room", False):
            raise MemoryLimitError("u0: no memory")
        return super().step(edge, rows, watermark)


@pytest.fixture
def starved() -> Setting:
    return Setting(factory=lambda spec: NoRoom(spec, 10, Costs(), Meter()))


def test_a_shard_without_memory_waits_says_so_once_and_goes_on_by_itself(starved: Setting):
    starved.step()
    for i in range(1, 4):
        starved.tick(i * SECOND)
    assert "no memory" in starved.copy.why
    assert starved.noted.count("waits-for-memory") == 1
    assert starved.copy.positions() == {"s0>u0": 0}
    starved.copy.op.room = True
    starved.tick(60 * SECOND)
    assert starved.copy.positions() == {"s0>u0": 4}
    assert (starved.copy.why, starved.noted.count("has-memory")) == ("", 1)
