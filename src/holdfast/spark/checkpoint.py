"""Make a query's Spark checkpoint agree with the stage's ledger, before the query starts. File logic only.

The ledger is the truth: a batch counts when its commit record is on two nodes, whatever Spark has written since.
A record names Spark's batch (`offsets[0]`) and carries Spark's own plan of it, the content of `offsets/<batch>`.

    metadata      {"id": …}     the query. Written by us, so that it is known; a foreign one is an error, not a reset
    offsets/<k>   v1, settings, one offset a source    what batch k reads; written before k runs
    commits/<k>   v1, {"nextBatchWatermarkMs": 0}      batch k is in the sink
    sources/<i>/<m>                                    the file source's own list of files: offsets only number it

After `agree`, for the ledger's last batch k: offsets/k is the recorded plan, commits/k exists, and of later plans only
k + 1 stays (Spark plans one batch ahead and runs exactly that one again). Spark's commits beyond k are impossible,
since `foreachBatch` returns only when the ledger has the batch: so then the ledgers are not this checkpoint's.

Files that were damaged are made again where the ledger says what was in them: offsets/k and commits/k. A plan of k + 1
that cannot be read is dropped, and Spark plans that batch anew: none of it counts. Of k - 1 Spark only wants to know
where it ended, to look at batch k once more without running it; any plan does. The file source's list is nowhere else:
damage to it is an error.

Checked against checkpoints of Spark 4.3 in `tests/integration/test_spark_real_checkpoints.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from pathlib import Path

from holdfast.errors import ConfigError
from holdfast.model.parts import CommitRecord, SinkPlan

_COMMITTED = 'v1\n{"nextBatchWatermarkMs":0}'
_NAMESPACE = uuid.UUID("6f1c27d4-90a5-4d2b-8c1e-6d8f5a1f7f43")


def query_id(query: str, stage: str) -> str:
    """The id that Spark knows this stage's query by: the same in every life of it, and in no other deployment."""
    return str(uuid.uuid5(_NAMESPACE, f"{query}/{stage}"))


def claim(directory: Path, stage: str, query: str) -> None:
    """This checkpoint is this query's, or is made so if it is new."""
    expected = query_id(query, stage)
    metadata = directory / "metadata"
    if not metadata.exists():
        if _batches(directory / "offsets"):
            raise ConfigError(
                f"stage {stage}: its Spark checkpoint has batches but does not say whose they are",
                detail=f"{metadata} is missing.",
                hint="Restore that file from a backup, or run the pipeline in a new --dir.",
            )
        directory.mkdir(parents=True, exist_ok=True)
        _write(metadata, json.dumps({"id": expected}, separators=(",", ":")))
        return
    try:
        found = json.loads(metadata.read_text())["id"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"stage {stage}: its Spark checkpoint cannot be read",
            detail=f"{metadata}: {error}",
            hint="Restore that file from a backup, or run the pipeline in a new --dir.",
        ) from error
    if found != expected:
        raise ConfigError(
            f"stage {stage}: its Spark checkpoint belongs to another query",
            detail=f"{directory} is of query {found}, this is {expected} ({query}).",
            hint="Run the pipeline in a new --dir; a checkpoint is never taken over or reset.",
        )


def agree(directory: Path, stage: str, query: str, commit: CommitRecord | None, outlets: int = 1) -> None:
    """Make the checkpoint say what the ledger says. `commit` is the ledger's last record. Of a stage with several
    outlets Spark names each source once for every outlet, and keeps one list of its files for all of them."""
    try:
        _agree(directory, stage, query, commit, outlets)
    except OSError as error:
        raise ConfigError(
            f"stage {stage}: its Spark checkpoint cannot be written",
            detail=f"{error.filename2 or error.filename}: {error.strerror}.",
            hint="Check the disk, and who may write there. What is in its place and should not be can be removed.",
        ) from error


