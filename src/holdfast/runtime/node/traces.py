"""Which windows of a shard leave footprints now, for its log in the store (cec §III.A, docs/eventual.md).

Nobody sets Q, U, CI or CP: without an objective a check is taken where it is worth what it costs (`Worth`), with one
(`recover_in`) as many as it takes (`RecoverIn`). What things cost is learnt from the shard itself.
"""

from __future__ import annotations

from holdfast.core.eventual import RecoverIn, Worth
from holdfast.errors import ConfigError
from holdfast.model.footprint import Control, Extent
from holdfast.operators.footprints import Footprints
from holdfast.operators.operator import StatefulOperator
from holdfast.operators.traced import TracedOperator
from holdfast.runtime.disk.eventual import Policy

#: How often all copies of a shard are lost, as far as anybody knows: once a day.
CRASHES_PER_S = 1 / 86_400


class Traces:
    """Of one shard."""

    def __init__(self) -> None:
        #: It has taken what cannot be replayed (partial aggregates, a batch of which it refused rows): the next entry
        #: has all windows, so nobody has to.
        self.whole = False
        self._policy = Policy(Worth(CRASHES_PER_S))
        self._busy_ns = 0
        self._rows = 0
        self._results = 0
        #: What a restore would have to read and to replay, as of the last entry.
        self.extent: Extent | None = None

    def leave(
        self, op: StatefulOperator, number: int, least: int, recover_ns: int, busy_ns: int, results: int
    ) -> tuple[int, Control]:
        """Entry `number`, and the one with the oldest footprint that is then left (`Operator.footprints`)."""
        if not isinstance(op, TracedOperator):
            raise ConfigError(
                f"{op.name}: joins leave no footprints", hint='Take checkpoint="paged" for it: its state is pages.'
            )
        if op.footprints is None or least >= number or self.whole:
            op.keep_footprints()
        self.whole = False
        policy = self._policy
        policy.how = RecoverIn(recover_ns) if recover_ns else Worth(CRASHES_PER_S)
        rows = op.rows - self._rows
        policy.costs.replayed(max(0, rows), max(0, busy_ns - self._busy_ns))

        def decide(footprints: Footprints) -> int:
            return max(policy.decide(footprints, op.rows), footprints.older_than(least))

        made = max(0, results - self._results)
        control = op.leave(number, 0, made, (), decide)
        policy.done(control.tuples, rows)
        self._rows, self._busy_ns, self._results = op.rows, busy_ns, results
        assert op.footprints is not None
        self.extent = op.footprints.extent(op.rows)
        oldest = op.footprints.oldest()
        return (oldest.step if oldest is not None else number), control
