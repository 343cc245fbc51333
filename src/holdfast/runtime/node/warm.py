"""Compile or load the kernels that a plan's operators will call, before the node says hello.

`operators.warm_up` does it for everything there is; a node needs only what its plan uses, in a fraction of the time
and memory. Tiny operators of the plan's own kinds, keys and aggregates go through all that an operator does.

`python -m holdfast.runtime.node.warm plan.json` does it once for a machine: what is compiled stays on disk, and the
nodes that start afterwards only load it. Without that, the first node compiles and the others wait for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from holdfast.errors import InvariantError
from holdfast.kernelcache import directory
from holdfast.model.block import WATERMARK_MAX
from holdfast.model.ids import operator_of
from holdfast.model.plan import OperatorPlan, Plan
from holdfast.model.topology import ShardSpec
from holdfast.operators import START, StateCapture, StateConfig
from holdfast.runtime.net.rows import ArrowRows
from holdfast.runtime.net.wire import OperatorState, StateChunk
from holdfast.runtime.node.operators import PANE, ShardOperator, read_schema

_CONFIG = StateConfig(page_bytes=65536, limit_bytes=1 << 26)


def is_cold(plan: Plan) -> bool:
    """Was nothing of this plan compiled on this machine yet?"""
    return not (directory() / f"warmed-{_shape(plan)}").exists()


def warm(plan: Plan) -> int:
    """How many kinds of operators were warmed."""
    seen: set[str] = set()
    with _one_at_a_time(plan):
        for spec in plan.topology.shards:
            operator = plan.operator(operator_of(spec.id))
            if operator.name not in seen:
                seen.add(operator.name)
                _use(spec, plan, operator)
    return len(seen)


@contextlib.contextmanager
def _one_at_a_time(plan: Plan) -> Iterator[None]:
    """While something is still to be compiled. It dies with the process, so nobody waits for the dead."""
    if not is_cold(plan):
        yield
        return
    with open(directory() / "warming", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        (directory() / f"warmed-{_shape(plan)}").touch()


def _shape(plan: Plan) -> str:
    """What kernels depend on: kinds, schemas and settings of the operators."""
    shapes = sorted({msgspec.json.encode((o.kind, o.inputs, o.settings)) for o in plan.operators})
    return xxhash.xxh3_64_hexdigest(b"".join(shapes))


def _use(spec: ShardSpec, plan: Plan, operator: OperatorPlan) -> None:
    primary, image = ShardOperator(spec, plan, _CONFIG), ShardOperator(spec, plan, _CONFIG)
    for turn in range(2):
        for edge, index in primary._inputs.items():
            schema = read_schema(operator.inputs[index].schema)
            primary.step(edge, ArrowRows([sample_rows(schema, turn)]), 0)
        image.paste(_sent(primary.delta(1 << 20)[0]))
        image.paste(StateChunk(primary.chunk(START, 1 << 20)[0].raw))
    edge = next(iter(primary._inputs))
    primary.step(edge, (), WATERMARK_MAX)
    image.paste(_sent(primary.delta(1 << 20)[0]))


def _sent(state: object) -> OperatorState:
    if not isinstance(state, OperatorState):
        raise InvariantError("the delta of a tiny state has more than one piece")
    return OperatorState(StateCapture.from_bytes(state.capture.to_bytes()))


def sample_rows(schema: pa.Schema, turn: int) -> pa.RecordBatch:
    """Rows of a schema: one with values, one with nulls, one with long values, like those that come over the wire."""
    arrays = [pa.array(_values(field, turn), field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema([pa.field(f.name, f.type) for f in schema]))
    return ArrowRows.from_ipc(ArrowRows([batch]).to_ipc()).batches[0]


def _values(field: pa.Field, turn: int) -> list[Any]:
    t = field.type
    if pa.types.is_timestamp(t):
        never_null = field.name == PANE or field.name.startswith("window_")
        return [turn * 10**9, 0 if never_null else None, 0]
    if pa.types.is_string(t) or pa.types.is_large_string(t):
        return ["a", None, "longer than fifteen bytes"]
    if pa.types.is_binary(t) or pa.types.is_large_binary(t):
        return [b"a", None, b"longer than fifteen bytes"]
    if pa.types.is_boolean(t):
        return [True, None, False]
    if pa.types.is_floating(t):
        return [1.5, None, np.nan]
    if pa.types.is_date(t):
        return [1, None, 2]
    if pa.types.is_decimal(t):
        from decimal import Decimal

        return [Decimal(0), None, Decimal(0)]
    return [1, None, 2]


if __name__ == "__main__":
    warm(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan))
