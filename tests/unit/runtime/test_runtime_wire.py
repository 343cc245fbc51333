"""Messages as bytes: what was sent comes back, and what was damaged is refused with the peer's name."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from holdfast.errors import InputError
from holdfast.model import messages as m
from holdfast.model.block import Block, digest_of
from holdfast.model.parts import Cargo, HandedPart, HeldBatch, OutputPart
from holdfast.model.record import Place, Record
from holdfast.runtime.net import wire
from holdfast.runtime.net.rows import ArrowRows


def some_rows(count: int = 3) -> ArrowRows:
    return ArrowRows([pa.record_batch({"a": list(range(count)), "b": [f"row {i}" for i in range(count)]})])


def sent(message: m.Message) -> m.Message:
    source, target, found = wire.decode(wire.encode("n0#1", "n1", message), "n0")
    assert (source, target) == ("n0#1", "n1")
    return found


def test_a_record_comes_back_as_it_was():
    record = Record(
        version=3,
        term=2,
        members={"n0": 1},
        places={"u0": Place(primary="n0#1"), "s0": Place(primary=None, is_stage=True)},
    )
    assert sent(m.Push(record=record)) == m.Push(record=record)


def test_rows_come_back_and_no_rows_are_the_empty_tuple():
    message = m.Deliver(
        stage="s0", epoch=1, batch=2, attempt=1, shards={}, last=None, parts={"s0>u0": some_rows(), "s0>u1": ()}
    )
    found = sent(message)
    assert isinstance(found, m.Deliver)
    assert found.parts["s0>u0"].table() == some_rows().table()
    assert found.parts["s0>u1"] == ()


def test_rows_of_blocks_and_captures_survive():
    block = Block(0, 4, some_rows(), 7)
    data = sent(m.Data(edge="u0.0", epoch=1, blocks=(block, Block(4, 5, (), 8))))
    assert isinstance(data, m.Data)
    assert data.blocks[0].rows.table() == some_rows().table()
    assert len(data.blocks[1].rows) == 0
    capture = sent(
        m.Capture(
            shard="u0", epoch=1, since=1, born=1, round=1, pieces=1, scan=0, start={}, to={}, watermarks={}, state=None,
            outputs={"u0.0": OutputPart(0, 4, 0, (), {})}, handed={"s0>u0": HandedPart(0, -1, (), ())},
            cargo=(Cargo("u0.0", (block,)),),
        )
    )  # fmt: skip
    assert isinstance(capture, m.Capture)
    assert capture.cargo[0].blocks[0].rows.table() == some_rows().table()
    held = HeldBatch(0, 1, 1, some_rows(), digest_of(some_rows()))
    piece = sent(m.CapturePiece(shard="u0", epoch=1, since=1, round=1, index=1, cargo=(Cargo("s0>u0", (), (held,)),)))
    assert isinstance(piece, m.CapturePiece)
    assert piece.cargo[0].held[0].rows.table() == some_rows().table()


def test_arrays_from_the_wire_are_aligned_so_that_no_kernel_is_compiled_again():
    for pad in range(8):
        message = m.Deliver(
            stage="s" * pad, epoch=1, batch=0, attempt=1, shards={}, last=None, parts={"e": some_rows()}
        )
        found = sent(message)
        assert isinstance(found, m.Deliver)
        assert found.parts["e"].batches[0].column("a").to_numpy().flags.aligned


@pytest.mark.parametrize("keep", [0, 1, 11, 12, 13, 40, -1])
def test_a_truncated_message_is_refused_by_name(keep: int):
    raw = wire.encode(
        "n0#1", "n1", m.Deliver(stage="s0", epoch=1, batch=0, attempt=1, shards={}, last=None, parts={"e": some_rows()})
    )
    with pytest.raises(InputError, match="from n7"):
        wire.decode(raw[:keep], "n7")


def test_every_flipped_byte_is_noticed():
    raw = bytearray(wire.encode("n0#1", "n1", m.Data(edge="u0.0", epoch=1, blocks=(Block(0, 4, some_rows(), 7),))))
    for at in range(len(raw)):
        raw[at] ^= 0x10
        with pytest.raises(InputError):
            wire.decode(bytes(raw), "n0")
        raw[at] ^= 0x10


def resealed(body: object) -> bytes:
    """A frame with a right checksum around wrong content."""
    import xxhash

    encoded = msgspec.msgpack.encode(body)
    return wire._HEAD.pack(b"HF", wire.PROTOCOL, xxhash.xxh3_64_intdigest(encoded)) + encoded


@pytest.mark.parametrize(
    "body",
    [
        ["a", "b", {"type": "Nonsense"}],
        ["a", "b", {"type": "Deliver", "stage": "s0"}],
        ["a", "b", {"type": "Heartbeat", "life": "one", "version": 1}],
        ["a", "b", {"type": "Data", "edge": "e", "epoch": 1, "blocks": [[0, 2, ["row"], 1, -1]]}],
        ["a", "b", {"type": "Data", "edge": "e", "epoch": 1, "blocks": [[0, 2, msgspec.msgpack.Ext(1, b"no"), 1, -1]]}],
        ["a", "b", {"type": "Data", "edge": "e", "epoch": 1, "blocks": [[0, 2, msgspec.msgpack.Ext(9, b"no"), 1, -1]]}],
        ["a", "b", {"type": "Data", "edge": "e", "epoch": 1, "blocks": [[0, 2, msgspec.msgpack.Ext(2, b"no"), 1, -1]]}],
        "hello",
    ],
)
def test_what_is_no_message_of_ours_is_refused(body: object):
    with pytest.raises(InputError, match="from n3"):
        wire.decode(resealed(body), "n3")


def test_another_protocol_is_refused():
    raw = bytearray(wire.encode("a", "b", m.Pull(version=1)))
    raw[2] = 99
    with pytest.raises(InputError, match="cannot be read"):
        wire.decode(bytes(raw), "n0")


def test_what_no_peer_would_take_is_refused_where_it_is_sent(monkeypatch):
    monkeypatch.setattr(wire, "FRAME_BYTES_MAX", 1_000)
    message = m.Deliver(stage="s0", epoch=1, batch=2, attempt=1, shards={}, last=None, parts={"s0>u0": some_rows(500)})
    with pytest.raises(InputError, match="Deliver for n1 is too large"):
        wire.encode("s0@1", "n1", message)
