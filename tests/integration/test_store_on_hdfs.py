"""A real HDFS: the promises of a store, and what happens to checkpoints when parts of it die, are away, full or closed.

One HDFS for the whole file (name node and three data nodes in two racks, each a process). It is started by the project
itself; nothing is skipped: without `mvn` these tests fail and say so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from conformance.store_promises import StorePromises
from pyspark.errors import AnalysisException
from support.hdfs import Hdfs, running
from support.small_checkpoints import DEPLOYMENT, SHARD, Chain, aggregate, feed, results, run

from holdfast.checkpoint import claim, collect, fit_of, restore_operator
from holdfast.errors import (
    ConfigError,
    ObjectExistsError,
    ObjectMissingError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnreachableError,
)
from holdfast.model.ids import Name, asset_id
from holdfast.model.parts import SinkPlan
from holdfast.peace import read_model
from holdfast.runtime.stable import kept
from holdfast.runtime.stable.door import StoreDoor
from holdfast.runtime.stable.mirror import FolderMirror
from holdfast.runtime.stable.peace import PeaceDesk, PeaceWriter, differ
from holdfast.spark.checkpoint import make_again, sink_plan
from holdfast.store import IoService, LookAt
from holdfast.store.hadoop import HadoopStore
from holdfast.store.plan import All, PutNew

MB = 1 << 20


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory) -> Iterator[Hdfs]:
    with running(tmp_path_factory.mktemp("hdfs")) as made:
        yield made


@pytest.fixture(scope="module")
def client(hdfs: Hdfs) -> Iterator[HadoopStore]:
    """One JVM for all tests; as a user's, it finds its configuration in HADOOP_CONF_DIR."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HADOOP_CONF_DIR", str(hdfs.conf))
        made = HadoopStore(f"{hdfs.url}/store", log=hdfs.directory / "client.log")
    yield made
    made.close()


@pytest.fixture
def store(client: HadoopStore) -> HadoopStore:
    client.delete([one.key for one in client.list("")])
    return client


class TestHdfs(StorePromises):
    """The same bodies as on every other adapter."""


def test_its_errors_are_its_own_in_a_process_where_spark_has_a_session(spark, store: HadoopStore):
    """Spark's Python asks Spark's JVM about every Java exception of the process, also about one of another JVM."""
    assert spark.range(3).count() == 3
    store.put("there", [b"first"])
    for i in range(20):
        with pytest.raises(ObjectExistsError):
            store.put("there", [b"second"])
        with pytest.raises(ObjectMissingError):
            store.size(f"nowhere-{i}")
    with pytest.raises(AnalysisException):  # and Spark's are Spark's
        spark.sql("select nothing")


def _chunks(mb: int, on_chunk=lambda i: None) -> Iterator[bytes]:
    for i in range(mb):
        on_chunk(i)
        yield bytes([i % 251]) * MB


def _content(store: HadoopStore, key: str, mb: int) -> bool:
    raw = bytearray(mb * MB)
    store.read(key, [(0, memoryview(raw))])
    return all(raw[i * MB] == i % 251 and raw[(i + 1) * MB - 1] == i % 251 for i in range(mb))


def test_blocks_go_where_they_are_wished_to_and_it_can_be_seen(hdfs: Hdfs, store: HadoopStore):
    """One data node of each rack, not the pair that the name node would choose each time."""
    for pair in (("d0", "d1"), ("d2", "d1")):
        wished = {hdfs.data_address(name) for name in pair}
        store._favoured = lambda key, wished=wished: sorted(wished)
        try:
            store.put(f"favoured-{pair[0]}", _chunks(6))
        finally:
            store._favoured = None
        blocks = store.block_nodes(f"favoured-{pair[0]}")
        assert [set(nodes) for nodes in blocks] == [wished, wished]


