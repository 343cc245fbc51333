"""Planted bugs in what the stable store keeps: each loses rows, or doubles them, when every node is gone at once."""

from __future__ import annotations

from msgspec.structs import replace
from mutants import Patch, mutant

from holdfast.core.copy import Copy
from holdfast.core.protect.paged import Paged
from holdfast.core.ready import Done
from holdfast.core.runner import Runner
from holdfast.core.stage import StageDriver
from holdfast.logs.inbox import Inbox
from holdfast.sim.store import SimStore, StoredState


@mutant
def a_checkpoint_counts_when_it_is_begun() -> list[Patch]:
    right = Paged.take

    def take(self, now_ns, ready):
        right(self, now_ns, ready)
        self.safe_at = self.head.to

    return [(Paged, "take", take)]


@mutant
def a_new_primary_takes_where_it_stands_for_stored() -> list[Patch]:
    """Its image may be ahead of every checkpoint."""
    right = Runner.__init__

    def init(self, copy, *given, **named):
        right(self, copy, *given, **named)
        for edge, feed in self.feeds.items():
            feed.ack = copy.input(edge).position

    return [(Runner, "__init__", init)]


@mutant
def the_store_is_left_out_of_the_minimum() -> list[Patch]:
    return [(Paged, "safe", lambda self: None)]


@mutant
def a_batch_counts_before_it_is_logged() -> list[Patch]:
    def log(self, ready):
        self.logged = self.attempt

    return [(StageDriver, "_log", log)]


@mutant
def a_checkpoint_leaves_out_output_that_nobody_has_acknowledged() -> list[Patch]:
    right = Copy.checkpoint_head

    def head(self):
        made = right(self)
        outputs = {e: replace(p, start=p.next, trimmed=p.next, blocks=()) for e, p in made.outputs.items()}
        return replace(made, outputs=outputs)

    return [(Copy, "checkpoint_head", head)]


@mutant
def a_checkpoint_says_that_it_has_consumed_all_that_was_sealed() -> list[Patch]:
    right = Copy.checkpoint_head

    def head(self):
        return replace(right(self), batches={edge: inbox.last for edge, inbox in self.inboxes.items()})

    return [(Copy, "checkpoint_head", head)]


@mutant
def a_restored_copy_seals_whichever_try_it_finds() -> list[Patch]:
    def fill(self, found):
        for one in found:
            if one.last is not None and one.last.batch > self.last:
                self.commits[one.last.batch] = one.last
        tries = {one.held.batch: one.held for one in reversed(found)}
        sealed = []
        while (commit := self.commits.get(self.last + 1)) is not None and commit.batch in tries:
            held = tries[commit.batch]
            self.held[commit.batch] = replace(
                held, epoch=commit.epoch, attempt=commit.attempt, digest=commit.digests[self.edge]
            )
            sealed.append(self.seal(commit))
        return sealed

    return [(Inbox, "fill", fill)]


@mutant
def an_older_checkpoint_replaces_a_newer_one() -> list[Patch]:
    def put(self, effect):
        self.newest[effect.shard] = StoredState(effect.epoch, effect.head, effect.image)
        return Done(ticket=effect.ticket, ok=True)

    return [(SimStore, "_put", put)]
