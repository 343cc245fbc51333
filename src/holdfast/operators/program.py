"""The aggregates of one operator laid out side by side in a record's value words.

flag words (two bits an aggregate, none if no aggregate needs them) · words of aggregate 0 · aggregate 1 · …
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import ConfigError, InputError
from holdfast.operators.aggregates import Agg, Count, Deviation, Function, Overflow, WordsAt
from holdfast.operators.columns import Column, long_bytes
from holdfast.operators.registry import UserDefined, bind

#: Aggregates whose flags are in one word, two bits each.
PER_FLAG_WORD = 32


class Program:
    """Lifts rows to states, merges states, and finishes them, for all aggregates at once."""

    def __init__(self, aggs: dict[str, Agg], schema: pa.Schema, operator: str) -> None:
        if not aggs:
            raise ConfigError(f"{operator}: no aggregate is given", hint='For example total=Agg("count").')
        self.operator = operator
        self.names = list(aggs)
        self.aggs = list(aggs.values())
        self.functions: list[Function] = [bind(agg, schema, operator) for agg in self.aggs]
        flagless = (Count, Deviation, UserDefined)
        flagged = not all(isinstance(f, flagless) for f in self.functions)
        self.flag_words = -(-len(self.functions) // PER_FLAG_WORD) if flagged else 0
        self.columns: list[int] = []
        at = self.flag_words
        for function in self.functions:
            self.columns.append(at)
            at += function.words
        #: Value words of a record.
        self.words = at
        self.vars = tuple(
            c + f.var_at for c, f in zip(self.columns, self.functions, strict=True) if f.var_at is not None
        )
        self.identity = np.zeros(self.words, np.int64)
        for column, function in zip(self.columns, self.functions, strict=True):
            if isinstance(function, UserDefined):
                self.identity[column : column + function.words] = function.identity

    # -- what goes in -------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> list[str]:
        """Columns that raw rows must have."""
        return list(dict.fromkeys(a.column for a in self.aggs if a.column is not None))

    def needs_rows(self) -> list[str]:
        """Aggregates that Spark cannot compute in part."""
        return [n for n, f in zip(self.names, self.functions, strict=True) if not f.partial]

    def partial_sql(self) -> dict[str, str]:
        """Column name -> Spark SQL of the partial aggregates that `lift_partial` takes."""
        return {
            f"{name}__{suffix}": sql
            for name, function in zip(self.names, self.functions, strict=True)
            for suffix, sql, _ in function.partial
        }

    def lift(self, batch: pa.RecordBatch, seq: NDArray[np.int64]) -> NDArray[np.int64]:
        """States of single rows; `seq` are their numbers in the order of arrival."""
        n = batch.num_rows
        out = np.zeros((n, self.words), np.int64)
        for i, (agg, function) in enumerate(zip(self.aggs, self.functions, strict=True)):
            array = batch.column(agg.column) if agg.column is not None else None
            self._set(out, i, function.lift(array, n, seq, self._part(out, i)))
        return out

    def lift_partial(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """States that Spark has computed, in the columns of `partial_sql`."""
        out = np.zeros((batch.num_rows, self.words), np.int64)
        for i, (name, function) in enumerate(zip(self.names, self.functions, strict=True)):
            arrays = []
            for suffix, _, type_ in function.partial:
                column = f"{name}__{suffix}"
                if column not in batch.schema.names:
                    raise InputError(
                        f"{self.operator}: a partial aggregate lacks column {column!r}",
                        detail=f"The batch has {', '.join(batch.schema.names)}.",
                        hint="Compute it with the expressions of partial_sql().",
                    )
                array = batch.column(column)
                if array.type != type_:
                    raise InputError(
                        f"{self.operator}: partial aggregate {column!r} has another type",
                        detail=f"It should be {type_}, is {array.type}.",
                        hint="Compute it with the expressions of partial_sql().",
                    )
                arrays.append(array)
            self._set(out, i, function.lift_partial(arrays, self._part(out, i)))
        return out

    def _part(self, matrix: NDArray[np.int64], i: int) -> NDArray[np.int64]:
        return matrix[:, self.columns[i] : self.columns[i] + self.functions[i].words]

    def _set(self, out: NDArray[np.int64], i: int, flags: NDArray[np.int64]) -> None:
        if self.flag_words:
            word, bit = divmod(i, PER_FLAG_WORD)
            out[:, word] |= flags << (2 * bit)

    # -- state --------------------------------------------------------------------------------------------------

    def long_bytes(self, source: NDArray[np.int64]) -> int:
        """Bytes that merging these states may add to the heap."""
        return sum(long_bytes(source[:, v : v + 2]) for v in self.vars)

    def merge(self, to: NDArray[np.int64], source: NDArray[np.int64], pool: int, heap: int) -> None:
        """Merge row i of `source` into the state whose first value word is at the address `to[i]`."""
        for i, function in enumerate(self.functions):
            word, bit = divmod(i, PER_FLAG_WORD)
            function.merge(WordsAt(self.columns[i], word, 2 * bit, pool, heap), to, source)

    # -- what comes out -----------------------------------------------------------------------------------------

    def results(self) -> list[Column]:
        return [Column(n, f.result) for n, f in zip(self.names, self.functions, strict=True)]

    def finish(
        self, words: NDArray[np.int64], pool: int, heap: int
    ) -> tuple[list[pa.Array], list[tuple[str, Overflow]]]:
        """Results of states, and per aggregate the states whose result does not fit."""
        arrays: list[pa.Array] = []
        overflows: list[tuple[str, Overflow]] = []
        for i, (name, function) in enumerate(zip(self.names, self.functions, strict=True)):
            word, bit = divmod(i, PER_FLAG_WORD)
            flags = (words[:, word] >> (2 * bit)) & 3 if self.flag_words else np.zeros(len(words), np.int64)
            array, overflow = function.finish(self._part(words, i), flags, pool, heap)
            arrays.append(array)
            if overflow is not None and overflow[0].any():
                overflows.append((name, overflow))
        return arrays, overflows
