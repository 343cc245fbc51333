"""The invariants, checked on every note that a step of any machine leaves behind.

one row, once        every block that is sealed, emitted or accepted equals the reference at its position, and
                     positions have no gaps; a batch is sealed only when its commit is on both ledgers
fencing              one seat is primary per shard and epoch; a consumer never takes rows older than an epoch it
                     knows; one coordinator per term; one record per version; epochs and lives never go back
fetches              what a fetch gets is all that it asked for and equals the reference; it is served by the primary of
                     an epoch that is not older than the asker knows, to a consumer that is not fenced; no lease lapses
                     within its time after a fetch of its guest
disks                no message says that something is safe which the disk of its sender does not have yet: a life, a
                     vote, a record, a page of a ledger
modes                a mode that needs a second copy is in force with the record that names it, one that needs none
                     with the record that drops it
gaps                 only a shard in mode `none` without a copy starts empty by the record, and only one whose input was
                     lost by itself; from then on its output is compared between its copies, every row once, none of a
                     window before the gap; positions never go back; what a sink has at the end is right, and what is
                     missing lies in a gap that it has come past
retention            when a queue trims, every copy that the record could promote stands behind what it trimmed
balance              a backup is moved for balance one at a time, not more often than is set, and only where it makes a
                     difference that counts; no copy is said to be busier than a core can be
bounds               output queues and retained input stay within their limits, but for one step or batch
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.core.errand import Errand
from holdfast.core.invariants import Invariants
from holdfast.core.ledger import EMPTY
from holdfast.errors import InvariantError
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.block import Block, digest_of
from holdfast.model.config import SECOND
from holdfast.model.found import Found, read
from holdfast.model.ids import Address, Asset, Consumer, Edge, Seat, ledger_of, life_of, name_of
from holdfast.model.messages import Message
from holdfast.model.parts import CommitRecord
from holdfast.model.protection import MODES, OnFailure
from holdfast.model.record import Place, Record
from holdfast.sim.process import Process
from holdfast.sim.reference import Reference
from holdfast.sim.world import World


class Violation(Exception):
    """An invariant does not hold. Says which, when, and about what."""

    def __init__(self, rule: str, detail: str, at_ns: int) -> None:
        super().__init__(f"{rule}: {detail} (at {at_ns / 1e6:.3f} ms)")
        self.rule = rule
        self.detail = detail
        self.at_ns = at_ns


def _has_page(disk: Found, message: m.LedgerCopied) -> bool:
    kept = disk.ledgers.get(message.ledger)
    return (kept.page if kept else EMPTY).rank >= tuple(message.rank)


def _has_commit(disk: Found, message: m.LedgerState) -> bool:
    kept = disk.ledgers.get(ledger_of(message.stage))
    return message.commit is None or (kept is not None and kept.page.rank[1] >= message.commit.batch)


#: Messages that say that something is safe, and whether the disk of their sender has it.
CLAIMS: dict[type[Message], Callable[[Found, Any], bool]] = {
    m.LedgerCopied: _has_page,
    m.LedgerState: _has_commit,
    m.Appended: lambda disk, message: disk.record.version >= message.version,
    m.Vote: lambda disk, message: (
        not message.granted or (disk.vote.term >= message.term and disk.vote.voted_for is not None)
    ),
}


#: A core, and what a clock that drifts makes of it.
LOAD_MAX = SECOND * 103 // 100


class Checker:
    def __init__(self, world: World) -> None:
        self.world = world
        self.topology = world.topology
        self.reference = Reference(world.topology, world.window_ns)
        self.record: Record = world.first
        self.decided: dict[int, int] = {}
        self.coordinators: dict[int, Address] = {}
        self.primaries: dict[tuple[Asset, int], Seat] = {}
        self.lives: dict[str, int] = {}
        self.ledgered: dict[Asset, int] = {}
        self.commits: dict[Asset, dict[int, CommitRecord]] = {stage.id: {} for stage in world.topology.stages}
        #: What every process looks at in its own notes, on real nodes too.
        self.own: dict[Address, Invariants] = {}
        #: Where an edge left the reference because rows are missing; what came after, by position; every row of it.
        self.left_at: dict[Edge, int] = {}
        self.after: dict[Edge, dict[int, Block]] = {}
        self.rows_at: dict[Edge, dict[tuple[int, int], int]] = {}
        #: Shards that may start empty: (shard, epoch).
        self.may_land: dict[tuple[Asset, int], None] = {}
        #: When (by the node's clock) each guest last fetched from each seat.
        self.served: dict[tuple[Address, Consumer], int] = {}
        #: When (by its own clock) each coordinator last moved a backup for balance.
        self.balanced: dict[Address, int] = {}
        self.count = 0
        #: What reads which note. One that is not in here must say (`checked`) that no rule needs it.
        self.rules: dict[type[notes.Note], Callable[..., None]] = {
            notes.Sealed: self._sealed,
            notes.Emitted: self._emitted,
            notes.Accepted: self._accepted,
            notes.Served: self._served,
            notes.Fetched: self._fetched,
            notes.Lapsed: self._lapsed,
            notes.Promoted: self._promoted,
            notes.Landed: self._landed,
            notes.CutOff: self._cut_off,
            notes.Missing: self._missing,
            notes.Decided: self._decided,
            notes.Elected: self._elected,
            notes.Balanced: self._balanced,
            notes.Started: self._started,
            notes.Ledgered: self._ledgered,
            notes.Committed: self._committed,
            notes.Trimmed: self._trimmed,
            notes.Acked: self._acked,
        }
        world.notices.append(self.on_notes)
        world.watches.append(self.on_send)

    def on_notes(self, at_ns: int, source: Address, noted: list[notes.Note]) -> None:
        own = self.own.setdefault(source, Invariants())
        for note in noted:
            try:
                own.on_notes([note])
            except InvariantError as error:
                self.fail(error.what, error.detail)
            rule = self.rules.get(type(note))
            self.count += rule is not None or type(note) in own.rules
            if rule is not None:
                rule(source, note)
            elif getattr(note, "checked", True) and type(note) not in own.rules:
                self.fail("an unknown note", f"{note}: no rule reads it, and it does not say that none needs to")

    def fail(self, rule: str, detail: str) -> None:
        raise Violation(rule, detail, self.world.now_ns)

    # --- rows

    def _sealed(self, source: Address, note: notes.Sealed) -> None:
        shard, edge, seat, block = note.shard, note.edge, note.seat, note.block
        known = self.reference.blocks[edge]
        if block.batch > self.ledgered.get(self.topology.producer[edge], -1):
            self.fail("sealed before committed", f"{edge} batch {block.batch} on {seat}")
        commit = self.commits[self.topology.producer[edge]][block.batch]
        if (block.end, digest_of(block.rows)) != (commit.ends[edge], commit.digests[edge]):
            self.fail("sealed what was not committed", f"{edge} on {seat}: {block}, but {commit}")
        if block.batch < len(known):
            if known[block.batch] != block:
                self.fail("copies disagree", f"{edge} batch {block.batch} on {seat}: {block} != {known[block.batch]}")
        elif block.batch != len(known) or block.start != self.reference.next[edge]:
            if self.record.places[shard].empty:
                return  # what came before was taken by no copy: the reference stays behind
            self.fail("positions have a hole", f"{edge} on {seat}: {block}, next is {self.reference.next[edge]}")
        else:
            self.reference.add(edge, block)
        self._check_retained(shard, seat, block)

    def _check_retained(self, shard: Asset, seat: Seat, block: Block) -> None:
        node = self.world.node(name_of(seat))
        copy = node.host.copies.get(shard) if node is not None else None
        if copy is None:
            return
        # below the bound one batch may be held, and the next delivered before the first one's seal has come
        last = [b for inbox in copy.inboxes.values() for b in list(inbox.sealed)[-2:]]
        limit = self.world.config.retained_hard_max + 2 * max(b.end - b.start for b in (*last, block))
        if copy.retained() > limit:
            self.fail("retained input is not bounded", f"{shard} on {seat} keeps {copy.retained()} > {limit}")

    def _right(self, edge: Edge, start: int) -> Block | None:
        """What belongs at this position: by the reference, or behind a gap by whoever came there first."""
        if start >= self.left_at.get(edge, start + 1):
            return self.after[edge].get(start)
        return self.reference.at[edge].get(start)

    def last_of(self, edge: Edge) -> Block | None:
        """The last block of an edge."""
        known = self.after.get(edge) or self.reference.at[edge]
        return known[max(known)] if known else None

    def _same(self, edge: Edge, block: Block, who: str) -> None:
        right = self._right(edge, block.start)
        if right != block:
            self.fail("wrong rows", f"{who} has {block} on {edge}; the reference has {right}")

    def _same_bare(self, edge: Edge, block: Block, who: str) -> None:
        """A reader's blocks: positions and watermarks without rows."""
        right = self._right(edge, block.start)
        if right is None or (block.end, block.watermark, block.rows) != (right.end, right.watermark, ()):
            self.fail("wrong positions", f"{who} has {block} on {edge}; the reference has {right}")

    def _emitted(self, source: Address, note: notes.Emitted) -> None:
        shard, edge, epoch, block = note.shard, note.edge, note.epoch, note.block
        start = block.start
        if self.primaries.get((shard, epoch)) != source:
            self.fail("emitted by a copy that is not primary", f"{shard} epoch {epoch} on {source}")
        self._behind_a_gap(edge, block)
        self._same(edge, block, f"{source} (epoch {epoch})")
        node = self.world.node(name_of(source))
        copy = node.host.copies.get(shard) if node is not None else None
        if copy is not None:
            queue = next(q for q in copy.outputs if q.edge == edge)
            if queue.trimmed <= start and start - queue.trimmed >= queue.memory_max + queue.spill_max:
                self.fail("an output queue is not bounded", f"{edge} on {source} holds {queue.next - queue.trimmed}")

    # --- gaps

    def _behind_a_gap(self, edge: Edge, block: Block) -> None:
        """Take down what is emitted behind a gap; each row once, and none that the gap has hidden."""
        if block.gap is not None:
            self.left_at[edge] = min(block.start, self.left_at.get(edge, block.start))
            self.after.setdefault(edge, {})
        if block.start < self.left_at.get(edge, block.start + 1):
            return
        if self.after[edge].setdefault(block.start, block) is not block:
            return
        hidden = max(b.gap.to for at, b in self.after[edge].items() if b.gap is not None and at <= block.start)
        if edge not in self.rows_at:
            before = [b for b in self.reference.blocks[edge] if b.start < block.start]
            self.rows_at[edge] = {row[:2]: b.start for b in before for row in b.rows}
        rows = self.rows_at[edge]
        for row in block.rows:
            if row[1] < hidden:
                self.fail("emitted inside a gap", f"{edge} {block.start}: {row}, but nothing before {hidden}")
            if rows.setdefault(row[:2], block.start) != block.start:
                self.fail("a row was emitted twice", f"{edge}: {row} at {rows[row[:2]]} and {block.start}")

    def _landed(self, source: Address, note: notes.Landed) -> None:
        if (note.shard, note.epoch) not in self.may_land:
            self.fail("a protected shard started empty", str(note))

    def _cut_off(self, source: Address, note: notes.CutOff) -> None:
        """It takes a replay of input that is lost: nobody else may start over."""
        shard, seat = note.shard, note.seat
        lost = [e for e in self.topology.shard[shard].inputs if e in self.left_at]
        if not lost:
            self.fail("a protected shard started empty", f"{shard} on {seat}: all of its input is there")
        self.may_land[shard, note.epoch] = None

    def _missing(self, source: Address, note: notes.Missing) -> None:
        known = self._right(note.edge, note.position)
        if known is None or known.gap is None or known.gap.to != note.to:
            self.fail("a reader was told of a gap that is not there", f"{note}: {known}")

    def _accepted(self, source: Address, note: notes.Accepted) -> None:
        consumer, edge, epoch, block = note.consumer, note.edge, note.epoch, note.block
        if consumer in self.topology.shard:
            self._same(edge, block, f"{consumer} on {source}")
        else:
            self._same_bare(edge, block, f"{consumer} on {source}")
        process = self.world.processes[name_of(source)]
        known = process.machine.record.places[self.topology.producer[edge]].epoch  # type: ignore[attr-defined]
        if epoch < known:
            self.fail("rows from a fenced copy", f"{consumer} on {source} took {edge} of epoch {epoch} < {known}")

    # --- fetches

    def _served(self, source: Address, note: notes.Served) -> None:
        consumer, epoch = note.consumer, note.life
        who = f"{consumer} (epoch {epoch}) got {note.edge} {note.span} from {source}"
        if self.primaries.get((note.shard, note.epoch)) != source:
            self.fail("a stale fetch was served", f"{who}, which is not primary of epoch {note.epoch}")
        process = self.world.processes[name_of(source)]
        place = process.machine.record.places.get(consumer)  # type: ignore[attr-defined]
        if place is not None and epoch < place.epoch:
            self.fail("a stale fetch was served", f"{who}, which knows it at epoch {place.epoch}")
        self.served[source, consumer] = process.clock(self.world.now_ns)

    def _fetched(self, source: Address, note: notes.Fetched) -> None:
        consumer, edge, (start, end), epoch = note.consumer, note.edge, note.span, note.epoch
        errand: Errand = self.world.processes[source].machine.errand  # type: ignore[attr-defined]
        if epoch < errand.producer_epoch:
            self.fail("a stale fetch was served", f"{consumer} took {edge} of epoch {epoch} < {errand.producer_epoch}")
        at = start
        for block in note.blocks:
            if block.start != at and not (block.jumps and block.start > at):
                self.fail("a fetch has a hole", f"{consumer}: {edge} {block.start}, but next is {at}")
            self._same(edge, block, f"a task of {consumer}")
            at = block.end
        if at != end and not self._is_passed_over(edge, at, end):
            self.fail("a fetch is not what was asked for", f"{consumer}: {edge} [{start}, {end}) ends at {at}")

    def _is_passed_over(self, edge: Edge, start: int, end: int) -> bool:
        """Did an empty start come after this piece, so that what is left of it is lost?"""
        return any(block.jumps and block.start >= end for block in self.after.get(edge, {}).values())

    def _lapsed(self, source: Address, note: notes.Lapsed) -> None:
        edge, consumer = note.edge, note.consumer
        fetched_ns = self.served.get((source, consumer))
        now_ns = self.world.processes[name_of(source)].clock(self.world.now_ns)
        if fetched_ns is not None and now_ns - fetched_ns <= self.world.config.lease_ns:
            ago_ms = (now_ns - fetched_ns) / 1e6
            self.fail("a lease lapsed while its guest fetched", f"{edge}: {consumer} fetched {ago_ms:.0f} ms ago")

    # --- fencing

    def _promoted(self, source: Address, note: notes.Promoted) -> None:
        shard, seat, epoch = note.shard, note.seat, note.epoch
        if self.primaries.setdefault((shard, epoch), seat) != seat:
            self.fail(
                "two primaries in one epoch", f"{shard} epoch {epoch}: {self.primaries[(shard, epoch)]} and {seat}"
            )

    def _decided(self, source: Address, note: notes.Decided) -> None:
        version, term = note.version, note.term
        if self.decided.setdefault(version, term) != term:
            self.fail("two records of one version", f"version {version}: terms {self.decided[version]} and {term}")
        node = self.world.processes[note.name].machine
        record: Record = node.election.decided  # type: ignore[attr-defined]
        if version > self.record.version:
            for asset, place in self.record.places.items():
                after = record.places[asset]
                if after.epoch < place.epoch or (
                    after.epoch == place.epoch and after.primary not in (place.primary, None)
                ):
                    self.fail("an epoch went back or was used twice", f"{asset}: {place} -> {after}")
                self._check_mode(asset, place, after, record)
                if after.empty != place.empty:
                    self._check_empty(asset, place, after)
            self.record = record

    def _check_mode(self, asset: Asset, before: Place, after: Place, record: Record) -> None:
        """A stronger mode is in force with the record that names the copy it needs, a weaker one with the one that
        drops it (but for one that is needed to move away)."""
        if after.mode == before.mode or after.primary is None:
            return
        if MODES[after.mode].has_backup and (after.backup is None or after.backup not in before.holders):
            self.fail("a mode is in force before its copy is there", f"{asset}: {before} -> {after}")
        if not MODES[after.mode].has_backup and after.targets and name_of(after.primary) not in record.draining:
            self.fail("a mode is in force while the copy that it lets go is named", f"{asset}: {before} -> {after}")

    def _check_empty(self, asset: Asset, before: Place, after: Place) -> None:
        empty = MODES[before.mode].on_failure is OnFailure.EMPTY and before.backup is None
        if not empty or not before.epoch < after.epoch == after.empty:
            self.fail("a protected shard starts empty", f"{asset}: {before} -> {after}")
        self.may_land[asset, after.epoch] = None

    def _elected(self, source: Address, note: notes.Elected) -> None:
        name, term = note.name, note.term
        if self.coordinators.setdefault(term, name) != name:
            self.fail("two coordinators in one term", f"term {term}: {self.coordinators[term]} and {name}")

    def _started(self, source: Address, note: notes.Started) -> None:
        seat = note.seat
        name = name_of(seat)
        if life_of(seat) <= self.lives.get(name, 0) and seat not in self.world.unheard:
            self.fail("a life was lived twice", seat)
        self.lives[name] = life_of(seat)

    # --- commits

    def _ledgered(self, source: Address, note: notes.Ledgered) -> None:
        stage = note.stage
        self.ledgered[stage] = max(self.ledgered.get(stage, -1), note.rank[1])
        page = self.world.processes[name_of(source)].machine.ledgers[ledger_of(stage)].page  # type: ignore[attr-defined]
        commit = page.commit
        if commit is None:
            return
        known = self.commits[stage].setdefault(commit.batch, commit)
        if known != commit:
            self.fail("a commit was replaced", f"{stage}: {known} -> {commit}")
        before = self.commits[stage].get(commit.batch - 1)
        if (before.offsets[1] if before else 0) != commit.offsets[0]:
            self.fail("source rows skipped or taken twice", f"{stage}: {commit} after {before}")

    def _committed(self, source: Address, note: notes.Committed) -> None:
        stage, commit = note.stage, note.commit
        if self.commits[stage].get(commit.batch) != commit:
            self.fail("a driver takes for committed what is not", f"{stage} epoch {note.epoch}: {commit}")

    # --- balance

    def _balanced(self, source: Address, note: notes.Balanced) -> None:
        config, what = self.world.config, f"{note.asset} from {note.source} to {note.target} by {source}"
        high, low, weight = note.loads
        if high - low - weight < config.imbalance_ns:
            self.fail("a backup is moved for nothing", f"{what}: {note.loads}")
        now_ns = self.world.processes[name_of(source)].clock(self.world.now_ns)
        passed_ns = now_ns - self.balanced.get(source, now_ns - config.balance_ns)
        if passed_ns < config.balance_ns:
            self.fail("backups are moved too often", f"{what}, {passed_ns / 1e6:.0f} ms after the last")
        self.balanced[source] = now_ns
        open_places = [asset for asset, place in self.record.places.items() if place.joining or place.moving]
        if self.record.version == note.version - 1 and open_places:
            self.fail("a backup is moved while others are on their way", f"{what}: {open_places}")

    # --- disks

    def on_send(self, source: Process, target: Address, message: Message) -> None:
        """A message leaves: what it says is safe must be on the disk of its sender, and loads must be possible."""
        if source.disk is None:
            return
        if isinstance(message, m.Loads):
            busiest = max([0, *message.running.values(), *message.images.values()])
            if busiest > LOAD_MAX:
                self.fail("busier than a core can be", f"{source.address}: {message}")
        if read(source.disk.content).life < life_of(source.address):
            self.fail("spoke before its life was on disk", f"{source.address}: {message}")
        claim = CLAIMS.get(type(message))
        if claim is not None and not claim(read(source.disk.content), message):
            self.fail("spoke of what is not on its disk", f"{source.address}: {message}")

    # --- retention

    def _trimmed(self, source: Address, note: notes.Trimmed) -> None:
        shard, edge, trimmed = note.shard, note.edge, note.trimmed
        for consumer in self.topology.consumers[edge]:
            place = self.record.place_of(consumer)
            if place is None:
                continue
            for seat in (place.primary, place.backup):
                process = self.world.route(seat) if seat else None
                copy = process.machine.host.copies.get(consumer) if process else None  # type: ignore[attr-defined]
                if copy is not None and copy.based and not copy.landing and copy.holds_to(edge) < trimmed:
                    self.fail(
                        "trimmed what a recovery needs",
                        f"{shard} trimmed {edge} to {trimmed}; {consumer} on {seat} is at {copy.holds_to(edge)}",
                    )

    def _acked(self, source: Address, note: notes.Acked) -> None:
        shard, edge, position, epoch = note.shard, note.edge, note.position, note.epoch
        if self.primaries.get((shard, epoch)) != source:
            self.fail("acknowledged by a copy that is not primary", f"{shard} epoch {epoch} on {source}")
        place = self.record.places[shard]
        if place.primary != source or place.backup is None:
            return
        process = self.world.route(place.backup)
        copy = process.machine.host.copies.get(shard) if process else None  # type: ignore[attr-defined]
        if copy is not None and copy.holds_to(edge) < position:
            self.fail(
                "acknowledged before it is safe",
                f"{shard} acknowledges {edge} to {position}; its backup is at {copy.holds_to(edge)}",
            )
