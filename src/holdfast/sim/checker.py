"""The invariants, checked on every note that a step of any machine leaves behind.

one row, once        every block that is sealed, emitted or accepted equals the reference at its position, and
                     positions have no gaps; a batch is sealed only when its commit counts, and what counts is on
                     the disks of the ledger's primary and backup, and stays there
fencing              one seat is primary per shard and epoch; a consumer never takes rows older than an epoch it
                     knows; one coordinator per term; one record per version; epochs and lives never go back
fetches              what a fetch gets is all that it asked for and equals the reference; it is served by the primary of
                     an epoch that is not older than the asker knows, to a consumer that is not fenced; no lease lapses
                     within its time after a fetch of its guest
disks                no message says that something is safe which the disk of its sender does not have yet: a life, a
                     vote, a record, a page of a ledger; output counts as spilled, and leaves memory, only when its
                     disk has taken it; no file outlives what is in it
modes                a mode is in force with the record that names the copy it needs, or drops the one that it does not
gaps                 only a shard in mode `none` without a copy starts empty by the record, and only one whose input was
                     lost by itself; from then on its output is compared between its copies, every row once, none of a
                     window before the gap; positions never go back; what a sink has at the end is right, and what is
                     missing lies in a gap that it has come past
dead letters         what a shard sets aside is what the reference sets aside, at the same positions, and each is in a
                     file once (`sim/letters.py`)
skips                the record skips, at a new epoch, only what a primary has given up and nobody has taken; every copy
                     passes over it alike, and none is forgotten that a copy may meet (`sim/skips.py`)
store                nothing is acknowledged or trimmed that a restore from the store needs (`sim/stored.py`)
twins                who runs beside a primary may; nothing is acknowledged beyond what both have (`sim/twins.py`)
replays              nobody needs what a copy in mode `replay` would not make again (`sim/replays.py`)
stand-ins            who stands in may, and is its image again when it stands down (`sim/stand_ins.py`)
retention            when a queue trims, every copy that the record could promote stands behind what it trimmed
balance              backups are moved one at a time, not too often, and where it matters (`sim/balance.py`)
links                what loses messages is taken for cut, nothing goes around a cut again and again (`sim/links.py`)
tasks                nothing that protects starves, runs twice or changes its order (`sim/tasks.py`)
bounds               output queues and retained input stay within their limits, but for one step or batch
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.errand import Errand
from holdfast.core.invariants import Invariants
from holdfast.core.ledger import EMPTY
from holdfast.errors import InvariantError
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.block import Block, digest_of
from holdfast.model.found import read
from holdfast.model.ids import Address, Asset, Consumer, Edge, Seat, asset_id, ledger_of, life_of, name_of
from holdfast.model.messages import Message
from holdfast.model.parts import CommitRecord, LedgerPage
from holdfast.model.protection import MODES, OnFailure
from holdfast.model.record import Place, Record
from holdfast.sim.balance import BalanceRules
from holdfast.sim.claims import CLAIMS
from holdfast.sim.letters import LetterRules
from holdfast.sim.links import LinkRules
from holdfast.sim.members import MemberRules
from holdfast.sim.process import Process
from holdfast.sim.reference import Reference
from holdfast.sim.replays import ReplayRules
from holdfast.sim.skips import SkipRules
from holdfast.sim.spilled import SpillRules
from holdfast.sim.stand_ins import StandInRules
from holdfast.sim.stored import StoreRules
from holdfast.sim.tasks import TaskRules
from holdfast.sim.twins import TwinRules
from holdfast.sim.world import World


class Violation(Exception):
    """An invariant does not hold. Says which, when, and about what."""

    def __init__(self, rule: str, detail: str, at_ns: int) -> None:
        super().__init__(f"{rule}: {detail} (at {at_ns / 1e6:.3f} ms)")
        self.rule = rule
        self.detail = detail
        self.at_ns = at_ns


class Checker:
    def __init__(self, world: World) -> None:
        self.world = world
        self.topology = world.topology
        self.reference = Reference(world.topology, world.window_ns, world.sum_max, world.poison)
        self.skips = SkipRules(world, self.reference, self.fail, lambda shard: self.record.places[shard])
        self.letters = LetterRules(world, self.reference, self.fail, self.skips)
        self.record: Record = world.first
        self.decided: dict[int, int] = {}
        self.coordinators: dict[int, Address] = {}
        self.primaries: dict[tuple[Asset, int], Seat] = {}
        self.lives: dict[str, int] = {}
        self.commits: dict[Asset, dict[int, CommitRecord]] = {stage.id: {} for stage in world.topology.stages}
        self.own: dict[Address, Invariants] = {}
        #: Where an edge left the reference because rows are missing, and how far it had been emitted before (the
        #: reference may be ahead of that); what came after, by position; every row of it.
        self.left_at = self.reference.left_at
        self.emitted_to: dict[Edge, int] = {}
        self.after: dict[Edge, dict[int, Block]] = {}
        self.rows_at: dict[Edge, dict[tuple[int, int], int]] = {}
        #: Where the last step's output of each edge and node began, and whether it may go on.
        self.steps: dict[tuple[Address, Edge], tuple[int, bool]] = {}
        #: Shards that may start empty: (shard, epoch).
        self.may_land: dict[tuple[Asset, int], None] = {}
        #: When (by the node's clock) each guest last fetched from each seat.
        self.served: dict[tuple[Address, Consumer], int] = {}
        self.balance = BalanceRules(world, self.fail)
        self.links = LinkRules(world, self.fail)
        self.members = MemberRules(world, self.fail)
        self.store = StoreRules(world, self.fail, lambda: self.record)
        self.spills = SpillRules(world, self.reference, self.fail, self._same)
        self.twins = TwinRules(world, self.fail, lambda: self.record)
        self.beside = StandInRules(world, self.fail, self._compare, self.twins.runs)
        self.tasks = TaskRules(world, self.fail)
        self.replays = ReplayRules(world, self.fail, lambda: self.record)
        self.count = 0
        #: What reads which note. Others must say (`checked`) that no rule needs them.
        self.rules: dict[type[notes.Note], Callable[..., None]] = {
            notes.Objected: self._objected,
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
            notes.Balanced: self.balance.on_balanced,
            notes.Reassigned: self.balance.on_reassigned,
            notes.SpreadOut: self.balance.on_spread_out,
            notes.Started: self._started,
            notes.Ledgered: self._ledgered,
            notes.Committed: self._committed,
            notes.Trimmed: self._trimmed,
            notes.Spilled: self.spills.on_spilled,
            notes.Acked: self._acked,
            **self.letters.rules(),
            **self.skips.rules(),
            **self.store.rules(),
            **self.links.rules(),
            **self.beside.rules(),
            **self.tasks.rules(),
            **self.twins.rules(),
            **self.replays.rules(),
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

    def _objected(self, source: Address, note: notes.Objected) -> None:
        # who was replaced while it slept asks for what others have let go of, or speaks as the member that it was
        node = self.world.node(name_of(Address(note.source.strip("'")) if note.kind == "Unheard" else source))
        replaced = note.kind in ("Here", "Unheard") and node is not None and node.record.version < self.record.version
        if not self.world.hostile and not replaced:
            self.fail("a right message was refused", str(note))

    def fail(self, rule: str, detail: str) -> None:
        raise Violation(rule, detail, self.world.now_ns)

    # --- rows

    def _sealed(self, source: Address, note: notes.Sealed) -> None:
        shard, edge, seat, block = note.shard, note.edge, note.seat, note.block
        known = self.reference.blocks[edge]
        self.skips.on_sealed(note)
        commit = self.commits[self.topology.producer[edge]].get(block.batch)
        if commit is None:
            self.fail("sealed before committed", f"{edge} batch {block.batch} on {seat}")
            return
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
        return self.reference.block_at(edge, start)

    def last_of(self, edge: Edge) -> Block | None:
        """The last block of an edge."""
        known = self.after.get(edge) or self.reference.at[edge]
        return known[max(known)] if known else None

    def _same(self, edge: Edge, block: Block, who: str) -> None:
        right = self._right(edge, block.start)
        self.skips.compare_made(edge)
        if right != block:
            self.fail("wrong rows", f"{who} has {block} on {edge}; the reference has {right}")

    def _same_bare(self, edge: Edge, block: Block, who: str) -> None:
        """A reader's blocks: positions and watermarks without rows. It has read nothing before its tasks fetch."""
        if self.reference.is_open(edge, block.start):
            return
        right = self._right(edge, block.start)
        if right is None or (block.end, block.watermark, block.rows) != (right.end, right.watermark, ()):
            self.fail("wrong positions", f"{who} has {block} on {edge}; the reference has {right}")

    def _emitted(self, source: Address, note: notes.Emitted) -> None:
        shard, edge, epoch, block = note.shard, note.edge, note.epoch, note.block
        start = self._step_of(source, edge, block)
        if self.primaries.get((shard, epoch)) != source:
            self.fail("emitted by a copy that is not primary", f"{shard} epoch {epoch} on {source}")
        self.letters.on_emitted(note)
        self._compare(shard, edge, epoch, block, source)
        node = self.world.node(name_of(source))
        copy = node.host.copies.get(shard) if node is not None else None
        if copy is not None:
            queue = next(q for q in copy.outputs if q.edge == edge)
            if queue.trimmed <= start and start - queue.trimmed >= queue.memory_max + queue.spill_max:
                self.fail("an output queue is not bounded", f"{edge} on {source} holds {queue.next - queue.trimmed}")
            self.spills.check(source, queue)
            waits_max = queue.memory_max + min(queue.memory_max, queue.spill_max)
            if start - max(queue.trimmed, queue.spilled_to) >= waits_max:
                self.fail("memory of a queue is not bounded", f"{edge} on {source} keeps {queue.in_memory} in memory")

    def _compare(self, shard: Asset, edge: Edge, epoch: int, block: Block, source: Address) -> None:
        self._behind_a_gap(edge, block)
        if self.reference.is_open(edge, block.start):
            self.skips.made[edge, block.start, epoch] = block  # nobody has read it, and perhaps nobody will
        elif not self.skips.is_overtaken(shard, epoch):
            self._same(edge, block, f"{source} (epoch {epoch})")

    def _step_of(self, source: Address, edge: Edge, block: Block) -> int:
        """Where the output of one step began: bounds are looked at before it. (A full block may have more behind.)"""
        known, full = self.steps.get((source, edge), (0, False))
        start = known if full else block.start
        self.steps[source, edge] = (start, len(block.rows) >= self.topology.block_rows_max)
        return start

    # --- gaps

    def _behind_a_gap(self, edge: Edge, block: Block) -> None:
        """Take down what is emitted behind a gap; each row once, and none that the gap has hidden."""
        if block.gap is not None:
            self.left_at[edge] = min(block.start, self.left_at.get(edge, block.start))
            self.after.setdefault(edge, {})
        if block.start < self.left_at.get(edge, block.start + 1):
            self.emitted_to[edge] = max(block.end, self.emitted_to.get(edge, 0))
            return
        if self.after[edge].setdefault(block.start, block) is not block:
            return
        hidden = max(b.gap.to for at, b in self.after[edge].items() if b.gap is not None and at <= block.start)
        if edge not in self.rows_at:
            before = [b for b in self.reference.blocks[edge] if b.end <= self.emitted_to.get(edge, 0)]
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
        if not any(edge in self.left_at for edge in self.topology.shard[note.shard].inputs):
            self.fail("a protected shard started empty", f"{note.shard} on {note.seat}: all of its input is there")
        self.may_land[note.shard, note.epoch] = None

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
        is_right = self.primaries.get((note.shard, note.epoch)) == source
        if not is_right and not self.beside.stands(note.shard, note.epoch, source):
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
                self.skips.on_place(asset, place, after)
                if after.empty != place.empty:
                    self._check_empty(asset, place, after)
            self.balance.on_record(self.record, record)
            self.members.on_record(self.record, record, source)
            self.record = record
            for stage in self.topology.stages:
                if stage.shards:
                    self._on_both_disks(stage.id)

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
        seat, name = note.seat, name_of(note.seat)
        if life_of(seat) <= self.lives.get(name, 0) and seat not in self.world.unheard:
            self.fail("a life was lived twice", seat)
        self.lives[name] = life_of(seat)

    # --- commits

    def _ledgered(self, source: Address, note: notes.Ledgered) -> None:
        """A driver opens: what it is told counts, whoever wrote it."""
        ledger = self.world.processes[name_of(source)].machine.ledgers[ledger_of(note.stage)]  # type: ignore[attr-defined]
        for seat in ledger.place.holders:
            if self._page(seat, ledger.id).rank < tuple(note.rank):
                self.fail("a ledger was opened before every disk knew", f"{note}: {seat}, {ledger.place}")
        if ledger.page.commit is not None:
            self._counts(note.stage, ledger.page.commit)

    def _page(self, seat: Seat, ledger: Asset) -> LedgerPage:
        """What the disk of a seat has."""
        kept = read(self.world.disks[name_of(seat)].content).ledgers.get(ledger)
        return kept.page if kept else EMPTY

    def _committed(self, source: Address, note: notes.Committed) -> None:
        self._counts(note.stage, note.commit)

    def _counts(self, stage: Asset, commit: CommitRecord) -> None:
        known = self.commits[stage].setdefault(commit.batch, commit)
        if known != commit:
            self.fail("a commit was replaced", f"{stage}: {known} -> {commit}")
        before = self.commits[stage].get(commit.batch - 1)
        if (before.offsets[1] if before else 0) != commit.offsets[0]:
            self.fail("source rows skipped or taken twice", f"{stage}: {commit} after {before}")
        stood = before.positions if before else {}
        if any(commit.positions.get(name, -1) < at for name, at in stood.items()):
            self.fail("a source partition goes back", f"{stage}: {commit.positions} after {stood}")
        self._on_both_disks(stage)

    def _on_both_disks(self, stage: Asset) -> None:
        """Whatever counts is on the disks of the ledger's primary and backup, under the newest record, too."""
        ledger = ledger_of(stage)
        place, counted = self.record.places[ledger], max(self.commits[stage], default=-1)
        for seat in (place.primary, place.backup):
            if seat and self._page(seat, ledger).rank[1] < counted:
                self.fail("what counts is not on every disk", f"{stage} batch {counted}: {seat} under {place}")

    # --- disks

    def on_send(self, source: Process, target: Address, message: Message) -> None:
        """A message leaves: what it says is safe must be on the disk of its sender, and loads must be possible."""
        if source.disk is None:
            return
        self.tasks.on_send(source, target, message)
        if isinstance(message, m.Loads):
            self.balance.on_loads(source.address, message)
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
            self.store.on_trimmed(note, asset_id(consumer), self.record)
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
        self.store.on_acked(note, self.record)
        if place.primary != source or place.backup is None:
            return
        process = self.world.route(place.backup)
        copy = process.machine.host.copies.get(shard) if process else None  # type: ignore[attr-defined]
        if copy is not None and copy.holds_to(edge) < position:
            self.fail(
                "acknowledged before it is safe",
                f"{shard} acknowledges {edge} to {position}; its backup is at {copy.holds_to(edge)}",
            )
