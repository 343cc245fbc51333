"""Scheduling costs about the same per chunk, however many servers there are; `bench/sguard/peace.py` has seconds."""

from __future__ import annotations

import time

from support.network_graph import PrintedGraph, shortest_paths
from support.peace_models import flat_model

from holdfast.peace import forecast


def _seconds(racks: int) -> float:
    """CPU to schedule ten chunks for every fifth server, racks of 20: as much per server at every size."""
    model = flat_model(racks, 20, link=20)
    writers = list(model.servers)[::5]
    began = time.process_time()
    plan = forecast(model, [(writer, 10) for writer in writers], seed=1)
    took = time.process_time() - began
    assert len(plan.rows) == 10 * len(writers)
    return took


def test_ten_times_the_servers_and_chunks_take_about_ten_times_as_long():
    """If the time went with servers times chunks, as for a path search per replica, it would be a hundred times."""
    small = min(_seconds(5) for _ in range(5))
    large = min(_seconds(50) for _ in range(2))
    assert large < 30 * small


def test_all_of_a_plan_takes_less_than_a_few_searches_in_the_printed_graph():
    model = flat_model(10, 20, link=20)
    began = time.process_time()
    for _ in range(3):
        shortest_paths(PrintedGraph(model).left, ("snd", "SVR1.1"))
    three = time.process_time() - began
    assert _seconds(10) / 1200 < three / 3 / 20, "a replica against a search"
