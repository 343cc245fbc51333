"""An operator with eventual checkpoints on real files, crashes that cut bytes, and the operator that never crashed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from holdfast.model.ids import Edge
from holdfast.operators import Agg, CountWindow, CountWindowAggregate, StateConfig, Window, WindowAggregate
from holdfast.operators.contents import contents
from holdfast.operators.footprints import Footprints
from holdfast.operators.traced import TracedOperator, records
from holdfast.runtime.disk.eventual import ControlLog, EventualOperator, InputStep, Policy, stepped
from support.batches import TIME, batch, rows

EDGE = Edge("u0.0")
CONFIG = StateConfig(page_bytes=4096, limit_bytes=4096 * 4096)
SCHEMA = pa.schema([("ts", TIME), ("k", pa.string()), ("v", pa.int64()), ("s", pa.string())])
#: Texts that fit a record's words, texts that go to the heap, and none.
TEXTS = ["", "a", None, "x" * 40, "y" * 41, "z" * 300]
#: Rows with this time have none: they are in no time window.
NO_TIME = 30
AGGS = {
    "n": Agg("count"),
    "total": Agg("sum", "v"),
    "low": Agg("min", "s"),
    "first": Agg("first", "v"),
    "last": Agg("last", "s"),
}
KINDS = ("tumbling", "sliding", "count", "count-sliding", "count-of-one")


def made(kind: str) -> TracedOperator:
    if kind in ("tumbling", "sliding"):
        window = Window(10, 10 if kind == "tumbling" else 4)
        return WindowAggregate("w", SCHEMA, event_time="ts", window=window, by=["k"], aggs=AGGS, config=CONFIG)
    sizes = {"count": (4, 4), "count-sliding": (6, 2), "count-of-one": (1, 1)}
    window = CountWindow(*sizes[kind])
    return CountWindowAggregate("w", SCHEMA, window=window, by=["k"], aggs=AGGS, config=CONFIG)


#: Rows of a step: (time after the watermark, key, value, text); how far the watermark rises after them; then checks.
Plan = list[tuple[list[tuple[int, int, int, int]], int, int]]


def steps_of(plan: Plan) -> list[InputStep]:
    """The input: fixed, whatever becomes of the operator."""
    found, watermark = [], 0
    for given, rise, _ in plan:
        placed = [(None if t == NO_TIME else watermark + t, TEXTS[k], v, TEXTS[s]) for t, k, v, s in given]
        taken = batch(SCHEMA, *(zip(*placed, strict=True) if placed else ([], [], [], [])))
        watermark += rise
        found.append(InputStep(taken, watermark if rise else None, (("in", len(found) + 1),)))
    return found


class Oracle:
    """The operator that never crashes, without any guard: its results after every step, and its state."""

    def __init__(self, kind: str, steps: list[InputStep]) -> None:
        operator = made(kind)
        self.results: list[list[tuple]] = []
        self.states = [state_of(operator)]
        self.contents = [contents_of(operator)]
        for step in steps:
            self.results.append(rows(stepped(operator, step)))
            self.states.append(state_of(operator))
            self.contents.append(contents_of(operator))


def contents_of(operator: TracedOperator) -> list:
    """What it holds, whatever the numbers of its records are: an operator that goes on after a recovery gives new
    windows other free numbers than one that never crashed."""
    assert isinstance(operator, WindowAggregate | CountWindowAggregate)
    held = [repr(row) for part in contents(operator) for row in part.to_pylist()]
    return [operator.rows, operator.watermark, *operator._drops(), *sorted(held)]


def state_of(operator: TracedOperator) -> list[tuple]:
    """Every record under its number, its long values, and all that is beside them."""
    told: list[tuple] = [(operator.rows, operator.watermark, tuple(operator._drops()))]
    for store in operator._stores():
        kept = records(store, np.sort(store.rids()))
        told.append((kept.numbers, kept.words, kept.blob))
    return told


class Planned(Policy):
    """Checks as a plan says."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(None)
        self._plan = plan
        self.step = 0

    def decide(self, footprints: Footprints, rows: int) -> int:
        self.step += 1
        return self._plan[self.step - 1][2]


def start(path: Path, kind: str, plan: Plan) -> EventualOperator:
    return EventualOperator(made(kind), ControlLog(path, EDGE), Planned(plan))


def files_of(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def put_files(path: Path, files: dict[Path, bytes]) -> None:
    for file in path.rglob("*"):
        if file.is_file():
            file.unlink()
    for file, raw in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(raw)
