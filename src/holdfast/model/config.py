"""Every setting of the core, with the bound each one keeps. Times are integer nanoseconds of the node's own clock."""

from __future__ import annotations

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.ids import Name
from holdfast.model.protection import MS, Protection

SECOND = 1_000 * MS

#: Bounds of `chunk_bytes`: each image that is brought up costs a few pieces of memory on both sides.
CHUNK_BYTES_MIN, CHUNK_BYTES_MAX = 64, 16 << 20
#: How the silence of a peer is judged (`core/detect/`).
DETECTORS = ("misses", "phi", "benchmark")
#: In which order captures and pastes run (`core/tasks.py`).
SCHEDULERS = ("period", "round_robin", "whole", "min_max")
#: Who says where backups are (`core/assign.py`).
ASSIGNORS = ("load", "dynamic", "random_static")


class Config(msgspec.Struct, frozen=True, kw_only=True):
    #: Time between two heartbeats that a node sends to its monitor (cooperative-ha §3.5).
    heartbeat_ns: int = 100 * MS
    #: A node is taken for dead after this many missing heartbeats.
    misses_max: int = 3
    #: How the silence of a node is judged: by missing heartbeats, or by how unlikely it is; or by misses, and by
    #: what each node says of a benchmark of its own.
    detector: str = "misses"
    #: Two members of whom one misses the other for this long beyond `misses_max`, while the coordinator hears both, are
    #: cut from each other; what needs their link goes around it. It is over when nobody has said so for `mend_ns`.
    cut_ns: int = 1 * SECOND
    mend_ns: int = 10 * SECOND
    #: Time between two beats of the coordinator to all members.
    beat_ns: int = 100 * MS
    #: Members elect a new coordinator after this time without a beat.
    election_ns: int = 1_000 * MS
    #: A message that was not answered is sent again after this time.
    retry_ns: int = 100 * MS
    #: How operators are protected that say nothing else, when a pipeline starts. From then on the record has it.
    protection: Protection = Protection()
    #: State travels in pieces of about this size, so that no frame and no pause grows with it. Both sides need
    #: memory for several, and a step pastes one in 10 to 20 ms; pieces of 8 MB would save a tenth of the work, no more.
    chunk_bytes: int = 2 << 20
    #: Bytes per second that a node may send to bring up new images; None: as fast as they are taken.
    transfer_bytes_per_s: int | None = None
    #: How many new images a node brings up at the same time.
    joins_max: int = 2
    #: Which captures and pastes run in an idle moment, and in which order.
    scheduler: str = "period"
    #: Shards that run and are backed up together are captured as one unit while that takes no longer than this. 0: each
    #: on its own, as under the scheduler `period`.
    unit_capture_ns: int = 5 * MS
    #: How long a node works at captures and pastes before it looks for other events again.
    idle_budget_ns: int = 5 * MS
    #: A capture waits beyond its period while a take-over would have less work than this to do again. 0: it never
    #: waits.
    replay_ns: int = 0
    #: Elements of input that no capture covers: at `soft` a capture is forced, at `hard` the stage is refused.
    retained_soft_max: int = 2_000
    retained_hard_max: int = 20_000
    #: Elements of one output queue that are kept in memory, and after that on disk; then the shard waits. As many again
    #: as memory may hold may wait there for a slow disk.
    queue_memory_max: int = 20_000
    queue_spill_max: int = 100_000
    #: What a disk did not take is tried again after this time; an end of a write that was not heard of for `limit` is
    #: given up, and the write asked for again.
    spill_retry_ns: int = 2 * SECOND
    spill_limit_ns: int = 60 * SECOND
    #: The same for what was asked of a store. Whoever asks it bounds every wait by progress, so an answer comes.
    store_limit_ns: int = 3600 * SECOND
    #: Elements that a producer may send before its consumer asks for more.
    credit_max: int = 4_000
    #: Rows are kept for a guest (a reader that is not a sink of the pipeline) for this time after its last message.
    lease_ns: int = 5 * SECOND
    #: Keep a warm driver of every stage on a second node, so that it goes on within a second of losing the first.
    standby: bool = False
    #: A stage that shall move waits this long at most until its standby is warm.
    warm_wait_ns: int = 60 * SECOND
    #: How often a node measures the load of its copies and tells the coordinator, and the time it is smoothed over.
    load_period_ns: int = 5 * SECOND
    load_window_ns: int = 60 * SECOND
    #: A backup is moved for balance at most once in this time, and not before a new coordinator has led for as long.
    balance_ns: int = 30 * SECOND
    #: Whoever takes it must stay below what its node had to do by this much, in nanoseconds of a core per second.
    imbalance_ns: int = 150 * MS
    #: Where backups are: with who has least to do, or as expected recovery times ask for (cooperative-ha §6), or where
    #: the lot put them.
    assignor: str = "load"
    #: What fails together: a label such as "zone-a/rack-1" for each node.
    domains: dict[Name, str] = {}
    #: A shard whose node has much more to do than that of its backup changes places with it.
    move_primaries: bool = False

    def __post_init__(self) -> None:
        if self.misses_max < 1 or self.heartbeat_ns < 1:
            raise ConfigError(
                "the failure detector would fire never or all the time",
                detail=f"heartbeat_ns={self.heartbeat_ns}, misses_max={self.misses_max}",
                hint="Use at least one miss and a positive interval.",
            )
        if self.detector not in DETECTORS:
            raise ConfigError(
                "unknown detector", detail=f"detector={self.detector!r}", hint=f"Choose {' or '.join(DETECTORS)}."
            )
        if self.election_ns <= self.beat_ns * 2:
            raise ConfigError(
                "elections would start while the coordinator is alive",
                detail=f"election_ns={self.election_ns}, beat_ns={self.beat_ns}",
                hint="Let election_ns be several times beat_ns.",
            )
        self._check_links()
        self._check_transfers()
        self._check_balance()
        if min(self.spill_retry_ns, self.spill_limit_ns, self.store_limit_ns) < 1:
            raise ConfigError(
                "spilled rows would be written again and again",
                detail=f"{self.spill_retry_ns=}, {self.spill_limit_ns=}, {self.store_limit_ns=}".replace("self.", ""),
                hint="Use positive times.",
            )
        if not 0 < self.retained_soft_max <= self.retained_hard_max:
            raise ConfigError(
                "a capture would be forced too late to keep the input bounded",
                detail=f"retained_soft_max={self.retained_soft_max}, retained_hard_max={self.retained_hard_max}",
                hint="Keep 0 < retained_soft_max <= retained_hard_max.",
            )

    def _check_links(self) -> None:
        if not 0 < self.cut_ns <= self.mend_ns:
            raise ConfigError(
                "things would go around a cut link and back again all the time",
                detail=f"cut_ns={self.cut_ns}, mend_ns={self.mend_ns}",
                hint="Keep 0 < cut_ns <= mend_ns.",
            )

    def _check_balance(self) -> None:
        if not 0 < self.load_period_ns <= self.load_window_ns:
            raise ConfigError(
                "load could not be measured",
                detail=f"load_period_ns={self.load_period_ns}, load_window_ns={self.load_window_ns}",
                hint="Keep 0 < load_period_ns <= load_window_ns.",
            )
        if self.balance_ns <= 2 * self.load_period_ns:
            raise ConfigError(
                "backups would be moved before the coordinator knows the loads",
                detail=f"balance_ns={self.balance_ns}, load_period_ns={self.load_period_ns}",
                hint="Let balance_ns be more than twice load_period_ns.",
            )
        if self.assignor not in ASSIGNORS:
            raise ConfigError(
                "unknown assignor", detail=f"assignor={self.assignor!r}", hint=f"Choose {', '.join(ASSIGNORS)}."
            )
        empty = [name for name, label in self.domains.items() if not all(label.split("/"))]
        if empty:
            raise ConfigError(
                "a failure domain has an empty part",
                detail=f"domains[{empty[0]!r}] is {self.domains[empty[0]]!r}",
                hint='Write labels from the large to the small, such as "zone-a/rack-1".',
            )
        if self.imbalance_ns < 1:
            raise ConfigError(
                "backups would be moved for nothing",
                detail=f"imbalance_ns={self.imbalance_ns}",
                hint="Let a difference count from a positive amount on.",
            )

    def _check_transfers(self) -> None:
        if not CHUNK_BYTES_MIN <= self.chunk_bytes <= CHUNK_BYTES_MAX:
            raise ConfigError(
                "pieces of a state are too small or too large",
                detail=f"chunk_bytes={self.chunk_bytes}",
                hint=f"Keep them between {CHUNK_BYTES_MIN} and {CHUNK_BYTES_MAX} bytes.",
            )
        limit = self.transfer_bytes_per_s
        if limit is not None and limit < self.chunk_bytes:
            raise ConfigError(
                "the limit on transfers is less than one piece a second",
                detail=f"transfer_bytes_per_s={limit}, chunk_bytes={self.chunk_bytes}",
                hint="Raise the limit, use smaller pieces, or leave the limit out: then there is none.",
            )
        if self.joins_max < 1:
            raise ConfigError(
                "no image could ever be brought up",
                detail=f"joins_max={self.joins_max}",
                hint="Allow at least one at a time.",
            )
        if self.unit_capture_ns < 0:
            raise ConfigError(
                "a unit could not be captured in less than no time",
                detail=f"unit_capture_ns={self.unit_capture_ns}",
                hint="Use 0 to capture every shard on its own.",
            )
        if self.scheduler not in SCHEDULERS:
            raise ConfigError(
                "unknown scheduler", detail=f"scheduler={self.scheduler!r}", hint=f"Choose {', '.join(SCHEDULERS)}."
            )