def test_a_data_node_killed_while_it_is_written_to_does_not_end_the_write(hdfs: Hdfs, store: HadoopStore):
    victim: list[str] = []

    def on_chunk(i: int) -> None:
        if i == 6:  # the second block is under way
            writing = [name for name in hdfs.names if hdfs.is_writing(name)]
            victim.append((writing or hdfs.names)[0])
            hdfs.kill(victim[0])

    try:
        assert store.put("killed", _chunks(24, on_chunk)) == 24 * MB
        assert _content(store, "killed", 24)
        assert all(store.block_nodes("killed")), "every block is somewhere"
    finally:
        hdfs.start_data_node(victim[0])
        hdfs.wait_up(len(hdfs.names))


def test_a_name_node_that_is_away_for_a_while_is_waited_for_and_it_is_said(hdfs: Hdfs, store: HadoopStore):
    told: list[str] = []
    service = IoService(store, stall_s=60, again_s=60, on_wait=told.append)
    chain = Chain(service, run(service, claim(SHARD, DEPLOYMENT, epoch=1, holder="n0")), aggregate())
    feed(chain.op, 0)
    first = chain.checkpoint()
    hdfs.kill("name")
    with pytest.raises(StoreUnreachableError) as caught:
        store.look("head/anything")
    assert "does not answer: list head/anything" in caught.value.what
    back = threading.Timer(6.0, hdfs.start_name_node)
    back.start()
    started = time.monotonic()
    try:

        def plan():
            return (yield LookAt("head/anything"))

        assert service.run(plan()) is None
    finally:
        back.join()
    assert time.monotonic() - started > 5
    assert told, "whoever watches was told what is waited for"
    hdfs.wait_up(len(hdfs.names))
    feed(chain.op, 1)
    second = chain.checkpoint()
    assert second.base == first.sequence
    _same_as(service, chain, 2)


def _same_as(service: IoService, chain: Chain, epoch: int) -> None:
    tenure = run(service, claim(SHARD, DEPLOYMENT, epoch=epoch, holder=f"n{epoch}"))
    back = aggregate()
    found = run(service, restore_operator(tenure, back, fit_of(back, DEPLOYMENT)))
    assert found.entry.sequence == chain.tenure.head.good[0].sequence
    assert results(back) == results(chain.op)


def test_checkpoints_go_to_hdfs_and_come_back(store: HadoopStore):
    service = IoService(store)
    chain = Chain(service, run(service, claim(SHARD, DEPLOYMENT, epoch=1, holder="n0")), aggregate())
    for i in range(3):
        feed(chain.op, i, rows=1200 if i == 0 else 40)
        chain.checkpoint(parts={"cargo": [b"rows"]})
    assert run(service, collect(chain.tenure, keep=1)) == (1, 2)
    _same_as(service, chain, 2)


def test_a_store_that_takes_no_writes_says_so_and_takes_them_later(store: HadoopStore):
    actions = store._java.jvm.org.apache.hadoop.fs.SafeModeAction
    store.put("before", [b"1"])
    store._fs.setSafeMode(actions.ENTER)
    try:
        for write in (lambda: store.put("k", [b"x"]), lambda: store.swap("head/x", b"1", None)):
            with pytest.raises(StoreReadOnlyError, match="takes no writes"):
                write()
        assert store.get("before", 10) == b"1", "reads go on"
    finally:
        store._fs.setSafeMode(actions.LEAVE)
    store.put("k", [b"x"])


def test_a_store_that_is_full_says_so_and_what_counted_stays(store: HadoopStore):
    service = IoService(store)
    chain = Chain(service, run(service, claim(SHARD, DEPLOYMENT, epoch=1, holder="n0")), aggregate())
    feed(chain.op, 0)
    chain.checkpoint()
    root, dont_touch = store._root, (1 << 63) - 1
    store._fs.setQuota(root, dont_touch, 40 * MB)  # a block of 4 MB on two nodes reserves 8 before it is written
    try:
        with pytest.raises(StoreFullError, match="is full"):
            store.put("large", _chunks(32))
        assert [one.key for one in store.list("large")] == []
        store._fs.setQuota(root, dont_touch, 1 * MB)
        feed(chain.op, 1)
        with pytest.raises(StoreFullError):
            chain.checkpoint()
        assert len(chain.tenure.head.entries) == 1
    finally:
        store._fs.setQuota(root, dont_touch, -1)
    chain.kept = None
    assert chain.checkpoint().sequence > 1
    _same_as(service, chain, 2)


