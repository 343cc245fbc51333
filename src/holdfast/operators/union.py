"""Many streams into one: rows pass as they are, and the watermark is the lowest of all inputs."""

from __future__ import annotations

import pyarrow as pa

from holdfast.errors import ConfigError, InputError
from holdfast.operators.operator import NEVER


class Watermarks:
    """The watermark of something with several inputs: the minimum over them, and it never goes back."""

    def __init__(self, inputs: int) -> None:
        if inputs < 1:
            raise ConfigError("a union needs at least one input")
        self.inputs = [NEVER] * inputs

    def on_watermark(self, index: int, watermark: int) -> int:
        """Note an input's watermark; the combined one."""
        self.inputs[index] = max(self.inputs[index], watermark)
        return self.combined

    @property
    def combined(self) -> int:
        return min(self.inputs)


class Union:
    """Union of streams of one schema. It has no rows of its own, only the inputs' watermarks."""

    def __init__(self, name: str, schema: pa.Schema, inputs: int) -> None:
        self.name = name
        self.schema = schema
        self.watermarks = Watermarks(inputs)

    @property
    def watermark(self) -> int:
        return self.watermarks.combined

    def process(self, index: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Pass rows of an input on."""
        if batch.schema.names != self.schema.names or batch.schema.types != self.schema.types:
            raise InputError(
                f"{self.name}: input {index} has another schema",
                detail=f"Expected {dict(zip(self.schema.names, map(str, self.schema.types), strict=True))}, "
                f"got {dict(zip(batch.schema.names, map(str, batch.schema.types), strict=True))}.",
                hint="Select and cast the columns in the stage before the union.",
            )
        return batch

    def on_watermark(self, index: int, watermark: int) -> int:
        return self.watermarks.on_watermark(index, watermark)
