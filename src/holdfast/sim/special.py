"""Random schedules of one kind, which `sim/swarm.py` does not draw by itself: its own seeds stay what they are."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from holdfast.model.config import MS
from holdfast.model.ids import Name
from holdfast.sim.faults import Fault
from holdfast.sim.simulation import Setup
from holdfast.sim.swarm import NODE_STEPS, draw_fault, draw_step, stored, swarm_setup


def eventual(setup: Setup) -> Setup:
    """The same schedule with footprints in the store instead of checkpoints, of all operators or of some."""
    rng = Random(f"eventual {setup.seed}")
    setup = stored(setup)
    every_ns = rng.choice((10, 20, 100, 400)) * MS
    protection = replace(setup.config.protection, checkpoint="eventual", checkpoint_ns=every_ns)
    return replace(setup, config=replace(setup.config, protection=protection))


def growing(seed: int) -> Setup:
    """A schedule in which nodes come that no file names, and nodes leave for good, some of which are started again."""
    rng = Random(f"growing {seed}")
    setup = swarm_setup(seed, nodes=rng.choice((3, 3, 4, 5)))
    late, faults = rng.randrange(1, 4), list(setup.faults)
    for i in range(late):
        name, at_ms = Name(f"n{setup.nodes + setup.spares + i}"), rng.choice((200, rng.randrange(200, 1_200)))
        faults.append(Fault(kind="join", at_ms=at_ms, node=name))
        if rng.random() < 0.5:
            crash_ms = at_ms + rng.randrange(50, 900)
            faults.append(Fault(kind="crash", at_ms=crash_ms, node=name, guarded=True, when=draw_step(rng, NODE_STEPS)))
        if rng.random() < 0.3:
            faults.append(Fault(kind="leave", at_ms=at_ms + rng.randrange(100, 900), node=name, value=1.0))
    for _ in range(rng.randrange(3)):
        node, at_ms = Name(f"n{rng.randrange(setup.nodes)}"), rng.randrange(300, setup.safety_ms)
        faults.append(Fault(kind="leave", at_ms=at_ms, node=node, value=float(rng.random() < 0.5)))
    for _ in range(rng.randrange(3)):
        node, at_ms = Name(f"n{rng.randrange(setup.nodes + late)}"), rng.randrange(200, setup.safety_ms - 100)
        faults.append(Fault(kind="cut", at_ms=at_ms, node=node, other=Name("n0"), for_ms=rng.choice((100, 400, 900))))
    return replace(setup, late=late, faults=tuple(sorted(faults, key=lambda f: f.at_ms)), revive=True)


def real_time(setup: Setup) -> Setup:
    """The same schedule with real-time stages, whose drivers die more often than not, at any moment."""
    rng = Random(f"real time {setup.seed}")
    stages = [stage.id for stage in setup.topology.stages if stage.shards]
    faults = list(setup.faults)
    for _ in range(rng.randrange(1, 6)):
        kind = rng.choice(("crash-stage", "crash-stage", "stall-stage"))
        faults += draw_fault(rng, kind, setup.nodes, setup.topology, setup.safety_ms)
    for _ in range(rng.randrange(3)):  # and again, before the new driver has done much
        at_ms = rng.randrange(200, setup.safety_ms)
        for i in range(rng.randrange(2, 4)):
            at = at_ms + i * rng.choice((180, 230, 300))
            faults.append(Fault(kind="crash-stage", at_ms=at, stage=rng.choice(stages)))
    return replace(setup, partitions=rng.choice((1, 2, 3, 5)), faults=tuple(sorted(faults, key=lambda f: f.at_ms)))
