"""A port's driver without Spark and without nodes: whose batch it is, whether it counts, and who may go on."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from support.collected import collector, operator, with_times

from holdfast.core.ledger import Ledger
from holdfast.core.node import Node
from holdfast.core.ready import Ready, Received, StartStage, WarmStage
from holdfast.errors import ConfigError, PeerError
from holdfast.model import messages as m
from holdfast.model.block import WATERMARK_MAX, WATERMARK_MIN
from holdfast.model.config import Config
from holdfast.model.found import Found
from holdfast.model.parts import CommitRecord
from holdfast.model.plan import FOREVER_US, NEVER_US, Plan, StagePlan
from holdfast.model.reasons import HandOverReason
from holdfast.model.record import Place, first_record
from holdfast.model.topology import ShardSpec, StageSpec, Topology, layered
from holdfast.sim.costs import Costs
from holdfast.sim.operators import Meter, WindowSum
from holdfast.spark import port
from holdfast.spark.aside import TooManyBadRows, set_bad_rows_max
from holdfast.spark.collect import Batch
from holdfast.spark.connect import Run, Target
from holdfast.spark.hand_over import StageFenced, Stopped


def commit(k: int, writer: str = "a", watermark: int = 5, epoch: int = 1, batch: int | None = None) -> CommitRecord:
    return CommitRecord(
        query="q", batch=k if batch is None else batch, epoch=epoch, attempt=1, watermark=watermark,
        offsets=(k, k + 1), plan=json.dumps({"writer": writer}),
    )  # fmt: skip


# -- which batch counts


def test_the_last_batch_again_is_done_and_the_next_one_is_not():
    assert port.is_done("p", commit(3), "a", 3)
    assert not port.is_done("p", commit(3), "a", 4)
    assert not port.is_done("p", None, "a", 0)


@pytest.mark.parametrize(("last", "batch"), [(None, 4), (commit(3), 2), (commit(3), 5), (commit(3), 0)])
def test_a_checkpoint_that_does_not_belong_to_the_run_is_refused(last, batch):
    """Taken for done, its rows would be lost without a word."""
    with pytest.raises(ConfigError, match="expects batch"):
        port.is_done("p", last, "a", batch)


@pytest.mark.parametrize("batch", [0, 3, 4])
def test_another_query_is_refused_whatever_its_batch(batch):
    with pytest.raises(ConfigError, match="another query"):
        port.is_done("p", commit(3), "b", batch)


def test_after_the_end_only_what_counts_already_is_taken():
    last = commit(3, watermark=WATERMARK_MAX)
    assert port.is_done("p", last, "a", 3)
    with pytest.raises(ConfigError, match="was finished"):
        port.is_done("p", last, "a", 4)
    empty = CommitRecord(query="q", batch=0, epoch=1, attempt=1, watermark=WATERMARK_MAX, offsets=(-1, 0))
    with pytest.raises(ConfigError, match="was finished"):
        port.is_done("p", empty, "a", 0)


# -- who may go on


def test_epochs_grow_and_two_that_look_at_once_differ():
    first, second = port.next_epoch(0), port.next_epoch(0)
    assert first > 0
    assert first != second
    assert port.next_epoch(max(first, second)) > max(first, second)
    assert port.next_epoch(port.next_epoch(first)) < 1 << 63


def test_whoever_opens_the_ledger_later_is_the_only_one_who_commits():
    ledger = Ledger("p.ledger", "n0")
    ledger.on_place(Place(primary="n0"), Ready())
    old = port.next_epoch(ledger.page.fence)
    ledger.on_ledger_open("p@old", m.LedgerOpen(stage="p", epoch=old, query="q"), 0, Ready())
    new = port.next_epoch(ledger.page.fence)
    ledger.on_ledger_open("p@new", m.LedgerOpen(stage="p", epoch=new, query="q"), 0, Ready())
    ready = Ready()
    ledger.on_ledger_write("p@old", m.LedgerWrite(stage="p", epoch=old, since=1, commit=commit(0, epoch=old)), 0, ready)
    assert ready.send[0][1].reason == "stage epoch is over"  # pyright: ignore[reportAttributeAccessIssue]
    assert ledger.page.commit is None
    ledger.on_ledger_write(
        "p@new", m.LedgerWrite(stage="p", epoch=new, since=1, commit=commit(0, epoch=new)), 0, Ready()
    )
    assert ledger.page.commit == commit(0, epoch=new)


def window_sum(spec: ShardSpec) -> WindowSum:
    return WindowSum(spec, 10, Costs(), Meter())


def foreign(shape: Topology) -> Topology:
    stages = tuple(StageSpec(id=s.id, shards=s.shards, query=s.query, foreign=True) for s in shape.stages)
    return Topology(shards=shape.shards, stages=stages, readers=shape.readers)


def test_no_record_places_a_port_and_no_node_starts_it():
    topology = foreign(layered(stages=1, shards=2))
    names = ("n0", "n1", "n2")
    record = first_record(topology, names)
    assert "s0" not in record.places
    assert "s0.ledger" in record.places
    for name in names:
        config = Config(standby=True)
        node = Node(
            name,
            names,
            topology,
            config,
            window_sum,
            Random(1),
            Found(),
            record,
            0,
        )
        ready = node.start(0)
        assert not [e for e in ready.apply if isinstance(e, StartStage | WarmStage)]


def test_a_node_refuses_an_older_driver_of_a_port_that_no_record_places():
    topology = foreign(layered(stages=1, shards=1))
    first = first_record(topology, ("n0",))
    node = Node("n0", ("n0",), topology, Config(), window_sum, Random(1), Found(), first, 0)
    node.start(0)

    def seal(epoch: int) -> Any:
        message = m.Seal(stage="s0", epoch=epoch, commit=commit(0), shards={})
        return node.step(Received(f"s0@{epoch}", message), 0).send[0][1]

    assert isinstance(seal(7), m.Sealed)
    assert isinstance(seal(9), m.Sealed)
    assert seal(7).reason == "stage epoch is over"


# -- a driver that is fenced, or waits in vain


class StandInCluster:
    """In place of nodes: a ledger, and drivers that it fences."""

    def __init__(self) -> None:
        self.fence = 0
        self.last: CommitRecord | None = None
        self.opened = 0
        #: So many more hand-overs are fenced by a sibling.
        self.siblings = 0

    def open(self, target: Any) -> Driver:
        self.opened += 1
        return Driver(self, port.next_epoch(self.fence))


class Driver:
    def __init__(self, cluster: StandInCluster, epoch: int) -> None:
        self.cluster, self.epoch, self.stage = cluster, epoch, "p"
        self.last = cluster.last
        self.stopping = SimpleNamespace(set=lambda: None)
        self.closed = False
        cluster.fence = epoch

    @property
    def watermark(self) -> int:
        return self.last.watermark if self.last else WATERMARK_MIN

    def run(self, parts: dict, *, spark_batch: int, plan: str, final: bool = False, **fields: Any) -> CommitRecord:
        cluster = self.cluster
        if cluster.siblings:
            cluster.siblings -= 1
            cluster.fence = port.next_epoch(cluster.fence)
        if self.epoch < cluster.fence:
            raise StageFenced("stage p may not go on", reason=HandOverReason.EPOCH_OVER)
        number = cluster.last.batch + 1 if cluster.last else 0
        self.last = cluster.last = CommitRecord(
            query="q", batch=number, epoch=self.epoch, attempt=1, offsets=(spark_batch, spark_batch + 1),
            watermark=WATERMARK_MAX if final else 5, plan=plan,
            bad_total=(cluster.last.bad_total if cluster.last else 0) + fields.get("bad", 0),
        )  # fmt: skip
        return self.last

    def standing(self) -> str:
        return "nobody answers"

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def cluster(monkeypatch):
    made = StandInCluster()
    monkeypatch.setattr(port, "_opened", made.open)
    monkeypatch.setattr(port, "_doors", {})
    batch = Batch(max_us=0)
    monkeypatch.setattr(port, "Collector", lambda *_: SimpleNamespace(split=lambda *_: batch))
    return made


@pytest.fixture
def target(tmp_path):
    plan = Plan(pipeline="p", query="q", topology=Topology(shards=(), stages=(), readers=()), operators=(), stages=())
    run = Run(endpoints={}, secret_file="")
    return Target(run=run, directory=str(tmp_path), plan=plan, stage=StagePlan(id="p", kind="port"))


ROWS = pa.table({"x": [1]})


def test_batches_of_a_query_share_one_driver(cluster, target):
    assert [port.write(target, "a", k, ROWS) for k in (0, 1, 1, 2)] == [True, True, False, True]
    assert cluster.opened == 1
    assert cluster.last.offsets == (2, 3)


def test_rows_that_no_operator_can_hold_are_set_aside_and_too_many_of_them_refused(cluster, target, monkeypatch):
    made = collector(operator())
    monkeypatch.setattr(port, "Collector", lambda *_: made)
    target = msgspec.structs.replace(target, stage=StagePlan(id="p", kind="port", bad_rows_max=2))
    bad = Path(target.directory) / "bad" / "p"
    assert port.write(target, "a", 0, with_times(FOREVER_US))
    assert port.write(target, "a", 1, with_times())
    assert [file.name for file in bad.glob("batch=*")] == ["batch=0.parquet"]
    assert cluster.last.bad_total == 1
    with pytest.raises(TooManyBadRows, match="bad_rows_max=2"):
        port.write(target, "a", 2, with_times(FOREVER_US, NEVER_US))
    assert cluster.last.offsets == (1, 2)
    set_bad_rows_max(Path(target.directory), "p", 3)
    assert port.write(target, "a", 2, with_times(FOREVER_US, NEVER_US))
    assert sorted(file.name for file in bad.glob("batch=*")) == ["batch=0.parquet", "batch=2.parquet"]
    assert cluster.last.bad_total == 3


def test_a_sibling_of_the_same_query_does_no_harm(cluster, target):
    port.write(target, "a", 0, ROWS)
    cluster.siblings = 2
    assert port.write(target, "a", 1, ROWS)
    assert cluster.opened == 3
    cluster.siblings = 99
    with pytest.raises(PeerError, match="again and again"):
        port.write(target, "a", 2, ROWS)


def test_who_failed_in_the_middle_of_a_batch_is_followed_by_a_driver_of_a_later_epoch(cluster, target, monkeypatch):
    """In the same process, too: what the first one delivered must never be taken for a try of the second."""
    port.write(target, "a", 0, ROWS)
    (first,) = (door.hand_over for door in port._doors.values())
    with monkeypatch.context() as broken:
        broken.setattr(Driver, "run", lambda *_, **__: (_ for _ in ()).throw(Stopped("in the middle")))
        with pytest.raises(PeerError, match="does not count"):
            port.write(target, "a", 1, ROWS)
    assert port.write(target, "a", 1, ROWS)
    (second,) = (door.hand_over for door in port._doors.values())
    assert first.closed
    assert second.epoch > first.epoch


def test_another_program_is_refused_and_the_first_goes_on(cluster, target, monkeypatch):
    port.write(target, "a", 0, ROWS)
    mine = port._doors
    monkeypatch.setattr(port, "_doors", {})  # another process
    with pytest.raises(ConfigError, match="another query"):
        port.write(target, "b", 0, ROWS)
    monkeypatch.setattr(port, "_doors", mine)
    assert port.write(target, "a", 1, ROWS)


def test_finish_closes_the_stream_over_a_writer_that_still_runs(cluster, target, monkeypatch):
    port.write(target, "a", 0, ROWS)
    mine = port._doors
    monkeypatch.setattr(port, "_doors", {})
    port.finish(target)
    port.finish(target)
    assert (cluster.last.watermark, cluster.last.offsets, cluster.last.batch) == (WATERMARK_MAX, (0, 1), 1)
    assert port._doors == {}
    monkeypatch.setattr(port, "_doors", mine)
    with pytest.raises(ConfigError, match="was finished"):
        port.write(target, "a", 1, ROWS)
    assert not port.write(target, "a", 0, ROWS)
