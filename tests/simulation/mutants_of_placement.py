"""Planted bugs in who decides and what is placed where: elections, the record, disks that must have it."""

from __future__ import annotations

from mutants import Patch, mutant

from holdfast.core import election, host, placement
from holdfast.core.election import Election
from holdfast.core.node import Node
from holdfast.model.messages import Joined
from holdfast.sim.world import World


@mutant
def promotion_without_a_majority() -> list[Patch]:
    return [(election, "majority", lambda voters: 1)]


@mutant
def two_votes_in_one_term() -> list[Patch]:
    right = Election.on_request_vote

    def on_request_vote(self, source, message, now_ns, ready):
        self.voted_for = None
        right(self, source, message, now_ns, ready)

    return [(Election, "on_request_vote", on_request_vote)]


@mutant
def life_not_on_disk() -> list[Patch]:
    right = Node.start

    def start(self, now_ns):
        ready = right(self, now_ns)
        ready.persist = [item for item in ready.persist if item[0] != "life"]
        return ready

    return [(Node, "start", start)]


@mutant
def votes_and_answers_leave_early() -> list[Patch]:
    """They speak of what this very step writes."""

    def early(name):
        right = getattr(Election, name)

        def handler(self, source, message, now_ns, ready):
            right(self, source, message, now_ns, ready)
            ready.early, ready.send = ready.send, []

        return (Election, name, handler)

    return [early("on_request_vote"), early("on_append")]


@mutant
def early_messages_leave_before_what_earlier_steps_write() -> list[Patch]:
    """Every message counts as early, and overtakes the disk."""
    right = World.do

    def do(self, process, ready):
        early, ready.early, ready.send = [*ready.early, *ready.send], [], []
        right(self, process, ready)
        if process.alive:
            self._release(process, early, [], process.busy_ns)

    return [(World, "do", do)]


@mutant
def joining_seat_is_promoted() -> list[Patch]:
    right = placement._leave

    def leave(made, name, *, gone_for_good):
        for asset, place in sorted(made.places.items()):
            if place.joining and place.primary and place.primary.startswith(name) and not place.backup:
                made.put(asset, backup=place.joining, joining=None)
        right(made, name, gone_for_good=gone_for_good)

    return [(placement, "_leave", leave)]


@mutant
def failed_shards_are_promoted_nowhere() -> list[Patch]:
    right = placement._leave

    def leave(made, name, *, gone_for_good):
        kept = {a: p for a, p in made.places.items() if p.primary and p.primary.startswith(name) and "#" in p.primary}
        right(made, name, gone_for_good=gone_for_good)
        made.places.update(kept)

    return [(placement, "_leave", leave)]


@mutant
def joined_before_the_image_is_there() -> list[Patch]:
    right = host.Host.reports

    def reports(self):
        early = [
            Joined(asset=u, since=p.place.since, seat=p.place.joining)
            for u, p in self.runners.items()
            if p.place.joining
        ]
        return right(self) + early

    return [(host.Host, "reports", reports)]


@mutant
def epoch_not_raised_on_promotion() -> list[Patch]:
    right = placement.Draft.put

    def put(self, asset, **fields):
        if "epoch" in fields and asset not in self.places:
            return
        if asset + ".ledger" not in self.places:
            fields.pop("epoch", None)
        right(self, asset, **fields)

    return [(placement.Draft, "put", put)]


@mutant
def messages_leave_before_the_disk_has_synced() -> list[Patch]:
    right = World.do

    def do(self, process, ready):
        writes, ready.persist = ready.persist, []
        right(self, process, ready)
        if writes and process.disk is not None and process.alive:
            disk, count = process.disk, len(writes)
            disk.write(writes)
            self.call(50_000_000, lambda: process.alive and disk.sync(count))

    return [(World, "do", do)]
