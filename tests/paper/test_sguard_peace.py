"""sguard §5: the worked example, its network, and what it says about the schedule."""

from __future__ import annotations

from random import Random

import pytest
from support.network_graph import PrintedGraph
from support.peace_models import figure_5, flat_model

from holdfast.peace import Peace, PeaceSettings, Where, forecast


@pytest.mark.parametrize("seed", range(20))
def test_the_worked_example_of_section_5(seed):
    """All capacities 1, one chunk each of SVR1.1 and SVR2.1, two replicas: same rack, then another one."""
    peace = Peace(figure_5(), PeaceSettings(), Random(seed))
    first = peace.on_write_wanted("SVR1.1", 0, 1, 0)
    near, far = first.granted[0].chunks[0].chain
    assert near == "SVR1.2", "the only other one in its rack"
    second = peace.on_write_wanted("SVR2.1", 0, 1, 0)
    if far == "SVR2.1":  # not the paper's draw: then SVR2.2 is free, and the way from there to SVR1.1
        assert [granted.chunks[0].chain for granted in second.granted] == [("SVR2.2", "SVR1.1")]
        return
    assert far == "SVR2.2"
    assert second.granted == [], "the link to SVR2.2 is full, and the first replica must stay in the rack"
    assert [postponed.writer for postponed in second.postponed] == ["SVR2.1"]
    done = peace.on_write_over("SVR1.1", 0, 0, 1)
    assert [(granted.timestep, granted.writer) for granted in done.granted] == [(2, "SVR2.1")], "scheduled at t + 1"
    assert done.granted[0].chunks[0].chain[0] == "SVR2.2"


def test_the_example_as_the_paper_draws_it_is_postponed_to_the_next_timestep():
    """With the paper's own choice (SVR1.2, then SVR2.2) the request of SVR2.1 is scheduled at t + 1."""
    drawn = [forecast(figure_5(), [("SVR1.1", 1), ("SVR2.1", 1)], seed) for seed in range(40)]
    papers = [plan for plan in drawn if plan.rows[0].chain == ("SVR1.2", "SVR2.2")]
    assert papers
    for plan in papers:
        assert [(row.timestep, row.writer) for row in plan.rows] == [(1, "SVR1.1"), (2, "SVR2.1")]
        assert plan.rows[1].chain[0] == "SVR2.2"
        assert plan.rows[1].chain[1] in ("SVR1.1", "SVR1.2")


def test_figure_5_costs_two_links_within_a_rack_and_three_across():
    graph = PrintedGraph(figure_5())
    assert graph.costs(["SVR1.1"], Where.ANYWHERE) == {"SVR1.2": 2, "SVR2.1": 3, "SVR2.2": 3}


def test_all_chunks_of_a_request_are_close_together():
    """§5: writes of one set are scheduled close together; the oldest request is through before the last has begun."""
    model = flat_model(2, 9, link=5)
    plan = forecast(model, [(f"SVR{rack}.{n}", 8) for n in range(1, 9) for rack in (1, 2)], seed=1)
    steps = {n: [row.timestep for row in plan.rows if row.request == n] for n in range(16)}
    assert all(len(found) == 8 for found in steps.values())
    # 2 of 8 chunks fit into a timestep by the writer's own port, so 4 timesteps are the least
    assert max(steps[0]) == 4
    assert max(steps[0]) < min(steps[15])
    spans = [max(found) - min(found) + 1 for found in steps.values()]
    assert sum(spans) / len(spans) < plan.timesteps / 2
