"""Output goes to disk: asked for by a ticket, counted when it is there, tried again when it was refused."""

from __future__ import annotations

from support.core import ONE, feed, op, paste_all, place, record, take

from holdfast.core.host import Host
from holdfast.core.ready import Done, DropSpill, Ready, Spill
from holdfast.logs.output_queue import OutputQueue
from holdfast.model import messages as m
from holdfast.model.config import Config
from holdfast.model.record import Place

#: Two elements fit; a step makes one (a watermark without rows).
CONFIG = Config(queue_memory_max=2)


class SpillingHost:
    """A host whose shard has made more than memory should hold, and what it asked of its disk."""

    def __init__(self, seat: str = "a#1", shard: Place | None = None, config: Config = CONFIG) -> None:
        self.host = Host(seat, ONE, config, op)
        self.made = 0
        self.asked: list[Spill | DropSpill] = []
        self.noted: list[str] = []
        self.on_record(1, shard or place())

    @property
    def queue(self) -> OutputQueue:
        return self.host.copies["u0"].outputs[0]

    def on_record(self, version: int, shard: Place) -> None:
        ready = Ready()
        self.host.on_record(record(version, shard), 0, ready)
        self.took(ready)

    def took(self, ready: Ready) -> None:
        self.asked += [e for e in ready.apply if isinstance(e, Spill | DropSpill)]
        self.noted += [str(note) for note in ready.notes if str(note).startswith("spill")]

    def make(self, blocks: int) -> None:
        for _ in range(blocks):
            i = self.made
            feed(self.host.copies["u0"], "s0>u0", 2 * i, [], 10 * i + 10, i)
            self.made += 1
        ready = Ready()
        self.host.runners["u0"].pump(0, ready)
        self.took(ready)

    def writes(self) -> list[tuple[int, int, int]]:
        """(ticket, start, end) of every write that was asked for."""
        return [(e.ticket, e.blocks[0].start, e.blocks[-1].end) for e in self.asked if isinstance(e, Spill)]

    def drops(self) -> list[int]:
        return [e.to for e in self.asked if isinstance(e, DropSpill)]

    def done(self, ticket: int, *, ok: bool = True, now_ns: int = 0) -> None:
        work = next(e for e in self.asked if isinstance(e, Spill) and e.ticket == ticket)
        kept = tuple(f"file of {block.start}" for block in work.blocks) if ok else ()
        ready = Ready()
        self.host.on_done(Done(ticket=ticket, ok=ok, why="" if ok else "full.", kept=kept), now_ns, ready)
        self.took(ready)

    def tick(self, now_ns: int) -> None:
        ready = Ready()
        self.host.on_tick(now_ns, ready)
        self.took(ready)

    def acknowledge(self, position: int) -> None:
        ready = Ready()
        ask = m.Subscribe(edge="u0.0", consumer="r0", epoch=1, at=position, ack=position)
        self.host.on_subscribe("r0", ask, 0, ready)
        self.took(ready)

    def rows(self) -> list[object]:
        return [block.rows for block in self.queue.blocks]


def test_rows_leave_memory_when_their_write_is_done_and_not_before():
    made = SpillingHost()
    made.make(3)
    assert made.writes() == [(1, 0, 1)]
    assert (made.queue.in_memory, made.queue.spilled, made.rows()) == (3, 0, [(), (), ()])
    made.done(1)
    assert (made.queue.in_memory, made.queue.spilled, made.rows()) == (2, 1, ["file of 0", (), ()])
    assert made.noted == ["spilled u0 u0.0 1"]


def test_one_write_of_a_queue_at_a_time_and_a_shard_waits_for_a_slow_disk():
    made = SpillingHost()
    made.make(9)
    assert (made.queue.next, made.writes()) == (4, [(1, 0, 2)])  # as much again as fits, and no more
    made.done(1)
    assert (made.queue.next, made.writes()) == (6, [(1, 0, 2), (2, 2, 4)])  # it went on at once
    made.done(2)
    made.done(3)
    assert (made.queue.next, made.queue.spilled, made.queue.in_memory) == (9, 6, 3)


