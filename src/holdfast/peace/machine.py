"""Who may write what, where and when: the coordinator's side of Peace (sguard §5), as a machine without I/O.

Writers ask for a number of chunks; the machine grants chunks of a timestep, each with its chain; a writer says when a
chunk is over. A timestep ends when most of the writes that it opened with are over (80%), and the next one opens.
Requests stand in one queue, first come, first served: at every opening the oldest has the first choice, with as many
of its chunks as fit, and what it leaves goes to the next. A request that comes in the middle of a timestep may use
what is left of it; once a write of the timestep is over, its end does not wait for such a request.

Where this goes beyond the paper:

* Writes that are not over when a timestep ends keep their places on the disks that take them. Otherwise a slow disk
  would be given as many more chunks at every opening, and everybody's chains would wait for it. (Links start afresh,
  as in the paper. Holding those, too, made all writes take longer: tried by hand, as below.)
  When the oldest request got nothing because of such writes at `passed_over_max` openings in a row, the next opening
  waits until nothing is under way. So every request is served, whoever is slow.
* Everything has a time limit. A writer that dies is reported (`on_writer_gone`) or noticed by a write that is not over
  in time; its request leaves the queue and what it held is free again. It never stops the others.

Where the store places chunks by itself, replicas are out of sight, and a timestep would wait for the slowest of places
that nobody chose. There capacities are chunks at a time: a write holds all that it uses until it is over, and the next
one starts at once. (Tried by hand on the simulated network of bench/sguard, three runs, the same capacities: with
timesteps all writes took 10 to 18% longer there. The bench does not repeat that comparison.)

The machine is soft state. A coordinator that takes over starts with an empty one, and writers ask again for what is
left. It never looks at a clock, sends nothing and trusts no number that it is given.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from itertools import islice
from random import Random

import msgspec

from holdfast.errors import ConfigError
from holdfast.peace.chain import TRIES_MAX, Placing
from holdfast.peace.model import NetworkModel
from holdfast.peace.tree import Remaining, Tree

SECOND_NS = 10**9
#: A writer that does not say that its writes are over is granted at most this many timesteps' worth of them.
UNHEARD_TIMESTEPS = 2


class PeaceSettings(msgspec.Struct, frozen=True, kw_only=True):
    #: A timestep ends when this share of the writes that it opened with are over.
    end_share: float = 0.8
    #: ... or after this time. What is not over then keeps its place in the next one.
    timestep_limit_ns: int = 30 * SECOND_NS
    #: A write that is not over after this time is given up, and its request with it.
    write_limit_ns: int = 120 * SECOND_NS
    #: A chunk that could not be written is granted again this many times.
    retries_max: int = 2
    #: When the oldest request got nothing at this many openings in a row, the next one waits for an empty network.
    passed_over_max: int = 3
    #: Requests in the queue, and chunks of one request.
    requests_max: int = 100_000
    chunks_max: int = 1_000_000

    def __post_init__(self) -> None:
        if not 0.0 < self.end_share <= 1.0:
            raise ConfigError(f"end_share is {self.end_share}", hint="It is a share, above 0 and at most 1.")
        for name in ("timestep_limit_ns", "write_limit_ns", "requests_max", "chunks_max", "passed_over_max"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}", hint="It must be above 0.")
        if self.retries_max < 0:
            raise ConfigError(f"retries_max is {self.retries_max}", hint="It must not be below 0.")


class Denial(enum.StrEnum):
    """Why a request is not, or no longer, in the queue."""

    UNKNOWN_WRITER = "the network model does not know the writer"
    PAST = "a request of this writer with this number, or a higher one, has left the queue already"
    BAD_NUMBERS = "the number of chunks or replicas cannot be served"
    NO_CHAIN = "no chain of servers meets the constraints, even in an empty network"
    QUEUE_FULL = "too many requests are waiting"
    TOO_LATE = "a write was not over in time"
    TOO_OFTEN = "a chunk could not be written too many times"


class GrantedChunk(msgspec.Struct, frozen=True):
    #: Counted from 0 within its request.
    chunk: int
    #: Servers of its replicas, in the order in which they pass it on. Empty where the store places by itself.
    chain: tuple[str, ...]


class Granted(msgspec.Struct, frozen=True):
    """The writer may start these chunks now."""

    writer: str
    request: int
    timestep: int
    chunks: tuple[GrantedChunk, ...]


class Postponed(msgspec.Struct, frozen=True):
    """Nothing of a new request can start now. (A checkpoint would rather be taken later, with newer state.)"""

    writer: str
    request: int
    #: Chunks that older requests still wait for.
    ahead: int


class Denied(msgspec.Struct, frozen=True):
    """The request has left the queue, or never came in. The writer may ask anew, under another number."""

    writer: str
    request: int
    reason: Denial


class Answers(msgspec.Struct):
    """What one event leads to: to be sent to the writers, and when to call `on_tick` at the latest."""

    granted: list[Granted] = msgspec.field(default_factory=list)
    postponed: list[Postponed] = msgspec.field(default_factory=list)
    denied: list[Denied] = msgspec.field(default_factory=list)
    #: 0: never.
    wake_ns: int = 0


Key = tuple[str, int]


class _Wanted:
    """One request in the queue, until its last chunk is over."""

    __slots__ = ("failures", "key", "passed_over", "replicas", "running", "waiting", "writer")

    def __init__(self, key: Key, writer: int, replicas: int, chunks: int) -> None:
        self.key = key
        self.writer = writer
        self.replicas = replicas
        self.waiting: deque[int] = deque(range(chunks))
        #: Chunks under way (a dict for its order), and how often a chunk has failed.
        self.running: dict[int, None] = {}
        self.failures: dict[int, int] = {}
        #: At how many openings in a row it was the oldest, had nothing under way and got nothing.
        self.passed_over = 0


class _Underway:
    """One chunk on its way."""

    __slots__ = ("chain", "timestep", "until_ns")

    def __init__(self, chain: list[int], timestep: int, until_ns: int) -> None:
        self.chain = chain
        #: The timestep that waits for it; 0: none does, because it came in the middle of one.
        self.timestep = timestep
        self.until_ns = until_ns


class Peace:
    """The queue, the timestep, and what is under way."""

    def __init__(self, model: NetworkModel, settings: PeaceSettings, random: Random) -> None:
        self.tree = Tree(model)
        self.settings = settings
        self.random = random
        #: In the order in which they came, as dicts keep it.
        self.queue: dict[Key, _Wanted] = {}
        #: Chunks that wait, of all requests.
        self.waiting = 0
        #: Every write that may be using the network, also of requests that have left the queue. In the order of their
        #: grants, and so of their time limits.
        self.underway: dict[tuple[str, int, int], _Underway] = {}
        #: How many of those each writer has.
        self.writes_of = [0] * len(self.tree.servers)
        #: The highest number of a request of each writer that has left the queue.
        self.past: dict[str, int] = {}
        self.timestep = 0
        #: A timestep is open; then what it opened with, and how much of that is over.
        self.is_open = False
        self.opened_with = 0
        self.opened_over = 0
        self.opened_ns = 0
        self.absent: frozenset[int] = frozenset()
        self.remaining = Remaining(self.tree)
        #: Writers (and numbers of replicas) for which a chunk did not fit into this timestep. A later request of the
        #: same writer does not get what an older one could not use.
        self._stuck: set[tuple[int, int]] = set()
        self._empty = Remaining(self.tree)
        self._possible: dict[tuple[int, int], bool] = {}

    # --- what happens

    def on_write_wanted(self, writer: str, request: int, chunks: int, now_ns: int, replicas: int = 0) -> Answers:
        """A writer wants to write this many chunks. `replicas` 0: as many as the model has places for.

        A writer counts its requests up. The same one again (a message that was lost or sent twice) is told once more
        what of it is under way.
        """
        answers = Answers()
        key = (writer, request)
        known = self.queue.get(key)
        if known is not None:
            self._grant_again(known, answers)
            return self._done(answers, now_ns)
        replicas = replicas or len(self.tree.replicas)
        reason = self._objection(key, chunks, replicas)
        if reason is not None:
            answers.denied.append(Denied(writer, request, reason))
            return self._done(answers, now_ns)
        ahead = self.waiting
        wanted = self.queue[key] = _Wanted(key, self.tree.number_of[writer], replicas, chunks)
        self.waiting += chunks
        self._open_if_due(answers, now_ns)
        if self.is_open and wanted.waiting and not wanted.running and not self._drains():
            self._serve(wanted, answers, now_ns, counts=self.opened_over == 0)
        if not wanted.running:
            answers.postponed.append(Postponed(writer, request, ahead))
        return self._done(answers, now_ns)

    def on_write_over(self, writer: str, request: int, chunk: int, now_ns: int, *, written: bool = True) -> Answers:
        """A chunk has been written, or could not be. Of a chunk that is not under way there is nothing to learn."""
        answers = Answers()
        if not self._end((writer, request, chunk)):
            return self._done(answers, now_ns)
        wanted = self.queue.get((writer, request))
        if wanted is not None:
            del wanted.running[chunk]
            if not written:
                self._failed(wanted, chunk, answers)
            if not wanted.waiting and not wanted.running:
                self._leave(wanted.key)
        self._open_if_due(answers, now_ns)
        return self._done(answers, now_ns)

    def on_withdrawn(self, writer: str, request: int, now_ns: int) -> Answers:
        """A writer no longer wants what it has asked for. What it has begun keeps its place until it is over."""
        answers = Answers()
        self._leave((writer, request))
        self._open_if_due(answers, now_ns)
        return self._done(answers, now_ns)

    def on_writer_gone(self, writer: str, now_ns: int) -> Answers:
        """A writer is dead: its requests and its writes are over."""
        answers = Answers()
        for key in [key for key in self.queue if key[0] == writer]:
            self._leave(key)
        for key in [key for key in self.underway if key[0] == writer]:
            self._end(key)
        self.past.pop(writer, None)  # its next life counts from the start
        self._open_if_due(answers, now_ns)
        return self._done(answers, now_ns)

    def on_server_gone(self, server: str, now_ns: int) -> Answers:
        """A server takes no more chunks. Requests that cannot be served without it are denied."""
        return self._set_absent(server, True, now_ns)

    def on_server_back(self, server: str, now_ns: int) -> Answers:
        """A server takes chunks again, from the next timestep on."""
        return self._set_absent(server, False, now_ns)

    def on_tick(self, now_ns: int) -> Answers:
        """Time has passed: `wake_ns` of the last answers has come."""
        answers = Answers()
        late = []
        for key, underway in self.underway.items():
            if underway.until_ns > now_ns:
                break
            late.append(key)
        for writer, request, chunk in late:
            if (writer, request) in self.queue:
                self._leave((writer, request))
                answers.denied.append(Denied(writer, request, Denial.TOO_LATE))
            self._end((writer, request, chunk))
        self._open_if_due(answers, now_ns)
        return self._done(answers, now_ns)

    # --- asking

    def _objection(self, key: Key, chunks: int, replicas: int) -> Denial | None:
        writer, request = key
        number = self.tree.number_of.get(writer)
        if number is None:
            return Denial.UNKNOWN_WRITER
        if request <= self.past.get(writer, -1):
            return Denial.PAST
        if not 1 <= chunks <= self.settings.chunks_max or not 1 <= replicas <= len(self.tree.replicas):
            return Denial.BAD_NUMBERS
        if len(self.queue) >= self.settings.requests_max:
            return Denial.QUEUE_FULL
        return None if self._is_possible(number, replicas) else Denial.NO_CHAIN

    def _is_possible(self, writer: int, replicas: int) -> bool:
        """Is there a chain in an empty network? Then the first of the queue will get one."""
        key = (writer, replicas)
        if key not in self._possible:
            placing = Placing(self._empty, self.random)
            chain = placing.place(writer, replicas, TRIES_MAX)
            if chain is not None:
                placing.undo(chain)
            self._possible[key] = chain is not None
        return self._possible[key]

    def _set_absent(self, server: str, is_absent: bool, now_ns: int) -> Answers:
        answers = Answers()
        number = self.tree.number_of.get(server)
        if number is not None and (number in self.absent) != is_absent:
            self.absent = self.absent | {number} if is_absent else self.absent - {number}
            if is_absent:
                self.remaining.close(number)
            self._empty = Remaining(self.tree, self.absent)
            self._possible.clear()
            for key, wanted in [*self.queue.items()]:
                if wanted.waiting and not self._is_possible(wanted.writer, wanted.replicas):
                    self._leave(key)
                    answers.denied.append(Denied(*key, Denial.NO_CHAIN))
            self._open_if_due(answers, now_ns)
        return self._done(answers, now_ns)

    def _grant_again(self, wanted: _Wanted, answers: Answers) -> None:
        chunks = tuple(self._told(chunk, self.underway[*wanted.key, chunk].chain) for chunk in wanted.running)
        if chunks:
            answers.granted.append(Granted(*wanted.key, self.timestep, chunks))
            return
        ahead = 0
        for other in self.queue.values():
            if other is wanted:
                break
            ahead += len(other.waiting)
        answers.postponed.append(Postponed(*wanted.key, ahead))

    # --- timesteps

    def _open_if_due(self, answers: Answers, now_ns: int) -> None:
        """End the timestep if it is over, and open the next one if anybody waits."""
        if self.is_open and self._is_over(now_ns):
            self.is_open = False
        if self.is_open or not self.waiting or (self.underway and self._drains()):
            return
        self._open(answers, now_ns)

    def _is_over(self, now_ns: int) -> bool:
        if not self.tree.places:
            return True  # whatever has ended or come, there may be room for the oldest
        is_enough = self.opened_over >= math.ceil(self.settings.end_share * self.opened_with)
        return is_enough or now_ns >= self.opened_ns + self.settings.timestep_limit_ns

    def _drains(self) -> bool:
        """Was the oldest request passed over too often? Then nothing new starts until nothing is under way."""
        oldest = next((wanted for wanted in self.queue.values() if wanted.waiting), None)
        return oldest is not None and oldest.passed_over >= self.settings.passed_over_max

    def _open(self, answers: Answers, now_ns: int) -> None:
        self.remaining = Remaining(self.tree, self.absent)
        for underway in self.underway.values():
            if self.tree.places:
                self.remaining.hold(underway.chain)
            else:
                self.remaining.hold_way(underway.chain)
        self._stuck.clear()
        self.timestep += 1
        self.opened_with = self.opened_over = 0
        self.opened_ns = now_ns
        is_oldest = True
        for wanted in self.queue.values():
            if not wanted.waiting:
                continue
            had = len(wanted.running)
            got = self._serve(wanted, answers, now_ns, counts=True, tries=TRIES_MAX if is_oldest else 0)
            if is_oldest and self.tree.places:
                wanted.passed_over = 0 if got or had else wanted.passed_over + 1
            is_oldest = False
        self.is_open = self.opened_with > 0

    def _serve(self, wanted: _Wanted, answers: Answers, now_ns: int, *, counts: bool, tries: int = 0) -> int:
        """Grant as many chunks of a request as fit; `counts`: the end of the timestep waits for them."""
        kind = (wanted.writer, wanted.replicas)
        if kind in self._stuck:
            return 0
        most = UNHEARD_TIMESTEPS * self.tree.send[wanted.writer]
        placing = Placing(self.remaining, self.random)
        until_ns = now_ns + self.settings.write_limit_ns
        granted: list[GrantedChunk] = []
        while wanted.waiting and self.writes_of[wanted.writer] < most:
            chain = placing.place(*kind, 0 if granted else tries)
            if chain is None:
                self._stuck.add(kind)
                break
            chunk = wanted.waiting.popleft()
            wanted.running[chunk] = None
            self.writes_of[wanted.writer] += 1
            self.underway[*wanted.key, chunk] = _Underway(chain, self.timestep if counts else 0, until_ns)
            granted.append(self._told(chunk, chain))
        if granted:
            self.waiting -= len(granted)
            self.opened_with += len(granted) if counts else 0
            answers.granted.append(Granted(*wanted.key, self.timestep, tuple(granted)))
        return len(granted)

    def _told(self, chunk: int, chain: list[int]) -> GrantedChunk:
        names = tuple(self.tree.servers[server] for server in chain[1:]) if self.tree.places else ()
        return GrantedChunk(chunk, names)

    # --- ends

    def _end(self, key: tuple[str, int, int]) -> bool:
        """A write is over, however it ended. Was it under way?"""
        underway = self.underway.pop(key, None)
        if underway is None:
            return False
        self.writes_of[underway.chain[0]] -= 1
        if underway.timestep == self.timestep:
            self.opened_over += 1
        return True

    def _failed(self, wanted: _Wanted, chunk: int, answers: Answers) -> None:
        """Once more, before the others of its request; or not any more."""
        wanted.failures[chunk] = wanted.failures.get(chunk, 0) + 1
        if wanted.failures[chunk] <= self.settings.retries_max:
            wanted.waiting.appendleft(chunk)
            self.waiting += 1
        else:
            self._leave(wanted.key)
            answers.denied.append(Denied(*wanted.key, Denial.TOO_OFTEN))

    def _leave(self, key: Key) -> None:
        """A request out of the queue. What it has begun keeps its place until it is over, or late."""
        wanted = self.queue.pop(key, None)
        if wanted is not None:
            self.waiting -= len(wanted.waiting)
            self.past[key[0]] = max(key[1], self.past.get(key[0], -1))

    def _done(self, answers: Answers, now_ns: int) -> Answers:
        """When to look again: at the first limit that will pass."""
        limits = [underway.until_ns for underway in islice(self.underway.values(), 1)]
        if self.is_open and self.waiting:
            limits.append(self.opened_ns + self.settings.timestep_limit_ns)
        answers.wake_ns = max(now_ns, min(limits)) if limits else 0
        return answers
