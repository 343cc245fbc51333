"""When to check windows, and how many: what an operator with continuous eventual checkpoints decides (cec §III.A).

A check of the window with the oldest footprint makes a recovery shorter (less to read, less to replay) and costs time
now. Three ways to decide, all of them pure, over exact numbers of what the extent is and would be:

* `targets`: the paper's second method. As many as it takes to bring the extent down to Q tuples and U rows.
* `worth`: the paper's first method, which it leaves open. As many as are worth what they cost, at this rate of crashes.
* `objective`: enough that a recovery takes no longer than it may. `choose` says which Q, U, CI and CP that comes to.

Whatever is decided never spends more than CI of every CP on checks (`Cadence`), so that rows do not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.footprint import Extent

SECOND_NS = 1_000_000_000
#: (checks) -> the extent when the so many oldest windows have been checked. Never longer with more checks.
After = Callable[[int], Extent]


class Attained(Enum):
    """What came of a decision."""

    #: The extent is as it should be, or will be after the checks.
    MET = "met"
    #: It takes more checks than there is time for now.
    BEHIND = "behind"
    #: No number of checks would do.
    UNATTAINABLE = "unattainable"


class Checks(msgspec.Struct, frozen=True):
    """How many windows to check now, the oldest first."""

    count: int
    verdict: Attained


class Targets(msgspec.Struct, frozen=True):
    """An extent of at most Q tuples, and at most U rows to replay. None: any."""

    tuples_max: int | None = None
    rows_max: int | None = None

    def met_by(self, extent: Extent) -> bool:
        too_long = self.tuples_max is not None and extent.tuples > self.tuples_max
        return not too_long and (self.rows_max is None or extent.rows <= self.rows_max)

    def check_attainable(self, windows: int) -> None:
        """Every open window has one footprint at least: an extent is never shorter than that (cec §IV.B)."""
        if self.tuples_max is not None and self.tuples_max < windows:
            raise ConfigError(
                "the target for the extent cannot be reached",
                detail=f"Q is {self.tuples_max:,} tuples, and {windows:,} windows are open: each has one at least.",
                hint=f"Give Q at least {windows:,}; twice that costs far fewer checks.",
            )

    def checks(self, after: After, most: int) -> Checks:
        """The fewest checks that meet the targets. A Q that cannot be reached asks for none: they would be in vain."""
        now = after(0)
        wanted = self
        if self.tuples_max is not None and self.tuples_max < now.windows:
            wanted = Targets(None, self.rows_max)
        count = fewest(wanted.met_by, after, min(most, now.windows))
        if wanted is not self:
            return Checks(count, Attained.UNATTAINABLE)
        return Checks(count, Attained.MET if self.met_by(after(count)) else Attained.BEHIND)


def fewest(good: Callable[[Extent], bool], after: After, most: int) -> int:
    """The least number of checks after which the extent is good; `most` if no number up to there is enough."""
    if most <= 0 or good(after(0)):
        return 0
    low, high = 0, most  # not good after `low`
    while high - low > 1:
        middle = (low + high) // 2
        if good(after(middle)):
            high = middle
        else:
            low = middle
    return high


class Calibration:
    """What things cost on this machine, learnt while it runs: nanoseconds, smoothed."""

    __slots__ = ("check_ns", "load_ns", "replay_ns", "rows_per_s", "tuples_per_s")

    #: How much of a new measurement counts, if it is of as many as `WEIGHT` things.
    SHARE, WEIGHT = 0.2, 1000

    def __init__(self, check_ns: float = 1_000, load_ns: float = 1_000, replay_ns: float = 500) -> None:
        #: One more footprint in the log; one tuple in a walk back and into the state; one row that is replayed.
        self.check_ns = check_ns
        self.load_ns = load_ns
        self.replay_ns = replay_ns
        #: How fast the log and the input grow.
        self.tuples_per_s = 0.0
        self.rows_per_s = 0.0

    def checked(self, tuples: int, took_ns: float) -> None:
        self.check_ns = self._mixed(self.check_ns, tuples, took_ns)

    def loaded(self, tuples: int, took_ns: float) -> None:
        self.load_ns = self._mixed(self.load_ns, tuples, took_ns)

    def replayed(self, rows: int, took_ns: float) -> None:
        """Rows were processed: a replay does the same with them."""
        self.replay_ns = self._mixed(self.replay_ns, rows, took_ns)

    def grew(self, tuples: int, rows: int, in_ns: float) -> None:
        """So much came in this time, tuples of checks not counted."""
        if in_ns > 0:
            share = min(1.0, in_ns / SECOND_NS)
            self.tuples_per_s += share * (tuples * SECOND_NS / in_ns - self.tuples_per_s)
            self.rows_per_s += share * (rows * SECOND_NS / in_ns - self.rows_per_s)

    def _mixed(self, old: float, count: int, took_ns: float) -> float:
        if count <= 0:
            return old
        return old + min(1.0, self.SHARE * max(1.0, count / self.WEIGHT)) * (took_ns / count - old)

    def recovery_ns(self, extent: Extent) -> float:
        """How long a recovery would take, without what comes before it (noticing, starting)."""
        return self.load_ns * extent.tuples + self.replay_ns * extent.rows


class Worth(msgspec.Struct, frozen=True):
    """Check what is worth it. A check of the k oldest windows costs k times `check_ns`. It makes the recovery shorter
    by R(0) - R(k), for as long as those windows would otherwise have kept their old footprints. Nobody knows how long
    that would have been; we expect it to be as long again as it has been, the age of the oldest. With crashes at a
    given rate, that is worth rate × age × (R(0) - R(k)).

    Where N windows stay open and are checked in turn, the oldest is then checked at the age sqrt(N c / (rate × r)), c
    the cost of a check and r the recovery time that a second adds: checks cost N c / age a second and recoveries rate
    × r × age, and together they cost the least at that very age.
    """

    #: How many crashes a second are expected.
    crashes_per_s: float

    def checks(self, after: After, most: int, costs: Calibration) -> int:
        now = after(0)
        most = min(most, now.windows)
        if most <= 0 or costs.rows_per_s <= 0:
            return 0
        age_s = now.rows / costs.rows_per_s
        shorter = self.crashes_per_s * age_s
        full = costs.recovery_ns(now)
        best, gain = 0, 0.0
        count = 1
        while True:
            won = shorter * (full - costs.recovery_ns(after(count))) - count * costs.check_ns
            if won > gain:
                best, gain = count, won
            if count == most:
                return best
            count = min(2 * count, most)


class Chosen(msgspec.Struct, frozen=True):
    """What a recovery-time objective comes to."""

    tuples_max: int
    rows_max: int
    interval_ns: int
    period_ns: int


class RecoverIn(msgspec.Struct, frozen=True):
    """A recovery may take this long. `margin`: how much of that is planned for; the rest is for surprises."""

    recovery_ns: int
    #: What of it passes before the log is read, whatever the log holds.
    fixed_ns: int = 0
    margin: float = 0.6

    @property
    def left_ns(self) -> float:
        return self.margin * (self.recovery_ns - self.fixed_ns)

    def checks(self, after: After, most: int, costs: Calibration) -> Checks:
        """The fewest checks after which a recovery would be short enough."""
        now = after(0)
        if costs.load_ns * now.windows > self.left_ns:
            return Checks(0, Attained.UNATTAINABLE)

        def good(extent: Extent) -> bool:
            return costs.recovery_ns(extent) <= self.left_ns

        count = fewest(good, after, min(most, now.windows))
        return Checks(count, Attained.MET if good(after(count)) else Attained.BEHIND)

    def choose(self, windows: int, costs: Calibration) -> Chosen:
        """Q, U, CI and CP. The budget beyond one footprint a window is shared by tuples and rows as they come in."""
        over_ns = self.left_ns - costs.load_ns * windows
        if over_ns <= 0:
            raise ConfigError(
                "the recovery-time objective cannot be reached",
                detail=f"{windows:,} windows are open; to read one footprint of each takes "
                f"{costs.load_ns * windows / 1e6:,.0f} ms of the {self.left_ns / 1e6:,.0f} ms that are left for it.",
                hint="Use more shards, or allow a longer recovery.",
            )
        grows = costs.load_ns * costs.tuples_per_s + costs.replay_ns * costs.rows_per_s  # ns of recovery per second
        lasts_s = over_ns / grows if grows > 0 else 3600.0
        # the oldest window is checked before `lasts_s` are over: all windows in that time, if none closes by itself
        share = min(0.5, windows * costs.check_ns / SECOND_NS / lasts_s)
        period_ns = int(min(1.0, max(0.025, lasts_s / 10)) * SECOND_NS)
        return Chosen(
            tuples_max=windows + int(lasts_s * costs.tuples_per_s),
            rows_max=int(lasts_s * costs.rows_per_s),
            interval_ns=max(1_000_000, int(1.5 * share * period_ns)),
            period_ns=period_ns,
        )


class Cadence:
    """At most CI of every CP is spent on checks. What took longer than it should is taken from the next periods."""

    __slots__ = ("_left_ns", "_period", "interval_ns", "period_ns")

    def __init__(self, interval_ns: int, period_ns: int) -> None:
        if not 0 < interval_ns <= period_ns:
            raise ConfigError(
                "the checkpoint interval cannot be used",
                detail=f"CI is {interval_ns / 1e6:g} ms, CP is {period_ns / 1e6:g} ms.",
                hint="CI must be positive, and no longer than CP.",
            )
        self.interval_ns = interval_ns
        self.period_ns = period_ns
        self._period = -1
        self._left_ns = 0.0

    def left_ns(self, now_ns: int) -> float:
        """How much may still be spent now."""
        period = now_ns // self.period_ns
        if period > self._period:
            passed = period - self._period if self._period >= 0 else 1
            self._left_ns = min(float(self.interval_ns), self._left_ns + passed * self.interval_ns)
            self._period = period
        return max(0.0, self._left_ns)

    def spent(self, took_ns: float) -> None:
        self._left_ns -= took_ns
