"""Why something was refused, one enum per kind of question: control flow hangs on these, never on prose.

The value of each is what a person reads: in a trace, in an event, in the detail of an error.
"""

from __future__ import annotations

from enum import StrEnum


class HandOverReason(StrEnum):
    """Why a holder or a ledger does not do what a stage's driver asks."""

    #: A newer driver of the stage exists.
    EPOCH_OVER = "stage epoch is over"
    #: The ledger is of another query.
    FOREIGN = "foreign query"
    FULL = "full"
    PLACE_CHANGED = "place changed"
    NOT_THE_LEDGER = "not the ledger"
    NOT_OPENED = "ledger was not opened"

    @property
    def is_final(self) -> bool:
        """The driver that hears it must stop for good; after any other it tries again."""
        return self in (HandOverReason.EPOCH_OVER, HandOverReason.FOREIGN)


class BarReason(StrEnum):
    """Why a producer will not serve a reader, however often it asks."""

    #: It is of another run.
    FOREIGN = "foreign"
    #: No block begins where it wants to go on.
    POSITION = "position"
    #: A later program reads under its name.
    FENCED = "fenced"


class FetchReason(StrEnum):
    """Why a fetch gets no rows. `core/errand.py` says what the asker does about each."""

    #: A later driver of the same consumer reads: this one's rows are not wanted.
    FENCED = "fenced"
    #: The shard does not run on this node, or only in an epoch older than the asker knows.
    NOT_HERE = "not here"
    #: The rows are gone: acknowledged before, or the reader's lease has lapsed.
    TRIMMED = "trimmed"
    #: The rows were not made within the time that the asker gave.
    NOT_YET = "not yet"
    #: The positions are of another run, or the edge of another pipeline.
    FOREIGN = "foreign"
    #: No block begins or ends there.
    POSITION = "position"
