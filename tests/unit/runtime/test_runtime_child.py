"""What a driver process costs, and for which of its stages that counts; who eats its memory, on whatever node."""

from __future__ import annotations

from pathlib import Path

from test_runtime_children import Watched, wait_for

from holdfast.core.node import WARM
from holdfast.runtime.node.child import CORE_NS, SETTLE_S, Child, Hosted


def shared_process(*epochs: int) -> tuple[Child, list[Hosted]]:
    """One in which nothing has started for a while, and its stages; all but standbys run."""
    child = Child.__new__(Child)
    child.cpu_ns, child.up_at, child.stuck = 0, 0.0, set()
    child.unsettled_at, child.counted_at, child.batch_ns = -2 * SETTLE_S, 0.0, CORE_NS
    stages = [Hosted(f"s{ticket}", epoch, ticket, child) for ticket, epoch in enumerate(epochs)]
    child.stages = dict(enumerate(stages))
    for hosted in stages:
        hosted.running, hosted.step = hosted.epoch != WARM, "ready" if hosted.epoch == WARM else ""
    return child, stages


def test_what_a_process_uses_is_shared_among_its_stages_by_the_time_of_their_batches():
    child, (long, short, standby) = shared_process(1, 1, WARM)
    assert child.share(100, 900, 1.0) == [long, short, standby]
    assert (long.busy_ns, short.busy_ns) == (50, 50)  # no batch has ended
    long.batch_ms, short.batch_ms = 30.0, 10.0
    child.share(500, 600, 2.0)
    assert (long.busy_ns, short.busy_ns, standby.busy_ns) == (350, 150, 0)
    assert child.memory_share == 200  # of everything in it, standbys, too


def test_what_starts_and_standbys_that_warm_up_use_is_not_counted_for_the_stages_beside_them():
    child, (well, failing, standby) = shared_process(1, 1, WARM)
    well.batch_ms, failing.batch_ms = 60.0, 40.0
    child.share(20_000_000, 0, 5.0)
    before = well.busy_ns
    failing.ask()  # it has failed, and starts again: 3 s of a core, and no batch
    well.batch_ms = 100.0
    child.share(3_020_000_000, 0, 10.0)
    assert well.busy_ns - before == 20_000_000  # as for its batches before
    assert failing.busy_ns == 8_000_000
    failing.asked, standby.step, before = 0.0, "planned", well.busy_ns
    child.share(6_000_000_000, 0, 15.0)  # no batch has ended: counted with the next
    well.batch_ms = 50.0
    child.share(9_000_000_000, 0, 20.0)
    assert well.busy_ns - before == 10_000_000


def test_what_a_process_uses_counts_in_full_when_nothing_has_started_in_it_for_a_while():
    child, (well, standby) = shared_process(1, WARM)
    standby.step = "planned"
    at, used = 0.0, 0
    for step in ("planned", "ready", "ready"):
        at, used, standby.step, before = at + SETTLE_S, used + 10**9, step, well.busy_ns
        well.batch_ms = 100.0
        child.share(used, 0, at)
    assert well.busy_ns - before == 100 * CORE_NS  # the span before this one was the last in which it was warming up
    well.batch_ms = 100.0
    child.share(used + 10**9, 0, at + 5.0)
    assert well.busy_ns - before == 100 * CORE_NS + 10**9
    child.stuck.add(0)  # left behind: it is at nothing that is known to end
    well.asked = 1.0
    child.share(used + 10**9, 0, at + 10.0)
    assert child.unsettled_at == SETTLE_S


def test_a_stage_that_eats_the_memory_of_two_nodes_is_alone_on_both_also_where_it_stands_by(tmp_path: Path):
    """It takes its process with it, moves to its standby, and does the same there."""
    nodes = [Watched(tmp_path / name, run=tmp_path) for name in ("n0", "n1")]
    try:
        for epoch, node in enumerate(nodes, start=1):
            node.run("well", epoch)
            node.run("eats", epoch, "busy")
            wait_for(lambda node=node: node.children.drivers["eats"].busy_since)
            node.mode = "hungry"
            node.children.start("last", epoch)
            wait_for(lambda epoch=epoch, node=node: {("well", epoch), ("eats", epoch)} <= set(node.died))
        assert [len(node.told("stage-alone")) for node in nodes] == [0, 1]
        one, other = nodes
        assert one.run("eats", 3)["pid"] != one.run("well", 3)["pid"]
        other.mode = "run"
        other.children.warm("eats")
        other.children.warm("well")
        wait_for(lambda: {"eats", "well"} <= set(other.children.drivers))
        assert [other.children.status()[stage]["process"] for stage in ("eats", "well")] == ["alone-eats", "driver"]
    finally:
        for node in nodes:
            node.children.close()