def _agree(directory: Path, stage: str, query: str, commit: CommitRecord | None, outlets: int) -> None:
    claim(directory, stage, query)
    last = commit.offsets[0] if commit is not None else -1
    beyond = [k for k in _batches(directory / "commits") if k > last]
    if beyond:
        raise ConfigError(
            f"stage {stage}: Spark has committed batch {max(beyond)}, the stage's ledger ends at {last}",
            detail=f"{directory}/commits: {len(beyond)} batches that no ledger knows.",
            hint="The nodes' directories are of an older or another run: start all nodes with the ones that belong "
            "to this checkpoint, or run the pipeline in a new --dir.",
        )
    offsets, commits = directory / "offsets", directory / "commits"
    if commit is None or last < 0:
        # batch 0 may be planned: it is run again as it was planned
        _drop(directory, after=0 if _is_whole(offsets / "0", lines=3) else -1)
        return
    _check_sources(directory, stage, commit.plan, outlets)
    lines = len(commit.plan.splitlines())
    same = _raw(offsets / str(last)) == commit.plan.encode()
    other = not same and _is_whole(offsets / str(last), lines)  # not what was damaged, but another plan
    if not same:
        _write(offsets / str(last), commit.plan)
    if last and not _is_whole(offsets / str(last - 1), lines):
        _write(offsets / str(last - 1), commit.plan)
    ahead = not other and _is_whole(offsets / str(last + 1), lines)
    _drop(directory, after=last + 1 if ahead else last)  # what was planned on top of something else contradicts it
    if not _is_whole(commits / str(last), lines=2):
        _write(commits / str(last), _COMMITTED)


# --- of a run that goes on as another one


def hand_on(directory: Path, stage: str, query: str) -> None:
    """Make this checkpoint another query's: for a run that starts from a savepoint, with a copy of it."""
    _write(directory / "metadata", json.dumps({"id": query_id(query, stage)}, separators=(",", ":")))


def replan(directory: Path, last: int, plan: str) -> None:
    """Let the last batch, which is committed, end at other offsets: positions of the new run. Spark reads the one
    before it only to know where that ended, and plans of later batches were of the old run: also of the first one, if
    none is committed (`last` is -1)."""
    _drop(directory, after=last)
    for batch in {last, max(0, last - 1)} if last >= 0 else ():
        _write(directory / "offsets" / str(batch), plan)


def forget(directory: Path) -> None:
    """A copy that nobody needs."""
    shutil.rmtree(directory)


def is_new(directory: Path) -> bool:
    """No batch was ever planned in it."""
    return not _batches(directory / "offsets")


def plan_of(directory: Path, batch: int) -> str:
    """What Spark has written ahead about this batch."""
    return (directory / "offsets" / str(batch)).read_text()


def last_planned(directory: Path) -> dict:
    """What the newest batch that Spark has planned goes up to, of all its sources; empty if none was ever planned."""
    planned = _batches(directory / "offsets")
    try:
        found = source_offsets(plan_of(directory, planned[-1])) if planned else []
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{directory} cannot be read", detail=f"Batch {planned[-1]}: {error}", hint="Bring the file back."
        ) from error
    return {key: value for offset in found if isinstance(offset, dict) for key, value in offset.items()}


def newest_planned(directory: Path) -> int:
    """The last batch that Spark has planned, -1 if there is none."""
    return max(_batches(directory / "offsets"), default=-1)


def sink_plan(directory: Path, gaps: Path) -> SinkPlan | None:
    """What a sink has to go on from, should this directory be lost; None: nothing was planned yet."""
    planned = _batches(directory / "offsets")
    if not planned:
        return None
    batch = planned[-1]
    return SinkPlan(
        batch=batch,
        committed=last_committed(directory),
        metadata=(directory / "metadata").read_text(),
        plans={k: plan_of(directory, k) for k in planned if k >= batch - 1},
        gaps={path.name: path.read_text() for path in sorted(gaps.glob("*.json"))},
    )


def make_again(directory: Path, gaps: Path, plan: SinkPlan) -> None:
    """The checkpoint of a sink, as it was. A batch that was planned and not committed is run again, as planned."""
    _write(directory / "metadata", plan.metadata)
    for batch, text in plan.plans.items():
        _write(directory / "offsets" / str(batch), text)
    if plan.committed >= 0:
        _write(directory / "commits" / str(plan.committed), _COMMITTED)
    for name, text in plan.gaps.items():
        _write(gaps / name, text)


def last_committed(directory: Path) -> int:
    """The last batch in Spark's commit log, -1 if there is none."""
    return max(_batches(directory / "commits"), default=-1)


def source_offsets(plan: str) -> list[dict | None]:
    """The offsets in a plan, one a source; None: that source has nothing yet."""
    lines = plan.splitlines()
    return [None if line == "-" else json.loads(line) for line in lines[2:]]


# --- of a sink without Spark, which keeps the same files


