"""The hostile peer of `hostile.py` outside of the nodes: streams over Flight, with a right secret, to real processes.

It learns what the nodes say to each other from their taps (`tapped.py`), opens a stream for every name that it sends
under, and writes frames. What became of them the nodes count.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from holdfast.errors import HoldfastError
from holdfast.model import messages as m
from holdfast.model.block import Block
from holdfast.model.ids import driver_of, name_of, seat_of
from holdfast.model.ranges import check_of
from holdfast.model.record import Record
from holdfast.runtime.net import wire
from holdfast.runtime.net.links import CHANNEL, lane_of
from holdfast.runtime.net.security import GUEST, NODE, Security
from support.hostile import OWN, Fate, Hostile
from support.nodes import Nodes
from support.tapped import HEADER


class HostileStream:
    """One stream to a node under one name. What it is answered is read and forgotten."""

    def __init__(self, nodes: Nodes, security: Security, source: str, target: str, lane: bytes) -> None:
        kind = NODE if name_of(source) in nodes.names and "#" in source else GUEST
        headers = [*security.headers(source, kind, target), (HEADER.encode(), b"1")]
        self._client = flight.FlightClient(nodes.endpoints[target], generic_options=CHANNEL)
        options = flight.FlightCallOptions(headers=headers)
        self._writer, self._reader = self._client.do_exchange(flight.FlightDescriptor.for_command(lane), options)
        self._ended = threading.Thread(target=self._read, daemon=True)
        self._ended.start()

    def write(self, raw: bytes | bytearray) -> None:
        self._writer.write_metadata(raw)

    def _read(self) -> None:
        with contextlib.suppress(StopIteration, pa.ArrowException, OSError):
            while True:
                self._reader.read_chunk()

    def close(self) -> None:
        with contextlib.suppress(pa.ArrowException, OSError):
            self._reader.cancel()
            self._writer.close()
        self._ended.join(5)
        self._client.close()


class Distant(Hostile):
    """Sends to real nodes; makes messages as `Hostile` does."""

    def __init__(self, nodes: Nodes, seed: int) -> None:
        self.nodes = nodes
        self._security = Security.load(nodes.dir / "secret", deployment=nodes.plan.query)
        self._streams: dict[tuple[str, str, bytes], HostileStream] = {}
        known: Any = SimpleNamespace(topology=nodes.plan.topology, first=self._record(), names=nodes.names)
        super().__init__(known, seed)
        self.rng = Random(f"distant {seed}")
        #: Messages that cannot be written as bytes, or to a node that is gone.
        self.unsent = 0

    # --- what it knows

    def _record(self) -> Record:
        found = []
        for name in self.nodes.alive():
            with contextlib.suppress(HoldfastError):
                found.append(msgspec.msgpack.decode(self.nodes.caller.call_raw(name, "record"), type=Record))
        return max(found, key=lambda record: record.version)

    def listen(self) -> None:
        """Learn what nodes and drivers have said lately, and what the record is."""
        self.world.first = self._record()
        for name in self.nodes.alive():
            with contextlib.suppress(HoldfastError):
                for raw in msgspec.msgpack.decode(self.nodes.caller.call_raw(name, "tap", timeout=10.0)):
                    source, target, message = wire.decode(raw, name)
                    self.heard[type(message)].append((source, target, message))

    def names(self) -> list[str]:
        places = self.world.first.places
        drivers = [driver_of(a, p.epoch + d) for a, p in places.items() if p.is_stage for d in (0, 1)]
        seats = [str(seat) for place in places.values() for seat in place.holders]
        return [*OWN, *seats, *drivers, "r0", *(seat_of(n, life) for n in self.nodes.names for life in (1, 2))]

    def is_impossible(self, message: m.Message) -> bool:
        """Is it wrong whatever the record is? Then it must leave no trace, whoever seems to say it."""
        check = check_of(type(message))
        return bool(check is not None and check(message)) or not message.belongs_to(self.nodes.plan.topology)

    def _struct(self, kind: type[msgspec.Struct]) -> Any:
        """With rows that could be rows, or none."""
        if kind is Block:
            start, rows = self.rng.randrange(20), self._rows()
            return Block(start, start + len(rows) + 1, rows, self.rng.randrange(1 << 30))
        return super()._struct(kind)

    def _rows(self) -> Any:
        heard = self.recorded(m.Data)
        found = [block.rows for block in getattr(heard[2], "blocks", ())] if heard else []
        return self.rng.choice([(), *found])

    # --- sending

    def tell(self, source: str, target: str, message: m.Message) -> None:
        """To a node, by the name in its address."""
        name = name_of(target)
        if name not in self.nodes.alive() or name_of(source) == name:
            return
        lane = lane_of(message)
        try:
            raw = wire.encode(source, target, message)
            stream = self._streams.get((source, name, lane))
            if stream is None:
                stream = self._streams[source, name, lane] = HostileStream(
                    self.nodes, self._security, source, name, lane
                )
            stream.write(raw)
            self.sent += 1
        except (OverflowError, TypeError, NotImplementedError, UnicodeEncodeError):
            self.unsent += 1
        except (pa.ArrowException, OSError, StopIteration):  # its stream has ended, or its node
            self.unsent += 1
            self.leave(source, name, lane)

    def leave(self, *stream: Any) -> None:
        if (gone := self._streams.pop(stream, None)) is not None:
            gone.close()

    def close(self) -> None:
        for stream in list(self._streams):
            self.leave(*stream)

    # --- what came of it

    def learn_fates(self) -> Counter[str]:
        """From the nodes; how many came, and how many could be decoded."""
        counted: Counter[str] = Counter()
        for name in self.nodes.alive():
            told = self.nodes.caller.call(name, "fates", timeout=10.0)
            counted.update(told["fates"])
            self.roles.update(told["roles"])
        kinds = {kind.__name__: kind for kind in m.all_messages()}
        for text, times in counted.items():
            kind, _, fate = text.partition(" ")
            if fate:
                self.fates[kinds[kind]][Fate[fate]] += times
        return counted
