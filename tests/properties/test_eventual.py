"""Eventual checkpoints on real files (cec §II-III): whatever comes in, is checked and crashes, nothing is different."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import rows
from support.eventual import (
    EDGE,
    KINDS,
    Oracle,
    Plan,
    Planned,
    contents_of,
    files_of,
    made,
    put_files,
    start,
    state_of,
    steps_of,
)

from holdfast.errors import DamagedLogError
from holdfast.logs import edge_log
from holdfast.runtime.disk.eventual import EventualOperator, go_on, recover
from holdfast.runtime.disk.footprint_reader import FootprintReader
from holdfast.runtime.disk.log_reader import LogReader
from holdfast.runtime.net.rows import batches_of

#: Small segments: runs cross their borders.
SEGMENT_BYTES = 6_000
ROWS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5), st.integers(-9, 9), st.integers(0, 5)), max_size=12)
PLANS = st.lists(st.tuples(ROWS, st.sampled_from([0, 0, 0, 5, 20]), st.integers(0, 3)), min_size=1, max_size=16)


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    monkeypatch.setattr(edge_log, "SEGMENT_BYTES", SEGMENT_BYTES)


def torn(path: Path, before: dict[Path, bytes], after: dict[Path, bytes], data: st.DataObject) -> bool:
    """A crash while a group was written: any byte of the log may be the last one. Whether the whole group is there.

    An index is written after that and never synced: of it, any beginning may be left.
    """
    logs = sorted(file for file in after if file.suffix == ".log" and after[file] != before.get(file))
    cut = logs[-1]
    at = data.draw(st.integers(len(before.get(cut, b"")), len(after[cut])), label="cut at byte")
    files = {**before, cut: after[cut][:at]}
    for file in [file for file in files if file.suffix == ".index"]:
        files[file] = files[file][: data.draw(st.integers(0, len(files[file])), label="index cut at byte")]
    put_files(path, files)
    return at == len(after[cut])


def run_on(live: EventualOperator, steps: list, until: int, oracle: Oracle, group: int) -> None:
    """Feed it; what it gives is what the operator that never crashed gave."""
    for number in range(live.steps, until):
        assert rows(live.step(steps[number])) == oracle.results[number]
        if number % group == 0:
            live.log.flush()
    live.log.flush()


def same_as(live: EventualOperator, untouched: EventualOperator, *, in_order: bool) -> None:
    """Also the order of the windows by their footprints, and how far back they are. Those of one step are in the order
    of their numbers."""
    assert (live.extent.windows, live.extent.rows) == (untouched.extent.windows, untouched.extent.rows)
    assert live.needed[1] == untouched.needed[1]
    assert not in_order or live.extent == untouched.extent


@settings(max_examples=150, deadline=None)
@given(kind=st.sampled_from(KINDS), plan=PLANS, crashes=st.integers(1, 3), group=st.integers(1, 4), data=st.data())
def test_an_operator_that_crashes_at_any_byte_of_its_log_is_the_one_that_never_crashed(
    kind: str, plan: Plan, crashes: int, group: int, data: st.DataObject
):
    steps = steps_of(plan)
    oracle = Oracle(kind, steps)
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as beside:
        path = Path(name)
        live = start(path, kind, plan)
        for life in range(crashes):
            first = live.steps
            crash = data.draw(st.integers(first, len(steps)), label="crash while this step is written")
            last = data.draw(st.integers(crash, min(len(steps), crash + group)), label="and these beside it")
            run_on(live, steps, crash, oracle, group)
            before = files_of(path)
            for number in range(crash, last):
                assert rows(live.step(steps[number])) == oracle.results[number]
            live.log.flush()
            after = files_of(path)
            whole = torn(path, before, after, data) if after != before else True
            operator = made(kind)
            live, found = go_on(operator, path, EDGE, lambda a, b: steps[a - 1 : b], Planned(plan))
            assert crash <= found.step <= last
            assert not whole or found.step == last or group > 1 or last - crash > 1
            assert contents_of(operator) == oracle.contents[found.step]
            if life == 0:  # later ones give new windows other free numbers
                assert state_of(operator) == oracle.states[found.step]
            untouched = start(Path(beside), kind, plan)
            run_on(untouched, steps, found.step, oracle, group)
            assert live.position == untouched.position
            same_as(live, untouched, in_order=life == 0)
            live.policy.step = found.step  # type: ignore[attr-defined]
        run_on(live, steps, len(steps), oracle, group)
        assert contents_of(live.operator) == oracle.contents[-1]
        consumers_see_results_only(path, [row for result in oracle.results for row in result])


def consumers_see_results_only(path: Path, results: list[tuple]) -> None:
    reader = LogReader(path / EDGE, all_of_it=True)
    blocks = list(reader.blocks())
    reader.close()
    assert [one.start for one in blocks] == [0, *(one.end for one in blocks[:-1])]
    assert [row for block in blocks for part in batches_of(block.rows) for row in rows(part)] == results
    assert all(type(block).__name__ == "Block" for block in blocks)


@settings(max_examples=120, deadline=None)
@given(kind=st.sampled_from(KINDS), plan=PLANS, group=st.integers(1, 4), data=st.data())
def test_bytes_that_were_flipped_cut_doubled_or_moved_never_make_another_operator(
    kind: str, plan: Plan, group: int, data: st.DataObject
):
    """It is the operator of the log's last entry, or of an earlier one if the end is torn, or an error says so."""
    steps = steps_of(plan)
    oracle = Oracle(kind, steps)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        run_on(start(path, kind, plan), steps, len(steps), oracle, group)
        files = files_of(path)
        file = data.draw(st.sampled_from(sorted(files)))
        raw = files[file]
        begin = data.draw(st.integers(0, len(raw) - 1))
        end = data.draw(st.integers(begin + 1, min(len(raw), begin + 900)))
        to = data.draw(st.integers(0, len(raw)))
        piece = raw[begin:end]
        rest = raw[:begin] + raw[end:]
        hurt = {
            "flip": raw[:begin] + bytes([raw[begin] ^ 0x41]) + raw[begin + 1 :],
            "cut": raw[:begin],
            "lose": rest,
            "double": raw[:end] + piece + raw[end:],
            "zero": raw[:begin] + bytes(len(piece)) + raw[end:],
            "move": rest[:to] + piece + rest[to:],
        }[data.draw(st.sampled_from(["flip", "cut", "lose", "double", "zero", "move"]))]
        file.write_bytes(hurt)
        operator = made(kind)
        try:
            found = recover(operator, path, EDGE, lambda a, b: steps[a - 1 : b])
        except DamagedLogError:
            assert hurt != raw
            return
        assert state_of(operator) == oracle.states[found.step]
        # the index names all that was synced: the log itself cannot lose its end without being told
        assert found.step == len(steps) or file.suffix == ".index"