def plan_batch(directory: Path, batch: int, offset: dict) -> dict:
    """Note durably where a batch ends; what counts is given back. Another life of this sink may still be there: the
    first plan of a number is the only one, so that no two lives have other rows under one number."""
    conf = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
    _durable(directory / "offsets" / str(batch), f"v1\n{conf}\n{json.dumps(offset, separators=(',', ':'))}")
    return planned_batch(directory, batch)


def planned_batch(directory: Path, batch: int) -> dict:
    """Where a batch of a sink ends."""
    path = directory / "offsets" / str(batch)
    found = source_offsets(plan_of(directory, batch)) if _is_whole(path, lines=3) else []
    if not found or not isinstance(found[0], dict):
        raise ConfigError(
            f"the checkpoint of sink {directory.name} is damaged: where batch {batch} ends is not known",
            detail=f"{path} is cut, empty or gone.",
            hint="Restore that file from a backup, or run the pipeline in a new --dir.",
        )
    return found[0]


def commit_batch(directory: Path, batch: int) -> None:
    """Note durably that a batch is written."""
    _durable(directory / "commits" / str(batch), _COMMITTED)


def note_beside(path: Path, text: str) -> None:
    """Something that a sink has to know later on, durably; its first word on it stays."""
    _durable(path, text)


def forget_batches(directory: Path, before: int) -> None:
    """Those that nobody asks for any more."""
    for log in (directory / "offsets", directory / "commits"):
        for batch in _batches(log):
            if batch < before:
                (log / str(batch)).unlink(missing_ok=True)


def _durable(path: Path, text: str) -> None:
    """There, whole, and through a power cut; what was there before stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with part.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
    finally:
        part.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _check_sources(directory: Path, stage: str, plan: str, outlets: int) -> None:
    """The file source's offsets are numbers of its own log: without that log, every file would be read again."""
    offsets = source_offsets(plan)
    for i, offset in enumerate(offsets[: len(offsets) // outlets]):
        number = offset.get("logOffset", -1) if isinstance(offset, dict) else -1
        log = directory / "sources" / str(i)
        if number < 0:
            continue
        compact = max((n for n in _batches(log, ".compact") if n <= number), default=-1)
        names = [f"{compact}.compact"] if compact >= 0 else []
        names += [str(n) for n in range(compact + 1, number + 1)]
        if not any((log / name).exists() for name in names[-1:]):
            raise _no_list(stage, number, log)
        for name in [*names, *(str(n) for n in _batches(log) if n > number)]:
            if not _is_whole(log / name, lines=2):
                raise ConfigError(
                    f"stage {stage}: the list of files it has read is damaged",
                    detail=f"{log / name} is cut, empty, or not what Spark has written.",
                    hint="Restore it from a backup, or run the pipeline in a new --dir: without it, files would be "
                    "read twice or not at all.",
                )


def _no_list(stage: str, number: int, log: Path) -> ConfigError:
    return ConfigError(
        f"stage {stage}: the list of files it has read is gone",
        detail=f"The ledger's last batch ends at entry {number} of {log}, which is not there.",
        hint="On several machines --dir must be on storage that all of them share. Restore it from a "
        "backup, or run the pipeline in a new --dir: reading all files again would double every row.",
    )


def _raw(path: Path) -> bytes | None:
    """None: it is not there, or not a file."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def _is_whole(path: Path, lines: int) -> bool:
    """A file as Spark's logs have them: a version, then so many lines in all or more, of JSON each."""
    try:
        version, *rest = (_raw(path) or b"").decode().splitlines()
        for line in rest:
            if line != "-":
                json.loads(line)
    except ValueError:
        return False
    return version in ("v1", "v2") and len(rest) + 1 >= lines


def _batches(log: Path, suffix: str = "") -> list[int]:
    if not log.is_dir():
        return []
    names = (name.removesuffix(suffix) for name in os.listdir(log) if name.endswith(suffix))
    return sorted(int(name) for name in names if name.isdecimal())


def _drop(directory: Path, after: int) -> None:
    for batch in _batches(directory / "offsets"):
        if batch > after:
            (directory / "offsets" / str(batch)).unlink()
            (directory / "offsets" / f".{batch}.crc").unlink(missing_ok=True)  # Spark would take it for another query's


def _write(path: Path, text: str) -> None:
    """Whole or not at all: another life of the stage may be reading."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    part.write_text(text)
    part.replace(path)
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)  # of what was there, were it written with checksums
