"""Planted bugs in what readers get: fetches, leases, acknowledgements of sinks."""

from __future__ import annotations

import msgspec
from mutants import Patch, mutant, unfenced

from holdfast.core import fetch
from holdfast.core.errand import Errand
from holdfast.core.reader import Reader
from holdfast.logs.output_queue import OutputQueue
from holdfast.model.message import FencedBy
from holdfast.model.messages import Fetch, Fetched


@mutant
def reader_acknowledges_on_receipt() -> list[Patch]:
    right = Reader.on_data

    def on_data(self, source, message, now_ns, ready):
        right(self, source, message, now_ns, ready)
        self.feeds[message.edge].ack = self.feeds[message.edge].next

    return [(Reader, "on_data", on_data)]


@mutant
def fetch_of_a_fenced_sink_is_served() -> list[Patch]:
    return [unfenced(FencedBy.CONSUMER, Fetch)]


@mutant
def fetch_is_served_by_a_backup() -> list[Patch]:
    right = fetch.decide

    def decide(host, asked, now_ns):
        copy = host.copies.get(host.topology.producer[asked.edge])
        if copy is not None and copy.id not in host.runners:
            queue = next(q for q in copy.outputs if q.edge == asked.edge)
            blocks = queue.between(asked.start, asked.end)
            epoch = host.record.places[copy.id].epoch
            if blocks:
                return Fetched(ticket=asked.ticket, edge=asked.edge, epoch=epoch, blocks=blocks)
        return right(host, asked, now_ns)

    return [(fetch, "decide", decide)]


@mutant
def fetch_gives_a_block_more_than_was_asked_for() -> list[Patch]:
    right = OutputQueue.between

    def between(self, start, end):
        found = right(self, start, end)
        return found and (*found, *(b for b in self.blocks if b.start == end))

    return [(OutputQueue, "between", between)]


@mutant
def fetch_begins_a_block_too_early() -> list[Patch]:
    right = OutputQueue.between

    def between(self, start, end):
        found = right(self, start, end)
        return found and (*(b for b in self.blocks if b.end == start), *found)

    return [(OutputQueue, "between", between)]


@mutant
def fetch_gives_what_there_is_and_does_not_wait() -> list[Patch]:
    right = fetch.decide

    def decide(host, asked, now_ns):
        found = right(host, asked, now_ns)
        if found is None:
            return right(host, msgspec.structs.replace(asked, end=max(asked.start, queue_end(host, asked))), now_ns)
        return found

    def queue_end(host, asked):
        return host.runners[host.topology.producer[asked.edge]].outlet.queue(asked.edge).next

    return [(fetch, "decide", decide)]


@mutant
def fetch_does_not_renew_the_lease() -> list[Patch]:
    return [(fetch, "_renew_leases", lambda host, consumer, now_ns: None)]


@mutant
def task_never_turns_to_the_new_primary() -> list[Patch]:
    return [(Errand, "learn", lambda self, record: None)]
