"""What an operator can hold of a row, as far as the row alone says it.

Stages ask before a batch counts: a row that is beyond this would be refused by the shard that gets it, with its whole
batch, and that batch could not be taken back. What depends on the state (an overflow, a full memory) is not here.
"""

from __future__ import annotations

from holdfast.model.plan import FOREVER_US, NEVER_US, OperatorPlan
from holdfast.operators.build import wire_schema
from holdfast.operators.columns import Column
from holdfast.operators.join import SameWindow, Within
from holdfast.state.heap import LONG_BYTES_MAX

#: Bytes of one string or binary value.
VALUE_BYTES_MAX = LONG_BYTES_MAX
#: The years 1 to 9999: what SQL and every other program can say. Windows and watermarks around them fit 64 bits.
TIME_MIN_US, TIME_MAX_US = -62_135_596_800_000_000, 253_402_300_799_999_999
#: Aggregates that look whether there is a value, and not at it.
_BLIND = ("count",)


def time_limits(plan: OperatorPlan) -> tuple[int, int]:
    """The first and the last event time that an operator takes."""
    reach = 2 * _reach_us(plan)
    return max(TIME_MIN_US, NEVER_US + reach), min(TIME_MAX_US, FOREVER_US - reach)


def _reach_us(plan: OperatorPlan) -> int:
    s = plan.settings
    if plan.kind == "join":
        return (SameWindow(s["same_window"]) if s.get("same_window") else Within(*s["within"])).reach_us
    return s["size_us"] if plan.kind == "aggregate" else 0


def long_columns(plan: OperatorPlan, number: int) -> list[str]:
    """Columns of an input, by their names on the edge, whose values can be too long for the operator's state."""
    given = plan.inputs[number]
    held = set(given.by)
    if plan.kind == "join":
        held |= set(wire_schema(given).names)
    else:
        on_edge = {inside: outside for outside, inside in given.rename.items()}
        named = [column for function, column, _ in plan.settings["aggs"].values() if function not in _BLIND]
        held |= {on_edge.get(column, column) for column in named if column}
    return [f.name for f in wire_schema(given) if f.name in held and Column(f.name, f.type).is_var]
