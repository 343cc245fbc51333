"""What a fetch gets: rows of an edge, or the one reason why not. The only place where that is decided.

A reader's machine follows positions; its tasks ask for the rows, on whichever node they believe the shard to run. A
question about rows that are still to be made (by a new primary, again) is kept and looked at after every step: it is
answered when the rows are there, when the shard leaves this node, when its consumer is fenced, or when its time is up.
So no driver polls, and nobody waits without a limit.

Rows that were lost with a shard in mode `none` are not waited for: of a piece that begins before an empty start a task
gets what there is, from the gap on, once the reader whose task it is has said that it knows of the gap.

A fetch changes nothing but leases: a guest that fetches is there, and what it has yet to fetch must not lapse.
(One that waits until its reader knows of a gap proves nothing: the reader may have ended.)
"""

from __future__ import annotations

from holdfast.core.fence import Behind
from holdfast.core.host import Host
from holdfast.core.ready import Ready
from holdfast.core.stand_ins import Beside
from holdfast.model import notes
from holdfast.model.config import SECOND
from holdfast.model.ids import Address, Consumer, Seat
from holdfast.model.messages import Fetch, Fetched, FetchRefused
from holdfast.model.reasons import FetchReason

#: A node keeps a question this long at most, whatever its asker says.
WAIT_NS_MAX = 30 * SECOND
#: A node keeps this many questions at most; one more is told NOT_YET at once, and comes again.
WAITING_MAX = 1_024


class Fetches:
    __slots__ = ("host", "waiting")

    def __init__(self, host: Host) -> None:
        self.host = host
        #: Questions about rows that are still to be made, and until when each is kept.
        self.waiting: dict[tuple[Address, int], tuple[Fetch, int]] = {}

    def on_fetch(self, source: Address, message: Fetch, now_ns: int, ready: Ready) -> None:
        wait_ns = min(message.wait_ns, WAIT_NS_MAX) if len(self.waiting) < WAITING_MAX else 0
        self.waiting[source, message.ticket] = (message, now_ns + wait_ns)
        self._look(source, message, now_ns + wait_ns, now_ns, ready)

    def look_again(self, now_ns: int, ready: Ready) -> None:
        """After every step: answer what can be answered now."""
        for (source, ticket), (message, until_ns) in list(self.waiting.items()):
            behind = self.host.fence.behind(source, message)
            if behind is not None:
                del self.waiting[source, ticket]
                self.refuse_fetch(source, message, behind, ready)
                continue
            self._look(source, message, until_ns, now_ns, ready)

    def _look(self, source: Address, asked: Fetch, until_ns: int, now_ns: int, ready: Ready) -> None:
        answer = decide(self.host, asked, now_ns)
        if answer is None:
            if now_ns < until_ns:
                return
            answer = _refuse(asked, FetchReason.NOT_YET)
        del self.waiting[source, asked.ticket]
        self._answer(source, asked, answer, ready)

    def refuse_wrong(self, source: Address, message: Fetch, ready: Ready) -> None:
        """It asks for what this pipeline does not have, or asks wrongly."""
        self._answer(source, message, _refuse(message, FetchReason.FOREIGN), ready)

    def refuse_fetch(self, source: Address, message: Fetch, behind: Behind, ready: Ready) -> None:
        """A later driver of its consumer reads."""
        self._answer(source, message, _refuse(message, FetchReason.FENCED, first=behind.known), ready)

    def _answer(self, source: Address, asked: Fetch, answer: Fetched | FetchRefused, ready: Ready) -> None:
        ready.notes.append(self._note(asked, answer))
        ready.send.append((source, answer))

    def _note(self, asked: Fetch, answer: Fetched | FetchRefused) -> notes.Note:
        edge, span, consumer = asked.edge, (asked.start, asked.end), asked.consumer
        if isinstance(answer, FetchRefused):
            return notes.Unserved(self.host.seat, edge, span, consumer, asked.epoch, answer.reason)
        return notes.Served(self.host.topology.producer[edge], edge, span, answer.epoch, consumer, asked.epoch)


def decide(host: Host, asked: Fetch, now_ns: int) -> Fetched | FetchRefused | None:
    """The rows, or why there are none; None: some of them are still to be made. (That its consumer is not fenced was
    looked at before.)"""
    topology, places = host.topology, host.record.places
    if asked.edge not in topology.consumers or asked.query not in ("", topology.query):
        return _refuse(asked, FetchReason.FOREIGN)
    shard = topology.producer[asked.edge]
    runner = host.runners.get(shard)
    beside = host.stand_ins.running.get(shard)
    if beside is not None:
        _renew_leases(host, asked.consumer, now_ns)  # of what else is here for it
        return _from_stand_in(beside, asked)
    if runner is None or runner.epoch < asked.producer_epoch:
        return _refuse(asked, FetchReason.NOT_HERE, home=places[shard].primary if shard in places else None)
    if runner.copy.landing:
        _renew_leases(host, asked.consumer, now_ns)
        return None
    queue = runner.outlet.queue(asked.edge)
    start = asked.start
    if start < queue.trimmed and not runner.is_primary:
        return _refuse(asked, FetchReason.NOT_HERE, home=places[shard].primary)
    if start < queue.trimmed:
        passed = queue.landed >= 0 and runner.outlet.has_passed(asked.edge, asked.consumer, queue.landed)
        if passed is None or queue.landed < 0:
            return _refuse(asked, FetchReason.TRIMMED, first=queue.trimmed)
        if not passed:
            return (
                None  # whoever follows the edge for this consumer must know of the gap before it gets less; if nobody
            )
            # follows it any more, as with `spark.read`, its lease lapses, since this question does not renew it
        start = min(queue.landed, asked.end)
    _renew_leases(host, asked.consumer, now_ns)
    if queue.next < asked.end:
        return None
    blocks = queue.between(start, asked.end)
    if blocks is None:
        return _refuse(asked, FetchReason.POSITION)
    return Fetched(ticket=asked.ticket, edge=asked.edge, epoch=runner.epoch, blocks=blocks)


def _renew_leases(host: Host, consumer: Consumer, now_ns: int) -> None:
    """A guest is there: nothing that is kept for it here lapses for another lease."""
    for runner in host.runners.values():
        for queue in runner.copy.outputs:
            if consumer in queue.leases:
                queue.lease(consumer, now_ns + host.config.lease_ns)


def _from_stand_in(beside: Beside, asked: Fetch) -> Fetched | FetchRefused | None:
    """What a stand-in has made is as good; of what it does not keep its primary has to say why."""
    queue, epoch = beside.queue(asked.edge), beside.place.epoch
    if epoch < asked.producer_epoch or asked.start < queue.trimmed:
        return _refuse(asked, FetchReason.NOT_HERE, home=beside.place.primary)
    if queue.next < asked.end:
        return None
    blocks = queue.between(asked.start, asked.end)
    if blocks is None:
        return _refuse(asked, FetchReason.NOT_HERE, home=beside.place.primary)
    return Fetched(ticket=asked.ticket, edge=asked.edge, epoch=epoch, blocks=blocks)


def _refuse(asked: Fetch, reason: FetchReason, *, home: Seat | None = None, first: int = 0) -> FetchRefused:
    return FetchRefused(ticket=asked.ticket, edge=asked.edge, reason=reason, home=home, first=first)
