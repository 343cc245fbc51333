"""Parameters of a scenario: as text, from a file written by hand (`--file`), or measured on a pipeline (`--from`).

Both give the same names as the flags, with units or as plain numbers in base units. A measurement may give raw
observations instead, from which the parameter is taken:

    {"window": "10min", "input_bytes": 1.2e9, "input_seconds": 600,
     "checkpoint_sizes": [3.1e8, 2.9e8, 3.0e8],
     "failures": 4, "nodes": 5, "observed": "24d"}

input_rate = input_bytes / input_seconds; checkpoint_size is the mean and checkpoint_spread sqrt(3)·σ/mean of the
sizes (the half-width of a uniform distribution with that σ); mtbf = nodes·observed / failures, and with no failure
yet nodes·observed, a cautious guess. Nothing unknown is accepted, so that a misspelt name is an error.
"""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

from holdfast.errors import ConfigError

from .scenario import Scenario
from .units import duration_s, fraction, positive, rate_bytes_per_s, size_bytes

NAMES = frozenset(
    {
        "sla", "window", "checkpoint_size", "input_rate", "mtbf", "replicas", "durability", "durability_span",
        "checkpoint_spread", "churn", "copies", "checkpoint_interval", "rr_max",
    }
)  # fmt: skip
RAW = frozenset({"input_bytes", "input_seconds", "checkpoint_sizes", "failures", "nodes", "observed"})

READERS = {
    "sla": fraction, "durability": fraction, "window": duration_s, "mtbf": duration_s,
    "durability_span": duration_s, "checkpoint_interval": duration_s, "checkpoint_size": size_bytes,
    "input_rate": rate_bytes_per_s,
}  # fmt: skip
WHOLE = ("replicas", "copies")
PLAIN = ("rr_max", "checkpoint_spread", "churn")
CHOICES = ("copies", "checkpoint_interval", "rr_max")


def _load(path: str | Path) -> dict[str, object]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    try:
        found = tomllib.loads(text) if str(path).endswith(".toml") else json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} is neither JSON nor TOML by its name: {str(error).splitlines()[0]}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} must hold one object of named parameters")
    return {str(name).replace("-", "_"): value for name, value in found.items()}


def _number(found: dict[str, object], name: str, path: str | Path) -> float:
    value = found[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ConfigError(f"{path}: {name} must be a number of at least 0, not {value!r}")
    return float(value)


def read_parameters(path: str | Path) -> dict[str, object]:
    """The parameters that a file gives, raw observations turned into them."""
    found = _load(path)
    unknown = sorted(set(found) - NAMES - RAW)
    if unknown:
        raise ConfigError(f"{path}: unknown parameter {unknown[0]!r}", hint="Known: " + ", ".join(sorted(NAMES | RAW)))
    parameters = {name: value for name, value in found.items() if name in NAMES}
    if "input_bytes" in found and "input_seconds" in found:
        seconds = positive(_number(found, "input_seconds", path), "input_seconds")
        parameters["input_rate"] = _number(found, "input_bytes", path) / seconds
    if "checkpoint_sizes" in found:
        parameters.update(_sizes(found["checkpoint_sizes"], path))
    if "failures" in found:
        if "nodes" not in found or "observed" not in found:
            raise ConfigError(f"{path}: failures need nodes and observed beside them")
        observed = found["observed"]
        span = duration_s(observed if isinstance(observed, str | int | float) else "", "observed")
        failures = max(1.0, _number(found, "failures", path))
        parameters["mtbf"] = _number(found, "nodes", path) * span / failures
    return parameters


def _sizes(listed: object, path: str | Path) -> dict[str, object]:
    if not isinstance(listed, list) or not listed:
        raise ConfigError(f"{path}: checkpoint_sizes must be a list of sizes")
    sizes = [size_bytes(size, "checkpoint_sizes") for size in listed]
    mean = sum(sizes) / len(sizes)
    deviation = math.sqrt(sum((size - mean) ** 2 for size in sizes) / len(sizes))
    return {"checkpoint_size": mean, "checkpoint_spread": min(0.99, math.sqrt(3.0) * deviation / mean)}


def read_value(name: str, value: object) -> object:
    """One parameter as text or number, in base units."""
    label = "--" + name.replace("_", "-")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ConfigError(f"{label}: cannot read {value!r}")
    if name in READERS:
        return READERS[name](value, label)
    if name not in WHOLE + PLAIN:
        raise ConfigError(f"unknown parameter {name!r}")
    text = value.strip().rstrip("%") if name == "checkpoint_spread" and isinstance(value, str) else value
    try:
        number = float(text)
    except ValueError:
        raise ConfigError(f"{label}: cannot read {value!r} as a number") from None
    if isinstance(value, str) and value.strip().endswith("%") and name == "checkpoint_spread":
        number /= 100.0
    if name in WHOLE:
        if number != number or number in (float("inf"), float("-inf")) or number != int(number):
            raise ConfigError(f"{label} must be a whole number, not {value}")
        return int(number)
    return number


def build(parameters: dict[str, object]) -> tuple[Scenario, dict[str, object]]:
    """A scenario and the choices that are fixed, from parameters in base units."""
    missing = [name for name in ("sla", "input_rate", "mtbf") if name not in parameters]
    if missing:
        raise ConfigError("missing " + ", ".join("--" + name.replace("_", "-") for name in missing))
    scenario = Scenario(**{name: value for name, value in parameters.items() if name not in CHOICES})  # type: ignore[arg-type]
    return scenario, {name: parameters[name] for name in CHOICES if name in parameters}
