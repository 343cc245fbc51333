"""A little that becomes much: compressed rows, rows without bytes, windows without end, fetches that never end."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import ConfigError, InputError
from holdfast.model.plan import WINDOWS_MAX
from holdfast.operators import Window
from holdfast.runtime.net.rows import ArrowRows


def stream(batch: pa.RecordBatch, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def refused_cheaply(raw: bytes, says: str) -> None:
    before = pa.total_allocated_bytes()
    peak = pa.default_memory_pool().max_memory()
    with pytest.raises(InputError) as refused:
        ArrowRows.from_ipc(raw)
    assert says in refused.value.detail
    assert pa.total_allocated_bytes() - before < 1 << 20
    assert pa.default_memory_pool().max_memory() - max(peak, before) < 1 << 20


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_compressed_batch_is_refused_before_it_is_decoded(compression):
    bomb = stream(pa.record_batch({"x": np.zeros(20_000_000, np.int64)}), compression)
    assert len(bomb) < 1 << 20
    refused_cheaply(bomb, "compressed")


def test_a_compressed_dictionary_is_refused_too():
    values = pa.array(["x" * 1_000_000])
    batch = pa.record_batch({"x": pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), values)})
    refused_cheaply(stream(batch, "zstd"), "compressed")
    assert len(ArrowRows.from_ipc(stream(batch))) == 2


def test_rows_that_take_no_bytes_are_refused():
    refused_cheaply(stream(pa.record_batch({"x": pa.nulls(1_000_000_000)})), "1000000000 rows")
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1_000_000_000], pa.int32()), pa.array([7], pa.int64()))
    refused_cheaply(stream(pa.record_batch({"x": runs})), "1000000000 rows")


def test_rows_of_any_kind_that_nodes_send_are_taken():
    columns = {
        "b": pa.array([True] * 4096), "s": pa.array(["x"] * 4096), "n": pa.array([None] * 4096, pa.int64()),
        "l": pa.array([[1, 2]] * 4096), "t": pa.array([{"a": 1}] * 4096),
    }  # fmt: skip
    batch = pa.record_batch(columns)
    assert ArrowRows.from_ipc(stream(batch)).batches[0].equals(batch)
    only = pa.record_batch({"b": columns["b"]})
    assert len(ArrowRows.from_ipc(stream(only))) == 4096


def test_metadata_that_is_damaged_anywhere_is_an_input_error_or_the_same_number_of_rows():
    raw = stream(pa.record_batch({"x": np.arange(100), "s": pa.array(["x"] * 100)}))
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 0xFF
        try:
            ArrowRows.from_ipc(bytes(damaged)).table()
        except InputError:
            continue


def test_a_window_with_more_steps_than_can_be_made_is_refused_with_the_bound():
    source = hf.Pipeline("p").read(lambda spark: None, event_time="ts", watermark="1 s")
    with pytest.raises(ConfigError, match=f"{WINDOWS_MAX:,}") as refused:
        source.window("1000 hours", every="1 us")
    assert "test_bombs.py" in refused.value.detail
    with pytest.raises(ConfigError, match=f"{WINDOWS_MAX:,}"):  # nor from a plan that somebody else made
        Window(1000 * 3_600_000_000, 1)
    source.window("1 day", every="1 s")
    assert Window(WINDOWS_MAX, 1).pane_us == 1


def test_a_fetch_that_would_wait_for_ever_gets_an_answer_within_the_nodes_own_limit(monkeypatch):
    """And its thread ends, also if the core never answers."""
    from holdfast.errors import PeerError
    from holdfast.model.ids import Consumer, Edge
    from holdfast.model.messages import Fetch
    from holdfast.runtime.node import desk

    monkeypatch.setattr(desk, "WAIT_NS_MAX", 50_000_000)
    monkeypatch.setattr(desk, "BUSY_S_MAX", 0.05)
    told = desk.Desk("n0")
    for wait_ns in (0, 2**62, 2**63 - 1):
        asked = Fetch(
            ticket=1, edge=Edge("a.0"), start=0, end=1, consumer=Consumer("c"), epoch=1, producer_epoch=0,
            wait_ns=wait_ns, query="",
        )  # fmt: skip
        ended: list[str] = []

        def ask(asked: Fetch = asked, ended: list[str] = ended) -> None:
            with pytest.raises(PeerError) as error:
                told.ask(asked, lambda address, message: None)
            ended.append(error.value.what)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(10)
        assert ended
        assert "did not answer a fetch" in ended[0]
    assert not told._waiting
