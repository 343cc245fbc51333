"""How an operator's shards are protected: its mode, and the settings of that mode. Kept in the record.

A mode is a row of a table, not a class. It says which guards a running shard has (what they call safe is what gets
acknowledged) and what happens when its node fails. Settings are in the record, so they survive restarts and every node
sees the same; `holdfast mode` and `run --sla` change them there.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from holdfast.errors import ConfigError

MS = 1_000_000
PERIOD_NS_MIN, PERIOD_NS_MAX = 1 * MS, 3_600_000 * MS
CHECKPOINT_NS_MIN = 10 * MS
RECOVER_NS_MIN = 10 * MS


class OnFailure(Enum):
    PROMOTE = "its backup goes on from the image"
    EMPTY = "it starts empty elsewhere and marks the gap"
    REPLAY = "its keeper makes the state again from the input that it keeps"


class Mode(msgspec.Struct, frozen=True):
    #: Guards of a running shard, by name.
    guards: tuple[str, ...]
    #: A second node holds a copy.
    has_backup: bool
    on_failure: OnFailure
    #: What it means for a user that it is in force.
    means: str
    #: The second copy runs on beside a primary that is late, and goes back when that answers (hybrid-ha §IV-B). Its
    #: captures are taken when output has just been trimmed (§III-B).
    stands_in: bool = False
    #: The second copy runs all the time, at the same epoch as the primary (hybrid-ha §III: active standby).
    runs_beside: bool = False
    #: The second node holds no state, but the input from which it can be made again.
    keeps_input: bool = False


MODES: dict[str, Mode] = {
    "none": Mode(
        guards=(),
        has_backup=False,
        on_failure=OnFailure.EMPTY,
        means="no second node holds a copy; if a node fails, its shards start empty elsewhere and leave a gap",
    ),
    "replay": Mode(
        guards=("horizon",),
        has_backup=True,
        on_failure=OnFailure.REPLAY,
        keeps_input=True,
        means="a second node keeps the input that open windows need, and makes their state again if a node fails",
    ),
    "passive": Mode(
        guards=("images",),
        has_backup=True,
        on_failure=OnFailure.PROMOTE,
        means="a second node holds a copy of every shard and takes over if a node fails",
    ),
    "hybrid": Mode(
        guards=("images",),
        has_backup=True,
        on_failure=OnFailure.PROMOTE,
        stands_in=True,
        means="a second node holds a copy of every shard; it stands in for one that is late and takes over if it fails",
    ),
    "active": Mode(
        guards=("twin",),
        has_backup=True,
        on_failure=OnFailure.PROMOTE,
        runs_beside=True,
        means="every shard runs on two nodes at once; whoever reads it takes each row from whichever has it first",
    ),
}
#: A capture may wait for so many periods: the upper bound on its interval (cooperative-ha §3.4). The lower one is a
#: period.
STRETCH_MAX = 8
#: What is kept in the stable store beside that: nothing, pages of the state, or footprints of its windows.
CHECKPOINTS = ("none", "paged", "eventual")
#: What a capture carries: what has changed, or everything (the baseline).
METHODS = ("delta", "whole")


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one operator."""

    mode: str = "passive"
    method: str = "delta"
    period_ns: int = 250 * MS
    #: What of it is kept in the stable store, and how often.
    checkpoint: str = "none"
    checkpoint_ns: int = 10_000 * MS
    #: A recovery shall take no longer than this, from when it is decided; 0: however long it takes.
    recover_ns: int = 0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError("unknown mode", detail=f"It is {self.mode!r}.", hint=f"Choose one of {', '.join(MODES)}.")
        if self.checkpoint not in CHECKPOINTS:
            raise ConfigError(
                "unknown checkpoint",
                detail=f"It is {self.checkpoint!r}.",
                hint=f"Choose one of {', '.join(CHECKPOINTS)}.",
            )
        if not CHECKPOINT_NS_MIN <= self.checkpoint_ns <= PERIOD_NS_MAX:
            raise ConfigError(
                "a checkpoint interval must lie between 10 ms and an hour",
                detail=f"It is {self.checkpoint_ns / MS:g} ms.",
                hint="Every checkpoint costs a write to the store.",
            )
        if self.recover_ns and not RECOVER_NS_MIN <= self.recover_ns <= PERIOD_NS_MAX:
            raise ConfigError(
                "recover_in must lie between 10 ms and an hour",
                detail=f"It is {self.recover_ns / MS:g} ms.",
                hint="It is the time that a recovery may take once it is decided.",
            )
        if self.method not in METHODS:
            raise ConfigError(
                "unknown checkpoint method",
                detail=f"It is {self.method!r}.",
                hint=f"Choose one of {', '.join(METHODS)}.",
            )
        if not PERIOD_NS_MIN <= self.period_ns <= PERIOD_NS_MAX:
            raise ConfigError(
                "a capture period must lie between 1 ms and an hour",
                detail=f"It is {self.period_ns / MS:g} ms.",
                hint="Captures are forced earlier where much input was consumed.",
            )

    @property
    def is_stored(self) -> bool:
        """Can a shard be restored from the store when all its copies are gone?"""
        return self.checkpoint != "none"
