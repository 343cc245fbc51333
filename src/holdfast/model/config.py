"""Every setting of the core, with the bound each one keeps. Times are integer nanoseconds of the node's own clock."""

from __future__ import annotations

import msgspec

from holdfast.errors import ConfigError

MS = 1_000_000
SECOND = 1_000 * MS


class Config(msgspec.Struct, frozen=True, kw_only=True):
    #: Each node tells its monitor so often that it lives (cooperative-ha §3.5).
    heartbeat_ns: int = 100 * MS
    #: Dead after so many heartbeats that did not come.
    misses_max: int = 3
    #: The coordinator shows itself so often; without it for `election_ns`, members elect another.
    beat_ns: int = 100 * MS
    election_ns: int = 1_000 * MS
    #: What was not answered is sent again after this.
    retry_ns: int = 100 * MS
    #: Which checkpoint method, and its period.
    method: str = "delta"
    capture_period_ns: int = 250 * MS
    #: Elements of input that a copy may hold back before a capture is forced, and before a stage is refused.
    retained_soft_max: int = 2_000
    retained_hard_max: int = 20_000
    #: Elements of one output queue in memory, and on disk after that; then the shard waits.
    queue_memory_max: int = 20_000
    queue_spill_max: int = 100_000
    #: Elements a producer may send ahead of what a consumer has asked for.
    credit_max: int = 4_000
    #: A reader that is no sink of the pipeline holds retention so long after its last word.
    lease_ns: int = 5 * SECOND
    #: Keep a warm driver of every stage on a second node, so that it goes on within a second of losing the first.
    standby: bool = False
    #: Move backups so that no two members differ by more than this many.
    imbalance_max: int = 3

    def __post_init__(self) -> None:
        if self.misses_max < 1 or self.heartbeat_ns < 1:
            raise ConfigError(
                "the failure detector would never or always fire",
                detail=f"heartbeat_ns={self.heartbeat_ns}, misses_max={self.misses_max}",
                hint="Use at least one miss and a positive interval.",
            )
        if self.election_ns <= self.beat_ns * 2:
            raise ConfigError(
                "elections would start while the coordinator lives",
                detail=f"election_ns={self.election_ns}, beat_ns={self.beat_ns}",
                hint="Let election_ns be several times beat_ns.",
            )
        if self.method not in ("whole", "delta"):
            raise ConfigError(
                "unknown checkpoint method",
                detail=f"method={self.method!r}",
                hint="Choose 'whole' or 'delta'.",
            )
        if not 0 < self.retained_soft_max <= self.retained_hard_max:
            raise ConfigError(
                "a capture would be forced too late to keep the input bounded",
                detail=f"retained_soft_max={self.retained_soft_max}, retained_hard_max={self.retained_hard_max}",
                hint="Keep 0 < retained_soft_max <= retained_hard_max.",
            )
