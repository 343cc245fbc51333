"""What messages, ledgers and disks carry: pieces of output and input, commits, the page of a ledger. Frozen data."""

from __future__ import annotations

import msgspec

from holdfast.model.block import NO_DIGEST, WATERMARK_MIN, Block, Digest, Rows, digest_of
from holdfast.model.ids import Consumer, Edge
from holdfast.model.ranges import Number, NumberOrNone, Position, Time


class OutputPart(msgspec.Struct, frozen=True, array_like=True):
    """What a capture says about one output edge: the blocks made since `start`, and who has acknowledged what."""

    start: Position
    #: Where an image stands that has taken this part.
    next: Position
    trimmed: Position
    blocks: tuple[Block, ...]
    acks: dict[Consumer, Position]


class HeldBatch(msgspec.Struct, frozen=True, array_like=True):
    """A batch that a holder has promised to seal when told so. `epoch` and `attempt` say which try it is."""

    batch: Number
    epoch: Number
    attempt: Number
    rows: Rows
    digest: Digest


class HandedPart(msgspec.Struct, frozen=True, array_like=True):
    """What a whole capture says about one edge from a stage: where it stands, and what is sealed or promised."""

    next: Position
    last: NumberOrNone
    sealed: tuple[Block, ...]
    held: tuple[HeldBatch, ...]
    #: Nothing was sealed here since an empty start.
    landing: bool = False


class Cargo(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one edge that a capture carries beside the state: output that was made, or input that was handed over."""

    edge: Edge
    blocks: tuple[Block, ...] = ()
    held: tuple[HeldBatch, ...] = ()

    def __len__(self) -> int:
        return sum(b.end - b.start for b in self.blocks) + sum(len(h.rows) for h in self.held)


class CommitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The one record that makes a batch count. It names the try (`epoch` of the driver, `attempt` counts its tries) and
    which rows each edge got by it: a holder that has others must not seal."""

    query: str
    batch: Number
    epoch: Number
    attempt: Number
    watermark: Time
    #: Where the source stands before and after this batch; from Spark: (its batch id, the next one).
    offsets: tuple[NumberOrNone, NumberOrNone]
    #: Rows of this batch that were set aside because they were late, or bad; and of all batches so far.
    late: Position = 0
    bad: Position = 0
    late_total: Position = 0
    bad_total: Position = 0
    #: Spark's own record of the batch's offsets, so that its checkpoint can be made to agree with the ledger.
    plan: str = ""
    #: Of every edge of the stage: which rows, and the position after this batch. An edge whose copies are all gone goes
    #: on from there, and whoever has counted otherwise must not seal.
    digests: dict[Edge, Digest] = {}
    ends: dict[Edge, Position] = {}
    #: The highest event time that the stage has handed over so far. Never goes back.
    highest: Time = WATERMARK_MIN
    #: A stage between operators has read past a gap: rows before this event time may be missing. Never goes back.
    gap: Time = 0
    #: Source positions of a real-time stage: what comes next in every partition of its source, after this batch. Empty:
    #: it was a micro-batch, and Spark's plan says where it ended.
    positions: dict[str, Position] = {}


class CheckpointHead(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of a checkpoint but the state: where the copy stands, and what of its output is not acknowledged."""

    to: dict[Edge, Position]
    watermarks: dict[Edge, Time]
    gap: tuple[Time, Time]
    outputs: dict[Edge, OutputPart]
    #: The last batch that was consumed of each edge from a stage.
    batches: dict[Edge, NumberOrNone]


class TakenRows(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one block that an operator has taken. Of a stage: its batch and their digest, since the log of the stage
    has the rows; of a shard: the rows."""

    edge: Edge
    batch: NumberOrNone
    digest: Digest
    rows: Rows


def taken_rows(edge: Edge, block: Block) -> TakenRows:
    if block.batch < 0:
        return TakenRows(edge, -1, NO_DIGEST, block.rows)
    return TakenRows(edge, block.batch, digest_of(block.rows), ())


class FootprintHead(msgspec.Struct, frozen=True, kw_only=True):
    """What an entry of footprints says beside them, and beside where its copy stands (`core/protect/eventual.py`)."""

    #: Grows from entry to entry of a guard.
    number: Number
    #: The entry with the oldest footprint of a window that is open: what was taken after it is replayed.
    since: Number
    #: Earlier entries that a restore reads beside this one, oldest first.
    needs: tuple[Number, ...]
    #: By edge from a stage: later batches than this one a restore, or another copy, may still want from the log.
    batches: dict[Edge, NumberOrNone]
    #: What was taken after the entry before this one, in its order.
    taken: tuple[TakenRows, ...]


class LoggedBatch(msgspec.Struct, frozen=True, array_like=True):
    """One try of a batch in the store, for one edge; and the commit before it, which counts."""

    held: HeldBatch
    last: CommitRecord | None


class LedgerPage(msgspec.Struct, frozen=True, array_like=True):
    """The whole content of a ledger: which driver may write, and the last commit."""

    query: str
    fence: Number
    commit: CommitRecord | None

    @property
    def rank(self) -> tuple[int, int]:
        return (self.fence, self.commit.batch if self.commit else -1)


class EdgeState(msgspec.Struct, frozen=True, kw_only=True):
    """Where an edge stands, as its primary says: what a reader must know before it can follow it."""

    #: First position that is retained, and the one that comes next.
    trimmed: int
    next: int
    watermark: int


#: Directory of a run in which sinks keep the gaps that they have come past.
GAPS = "gaps"


#: Directory of a run in which dead letters are, by operator.
DEAD = "dead"


class GapFound(msgspec.Struct, frozen=True, kw_only=True):
    """A reader has come past a gap: rows of an edge with an event time in [start, to) may be missing."""

    consumer: Consumer
    edge: Edge
    position: int
    start: int
    to: int

    @property
    def key(self) -> str:
        """Also where it is kept, under the directory of the run."""
        return f"{GAPS}/{self.consumer}/{self.edge}@{self.position}.json"


class SinkPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Spark's own files of a sink, as texts."""

    batch: int
    #: The last batch that Spark has committed; -1: none.
    committed: int
    #: `metadata`, which says whose checkpoint it is.
    metadata: str
    #: `offsets/<k>` of this batch and of the one before it.
    plans: dict[int, str]
    #: Files with gaps that it has come past.
    gaps: dict[str, str] = {}
