"""The modelled operator: real sums per key and window in plain Python, with the costs a study gives it.

Small enough to be right by inspection, so that a checker can compare rows exactly with a batch computation.
"""

from __future__ import annotations

from holdfast.model.block import WATERMARK_MIN, Row, Rows
from holdfast.model.ids import Edge
from holdfast.model.topology import ShardSpec
from holdfast.sim.costs import Costs


class Meter:
    """CPU that operators have used since a driver last looked."""

    __slots__ = ("spent_ns",)

    def __init__(self) -> None:
        self.spent_ns = 0

    def take(self) -> int:
        spent, self.spent_ns = self.spent_ns, 0
        return spent


class WindowState(tuple):
    """(watermark, {(window end, key): sum}): what a capture carries. Its length is its number of windows."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self[1])


class WindowSum:
    """Sum of values per key over tumbling windows; windows close in order of (end, key)."""

    __slots__ = ("costs", "dirty", "meter", "outputs", "watermark", "width", "windows")
    lag = 0
    torn = False

    def __init__(self, spec: ShardSpec, width: int, costs: Costs, meter: Meter) -> None:
        self.width = width
        self.outputs = len(spec.outputs)
        self.costs = costs
        self.meter = meter
        self.windows: dict[tuple[int, int], int] = {}
        #: Windows touched since the last capture; in insertion order, so that captures are reproducible.
        self.dirty: dict[tuple[int, int], None] = {}
        self.watermark = WATERMARK_MIN

    def step(self, edge: Edge, rows: Rows, watermark: int) -> tuple[Rows, ...]:
        width, windows, dirty = self.width, self.windows, self.dirty
        for key, time, value in rows:
            at = (time - time % width + width, key)
            windows[at] = windows.get(at, 0) + value
            dirty[at] = None
        self.meter.spent_ns += self.costs.row_ns * len(rows)
        if watermark == self.watermark:
            return ((),) * self.outputs
        self.watermark = watermark
        closed: list[Row] = []
        for at in sorted(at for at in windows if at[0] <= watermark):
            closed.append((at[1], at[0] - 1, windows.pop(at)))
            dirty.pop(at, None)
        return (tuple(closed),) * self.outputs

    def capture(self) -> WindowState:
        state = WindowState((self.watermark, {at: self.windows[at] for at in self.dirty}))
        self.dirty = {}
        self.meter.spent_ns += self.costs.capture_window_ns * len(state)
        return state

    def snapshot(self) -> WindowState:
        state = WindowState((self.watermark, dict(self.windows)))
        self.meter.spent_ns += self.costs.capture_window_ns * len(state)
        return state

    def fits(self, state: object) -> bool:
        return True

    def paste(self, state: object, whole: bool) -> None:
        assert_state(state)
        watermark, windows = state  # type: ignore[misc]
        if whole:
            self.windows = {}
        self.windows.update(windows)
        self.watermark = watermark
        for at in [at for at in self.windows if at[0] <= watermark]:
            del self.windows[at]
        self.meter.spent_ns += self.costs.paste_window_ns * len(windows)

    def restore(self) -> None:
        self.dirty = {}
        self.meter.spent_ns += self.costs.load_ns


def assert_state(state: object) -> None:
    if not isinstance(state, WindowState):
        raise TypeError(f"not a state of this operator: {state!r}")
