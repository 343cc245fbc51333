"""Let a shard go on from an older checkpoint, because a person wants it so.

The newer ones are set aside in the head, and the next restore takes the one that was named. That is exact where all
that the shard has consumed since can be had again, and made again in the same way:

* from stages: the log has every batch that the oldest checkpoint in the head has not consumed;
* from other shards: they forget what the newest checkpoint has consumed, so nothing may have come from them in between;
* no row may have been set aside in between: it may have been skipped, and the record forgets a skip that was passed;
* no gap may have been met in between: what came before it cannot be made again.

Whoever reads the shard is ahead of it then, and passes over what it has. If one of these does not hold, nothing is
changed.
"""

from __future__ import annotations

import msgspec

from holdfast.checkpoint import head as heads
from holdfast.checkpoint import keys
from holdfast.checkpoint.head import HeadEntry, ShardHead
from holdfast.checkpoint.inspect import entry_of
from holdfast.checkpoint.manifest import Stand
from holdfast.checkpoint.restore import read_manifest
from holdfast.checkpoint.tenure import read_head
from holdfast.errors import ConfigError, StateError, SwapConflictError
from holdfast.model.ids import Asset, dead_edge
from holdfast.store.plan import LookAt, Steps, SwapSmall

_TRIES = 20


def go_back(shard: Asset, sequence: int) -> Steps[tuple[HeadEntry, tuple[int, ...]]]:
    """The checkpoint that counts from now on, and those that were set aside for it."""
    for _ in range(_TRIES):
        found = yield LookAt(keys.head_key(shard))
        if found is None:
            raise ConfigError(
                f"the store has no checkpoints of {shard!r}", hint="`holdfast checkpoint list` shows all."
            )
        head = read_head(found[0], shard)
        wanted = entry_of(head, sequence)
        newer = tuple(e for e in head.good if e.sequence > sequence)
        if wanted.aside or head.restoring:
            why = f"It is set aside: {wanted.aside}" if wanted.aside else f"{head.holder} is restoring {shard}."
            raise ConfigError(f"{shard} cannot go back to checkpoint {sequence}", detail=why)
        if not newer:
            return wanted, ()
        yield from _check_exact(shard, wanted, newer[0])
        try:
            yield SwapSmall(keys.head_key(shard), heads.encode(_without(head, newer, sequence)), found[1])
        except SwapConflictError:
            continue
        return wanted, tuple(e.sequence for e in newer)
    raise StateError(f"the head of {shard} changes all the time", detail=f"Tried {_TRIES} times.", hint="Try again.")


def _without(head: ShardHead, newer: tuple[HeadEntry, ...], sequence: int) -> ShardHead:
    for entry in newer:
        head = heads.set_aside(head, entry.sequence, f"Somebody went back to {sequence}.")
    return msgspec.structs.replace(head, stamp=f"back.{sequence}.{head.stamp}"[:200])


def _check_exact(shard: Asset, wanted: HeadEntry, newest: HeadEntry) -> Steps[None]:
    old = (yield from read_manifest(shard, wanted)).stand
    new = (yield from read_manifest(shard, newest)).stand
    why = _objection(shard, old, new)
    if why:
        raise ConfigError(
            f"{shard} cannot go back to checkpoint {wanted.sequence} exactly",
            detail=f"{why} Nothing was changed.",
        )


def _objection(shard: Asset, old: Stand, new: Stand) -> str:
    for edge, position in old.positions.items():
        if edge not in old.batches and position != new.positions[edge]:
            return f"It would need rows of {edge} again that the shard before it does not keep."
    if _set_aside(shard, old) != _set_aside(shard, new):
        return "Rows were set aside since; a batch that was skipped would not be skipped again."
    if old.gap != new.gap:
        return "A gap has come since."
    return ""


def _set_aside(shard: Asset, stand: Stand) -> int:
    """How much a shard had set aside."""
    dead = stand.outputs.get(dead_edge(shard))
    return dead.next if dead is not None else 0
