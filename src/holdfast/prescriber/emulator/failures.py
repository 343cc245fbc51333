"""How long nodes live: exponential, Weibull, or lifetimes measured and read from a file.

Times are scaled so that their mean is the scenario's MTBF (1 in the emulator's units). A trace is drawn from with
replacement: it gives the distribution, not the order, of what was seen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from holdfast.errors import ConfigError


@dataclass(frozen=True)
class Lifetimes:
    """A distribution of node lifetimes with mean 1."""

    kind: str = "exponential"
    shape: float = 1.0
    trace: tuple[float, ...] = ()

    @staticmethod
    def weibull(shape: float) -> Lifetimes:
        """Weibull: shape below 1 for infant mortality, above 1 for wear."""
        if not (math.isfinite(shape) and 0.1 <= shape <= 50.0):
            raise ConfigError(f"Weibull shape must lie between 0.1 and 50, not {shape}")
        return Lifetimes(kind="weibull", shape=shape)

    @staticmethod
    def from_file(path: str | Path) -> Lifetimes:
        """One lifetime in each line, in any unit; lines that start with # are skipped."""
        values: list[float] = []
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if not (math.isfinite(value) and value > 0.0):
                raise ConfigError(f"{path}, line {number}: {text!r} is not a lifetime above zero")
            values.append(value)
        if not values:
            raise ConfigError(f"{path} holds no lifetimes")
        mean = sum(values) / len(values)
        return Lifetimes(kind="trace", trace=tuple(value / mean for value in values))

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """`count` lifetimes with mean 1."""
        if self.kind == "exponential":
            return rng.standard_exponential(count)
        if self.kind == "weibull":
            return rng.weibull(self.shape, count) / math.gamma(1.0 + 1.0 / self.shape)
        return rng.choice(np.asarray(self.trace), count)
