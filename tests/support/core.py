"""Pieces of the core for unit tests: copies, places, records, hosts, and captures on their way between them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.core.copy import Copy
from holdfast.core.host import Host
from holdfast.core.protect import Images, Pace
from holdfast.core.ready import Ready
from holdfast.core.roles import Condition
from holdfast.model import messages as m
from holdfast.model.block import Block, batch_block
from holdfast.model.config import Config
from holdfast.model.protection import Protection
from holdfast.model.record import Place, Record, first_record
from holdfast.model.topology import ShardSpec, Topology, layered
from holdfast.sim.costs import Costs
from holdfast.sim.operators import WINDOW_BYTES, Meter, WindowSum

ONE = layered(stages=1, shards=1)
TWO = layered(stages=2, shards=1)
CONFIG = Config()
#: Four windows of the modelled operator in each piece.
SMALL = Config(chunk_bytes=4 * WINDOW_BYTES)


def op(spec: ShardSpec) -> WindowSum:
    return WindowSum(spec, 10, Costs(), Meter())


def copy_of(topology: Topology = ONE, config: Config = CONFIG, *, based: bool = True) -> Copy:
    spec = topology.shards[0]
    return Copy(spec, topology, op(spec), config, based=based)


def feed(made: Copy, edge: str, start: int, rows: Iterable, watermark: int, batch: int) -> Block:
    block = batch_block(start, tuple(rows), watermark, batch)
    made.inboxes[edge].sealed.append(block)
    made.inboxes[edge].next = block.end
    return block


def run(made: Copy) -> list[Block]:
    """Let it run, and consume all there is."""
    if made.condition is Condition.COMPLETE:
        made.promote(0)
    emitted = []
    while (blocks := made.step()) is not None:
        emitted.extend(block for _, block in blocks)
    return emitted


def fill(made: Copy, keys: Iterable[int], batch: int = 0, time: int = 1, watermark: int = 0) -> None:
    """Give the copy one batch with a row for each key, and let it step over it."""
    edge = made.inputs[0].edge
    feed(made, edge, made.inputs[0].position, [(key, time, 1) for key in keys], watermark, batch)
    run(made)


def place(since: int = 1, **fields: object) -> Place:
    return Place(**{"primary": "a#1", "backup": "b#1", "since": since, **fields})


def record(version: int, shard: Place, topology: Topology = ONE) -> Record:
    base = first_record(topology, ("a", "b", "c"))
    return Record(
        version=version,
        term=1,
        members=base.members,
        places={**base.places, **dict.fromkeys(topology.shard, shard)},
        protection=base.protection,
    )


def host(seat: str = "a#1", shard: Place | None = None, config: Config = CONFIG, factory=op) -> Host:
    made = Host(seat, ONE, config, factory)
    made.on_record(record(1, shard or place()), 0, Ready())
    return made


def images(made: Copy, where: Place, config: Config = CONFIG, method: str = "delta") -> Images:
    guard = Images(made, where, config, Pace(config.transfer_bytes_per_s), 0)
    guard.protection = Protection(method=method)
    guard.retarget(where)
    return guard


def take(guard: Images, now_ns: int = 0) -> dict[str, list[m.Message]]:
    """One round: what each target gets."""
    ready = Ready()
    guard.take(now_ns, ready)
    found: dict[str, list[m.Message]] = {}
    for seat, message in ready.send:
        found.setdefault(seat, []).append(message)
    return found


def paste_all(made: Host, ready: Ready, shard: str = "u0") -> None:
    """Everything that is held is pasted, as idle moments would."""
    while made.copies[shard].pasting is not None:
        next(t for t in made.agenda(0).tasks if t.kind == "paste").run(0, ready)


def receive(made: Host, messages: Iterable[m.Message], source: str = "a#1", *, paste: bool = True) -> list[m.Message]:
    """A copy's node gets these; what it answers, without what that costs."""
    ready = Ready()
    for message in messages:
        made.on_capture(source, message, 0, ready)
    if paste and "u0" in made.copies:
        paste_all(made, ready)
    return uncosted(message for _, message in ready.send)


def uncosted(messages: Iterable[m.Message]) -> list[m.Message]:
    return [replace(x, cost_ns=0) if isinstance(x, m.Held | m.Pasted) else x for x in messages]


def answer(guard: Images, seat: str, answers: Iterable[m.Message]) -> None:
    for message in answers:
        if isinstance(message, m.Held):
            guard.on_held(seat, message, 0, Ready())
        elif isinstance(message, m.Pasted):
            guard.on_pasted(seat, message, 0, Ready())


def held(number: int, *, fits: bool = True) -> m.Held:
    return m.Held(shard="u0", epoch=1, round=number, fits=fits)


def pasted(number: int) -> m.Pasted:
    return m.Pasted(shard="u0", epoch=1, round=number)
