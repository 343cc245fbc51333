"""The head of a shard: one small object that says which checkpoints count, and who may add to them or take from them.

Everything is decided here, by compare-and-set; listing a store decides nothing (trap 9 of the design: an old primary
that was thought dead publishes once more, and collects what its successor is loading).

* **Claim.** Whoever wants to write or to restore takes the head with the epoch of its shard. The claim is a number that
  only grows; from then on every change by an earlier holder is refused, since it names a version that is gone.
* **Reserved.** A claim, and every publication, hands its holder the sequence of its next checkpoint. So no two writers
  ever write the same key, and exclusive creation of large objects is not needed.
* **Entries.** A checkpoint counts when the head names it, and it names all files that it needs, also those of earlier
  checkpoints. A file that no entry names any more is never named again: a publication may only name files of its own
  and such that an entry names at that moment. That is the whole reason why deleting the others is safe, however late.
* **Pins** keep an entry from being collected: a savepoint has a name, a reader that is not the primary has one, too.

Pure functions from one head to the next. `tenure.py` moves them to the store.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec
import xxhash

from holdfast.errors import ConfigError, CorruptPageError, FencedError, StateError, check
from holdfast.model.ids import Asset, Edge

MAGIC = b"HFHD"
FORMAT = 1
_FRONT = struct.Struct("<4sIQ")


class HeadEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint that counts."""

    sequence: int
    epoch: int
    #: Length and digest of its manifest: another one under its name is not taken for it.
    manifest_bytes: int
    manifest_digest: int
    #: All files that it needs ("12/pages-0"), its own and those of earlier ones.
    files: tuple[str, ...]
    #: Bytes that were written for it, and bytes of the state that it holds.
    own_bytes: int
    state_bytes: int
    #: The checkpoint that it goes on from; -1: it has everything itself.
    base: int = -1
    #: How many elements of all inputs it has consumed: one that has consumed less never follows one that has more.
    consumed: int = 0
    #: The last batch of every stage that it has consumed, by edge: later ones are needed from the log.
    batches: dict[Edge, int] = {}
    #: Milliseconds since 1970: when its state was taken, and when everything was written.
    taken_ms: int = 0
    written_ms: int = 0
    #: Why it is not used any more: somebody wanted to restore it, and could not. "": it is good, as far as we know.
    aside: str = ""


