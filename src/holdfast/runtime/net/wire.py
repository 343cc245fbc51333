"""Messages as bytes: msgpack of (source, target, message), typed both ways. Nothing is ever unpickled.

Three kinds of things are not msgpack's own and travel as extensions: rows (an Arrow IPC stream), an operator's capture
and a chunk of its state (formats of their own, with a checksum). Arrow's format has no checksum; the frame has one,
since rows end up as addresses in kernels.

A chunk is held as its bytes from the moment it is taken, so that beside it there is at most one copy: where it is sent
the frame, where it is received the rows that kernels put into the state.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import xxhash

from holdfast.errors import HoldfastError, InputError
from holdfast.model.ids import Address
from holdfast.model.messages import AnyMessage, Message
from holdfast.runtime.net.rows import ArrowRows

if TYPE_CHECKING:
    from holdfast.operators.capture import StateCapture
    from holdfast.operators.chunk import Chunk

T = TypeVar("T")

#: Raised whenever a message cannot be understood by a node of the version before.
PROTOCOL = 6
#: No frame may be larger: a length that was damaged must not make a node allocate without end.
FRAME_BYTES_MAX = 1 << 30

_ROWS, _STATE, _CHUNK, _SLICE = 1, 2, 3, 4
#: "HF", the protocol, and the xxh3-64 of the rest.
_HEAD = struct.Struct("<2sHQ")
#: Of a slice: the capture it continues, its number and how many there are.
_SLICED = struct.Struct("<qII")


class OperatorState:
    """An operator's capture on its way. The wrapper keeps msgpack from taking the struct apart."""

    __slots__ = ("capture",)

    def __init__(self, capture: StateCapture) -> None:
        self.capture = capture

    @property
    def nbytes(self) -> int:
        return self.capture.nbytes

    def __len__(self) -> int:
        return self.capture.n_new + self.capture.n_updated


class StateChunk:
    """A chunk of an operator's state on its way: its bytes, and what they say, which is views of them."""

    __slots__ = ("chunk", "raw")

    def __init__(self, raw: bytearray | memoryview) -> None:
        from holdfast.operators.chunk import Chunk  # here: a task that only fetches rows needs no kernels

        self.raw = raw
        self.chunk: Chunk = Chunk.from_bytes(raw)

    @property
    def nbytes(self) -> int:
        return len(self.raw)

    def __len__(self) -> int:
        return self.chunk.n_records


class StateSlice:
    """Bytes of a delta that is too large for one frame. `base` says which image it fits, before it is put together."""

    __slots__ = ("base", "count", "index", "raw")

    def __init__(self, base: int, index: int, count: int, raw: memoryview) -> None:
        self.base = base
        self.index = index
        self.count = count
        self.raw = raw

    def __len__(self) -> int:
        return len(self.raw)

    def to_bytes(self) -> bytes:
        return _SLICED.pack(self.base, self.index, self.count) + self.raw

    @staticmethod
    def from_bytes(data: memoryview) -> StateSlice:
        if len(data) < _SLICED.size:
            raise InputError("a slice of a capture cannot be read", detail=f"It has {len(data)} bytes.")
        base, index, count = _SLICED.unpack_from(data)
        return StateSlice(base, index, count, memoryview(bytes(data[_SLICED.size :])))


def _encode_hook(value: Any) -> Any:
    if isinstance(value, ArrowRows):
        return msgspec.msgpack.Ext(_ROWS, value.to_ipc())
    if isinstance(value, OperatorState):
        return msgspec.msgpack.Ext(_STATE, value.capture.to_bytes())
    if isinstance(value, StateChunk):
        return msgspec.msgpack.Ext(_CHUNK, value.raw)
    if isinstance(value, StateSlice):
        return msgspec.msgpack.Ext(_SLICE, value.to_bytes())
    raise NotImplementedError(f"{type(value).__name__} cannot be sent")


def _ext_hook(code: int, data: memoryview) -> Any:
    if code == _ROWS:
        return ArrowRows.from_ipc(data)
    if code == _STATE:
        from holdfast.operators.capture import StateCapture  # here: a task that only fetches rows needs no kernels

        return OperatorState(StateCapture.from_bytes(data))
    if code == _CHUNK:
        return StateChunk(data)
    if code == _SLICE:
        return StateSlice.from_bytes(data)
    raise InputError("a message has an extension that is not known", detail=f"Its code is {code}.")


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    source: Address
    target: Address
    message: AnyMessage


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_hook)
_decoder = msgspec.msgpack.Decoder(_Frame, ext_hook=_ext_hook)


def pack_value(value: Any) -> bytes:
    """Rows, or what has rows in it, as msgpack: what is kept for longer than a message lives."""
    return _encoder.encode(value)


def unpack_value(raw: Any, what: str, kind: type[T] | Any = Any) -> T:
    """The same back, as this type; a DecodeError or an error that says what cannot be read."""
    found = msgspec.msgpack.Decoder(kind, ext_hook=_ext_hook).decode(raw)
    return _rows(found, what) if kind is Any else found


def encode(source: Address, target: Address, message: Message) -> bytearray:
    raw = bytearray(_HEAD.size)
    _encoder.encode_into((source, target, message), raw, _HEAD.size)
    if len(raw) > FRAME_BYTES_MAX:
        raise InputError(
            f"a {type(message).__name__} for {target} is too large to be sent",
            detail=f"It has {len(raw) >> 20} MB; at most {FRAME_BYTES_MAX >> 20} MB can go in one piece.",
            hint="Limit what a micro-batch may take (maxFilesPerTrigger), or use more shards.",
        )
    _HEAD.pack_into(raw, 0, b"HF", PROTOCOL, xxhash.xxh3_64_intdigest(memoryview(raw)[_HEAD.size :]))
    return raw


def decode(raw: Any, peer: str) -> tuple[Address, Address, Message]:
    """(source, target, message); an InputError that names the peer if the bytes are not what was sent."""
    view = memoryview(raw)
    if not _HEAD.size < len(view) <= FRAME_BYTES_MAX:
        raise _damaged(peer, f"It has {len(view)} bytes.")
    magic, protocol, digest = _HEAD.unpack_from(view)
    if magic != b"HF" or protocol != PROTOCOL:
        raise _damaged(peer, f"It starts with {magic!r}, protocol {protocol}; this node speaks {PROTOCOL}.")
    body = view[_HEAD.size :]
    if xxhash.xxh3_64_intdigest(body) != digest:
        raise _damaged(peer, f"The checksum of its {len(body)} bytes does not match.")
    try:
        frame = _decoder.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise _damaged(peer, str(error)) from error
    except HoldfastError as error:  # of rows, of state, or of settings that no operator can have
        raise _damaged(peer, f"{error.what}: {error.detail}") from error
    return frame.source, frame.target, frame.message.with_rows(lambda rows: _rows(rows, peer))


def _rows(rows: Any, peer: str) -> Any:
    """Rows are Arrow rows or none at all, and none is `()`: msgpack knows no tuples."""
    if isinstance(rows, ArrowRows):
        return rows
    if rows == []:
        return ()
    raise _damaged(peer, f"Its rows are a {type(rows).__name__}.")


def _damaged(peer: str, detail: str) -> InputError:
    return InputError(
        f"a message from {peer} cannot be read",
        detail=detail,
        hint="It was dropped, and will be sent again. If this repeats, look at the network and the versions.",
    )
