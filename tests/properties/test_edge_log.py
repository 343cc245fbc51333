"""Output logs on real files, for any writes, crashes and damage: a reader gives what was written, or says it cannot."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.ready import Done, DropSpill, Spill
from holdfast.errors import DamagedLogError
from holdfast.logs import edge_log
from holdfast.model.block import Block, shard_block
from holdfast.model.ids import Edge
from holdfast.runtime.disk.edge_logs import EdgeLogs
from holdfast.runtime.disk.log_reader import LogReader
from holdfast.runtime.net.rows import ArrowRows

EDGE = Edge("u0.0")
#: Small segments: every run crosses their borders.
SEGMENT_BYTES = 1_200
#: Rows of each block of a group; what was acknowledged after it; and how many blocks were given up and come again.
GROUPS = st.lists(
    st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(0, 3), st.integers(0, 2)),
    min_size=1,
    max_size=8,
)


class Written:
    """What a writer was told to write, and what of it the disk has said is there."""

    def __init__(self, path: Path, groups: list[tuple[list[int], int, int]]) -> None:
        self.path = path
        said: list[Done] = []
        logs = EdgeLogs(path, said.append, lambda error: None)
        self.blocks: list[Block] = []
        #: Bytes of every file after each group, the blocks that counted then, and those that came again in it.
        self.moments: list[tuple[dict[Path, bytes], list[Block], list[Block]]] = []
        at = 0
        for number, (sizes, acknowledged, again) in enumerate(groups):
            redone = self.blocks[len(self.blocks) - again :] if again < len(self.blocks) else []
            fresh: list[Block] = []
            for size in sizes:
                rows = ArrowRows([pa.record_batch({"a": pa.array(range(at, at + size), pa.int64())})]) if size else ()
                fresh.append(shard_block(at, rows, number, at))
                at = fresh[-1].end
            group = (*redone, *fresh)
            logs.want(Spill(ticket=number + 1, edge=EDGE, blocks=group))
            logs.work()
            assert said[-1].ok
            self.blocks += fresh
            if acknowledged:
                keep = self.blocks[min(acknowledged, len(self.blocks) - 1)]
                logs.want(DropSpill(edge=EDGE, to=keep.start))
                logs.work()
                self.blocks = self.blocks[self.blocks.index(keep) :]
            files = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
            self.moments.append((files, list(self.blocks), redone))


def told(blocks: list[Block]) -> list[tuple[int, int, int, list[int]]]:
    return [(b.start, b.end, b.watermark, b.rows.table()["a"].to_pylist() if len(b.rows) else []) for b in blocks]


def put(files: dict[Path, bytes]) -> None:
    (directory,) = {path.parent for path in files}
    for path in directory.iterdir():
        path.unlink()
    for path, raw in files.items():
        path.write_bytes(raw)


def write(path: str, groups: list[tuple[list[int], int, int]]) -> Written:
    before = edge_log.SEGMENT_BYTES
    edge_log.SEGMENT_BYTES = SEGMENT_BYTES
    try:
        return Written(Path(path), groups)
    finally:
        edge_log.SEGMENT_BYTES = before


def is_run_of(found: list[tuple], of: list[tuple]) -> bool:
    """Does the one stand in the other, without a hole?"""
    return not found or (found[0] in of and of[of.index(found[0]) :][: len(found)] == found)


@settings(max_examples=60, deadline=None)
@given(groups=GROUPS, data=st.data())
def test_a_log_that_is_cut_at_any_byte_gives_all_that_counted_and_nothing_else(groups, data):
    """A crash in the write of the last group: all before it is there, of it a beginning, and it is not damage."""
    with tempfile.TemporaryDirectory() as path:
        written = write(path, groups)
        files, blocks, redone = written.moments[-1]
        before, counted, _ = written.moments[-2] if len(written.moments) > 1 else ({}, [], [])
        last = max(file for file in files if file.suffix == ".log")
        at = data.draw(st.integers(len(before.get(last, b"")), len(files[last])))
        torn = {file: raw for file, raw in {**before, **files}.items() if file.exists() and file != last}
        index = last.with_suffix(".index")
        torn[index] = before.get(index, b"")
        put({**torn, last: files[last][:at]})
        reader = LogReader(Path(path) / EDGE, all_of_it=data.draw(st.booleans()))
        found = told(list(reader.blocks()))
        assert reader.log.damage == ""
        everything = told(blocks)
        still = [one for one in told(counted) if one in everything and one not in told(redone)]
        assert [one for one in still if one not in found] == []
        assert is_run_of([one for one in found if one in everything], everything)


@settings(max_examples=80, deadline=None)
@given(groups=GROUPS, data=st.data())
def test_a_flipped_cut_doubled_or_moved_stretch_of_bytes_is_never_silently_wrong(groups, data):
    with tempfile.TemporaryDirectory() as path:
        written = write(path, groups)
        files, _, _ = written.moments[-1]
        whole = LogReader(Path(path) / EDGE)
        right = told(list(whole.blocks()))
        whole.close()
        file = data.draw(st.sampled_from(sorted(f for f in files if f.suffix == ".log")))
        raw = files[file]
        start = data.draw(st.integers(0, len(raw) - 1))
        end = data.draw(st.integers(start + 1, min(len(raw), start + 400)))
        how = data.draw(st.sampled_from(["flip", "cut", "lose", "double", "zero", "move"]))
        piece = raw[start:end]
        hurt = {
            "flip": lambda: raw[:start] + bytes([raw[start] ^ 0x41]) + raw[start + 1 :],
            "cut": lambda: raw[:start],
            "lose": lambda: raw[:start] + raw[end:],
            "double": lambda: raw[:end] + piece + raw[end:],
            "zero": lambda: raw[:start] + bytes(len(piece)) + raw[end:],
            "move": lambda: raw[:start] + raw[end:] + piece,
        }[how]()
        file.write_bytes(hurt)
        found: list[tuple] = []
        said = ""
        reader = LogReader(Path(path) / EDGE, all_of_it=True)
        try:
            for block in reader.blocks():
                found += told([block])
        except DamagedLogError as error:
            said = error.detail
        assert [one for one in found if one not in right] == []
        if hurt != raw and not (how == "double" and hurt.startswith(raw)):
            assert said or found == right


def test_a_reader_beside_a_writer_never_sees_damage_or_a_hole(tmp_path: Path):
    """Files appear, grow and go between any two looks."""
    said: list[Done] = []
    before = edge_log.SEGMENT_BYTES
    edge_log.SEGMENT_BYTES = SEGMENT_BYTES
    try:
        logs = EdgeLogs(tmp_path, said.append, lambda error: None)
        reader: LogReader | None = None
        seen, at = 0, 0
        for number in range(60):
            rows = ArrowRows([pa.record_batch({"a": pa.array(range(at, at + 9), pa.int64())})])
            block = shard_block(at, rows, number, at)
            logs.want(Spill(ticket=number + 1, edge=EDGE, blocks=(block,)))
            logs.work()
            at = block.end
            if number % 7 == 3:
                logs.want(DropSpill(edge=EDGE, to=at - 30))
                logs.work()
            reader = reader or LogReader(tmp_path / EDGE)
            reader.look()
            came = list(reader.blocks(position=seen))
            assert reader.log.damage == ""
            assert [b.start for b in came] == [seen]
            seen = came[-1].end
        assert len(os.listdir(tmp_path / EDGE)) < 20
    finally:
        edge_log.SEGMENT_BYTES = before
