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
