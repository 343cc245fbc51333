"""A join's extra condition, as plain data: a small part of SQL that a node can evaluate on Arrow batches by itself.

    price <= top and (kind = 'START' or not flag) and n + 1 <> m

Columns (in backquotes if need be), numbers, strings, true, false, null; = == != <> < <= > >=, `is [not] null`; and, or,
not; + - *. As in SQL, a comparison with null is null, and a row counts only where the whole is true. Both sides of a
comparison are brought to a common type by Arrow. A node has neither Spark nor the user's file: hence no functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigError

Predicate = Callable[[pa.RecordBatch], pa.BooleanArray]
Tree = tuple[Any, ...]

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.\d+|\d+)|(?P<string>'(?:[^']|'')*')|`(?P<quoted>(?:[^`]|``)+)`"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign><=|>=|<>|!=|==|[=<>+\-*()]))"
)
_COMPARE = {"=": "equal", "==": "equal", "!=": "not_equal", "<>": "not_equal"} | {
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
_CALCULATE = {"+": "add_checked", "-": "subtract_checked", "*": "multiply_checked"}


def predicate(condition: str, schema: pa.Schema, operator: str) -> Predicate:
    """The condition as a function of a batch with these columns. An error names the operator and the place."""
    tree = _Parser(condition, schema, operator).parse()
    evaluate = _evaluate(tree)
    probe = pa.RecordBatch.from_pylist([], schema=schema)
    try:
        verdict = evaluate(probe)
    except pa.ArrowException as error:
        raise ConfigError(
            f"{operator}: where={condition!r} cannot be computed",
            detail=str(error).splitlines()[0],
            hint="Cast the columns to one type in a map before the join.",
        ) from error
    if verdict.type != pa.bool_():
        raise ConfigError(f"{operator}: where={condition!r} is not a condition", detail=f"It is {verdict.type}.")

    def check(batch: pa.RecordBatch) -> pa.BooleanArray:
        found = evaluate(batch)
        return found if isinstance(found, pa.Array) else pa.array([found.as_py()] * batch.num_rows, pa.bool_())

    return check


def _evaluate(tree: Tree) -> Callable[[pa.RecordBatch], Any]:
    kind, *rest = tree
    if kind == "column":
        return lambda batch: batch.column(rest[0])
    if kind == "value":
        return lambda batch: pa.scalar(rest[0])
    parts = [_evaluate(t) for t in rest]
    function: Callable[..., Any] = getattr(pc, kind)
    return lambda batch: function(*(part(batch) for part in parts))


class _Parser:
    """Recursive descent over the tokens."""

    def __init__(self, text: str, schema: pa.Schema, operator: str) -> None:
        self.text, self.schema, self.operator = text, schema, operator
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while text[at:].strip():
            token = _TOKEN.match(text, at)
            if token is None:
                raise self._error(f"Near {text[at:].strip()[:20]!r}.")
            kind = str(token.lastgroup)
            self.tokens.append((kind, token[kind]))
            at = token.end()
        self.at = 0

    def parse(self) -> Tree:
        tree = self._or()
        if self.at < len(self.tokens):
            raise self._error(f"Near {self.tokens[self.at][1]!r}.")
        return tree

    def _error(self, detail: str) -> ConfigError:
        return ConfigError(
            f"{self.operator}: where={self.text!r} cannot be understood",
            detail=detail,
            hint="Compare columns and constants, with and, or, not, + - *. The rest goes into a filter after it.",
        )

    def _word(self, *words: str) -> bool:
        """Take the next token if it is one of these words or signs."""
        if self.at < len(self.tokens):
            kind, value = self.tokens[self.at]
            if kind in ("word", "sign") and value.lower() in words:
                self.at += 1
                return True
        return False

    def _need(self, word: str) -> None:
        if not self._word(word):
            raise self._error(f"{word!r} is missing.")

    def _or(self) -> Tree:
        tree = self._and()
        while self._word("or"):
            tree = ("or_kleene", tree, self._and())
        return tree

    def _and(self) -> Tree:
        tree = self._not()
        while self._word("and"):
            tree = ("and_kleene", tree, self._not())
        return tree

    def _not(self) -> Tree:
        return ("invert", self._not()) if self._word("not") else self._comparison()

    def _comparison(self) -> Tree:
        tree = self._sum()
        if self._word("is"):
            negated = self._word("not")
            self._need("null")
            return ("is_valid" if negated else "is_null", tree)
        for sign, function in _COMPARE.items():
            if self._word(sign):
                return (function, tree, self._sum())
        return tree

    def _sum(self) -> Tree:
        tree = self._product()
        while True:
            for sign in "+-":
                if self._word(sign):
                    tree = (_CALCULATE[sign], tree, self._product())
                    break
            else:
                return tree

    def _product(self) -> Tree:
        tree = self._atom()
        while self._word("*"):
            tree = (_CALCULATE["*"], tree, self._atom())
        return tree

    def _atom(self) -> Tree:
        if self._word("("):
            tree = self._or()
            self._need(")")
            return tree
        if self._word("-"):
            return ("negate_checked", self._atom())
        if self.at == len(self.tokens):
            raise self._error("It ends too early.")
        kind, value = self.tokens[self.at]
        self.at += 1
        if kind == "number":
            return ("value", float(value) if "." in value else int(value))
        if kind == "string":
            return ("value", value[1:-1].replace("''", "'"))
        if kind == "word" and value.lower() in ("true", "false", "null"):
            return ("value", {"true": True, "false": False, "null": None}[value.lower()])
        if kind in ("word", "quoted"):
            name = value.replace("``", "`")
            if name not in self.schema.names:
                raise ConfigError(
                    f"{self.operator}: where={self.text!r} names no column {name!r}",
                    detail=f"The joined rows have {', '.join(self.schema.names)}.",
                )
            return ("column", name)
        raise self._error(f"Near {value!r}.")
