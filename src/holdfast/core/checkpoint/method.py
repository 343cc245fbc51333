"""What a checkpoint method decides: when to capture, and what of the state goes into it.

Everything else (positions, outputs, rounds, acknowledgements) is the same for all and lives in `rounds.py`.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.core.copy import Copy
from holdfast.model.config import Config


class Method(Protocol):
    name: str
    #: True: every capture carries the whole state, whatever the image has.
    always_whole: bool

    def due(self, copy: Copy, age_ns: int, config: Config) -> bool:
        """Capture now? `age_ns` is the time since the last capture was taken."""
        ...

    def state(self, copy: Copy, *, whole: bool) -> object:
        """The operator's part of a capture. Called once per form and round; the marks of what is dirty end here."""
        ...
