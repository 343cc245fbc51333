"""Savepoints in a store: kept whatever is collected, whole or not there, and gone on from by one run."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.stored_states import StoredRun, rows

from holdfast.checkpoint import savepoint as savepoints
from holdfast.checkpoint.head import ShardHead, needing_log
from holdfast.checkpoint.inspect import head_of
from holdfast.checkpoint.savepoint import Savepoint
from holdfast.errors import ConfigError
from holdfast.store import run_alone

SHARD = "sliding-0"


class KeptRun:
    """A run with some checkpoints, and one of them in a savepoint."""

    def __init__(self, directory: Path) -> None:
        self.run = StoredRun(directory)
        self.run.feed("sliding", rows(200))
        self.run.checkpoint_all("sliding")
        self.put("first")

    def do(self, plan):
        return run_alone(self.run.store, plan)

    def put(self, name: str) -> None:
        sequence = self.head().good[0].sequence
        point = Savepoint(
            name=name, made_ms=1, deployment=self.run.deployment, pipeline="states", directory="/nowhere", plan=b"{}",
            shards={SHARD: sequence}, commits={}, reads={}, written={},
        )  # fmt: skip
        self.do(savepoints.put(point, [b"files", b"of it"]))

    def head(self) -> ShardHead:
        return self.do(head_of(SHARD))

    def go_on(self, times: int, keep: int = 1) -> None:
        for number in range(times):
            self.run.feed("sliding", rows(20, number))
            self.run.checkpoint(SHARD)
            self.run.collect(SHARD, keep)


@pytest.fixture
def kept(tmp_path: Path) -> KeptRun:
    return KeptRun(tmp_path)


def test_its_checkpoint_stays_whatever_is_collected_until_it_is_deleted(kept: KeptRun):
    first = kept.head().good[0].sequence
    kept.go_on(4)
    assert first in {entry.sequence for entry in kept.head().entries}
    assert kept.do(savepoints.delete("first"))
    kept.go_on(2)
    assert first not in {entry.sequence for entry in kept.head().entries}
    assert kept.do(savepoints.names()) == []


def test_no_log_is_kept_for_it(kept: KeptRun):
    first = kept.head().good[0].sequence
    kept.go_on(1, keep=2)
    assert first in {entry.sequence for entry in needing_log(kept.head(), 2)}  # it is one of the newest two
    kept.go_on(3, keep=2)
    assert first not in {entry.sequence for entry in needing_log(kept.head(), 2)}
    assert len(needing_log(kept.head(), 2)) == 2


def test_it_is_read_as_it_was_written(kept: KeptRun):
    found = kept.do(savepoints.read("first"))
    assert (found.name, found.shards) == ("first", kept.head().pins and {SHARD: kept.head().pins["savepoint/first"]})
    assert kept.do(savepoints.read_files("first")) == b"filesof it"


def test_a_name_is_used_once(kept: KeptRun):
    with pytest.raises(ConfigError, match="there is a savepoint 'first' already"):
        kept.put("first")


def test_one_that_was_never_completed_is_not_there_and_its_name_is_free(kept: KeptRun):
    kept.run.store.delete(["savepoint/first/point"])
    with pytest.raises(ConfigError, match="no savepoint 'first'"):
        kept.do(savepoints.read("first"))
    kept.put("first")
    assert kept.do(savepoints.names()) == ["first"]


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "ü", "x" * 65, "list of"])
def test_a_name_that_no_key_can_have_is_refused(kept: KeptRun, name: str):
    with pytest.raises(ConfigError, match="cannot be the name"):
        kept.do(savepoints.read(name))


def test_one_run_goes_on_from_it_and_no_second(kept: KeptRun):
    assert kept.do(savepoints.successor()) == ""
    kept.do(savepoints.go_on_from("new-1"))
    kept.do(savepoints.go_on_from("new-1"))  # once more: nobody heard that it was done
    assert kept.do(savepoints.successor()) == "new-1"
    with pytest.raises(ConfigError, match="new-1 has gone on from a savepoint of this run"):
        kept.do(savepoints.go_on_from("new-2"))
    kept.do(savepoints.let_go("new-2"))  # it is not that one's
    assert kept.do(savepoints.successor()) == "new-1"
    kept.do(savepoints.let_go("new-1"))
    kept.do(savepoints.go_on_from("new-2"))
    assert kept.do(savepoints.successor()) == "new-2"


def test_who_has_gone_on_is_known_whichever_savepoint_it_took_and_also_when_that_is_deleted(kept: KeptRun):
    """Else the run of the savepoint, or a second one, could go on beside that one, and write to the same sinks."""
    kept.do(savepoints.go_on_from("new-1"))
    assert kept.do(savepoints.delete("first"))
    kept.put("second")
    with pytest.raises(ConfigError, match="new-1 has gone on"):
        kept.do(savepoints.go_on_from("new-2"))
    assert kept.do(savepoints.successor()) == "new-1"


def test_one_that_is_damaged_is_said_to_be(kept: KeptRun):
    kept.run.store.delete(["savepoint/first/point"])
    kept.run.store.put("savepoint/first/point", [b"HFSP" + bytes(40)])
    with pytest.raises(Exception, match="savepoint first"):
        kept.do(savepoints.read("first"))