@settings(max_examples=80, deadline=None)
@given(kind=st.sampled_from(KINDS), plan=PLANS, data=st.data())
def test_entries_that_are_whole_and_stand_in_the_wrong_place_are_noticed(kind: str, plan: Plan, data: st.DataObject):
    """Doubled, left out or exchanged entries, by somebody who knows the format: the tuples do not add up."""
    steps = steps_of(plan)
    oracle = Oracle(kind, steps)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        run_on(start(path, kind, plan), steps, len(steps), oracle, 1)
        controls = list(FootprintReader(path / EDGE).controls())
        a = data.draw(st.integers(0, len(controls) - 1))
        b = data.draw(st.integers(0, len(controls) - 1))
        how = data.draw(st.sampled_from(["double", "lose", "exchange"]))
        forged = list(controls)
        if how == "double":
            forged.insert(b, controls[a])
        elif how == "lose" and a:
            del forged[a]
        else:
            forged[a], forged[b] = forged[b], forged[a]

        class Forged(FootprintReader):
            def controls(self):
                self.end = forged[0][0]  # type: ignore[assignment]
                yield from forged

        operator = made(kind)
        try:
            gathered = Forged(path / EDGE).gather(operator)
        except DamagedLogError:
            assert forged != controls
            return
        # nothing before the extent is read, so nothing there can be noticed or do harm
        assert gathered is not None
        operator.bring_back(gathered)
        for number in range(gathered.since.step + 1, gathered.end.step + 1):
            operator.replay(steps[number - 1].batch, number)
        operator.replayed(gathered)
        assert state_of(operator) == oracle.states[gathered.end.step]


@settings(max_examples=80, deadline=None)
@given(kind=st.sampled_from(KINDS), plan=PLANS)
def test_the_extent_and_the_replay_are_exactly_what_a_recovery_then_needs(kind: str, plan: Plan):
    """q and u after every step, against a recovery at that moment; and what was not `needed` is not missed."""
    steps = steps_of(plan)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        live = start(path, kind, plan)
        for number, step in enumerate(steps, 1):
            live.step(step)
            live.log.flush()
            extent, (position, first) = live.extent, live.needed
            live.log.drop(position)
            asked: list[int] = []

            def source(a: int, b: int, asked: list[int] = asked):
                asked.append(a)
                return steps[a - 1 : b]

            operator = made(kind)
            found = recover(operator, path, EDGE, source)
            assert found.gathered is not None
            assert extent.windows == operator.window_count() == found.gathered.end.windows
            oldest = min((int(one.ordinals.min()) for one in found.gathered.found), default=live_tuples(live))
            assert extent.tuples == live_tuples(live) - oldest
            assert extent.rows == (found.replayed_rows if extent.windows else 0)
            assert asked == [first]
            assert found.step == number


def live_tuples(live: EventualOperator) -> int:
    assert live.operator.footprints is not None
    return live.operator.footprints.tuples
