"""What the operators must give, computed by Spark SQL in batch: window(), GROUP BY and JOIN, nothing of Holdfast's own.

Only windows that end by the final watermark count; a join's pairs count as soon as both rows are there. What goes by
the order of arrival (first, last, windows of rows) cannot be recomputed, and says so.
"""

from __future__ import annotations

from holdfast.model.plan import FOREVER_US
from holdfast.operators.columns import quoted
from holdfast.pipeline.frames import with_event_time
from holdfast.pipeline.graph import Aggregate, Frame, JoinOf, Session
from holdfast.pipeline.layout import Branch, OperatorLayout


def by_arrival(operator: OperatorLayout) -> str:
    """Why an operator's result depends on the order in which rows came; "" if it does not."""
    node = operator.node
    if isinstance(node, Aggregate):
        if node.counted:
            return f"{node.name} has windows of rows, which go by the order of arrival"
        picks = [name for name, call in node.aggs.items() if call.function in ("first", "last")]
        if picks:
            return f"{picks[0]} of {node.name} goes by the order of arrival"
    return ""


#: Column that says whether a result does not fit its type.
UNFIT = "__unfit"
_INTEGERS = ("tinyint", "smallint", "int", "bigint")


def aggregate_fitting(node: Aggregate, rows: Frame, event_time: str, watermark_us: int, spark: Session) -> Frame:
    """The same where Spark would stop at a result that does not fit its type: such rows are marked (`UNFIT`).

    Sums of integers are computed as decimals, as exactly as Holdfast's: whether one fits does not depend on the order
    of its rows."""
    types = dict(rows.dtypes)
    calls, unfit = [], ["false"]
    for name, c in node.aggs.items():
        call, column = _call(c.function, c.column), quoted(c.column or "")
        kind = types.get(c.column or "", "")
        if c.function == "sum" and kind in _INTEGERS:
            exact = f"sum(cast({column} as decimal(20,0)))"
            call = f"try_cast({exact} as bigint)"
            unfit.append(f"({exact} is not null and {call} is null)")
        elif c.function in ("sum", "avg") and kind.startswith("decimal"):
            call = f"try_{c.function}({column})"
            unfit.append(f"(count({column}) > 0 and {call} is null)")
        calls.append(f"{call} as {quoted(name)}")
    calls.append(f"({' or '.join(unfit)}) as {UNFIT}")
    return _windows(node, rows, event_time, watermark_us, spark, ", ".join(calls))


def aggregate(node: Aggregate, rows: Frame, event_time: str, watermark_us: int, spark: Session) -> Frame:
    """One row per window and group, of windows that end by the watermark."""
    calls = ", ".join(f"{_call(c.function, c.column)} as {quoted(n)}" for n, c in node.aggs.items())
    return _windows(node, rows, event_time, watermark_us, spark, calls)


def _windows(node: Aggregate, rows: Frame, event_time: str, watermark_us: int, spark: Session, calls: str) -> Frame:
    window = f"window({quoted(event_time)}, '{node.size} microseconds', '{node.step} microseconds')"
    keys = "".join(f", {quoted(k)}" for k in node.by)
    having = "" if watermark_us >= FOREVER_US // 2 else f" having unix_micros(__w.end) <= {watermark_us}L"
    return spark.sql(
        f"select __w.start as window_start, __w.end as window_end{keys}, {calls} "
        f"from (select {window} as __w, * from {{rows}}) group by __w{keys}{having}",
        rows=rows,
    )


def _call(function: str, column: str | None) -> str:
    return f"{function}({quoted(column)})" if column else f"{function}(1)"


def join(node: JoinOf, left: Frame, right: Frame, times: tuple[str, str], rename: dict[str, str]) -> Frame:
    """Pairs of rows, the right side's columns renamed as the plan says."""
    columns: list[str] = list(right.columns)
    right = right.selectExpr(*(f"{quoted(c)} as {quoted(rename.get(c, c))}" for c in columns))
    a, b = f"unix_micros({quoted(times[0])})", f"unix_micros({quoted(rename.get(times[1], times[1]))})"
    terms = [f"{quoted(x)} = {quoted(rename.get(y, y))}" for x, y in node.on]
    if node.within is not None:
        terms.append(f"{b} - {a} between {node.within[0]}L and {node.within[1]}L")
    else:
        terms.append(f"{a} - pmod({a}, {node.window_us}L) = {b} - pmod({b}, {node.window_us}L)")
    if node.where_sql:
        terms.append(f"({node.where_sql})")
    kind = "left outer" if node.how == "left_outer" else "inner"
    return left.sparkSession.sql(
        f"select * from {{left_rows}} {kind} join {{right_rows}} on {' and '.join(terms)}",
        left_rows=left,
        right_rows=right,
    )


def timed(frame: Frame, branch: Branch) -> Frame:
    """With the event time, and only rows that have one: the others are in no window, and no stage hands them over."""
    frame = with_event_time(frame, branch)
    return frame.where(f"{quoted(branch.event_time)} is not null") if branch.event_time in frame.columns else frame
