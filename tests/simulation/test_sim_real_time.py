"""Real-time stages: whatever dies, and whenever, every row of the source is handed over once."""

from __future__ import annotations

from holdfast.sim.realtime import PartitionedSource
from holdfast.sim.runner import run_all
from holdfast.sim.simulation import Simulation
from holdfast.sim.special import real_time
from holdfast.sim.swarm import swarm_setup


def test_schedules_of_real_time_stages_hold():
    setups = [real_time(swarm_setup(seed)) for seed in range(60)]
    summary = run_all(setups)
    assert summary.first is None
    assert summary.excused <= 4
    assert summary.late > 0


def test_positions_of_several_lives_of_a_driver_lead_to_the_end_of_every_partition():
    setup = real_time(swarm_setup(4, kinds=("crash-stage", "stall-stage")))
    run = Simulation(setup)
    assert not run.run().violation
    for stage, found in run.checker.commits.items():
        if stage not in run.sources:
            continue
        source = run.sources[stage].source
        assert isinstance(source, PartitionedSource)
        last = found[max(found)]
        assert last.positions == {name: len(rows) for name, rows in source.parts.items() if name in last.positions}
        assert all(not rows for name, rows in source.parts.items() if name not in last.positions)
        assert len({commit.epoch for commit in found.values()}) > 1
