"""What ended a Spark query, in one line that names the file or column, instead of two pages of stack trace."""

from __future__ import annotations

import re

from holdfast.errors import HoldfastError

#: Spark names an error in brackets; the innermost one says most.
_CLASS = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]\s*((?:(?!\[[A-Z][A-Z0-9_]+[.\]])[^\n])*)")
_FILE = re.compile(r"((?:file|hdfs|s3a?|abfss?|gs):/+[^\s,;'\"\]\)]*[^\s,;'\"\]\).])")
_COLUMN = re.compile(r"[Cc]olumns?:? \[?`?([\w.]+)`?\]?")
#: Last line of a Python worker's stack trace.
_PYTHON = re.compile(r"^(\w[\w.]*(?:Error|Exception|Gone|Fenced)\b:? ?.*)$", re.MULTILINE)
#: What py4j makes of an exception in the JVM: its message is between the call and the stack trace.
_JAVA = re.compile(r"An error occurred while calling \S+\n: (?:[\w$]+\.)*(.*?)(?=\n\s+at |\nCaused by: |\Z)", re.DOTALL)
_NO_JVM = ("Py4JNetworkError", "Answer from Java side is empty", "Connection refused", "Connection reset by peer")
_WRAPPERS = ("STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR")


#: Spark waits 10 s for a Python process that it has started, whatever the machine is doing.
_LATE_WORKER = "Python worker failed to connect back"


def is_late_worker(error: BaseException) -> bool:
    """Was it only that a Python process did not come up in time?"""
    return _LATE_WORKER in _text(error)


class Reason:
    """`what` is one line; `detail` the file, column or Spark's own words."""

    def __init__(self, stage: str, error: BaseException) -> None:
        self.stage = stage
        self.kind = type(error).__name__
        if isinstance(error, HoldfastError):
            self.what, self.detail, self.hint = error.what, error.detail, error.hint
            return
        text = _text(error)
        if any(sign in text or sign in self.kind for sign in _NO_JVM):
            self.kind, self.what, self.detail = "JvmGone", f"stage {stage}: its JVM is gone", _first(text)
            self.hint = "It was killed or ran out of memory (spark.driver.memory); the stage is started again."
            return
        python = _PYTHON.findall(text)
        found = [m for m in _CLASS.finditer(text) if not m[1].startswith(_WRAPPERS)] or list(_CLASS.finditer(text))
        files = list(dict.fromkeys(_FILE.findall(text)))
        said = f"[{found[0][1]}] {found[0][2]}" if found else _first(text)
        said = python[-1] if python else said
        self.kind = found[0][1] if found else self.kind
        self.hint = "Nothing of this batch was handed over; it is tried again."
        if files:
            self.what = f"stage {stage}: cannot read {files[0]}"
            self.hint = (
                "Put a readable file in its place (one without rows, to leave it out): the batch that has it is "
                "planned and will be tried again. The other stages keep running."
            )
        else:
            self.what = f"stage {stage}: its query failed"
        column = _COLUMN.search(text)
        self.detail = said[:500] + (f" (column {column[1]!r})" if column and column[1] not in said else "")

    def fields(self) -> dict[str, str]:
        """For an event."""
        return {"stage": self.stage, "reason": self.kind, "what": self.what, "detail": self.detail, "hint": self.hint}


def _text(error: BaseException) -> str:
    """Everything that was said on the way down, causes last."""
    parts = []
    seen: BaseException | None = error
    while seen is not None and len(parts) < 10:
        parts.append(str(seen).partition("=== Streaming Query ===")[0])  # the plan that follows names other files
        seen = seen.__cause__ or seen.__context__
    return "\n".join(parts)


def _first(text: str) -> str:
    if java := _JAVA.search(text):
        return " ".join(java[1].split())
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason was given")
