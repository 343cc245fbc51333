"""A refused fetch as an error: Flight carries errors as text, so the refusal travels in it and is read out again."""

from __future__ import annotations

import json

import msgspec

from holdfast.errors import PeerError
from holdfast.model.messages import Fetch, FetchRefused
from holdfast.model.reasons import FetchReason

_MARK = "holdfast-refusal:"

_HINTS = {
    FetchReason.FENCED: "A later driver of the same query reads now.",
    FetchReason.TRIMMED: "It was acknowledged before, or the reader's lease has lapsed.",
    FetchReason.NOT_YET: "Ask again.",
    FetchReason.FOREIGN: "The positions are of another run, or the edge is of another pipeline.",
    FetchReason.POSITION: "The positions are of another run.",
}


class FetchError(PeerError):
    """What a node's core says to a fetch instead of rows. `refusal` is for programs, the text for people."""

    def __init__(self, refusal: FetchRefused, asked: Fetch) -> None:
        self.refusal = refusal
        super().__init__(
            f"{refusal.reason.value}: {_what(refusal)}",
            detail=f"Asked for [{asked.start}, {asked.end}) by {asked.consumer or 'nobody'} at epoch {asked.epoch}.",
            hint=_HINTS.get(refusal.reason, ""),
        )

    def to_text(self) -> str:
        return _MARK + msgspec.json.encode(self.refusal).decode() + ":"

    @staticmethod
    def from_text(text: str, asked: Fetch) -> FetchError | None:
        """The refusal in what a Flight client was told; None: there is none in it."""
        _, mark, rest = text.partition(_MARK)
        if not mark:
            return None
        try:
            found, _ = json.JSONDecoder().raw_decode(rest)
            return FetchError(msgspec.convert(found, FetchRefused), asked)
        except (ValueError, msgspec.MsgspecError):
            return None


def _what(refusal: FetchRefused) -> str:
    match refusal.reason:
        case FetchReason.FENCED:
            return f"its consumer is at epoch {refusal.first}"
        case FetchReason.NOT_HERE:
            return f"{refusal.edge} is made on {refusal.home or 'no node that is known'}"
        case FetchReason.TRIMMED:
            return f"{refusal.edge} starts at {refusal.first}"
        case FetchReason.NOT_YET:
            return f"the rows of {refusal.edge} have not been made"
        case FetchReason.FOREIGN:
            return f"the node runs another pipeline, or another run of it, than this {refusal.edge}"
        case FetchReason.POSITION:
            return f"no block of {refusal.edge} begins or ends there"
