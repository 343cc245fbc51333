"""What things cost in the virtual world, in integer nanoseconds and bytes. Every number is a setting of a study."""

from __future__ import annotations

import msgspec

from holdfast.model import messages as m

MESSAGE_BYTES = 100
ROW_BYTES = 32


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    #: CPU of a node per event, whatever it is.
    event_ns: int = 2_000
    #: CPU of the modelled operator: per row stepped, per window captured, per window pasted, to start from an image.
    row_ns: int = 200
    capture_window_ns: int = 7_300
    paste_window_ns: int = 7_200
    load_ns: int = 1_000_000
    #: One write and sync of a disk.
    sync_ns: int = 2_000_000
    #: Network: one way, the spread on top of it (that is what reorders), and bytes per second of one link.
    latency_ns: int = 300_000
    jitter_ns: int = 200_000
    bandwidth_bytes: int = 125_000_000
    #: On one host.
    loopback_ns: int = 30_000


def size_of(message: m.Message) -> int:
    """Bytes on the wire: a header, and what grows."""
    kind = type(message)
    if kind is m.Data or kind is m.Fetched:
        return MESSAGE_BYTES + ROW_BYTES * sum(len(b.rows) + 1 for b in message.blocks)  # type: ignore[attr-defined]
    if kind is m.Deliver:
        return MESSAGE_BYTES + ROW_BYTES * sum(map(len, message.parts.values()))  # type: ignore[attr-defined]
    if kind is m.Capture or kind is m.CapturePiece:
        state = 0 if message.state is None else len(message.state)  # type: ignore[attr-defined]
        return MESSAGE_BYTES + ROW_BYTES * (state + sum(map(len, message.cargo)))  # type: ignore[attr-defined]
    if kind is m.Push or kind is m.Append:
        return MESSAGE_BYTES + 50 * len(message.record.places)  # type: ignore[attr-defined]
    if kind is m.Loads:
        return MESSAGE_BYTES + 16 * (len(message.running) + len(message.images) + len(message.memory))  # type: ignore[attr-defined]
    return MESSAGE_BYTES