class ShardHead(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    shard: Asset
    #: Which pipeline they are of; another one is refused.
    deployment: str
    epoch: int
    #: How often the head has been claimed, and by whom last (for people).
    claim: int
    holder: str
    #: The sequence that the holder writes under next; and the first one that nobody has been given.
    reserved: int
    next: int
    entries: tuple[HeadEntry, ...] = ()
    #: Name of a pin -> sequence.
    pins: dict[str, int] = {}
    #: The holder is restoring: nobody may take anything away.
    restoring: bool = False
    #: Of the change that made this one: who cannot know whether a change was done finds it here.
    stamp: str = ""

    def entry(self, sequence: int) -> HeadEntry | None:
        return next((e for e in self.entries if e.sequence == sequence), None)

    @property
    def good(self) -> tuple[HeadEntry, ...]:
        """Those that can be restored, as far as we know; the newest first."""
        return tuple(e for e in sorted(self.entries, key=lambda e: -e.sequence) if not e.aside)

    @property
    def consumed(self) -> int:
        """What the newest good one has consumed."""
        return self.good[0].consumed if self.good else 0

    @property
    def files(self) -> frozenset[str]:
        """Every file that some entry needs."""
        return frozenset(name for e in self.entries for name in e.files)


def claimed(
    head: ShardHead | None, shard: Asset, deployment: str, *, epoch: int, holder: str, restoring: bool
) -> ShardHead:
    """The head in the hands of a new holder."""
    if head is None:
        return ShardHead(
            shard=shard, deployment=deployment, epoch=epoch, claim=1, holder=holder, reserved=1, next=2,
            restoring=restoring,
        )  # fmt: skip
    check(head.shard == shard, "the head of one shard was found in the place of another's", f"{head.shard}, {shard}")
    if head.deployment != deployment:
        raise ConfigError(
            f"the store has checkpoints of another pipeline under {shard!r}",
            detail=f"They are of {head.deployment!r}, this is {deployment!r}. Nothing was changed.",
            hint="Give this pipeline a store, or a path in it, of its own.",
        )
    if head.epoch > epoch:
        raise FencedError(
            f"{shard} has a newer primary",
            detail=f"Its checkpoints are held at epoch {head.epoch} by {head.holder}; this is epoch {epoch}.",
        )
    return msgspec.structs.replace(
        head,
        epoch=epoch,
        claim=head.claim + 1,
        holder=holder,
        reserved=head.next,
        next=head.next + 1,
        restoring=restoring,
    )


def published(head: ShardHead, entry: HeadEntry) -> ShardHead:
    """With one more checkpoint, written under the reserved sequence; the next one is reserved."""
    if entry.sequence != head.reserved:  # it had counted, without an answer, and somebody has deleted it already
        raise StateError(
            f"checkpoint {entry.sequence} of {head.shard} was deleted while it was published",
            detail=f"The next one is {head.reserved}.",
            hint="Take another one, a full one.",
        )
    mine = f"{entry.sequence}/"
    gone = sorted(name for name in entry.files if not name.startswith(mine) and name not in head.files)
    if gone:
        raise StateError(
            f"{head.shard}: the checkpoint that this one builds on is gone",
            detail=f"{len(gone)} of its files are not kept any more, {gone[0]} among them.",
            hint="Somebody has deleted it. The next checkpoint has to be a full one.",
        )
    return msgspec.structs.replace(
        head, entries=(*head.entries, entry), reserved=head.next, next=head.next + 1, restoring=False
    )


def skipped(head: ShardHead, sequence: int) -> ShardHead:
    """The holder gives up what it wrote under this sequence, and gets another."""
    if head.reserved != sequence:
        return head  # it was published after all, late
    return msgspec.structs.replace(head, reserved=head.next, next=head.next + 1)


def without(head: ShardHead, sequences: Iterable[int]) -> ShardHead:
    """Without these; pins of theirs go with them."""
    gone = frozenset(sequences)
    return msgspec.structs.replace(
        head,
        entries=tuple(e for e in head.entries if e.sequence not in gone),
        pins={name: at for name, at in head.pins.items() if at not in gone},
    )


def set_aside(head: ShardHead, sequence: int, why: str) -> ShardHead:
    """This one could not be restored. It stays, for whoever wants to look at it, until newer ones take its place."""
    entries = (msgspec.structs.replace(e, aside=why[:500]) if e.sequence == sequence else e for e in head.entries)
    return msgspec.structs.replace(head, entries=tuple(entries))


def settled(head: ShardHead) -> ShardHead:
    """The restore is over, well or not."""
    return msgspec.structs.replace(head, restoring=False)


def pinned(head: ShardHead, name: str, sequence: int) -> ShardHead:
    if head.entry(sequence) is None:
        raise StateError(f"{head.shard} has no checkpoint {sequence} to keep", detail="It was collected, or never was.")
    return msgspec.structs.replace(head, pins={**head.pins, name: sequence})


def unpinned(head: ShardHead, name: str) -> ShardHead:
    return msgspec.structs.replace(head, pins={n: at for n, at in head.pins.items() if n != name})


def superfluous(head: ShardHead, keep: int) -> tuple[int, ...]:
    """What retention lets go: all but the newest `keep` good ones and what is pinned. One that was set aside stays as
    long as it is newer than the oldest of these."""
    check(keep >= 1, "at least one checkpoint has to be kept", str(keep))
    kept = {e.sequence for e in head.good[:keep]} | set(head.pins.values())
    oldest = min((e.sequence for e in head.good[:keep]), default=0)
    return tuple(e.sequence for e in head.entries if e.sequence not in kept and e.sequence < oldest)


def needing_log(head: ShardHead, keep: int) -> tuple[HeadEntry, ...]:
    """Those whose input a restore may want after them: all but what a pin alone keeps from being collected."""
    unpinned_head = msgspec.structs.replace(head, pins={})
    gone = set(superfluous(unpinned_head, keep))
    return tuple(e for e in head.entries if e.sequence not in gone)


# --- bytes


def encode(head: ShardHead) -> bytes:
    return pack(msgspec.msgpack.encode(head), MAGIC, FORMAT)


def decode(raw: bytes, what: str) -> ShardHead:
    body = unpack(raw, MAGIC, FORMAT, what)
    try:
        return msgspec.msgpack.decode(body, type=ShardHead)
    except msgspec.DecodeError as error:
        raise damaged(what, str(error)) from None


def unpack(raw: bytes, magic: bytes, format_: int, what: str) -> bytes:
    """What follows a front of magic, format and digest."""
    if len(raw) < _FRONT.size:
        raise damaged(what, f"It has {len(raw)} bytes.")
    found, version, digest = _FRONT.unpack_from(raw)
    if found != magic:
        raise damaged(what, f"It starts with {found!r}.")
    if version > format_:
        raise ConfigError(
            f"{what} was written by a newer Holdfast",
            detail=f"It has format {version}; this one reads up to {format_}. Nothing was changed.",
            hint="Use that version, or restore an older checkpoint.",
        )
    if version < format_:
        raise ConfigError(
            f"{what} was written by an earlier Holdfast",
            detail=f"It has format {version}; this one reads {format_}. Nothing was changed.",
            hint="Go on with that version until the run has finished.",
        )
    body = raw[_FRONT.size :]
    if xxhash.xxh3_64_intdigest(body) != digest:
        raise damaged(what, "Its checksum does not match.")
    return body


def pack(body: bytes, magic: bytes, format_: int) -> bytes:
    return _FRONT.pack(magic, format_, xxhash.xxh3_64_intdigest(body)) + body


def damaged(what: str, detail: str) -> CorruptPageError:
    return CorruptPageError(f"{what} is damaged", detail=detail, hint="Restore from another checkpoint.")
