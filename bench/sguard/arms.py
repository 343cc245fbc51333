"""The arms of figure 10 on the simulated network: the same writers, chunks and constraints, scheduled or not.

17 servers in two racks, gigabit ports, one gigabit link between the racks (§6.2). Disks differ by ±10%, drawn anew for
every run and alike for all arms. Everybody asks at the same moment. Messages take no time.

`unscheduled` is the paper's HDFS: a writer has `THREADS` chunks under way and starts the next when one is over;
replicas go to servers drawn at random among those that the constraints allow, never to the writer's own disk (its
footnote 6). `scheduled` is `holdfast.peace`, the very machine that a coordinator drives. `paced` is the same without
places: Peace says when, and the servers are drawn as in `unscheduled`.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from bench.sguard.fluid import Flow, Fluid, capacities, uses_of
from holdfast.peace import Answers, NetworkModel, Peace, PeaceSettings, read_model

CHUNK_MB = 64.0
#: 8 and 9 machines (§6.2).
RACK_OF = {f"n{number}": "left" if number <= 8 else "right" for number in range(1, 18)}
#: HDFS as of 2007: two in the writer's rack, one elsewhere; the writer's own disk is left out.
REPLICAS = ("same rack", "same rack", "other rack")
#: Chunks of a writer that are under way at a time when nobody schedules: as many as fill a port (table 8).
THREADS = 4
#: As the paper has them: two to send, two to receive. The paper does not tell the link's. A timestep is the time of two
#: chunks on one disk (2 x 64 MB at 45 MB/s, 2.8 s), in which a gigabit link carries 4.7.
SEND, RECEIVE, LINK = 2, 2, 5
#: For a store that places by itself: chunks under way in all, and of one writer. Found by trying.
STORE, STORE_SEND = 28, 8
DISK_SPREAD = 0.1


@dataclass(frozen=True)
class Timed:
    """What one run took, in seconds: means over the writers, and all of it."""

    from_start: float
    from_request: float
    all: float


def writers_of(count: int) -> list[str]:
    """From both racks in turn."""
    left = [server for server, rack in RACK_OF.items() if rack == "left"]
    right = [server for server, rack in RACK_OF.items() if rack == "right"]
    return [server for pair in zip(left, right, strict=False) for server in pair][:count]


def network_of(seed: int, slow: float, delay_s: float) -> Fluid:
    """`slow`: what one of the disks, n3's, gives of its usual speed. `delay_s`: what every chunk takes to start."""
    random = Random(f"disks {seed}")
    disks = {f"disk {server}": random.uniform(1 - DISK_SPREAD, 1 + DISK_SPREAD) for server in RACK_OF}
    disks["disk n3"] *= slow
    return Fluid(capacities(RACK_OF) | disks, delay_s)


def drawn(writer: str, random: Random) -> list[str]:
    """The writer and the servers of three replicas, as a store places them that looks at constraints only."""
    chain = [writer]
    for where in REPLICAS:
        is_same = where == "same rack"
        last = RACK_OF[chain[-1]]
        chain.append(random.choice([s for s, r in RACK_OF.items() if s not in chain and (r == last) == is_same]))
    return chain


def model_text(link: int = LINK, send: int = SEND) -> str:
    """The model of the paper's cluster."""
    lines = [f"replicas = {list(REPLICAS)}", "[switches.left]", "[switches.right]"]
    lines += ['uplink = "left"', f"up = {link}", f"down = {link}"]
    for rack in ("left", "right"):
        lines += [f"[racks.{rack}]", f'switch = "{rack}"', f"send = {send}", f"receive = {RECEIVE}"]
    return "\n".join([*lines, "[servers]", *(f'{server} = {{ rack = "{rack}" }}' for server, rack in RACK_OF.items())])


def store_text(store: int = STORE, send: int = STORE_SEND) -> str:
    """The same cluster as a store that places chunks by itself. What a chunk uses inside of it is out of sight."""
    lines = ["[switches.s]", "[racks.r]", 'switch = "s"', f"send = {send}", "[servers]"]
    return "\n".join(
        [*lines, *(f'{s} = {{ rack = "r" }}' for s in RACK_OF), "[store]", 'switch = "s"', f"receive = {store}"]
    )


class Times:
    """When each writer asked (at 0), began and ended."""

    def __init__(self) -> None:
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.chunks = 0

    def began(self, writer: str, now_s: float) -> None:
        self.first.setdefault(writer, now_s)

    def ended(self, writer: str, now_s: float) -> None:
        self.last[writer] = now_s
        self.chunks += 1

    def timed(self) -> Timed:
        return Timed(
            from_start=statistics.mean(self.last[writer] - self.first[writer] for writer in self.first),
            from_request=statistics.mean(self.last.values()),
            all=max(self.last.values()),
        )


def unscheduled(
    writers: int, chunks: int, seed: int, *, threads: int = THREADS, slow: float = 1.0, delay_s: float = 0.0
) -> Timed:
    random, net, times = Random(seed), network_of(seed, slow, delay_s), Times()

    def start(writer: str, left: deque[int]) -> None:
        if left:
            left.popleft()
            times.began(writer, net.now_s)
            net.start(Flow(CHUNK_MB, uses_of(drawn(writer, random), RACK_OF), over(writer, left)))

    def over(writer: str, left: deque[int]) -> Callable[[], None]:
        def done() -> None:
            times.ended(writer, net.now_s)
            start(writer, left)

        return done

    for writer in writers_of(writers):
        left = deque(range(chunks))
        for _ in range(threads):
            start(writer, left)
    net.run()
    return _checked(times, writers, chunks)


def scheduled(
    writers: int,
    chunks: int,
    seed: int,
    *,
    link: int = LINK,
    send: int = SEND,
    end_share: float = 0.8,
    slow: float = 1.0,
    delay_s: float = 0.0,
) -> Timed:
    return _with_peace(read_model(model_text(link, send)), writers, chunks, seed, end_share, slow, delay_s)


def paced(writers: int, chunks: int, seed: int, *, store: int = STORE) -> Timed:
    return _with_peace(read_model(store_text(store)), writers, chunks, seed)


def _with_peace(
    model: NetworkModel,
    writers: int,
    chunks: int,
    seed: int,
    end_share: float = 0.8,
    slow: float = 1.0,
    delay_s: float = 0.0,
) -> Timed:
    random, net, times = Random(seed), network_of(seed, slow, delay_s), Times()
    peace = Peace(model, PeaceSettings(end_share=end_share, write_limit_ns=3600 * 10**9), Random(seed))

    def hear(answers: Answers) -> None:
        for granted in answers.granted:
            for one in granted.chunks:
                times.began(granted.writer, net.now_s)
                chain = [granted.writer, *one.chain] if one.chain else drawn(granted.writer, random)
                net.start(Flow(CHUNK_MB, uses_of(chain, RACK_OF), over(granted.writer, one.chunk)))

    def over(writer: str, chunk: int) -> Callable[[], None]:
        def done() -> None:
            times.ended(writer, net.now_s)
            hear(peace.on_write_over(writer, 0, chunk, round(net.now_s * 1e9)))

        return done

    for writer in writers_of(writers):
        hear(peace.on_write_wanted(writer, 0, chunks, 0))
    net.run()
    return _checked(times, writers, chunks)


def _checked(times: Times, writers: int, chunks: int) -> Timed:
    if times.chunks != writers * chunks or len(times.last) != writers:
        raise RuntimeError(f"{times.chunks} of {writers * chunks} chunks were written")
    return times.timed()