def test_a_file_system_that_cannot_create_on_a_condition_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot hold checkpoints") as caught:
        HadoopStore(f"hadoop+file://{tmp_path}/store")
    assert "does not promise to create an object only if there is none" in caught.value.detail


def test_a_jvm_that_dies_is_unreachable_and_nothing_hangs(hdfs: Hdfs):
    store = HadoopStore(f"{hdfs.url}/another", {"fs.defaultFS": hdfs.url})
    started = time.monotonic()

    def on_chunk(i: int) -> None:
        if i == 3:
            store._java.process.kill()
            store._java.process.wait(10)

    with pytest.raises(StoreError):
        store.put("k", _chunks(64, on_chunk))
    with pytest.raises(StoreUnreachableError, match="does not answer"):
        store.size("k")
    assert time.monotonic() - started < 60
    store.close()


def test_files_and_plans_of_a_run_are_kept_there_and_come_back(store: HadoopStore, tmp_path):
    """What `--resume` needs where the store is not a folder."""
    first, again = tmp_path / "first", tmp_path / "again"
    for path in ("checkpoints/s0/sources/0/0", "late/s0/.batch=3.epoch=2.tmp", "bad/s0.max"):
        (first / path).parent.mkdir(parents=True, exist_ok=True)
        (first / path).write_text(path)
    mirror = FolderMirror(StoreDoor(lambda: store), "run-1", first, ("checkpoints/s0/sources", "late/s0", "bad/s0.max"))
    mirror.sync()
    (first / "bad/s0.max").write_text("99")
    mirror.sync()
    found = run(store, kept.list_files("run-1"))
    assert len(found) == 3
    assert run(store, kept.get_file("run-1", "bad/s0.max", found["bad/s0.max"])) == b"99"
    sink, plan = asset_id("out"), SinkPlan(batch=7, committed=6, metadata="whose", plans={6: "six", 7: "seven"})
    run(store, kept.put_plan("run-1", sink, plan))
    run(store, kept.put_plan("run-1", sink, plan))
    make_again(again / "out", again / "gaps", run(store, kept.last_plan("run-1", sink)))
    assert sink_plan(again / "out", again / "gaps") == plan


def test_chunks_of_a_checkpoint_go_where_peace_says_when_it_says_so(hdfs: Hdfs, store: HadoopStore):
    """Real blocks on real data nodes, compared with what was asked."""
    nodes = [hdfs.data_address(name) for name in hdfs.names]
    servers = "\n".join(f'd{i} = {{ rack = "r{i % 2}", data_node = "{node}" }}' for i, node in enumerate(nodes))
    model = read_model(
        'replicas = ["anywhere", "anywhere"]\n[switches.one]\n'
        + "".join(f'[racks.r{i}]\nswitch = "one"\nsend = 4\nreceive = 2\n' for i in range(2))
        + f'[servers]\n{servers}\nn0 = {{ rack = "r0", receive = 0 }}\n'
    )
    desk, members = PeaceDesk(model, seed=3), frozenset(("n0",))
    peace = PeaceWriter(
        Name("n0"), lambda: Name("n0"),
        lambda name, body: desk.answer(body, 1, members, time.monotonic_ns()), lambda text: None,
    )  # fmt: skip
    settings = {"fs.defaultFS": hdfs.url, "dfs.replication": "2"}
    placing = HadoopStore(f"{hdfs.url}/store", settings, favoured=peace.favoured)
    try:
        service = IoService(placing, gate=peace)
        peace.open(4)
        keys = [f"checkpoint/u0-1/pages-{i}" for i in range(4)]
        service._do(All([PutNew(key, [bytes(MB)]) for key in keys]), None)
        asked = {key: peace.favoured(key) for key in keys}
        assert all(len(set(nodes)) == 2 for nodes in asked.values())
        elsewhere = sum(differ(asked[key], placing.block_nodes(key)) for key in keys)
        assert elsewhere <= 1, "favored nodes are a wish, which an idle store grants"
    finally:
        peace.stop()
        placing.close()
