"""The simulated network shares fairly, loses nothing, and gives figure 10 its direction."""

from __future__ import annotations

from collections import Counter
from random import Random

import pyarrow.parquet as pq
import pytest

from bench.sguard import pages, restart
from bench.sguard.arms import RACK_OF, drawn, paced, scheduled, unscheduled, writers_of
from bench.sguard.fluid import DISK_MB_S, Flow, Fluid, capacities, disk_mb_s, share_rates, uses_of


def flow(uses: dict[str, int], megabytes: float = 10.0) -> Flow:
    return Flow(megabytes, Counter(uses), lambda: None)


def rates(flows: list[Flow], capacity: dict[str, float]) -> list[float]:
    share_rates(flows, capacity)
    return [pytest.approx(one.rate) for one in flows]


def test_what_one_flow_cannot_use_goes_to_the_others():
    """Max-min fair: the flow through both links gets as much as the narrow one lets it, the other the rest."""
    flows = [flow({"a": 1}), flow({"a": 1, "b": 1}), flow({"b": 1})]
    assert rates(flows, {"a": 10.0, "b": 4.0}) == [8.0, 2.0, 2.0]


def test_a_flow_that_passes_twice_uses_twice():
    assert rates([flow({"a": 2}), flow({"a": 1})], {"a": 9.0}) == [3.0, 3.0]


@pytest.mark.parametrize("seed", range(10))
def test_no_rate_could_rise_without_another_that_is_not_larger_having_to_fall(seed):
    """The definition of max-min fairness, for random flows: everybody passes a full resource where nobody has more."""
    random = Random(seed)
    capacity = {name: random.uniform(1, 9) for name in "abcdef"}
    flows = [flow({name: random.randint(1, 2) for name in random.sample("abcdef", 3)}) for _ in range(12)]
    share_rates(flows, capacity)
    used = {name: sum(one.rate * one.uses[name] for one in flows) for name in capacity}
    assert all(used[name] <= capacity[name] * (1 + 1e-6) for name in capacity)
    for one in flows:
        full = [name for name in one.uses if used[name] >= capacity[name] * (1 - 1e-6)]
        fastest = {name: max(other.rate for other in flows if other.uses[name]) for name in full}
        assert any(one.rate >= rate * (1 - 1e-6) for rate in fastest.values())


def test_disks_give_what_table_8_says():
    assert [disk_mb_s(writers) for writers in DISK_MB_S] == list(DISK_MB_S.values())
    assert disk_mb_s(3) == pytest.approx((45.0 + 39.6) / 2)
    assert disk_mb_s(99) == disk_mb_s(16)


def test_a_flow_that_ends_makes_room_for_the_others():
    ended = []
    net = Fluid({"a": 10.0})
    for name, megabytes in (("short", 10.0), ("long", 30.0)):
        net.start(Flow(megabytes, Counter({"a": 1}), lambda name=name: ended.append((name, net.now_s))))
    net.run()
    assert ended == [("short", pytest.approx(2.0)), ("long", pytest.approx(4.0))]


def test_a_flow_that_takes_time_to_start_leaves_the_others_alone_until_then():
    ended = []
    net = Fluid({"a": 10.0}, delay_s=1.0)

    def end(name: str) -> None:
        ended.append((name, net.now_s))
        if name == "first":
            net.start(Flow(10.0, Counter({"a": 1}), lambda: end("third")))

    for name, megabytes in (("first", 10.0), ("second", 20.0)):
        net.start(Flow(megabytes, Counter({"a": 1}), lambda name=name: end(name)))
    net.run()
    # both begin at 1 s; at 3 s the first is over, and the second has the link alone for its last second
    assert ended == [("first", pytest.approx(3.0)), ("second", pytest.approx(4.0)), ("third", pytest.approx(5.0))]


def test_a_chain_across_racks_uses_every_port_and_disk_and_the_link_once():
    uses = uses_of(["n1", "n2", "n3", "n9"], RACK_OF)
    assert uses == Counter({
        "out n1": 1, "in n2": 1, "disk n2": 1, "out n2": 1, "in n3": 1, "disk n3": 1, "out n3": 1, "link from left": 1,
        "in n9": 1, "disk n9": 1,
    })  # fmt: skip
    assert all(name in capacities(RACK_OF) or name.startswith("disk") for name in uses)


def test_unscheduled_replicas_keep_the_same_constraints():
    chains = [drawn(writer, Random(seed)) for seed in range(20) for writer in writers_of(16)]
    for chain in chains:
        assert len(set(chain)) == 4
        assert [RACK_OF[server] == RACK_OF[chain[0]] for server in chain] == [True, True, True, False]


def test_figure_10_at_its_smallest_cell_with_most_writers():
    """16 writers of 128 MB: a write is at least twice as fast from its start, faster from the request, and not late."""
    plain, peace, pacing = ([arm(16, 2, seed) for seed in range(3)] for arm in (unscheduled, scheduled, paced))

    def mean(found, name: str) -> float:
        return sum(getattr(one, name) for one in found) / len(found)

    assert mean(peace, "from_start") * 2 < mean(plain, "from_start")
    assert mean(peace, "from_request") < mean(plain, "from_request")
    assert mean(peace, "all") < 1.4 * mean(plain, "all")
    assert mean(pacing, "all") < 1.4 * mean(plain, "all")


def test_one_slow_disk_does_not_slow_everybody_down_with_peace():
    """Half of the writes of a timestep may wait for it; the next timestep leaves it alone."""
    plain, peace = unscheduled(16, 4, 1, slow=0.1), scheduled(16, 4, 1, slow=0.1)
    assert peace.from_start * 3 < plain.from_start
    assert peace.all < plain.all


def test_our_figures_stand_beside_the_papers():
    mine = {"state MB": 100, "8 KiB pages / plain": 0.9, "64 KiB pages / plain": 0.8}
    (row,) = pages._table_6([mine])
    assert (row["paper, 64 KB pages"], row["ours, 64 KiB"]) == (pytest.approx(29.78 / 47.73), 0.8)
    told = [{"partitions": 4, "method": m, "mean ms": ms} for m, ms in (("none", 2.0), ("pages", 2.2), ("sync", 9.0))]
    (row,) = pages._table_7([*told, {"partitions": 4, "method": "async", "mean ms": 6.0}])
    assert (row["paper, pages"], row["ours, pages"]) == (pytest.approx(22.2 / 21.8), pytest.approx(1.1))


def test_a_restart_is_over_when_spark_has_noted_the_batch(tmp_path):
    (tmp_path / "commits").mkdir()
    assert restart._committed(tmp_path) == -1
    for name in ("0", "7", ".7.crc"):
        (tmp_path / "commits" / name).write_text("v1")
    assert restart._committed(tmp_path) == 7
    assert restart._committed_at(tmp_path, 7) == (tmp_path / "commits" / "7").stat().st_mtime


def test_both_arms_of_a_restart_read_the_same_keys_once(tmp_path):
    restart._fill(tmp_path / "in", 1)
    keys = [
        key for file in sorted((tmp_path / "in").glob("*.parquet")) for key in pq.read_table(file)["key"].to_pylist()
    ]
    assert keys == list(range(1_000_000 // restart.KEY_BYTES))
