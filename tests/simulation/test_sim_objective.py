"""A recovery-time objective in a whole cluster: expected recovery times stay below it, or the reason is said."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.agenda import exposures
from holdfast.core.recovery import Outlook
from holdfast.model import notes
from holdfast.model.config import MS, Config
from holdfast.model.protection import Protection
from holdfast.model.topology import layered
from holdfast.sim.costs import Costs
from holdfast.sim.simulation import Setup, Simulation

#: Eight shards on four nodes, busy for 60% of a core in all; captures are small.
COSTS = Costs(row_ns=2 * MS, capture_window_ns=50_000, paste_window_ns=50_000)
CONFIG = Config(protection=Protection(period_ns=1_000 * MS))


def expected_ms(recover_ms: int, costs: Costs = COSTS) -> tuple[list[float], Simulation, list[notes.Note]]:
    """What the failure of each node would have cost, every 50 ms."""
    config = replace(CONFIG, protection=replace(CONFIG.protection, recover_ns=recover_ms * MS))
    run = Simulation(
        Setup(
            seed=5, nodes=4, topology=layered(stages=1, shards=8), config=config, costs=costs, keys=40,
            safety_ms=8_000, must_recover=False,
        )
    )  # fmt: skip
    seen: list[float] = []
    said: list[notes.Note] = []
    run.world.notices.append(
        lambda at_ns, source, noted: said.extend(n for n in noted if isinstance(n, notes.NotInTime))
    )

    def look() -> None:
        for name in run.world.names if run.world.now_ns >= 2_000 * MS else ():
            node = run.world.node(name)
            if node is not None:
                found = exposures(node.host, run.world.processes[name].clock(run.world.now_ns))
                seen.append(Outlook(found).query_ns(name) / MS)
        run.world.call(50 * MS, look)

    run.world.call(50 * MS, look)
    assert not run.run().violation
    return seen, run, said


def test_expected_recovery_times_stay_below_the_objective():
    free, _, _ = expected_ms(0)
    bound, _, said = expected_ms(40)
    assert max(free) > 100  # a period of a second at 15% of a core, and two shards in some segments
    assert sum(ms <= 40 for ms in bound) >= 0.99 * len(bound)
    assert not said


def test_an_objective_that_cannot_be_met_is_told_with_the_reason():
    """One batch is more work than the objective leaves, and a paste takes longer."""
    bound, _, said = expected_ms(10, replace(COSTS, capture_window_ns=MS, paste_window_ns=4 * MS))
    assert max(bound) > 10
    assert said
    assert any("pasting" in note.why for note in said)
