"""A watermark that jumps, or runs ahead of the clock, is told: everything before it is late from then on.

One row with a time far in the future is enough for that, and nothing else would show why rows are missing. It changes
nothing: `future_max` is for that.
"""

from __future__ import annotations

from datetime import UTC, datetime

from holdfast.model.plan import FOREVER_US, NEVER_US
from holdfast.pipeline import durations
from holdfast.spark.bad import clock_us
from holdfast.spark.hand_over import Say

#: A watermark that moves by more than this at once has jumped.
JUMP_US = 86_400_000_000
#: Clocks of two machines differ by less.
SLACK_US = 60_000_000


class WatermarkWatch:
    """Looks at the watermark of a stage after every batch."""

    def __init__(self, stage: str, jump_us: int, say: Say) -> None:
        self.stage = stage
        self.jump_us = jump_us
        self.say = say
        #: It is ahead of the clock, and this was told.
        self.is_ahead = False

    def look(self, before_us: int, after_us: int, now_us: int | None = None) -> None:
        if after_us <= NEVER_US or after_us >= FOREVER_US:
            return
        ahead_us = after_us - (clock_us() if now_us is None else now_us)
        was_ahead, self.is_ahead = self.is_ahead, ahead_us > SLACK_US
        if self.is_ahead and not was_ahead:
            self._tell(f"is {durations.about(ahead_us)} ahead of the clock", after_us, ahead_us)
        elif before_us > NEVER_US and after_us - before_us > self.jump_us:
            self._tell(f"jumped ahead by {durations.about(after_us - before_us)}", after_us, after_us - before_us)

    def _tell(self, how: str, watermark_us: int, by_us: int) -> None:
        self.say(
            "ahead",
            what=f"The watermark of {self.stage} {how}",
            detail=f"Rows before {stamp(watermark_us)} are late from now on.",
            watermark_us=watermark_us,
            by_us=by_us,
        )


def stamp(micros: int) -> str:
    if micros <= NEVER_US // 2:
        return ""
    if micros >= FOREVER_US // 2:
        return "forever"
    try:
        return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{micros} us"
