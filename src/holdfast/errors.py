"""Every exception Holdfast raises on purpose, drawn as one tree.

    HoldfastError                 what happened · detail · hint
    ├── ConfigError               a setting, a flag or a schema that cannot work; nothing was started
    ├── PeerError                 another process refuses, or cannot be reached in time; it may or may not have acted
    │   └── SaidNoError           it was reached, did nothing, and says why
    ├── InputError                data that cannot be taken; the batch is refused whole, state is unchanged
    ├── StateError                the state engine cannot go on
    │   ├── MemoryLimitError      the page pool is at its limit; the batch that hit it was rolled back
    │   ├── CorruptPageError      a page that does not match its checksum, or is missing or foreign
    │   ├── DamagedJournalError   a node's journal has lost what was safe in it: the node must never start again
    │   ├── DamagedLogError       an output log does not hold what was written to it: the node must end, others have it
    │   └── OverflowInWindowError an aggregate left the range of its result type (Spark's ANSI error)
    ├── StoreError                a stable store did not do what it was asked
    │   ├── StoreUnreachableError it does not answer, or not in time; a write may or may not have been done
    │   ├── StoreFullError        it has no room, or a quota is used up; nothing was written
    │   ├── StoreReadOnlyError    it takes no writes now; nothing was written
    │   ├── StoreRefusedError     it knows us and says no: permissions, credentials
    │   ├── ObjectMissingError    there is no object of this name, or it is shorter than it should be
    │   ├── ObjectExistsError     there is one already, and it stays as it is
    │   ├── CalledOffError        somebody has called it off; nothing of it counts
    │   └── SwapConflictError     a small object is not what it was when it was looked at; look again
    ├── FencedError               another primary has taken over what this one wanted to write
    ├── WrongMessageError         a message that no right peer could have sent; it is refused and nothing was changed
    └── InvariantError            a bug of ours: carries the story, is never caught

An error says three things: what happened, the detail (where: operator, row, file, numbers), and a hint (what to
do). `str(error)` gives all three on their own lines, so that a log line never loses the hint.
"""

from __future__ import annotations


class HoldfastError(Exception):
    """Base of all errors that a user may see."""

    def __init__(self, what: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.what]
        if self.detail:
            lines.append(f"  detail: {self.detail}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class ConfigError(HoldfastError):
    """A setting, a flag or a schema that cannot work; nothing was started."""


class PeerError(HoldfastError):
    """Another process refuses, or cannot be reached in time; it may or may not have acted."""


class SaidNoError(PeerError):
    """It was reached, did nothing, and says why."""


class InputError(HoldfastError):
    """Data that cannot be taken; the batch is refused whole, state is unchanged."""


class StateError(HoldfastError):
    """The state engine cannot go on."""


class MemoryLimitError(StateError):
    """The page pool is at its limit; the batch that hit it was rolled back."""


class CorruptPageError(StateError):
    """A page that does not match its checksum, or is missing or foreign."""


class DamagedJournalError(StateError):
    """A node's journal has lost what was safe in it: the node must never start again."""


class DamagedLogError(StateError):
    """An output log does not hold what was written to it."""


class OverflowInWindowError(StateError):
    """An aggregate left the range of its result type, as Spark's ANSI mode reports it."""


class StoreError(HoldfastError):
    """A stable store did not do what it was asked."""


class StoreUnreachableError(StoreError):
    """It does not answer, or not in time; a write may or may not have been done."""


class StoreFullError(StoreError):
    """It has no room, or a quota is used up; nothing was written."""


class StoreReadOnlyError(StoreError):
    """It takes no writes now; nothing was written."""


class StoreRefusedError(StoreError):
    """It knows us and says no: permissions, credentials."""


class ObjectMissingError(StoreError):
    """There is no object of this name, or it is shorter than it should be."""


class ObjectExistsError(StoreError):
    """There is an object of this name already, and it stays as it is."""


class SwapConflictError(StoreError):
    """A small object is not what it was when it was looked at. Look again: what is there may even be ours."""


class CalledOffError(StoreError):
    """Somebody has called it off; nothing of it counts."""


class FencedError(HoldfastError):
    """Another primary has taken over what this one wanted to write. Nothing of it counts, and it must not go on."""


class WrongMessageError(HoldfastError):
    """A message that no right peer could have sent; it is refused, and nothing was changed."""


def refuse_if(condition: bool, what: str, detail: str = "") -> None:
    """Like `check`, for what a message from outside says: the message is refused, and the machine goes on."""
    if condition:
        raise WrongMessageError(what, detail=detail)


class InvariantError(HoldfastError):
    """A bug of ours. Never caught: a wrong answer is worse than a stopped shard."""


def one_line(error: HoldfastError) -> str:
    """What, detail and hint in one line: how a command ends that could not do what it says."""
    parts = [error.what, error.detail, error.hint]
    return "error: " + " · ".join(" ".join(part.split()) for part in parts if part)


#: Exit codes of a node that must not be started again: its journal has lost something; it has left its cluster.
DAMAGED, LEFT = 65, 66


def exit_code(error: HoldfastError) -> int:
    """2 for a mistake in a flag, a file or a pipeline, 1 for what went wrong at work."""
    if isinstance(error, DamagedJournalError):
        return DAMAGED
    return 2 if isinstance(error, ConfigError) else 1


def check(condition: bool, what: str, detail: str = "") -> None:
    """Like `assert`, but never compiled away."""
    if not condition:
        raise InvariantError(what, detail=detail, hint="This is a bug in Holdfast: please report it with this text.")
