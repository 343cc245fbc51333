"""Dead letters of a run: results and rows that shards have set aside, which `verify` must not expect in a sink.

Nodes write them, one file a block, and merge the files (`runtime/disk/letters.py`). A letter is a line of JSON.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.model.letters import letter_files
from holdfast.model.parts import DEAD
from holdfast.model.skips import SKIPPED
from holdfast.operators.columns import quoted
from holdfast.pipeline.graph import Frame

#: Column of rows that a stage has grouped before it handed them over.
PANE = "pane_start"


class LetterCount(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator has set aside."""

    #: Results that do not fit their types, and input rows that it could not take.
    results: int = 0
    rows: int = 0
    #: Input rows of batches that were skipped, as JSON objects.
    skipped: tuple[bytes, ...] = ()

    @property
    def grouped(self) -> bool:
        """Were some of the skipped rows groups of rows, from which the rows cannot be told?"""
        return any(PANE in msgspec.json.decode(row) for row in self.skipped)


class _Letter(msgspec.Struct):
    what: str
    row: msgspec.Raw
    reason: str = ""


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("*.jsonl")]


def letters_of(run_dir: Path, operator: str) -> LetterCount:
    folder = run_dir / DEAD / operator
    files = [folder / one.name for one in letter_files(_names(folder))[0]]
    found = [msgspec.json.decode(line, type=_Letter) for f in files for line in f.read_bytes().splitlines()]
    results = sum(letter.what == "result" for letter in found)
    skipped = tuple(bytes(letter.row) for letter in found if letter.reason.startswith(SKIPPED))
    return LetterCount(results=results, rows=len(found) - results - len(skipped), skipped=skipped)


def without_skipped(rows: Frame, skipped: tuple[bytes, ...]) -> tuple[Frame, int]:
    """The rows without as many of each as were skipped, and how many of those there are not. Only columns that crossed
    the edge are in a letter: rows that agree in them are alike to the operator."""
    names = [name for name in rows.columns if name in msgspec.json.decode(skipped[0])]
    if not names:
        return rows, len(skipped)
    types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    spark = rows.sparkSession
    texts = spark.createDataFrame([(row.decode(),) for row in skipped], "row string")
    values = ", ".join(f"{_value(name, types[name])} as {quoted(name)}" for name in names)
    gone = spark.sql(f"select {values} from {{texts}}", texts=texts)
    columns = ", ".join(map(quoted, names))
    counted = f"(select {columns}, count(*) as __gone from {{gone}} group by {columns})"
    nth = f"row_number() over (partition by {columns} order by {quoted(names[0])}) as __nth"
    numbered = f"(select *, {nth} from {{rows}})"
    same = " and ".join(f"r.{quoted(name)} <=> g.{quoted(name)}" for name in names)
    kept = ", ".join(f"r.{quoted(name)}" for name in rows.columns)
    rest = spark.sql(
        f"select {kept} from {numbered} r left join {counted} g on {same} where __nth > coalesce(__gone, 0)",
        rows=rows,
        gone=gone,
    )
    return rest, len(skipped) - (rows.count() - rest.count())


def _value(name: str, type_: str) -> str:
    key = name.replace("\\", "\\\\").replace("'", "\\'")
    text = f"from_json(row, 'map<string,string>')['{key}']"
    return f"unhex({text})" if type_ == "binary" else f"try_cast({text} as {type_})"