def test_what_was_refused_stays_in_memory_is_told_once_and_is_tried_again():
    made = SpillingHost()
    made.make(3)
    made.done(1, ok=False, now_ns=10)
    assert (made.queue.in_memory, made.queue.spilled) == (3, 0)
    made.make(1)
    made.tick(CONFIG.spill_retry_ns)
    assert (made.noted, len(made.writes())) == (["spill-refused u0 u0.0 full."], 1)
    made.tick(CONFIG.spill_retry_ns + 10)
    assert made.writes()[1:] == [(2, 0, 2)]
    made.done(2, ok=False, now_ns=CONFIG.spill_retry_ns + 20)
    made.tick(3 * CONFIG.spill_retry_ns)
    made.done(3)
    assert made.noted == ["spill-refused u0 u0.0 full.", "spilled u0 u0.0 2", "spill-again u0 u0.0"]
    assert made.queue.in_memory == 2


def test_an_answer_that_comes_twice_counts_once():
    made = SpillingHost()
    made.make(9)
    made.done(1)
    made.done(1)
    assert (made.queue.spilled, made.queue.writing) == (2, 2)
    assert made.rows()[2:4] == [(), ()]


def test_a_disk_that_does_not_answer_is_noticed_and_asked_again_and_its_late_word_means_nothing():
    made = SpillingHost()
    made.make(3)
    made.tick(0)
    made.tick(CONFIG.spill_limit_ns)
    assert made.noted == ["spill-refused u0 u0.0 The disk does not answer."]
    made.tick(CONFIG.spill_limit_ns + CONFIG.spill_retry_ns)
    assert made.writes() == [(1, 0, 1), (2, 0, 1)]
    made.done(1)
    assert made.queue.spilled == 0
    made.done(2)
    assert made.queue.spilled == 1


def test_an_answer_for_a_copy_that_is_gone_does_nothing_and_its_files_go():
    made = SpillingHost("b#1", place(backup="a#1", primary="b#1"))
    made.make(3)
    made.on_record(2, place(2, primary="a#1", backup=None, epoch=2))
    assert ("u0" in made.host.copies, made.drops()) == (False, [1])
    made.done(1)
    made.on_record(3, place(3, primary="a#1", backup=None, joining="b#1", epoch=2))
    made.done(1)
    assert (made.queue.spilled, made.noted) == (0, [])


def image_of(source: SpillingHost) -> SpillingHost:
    """The backup of a shard, with what its primary has made."""
    image = SpillingHost("c#1", place(backup=None, joining="c#1"))
    ready = Ready()
    for message in take(source.host.runners["u0"].guards[0])["c#1"]:
        image.host.on_capture("a#1", message, 0, ready)
    paste_all(image.host, ready)
    image.took(ready)
    return image


def test_an_image_spills_as_its_primary_does():
    source = SpillingHost(shard=place(backup=None, joining="c#1"))
    source.make(3)
    image = image_of(source)
    assert image.writes() == [(1, 0, 1)]
    image.done(1)
    assert (image.queue.spilled, image.queue.in_memory) == (1, 2)


def test_an_answer_of_an_earlier_epoch_does_nothing_and_the_promoted_copy_asks_for_itself():
    source = SpillingHost(shard=place(backup=None, joining="c#1"))
    source.make(3)
    image = image_of(source)
    image.on_record(2, place(2, backup="c#1"))
    image.on_record(3, place(3, primary="c#1", backup=None, epoch=2))
    image.done(1)
    assert image.queue.spilled == 0
    image.tick(0)
    assert image.writes() == [(1, 0, 1), (2, 0, 1)]
    image.done(2)
    assert image.queue.spilled == 1


def test_files_go_when_what_is_in_them_was_trimmed_also_while_it_is_written():
    made = SpillingHost()
    made.make(4)
    made.acknowledge(1)
    made.acknowledge(1)
    assert made.drops() == [1]
    made.done(1)
    assert (made.queue.trimmed, made.queue.spilled) == (1, 1)
    made.acknowledge(2)
    assert made.drops() == [1, 2]
    made.acknowledge(4)
    assert made.drops() == [1, 2]  # nothing of it was in a file
