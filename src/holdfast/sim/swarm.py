"""Random fault schedules: each seed draws a cluster, a pipeline, settings, and its own mix of kinds of faults.

As in swarm testing, a schedule does not use every kind: a random few, often. That finds what an even mix hides.
"""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from holdfast.model.config import MS, Config
from holdfast.model.ids import Consumer, Name, operator_of
from holdfast.model.protection import MODES, Protection
from holdfast.model.topology import ReaderSpec, Topology, layered
from holdfast.sim.faults import Fault
from holdfast.sim.simulation import Setup
from holdfast.sim.sink import Look
from holdfast.sim.spells import poisson, regular

#: Kinds a schedule may draw; what a crash leaves behind is brought back by a restart drawn with it.
SWARM = (
    "crash", "stall", "slow", "drift", "cut", "cut-one-way", "loss", "doubling", "damage", "reorder",
    "disk-full", "crash-stage", "stall-stage", "crash-reader", "stall-reader", "drain", "idle",
)  # fmt: skip


def swarm_setup(seed: int, nodes: int = 0, shards: int = 0, kinds: tuple[str, ...] = SWARM) -> Setup:
    """The schedule of this seed. `nodes` and `shards` fix what is otherwise drawn (3 to 10 nodes, 1 to 5 shards, or 9
    on 3)."""
    rng = Random(f"swarm {seed}")
    is_crowded = not nodes and not shards and Random(f"crowds {seed}").random() < 0.08
    nodes = nodes or rng.choice((3, 3, 4, 4, 5, 6, 8, 10))
    shards = shards or rng.randrange(1, 5)
    if is_crowded:  # so that several shards run and are backed up together
        nodes, shards = 3, 9
    topology = _topology(rng, shards)
    drawn = rng.sample(kinds, rng.randrange(1, min(5, len(kinds)) + 1))
    if rng.random() < 0.6:
        drawn.extend(kind for kind in ("crash", "crash", "stall", "cut", "crash-stage") if kind in kinds)
    safety_ms = rng.randrange(1_500, 3_000)
    looks = _looks(rng, topology, safety_ms)
    faults: list[Fault] = []
    for _ in range(rng.randrange(2, 9)):
        faults.extend(draw_fault(rng, rng.choice(drawn), nodes, topology, safety_ms))
    tight = rng.random() < 0.3
    config = Config(
        protection=Protection(
            method=rng.choice(("delta", "delta", "delta", "whole")), period_ns=rng.choice((100, 200, 400)) * MS
        ),
        chunk_bytes=rng.choice((128, 512, 8 << 20)),
        joins_max=rng.choice((1, 2)),
        retained_soft_max=40 if tight else 2_000,
        retained_hard_max=400 if tight else 20_000,
        queue_memory_max=30 if tight else 20_000,
        queue_spill_max=rng.choice((0, 60)) if tight else 100_000,
        spill_retry_ns=200 * MS,
        spill_limit_ns=300 * MS,
        store_limit_ns=300 * MS,
        credit_max=rng.choice((20, 4_000)),
        lease_ns=400 * MS,
        election_ns=rng.choice((250, 1_000, 1_000)) * MS,
        standby=seed % 2 == 1,
    )
    setup = Setup(
        seed=seed,
        nodes=nodes,
        spares=rng.choice((0, 0, 0, 1)),
        topology=topology,
        looks=looks,
        faults=tuple(sorted(faults, key=lambda f: f.at_ms)),
        config=config,
        safety_ms=safety_ms,
        rows_per_second=rng.choice((50, 200, 400)),
        keys=rng.choice((1, 4, 12)),
        window_ms=rng.choice((50, 200, 200, 1_000)),
        disorder_ms=rng.choice((20, 100, 300)),
        trigger_ms=rng.choice((100, 200)),
        resets=seed % 3 == 1,
        revive=rng.random() < 0.7,
    )
    setup = heavy(setup) if Random(f"heavy {seed}").random() < 0.2 else setup
    setup = skewed(setup) if Random(f"skewed {seed}").random() < 0.2 else setup
    setup = switching(setup) if Random(f"modes {seed}").random() < 0.2 else setup
    setup = fragile(setup) if Random(f"fragile {seed}").random() < 0.25 else setup
    setup = rough(setup) if Random(f"disks {seed}").random() < 0.2 else setup
    setup = chopped(setup) if Random(f"blocks {seed}").random() < 0.25 else setup
    setup = poisoned(setup) if Random(f"poison {seed}").random() < 0.25 else setup
    setup = severed(setup) if Random(f"severed {seed}").random() < 0.2 else setup
    setup = choking(setup) if Random(f"chokes {seed}").random() < 0.25 else setup
    setup = patient(setup) if Random(f"waits {seed}").random() < 0.2 else setup
    setup = scheduled(setup) if is_crowded or Random(f"schedulers {seed}").random() < 0.4 else setup
    setup = stored(setup) if Random(f"stores {seed}").random() < 0.25 else setup
    setup = standing_in(setup) if Random(f"stand-ins {seed}").random() < 0.25 else setup
    setup = doubled(setup) if Random(f"twins {seed}").random() < 0.25 else setup
    return replaying(setup) if Random(f"replays {seed}").random() < 0.2 else setup


#: All modes but `replay`, which schedules draw for themselves (`replaying`).
WITH_STATE = ("active", "hybrid", "none", "passive")


def replaying(setup: Setup) -> Setup:
    """The same schedule with operators in mode `replay`, nodes that die or freeze, sinks that are late, and switches to
    and from every other mode."""
    rng = Random(f"input kept {setup.seed}")
    operators = sorted({operator_of(shard.id) for shard in setup.topology.shards})
    some = rng.sample(operators, rng.randrange(1, len(operators) + 1)) if rng.random() < 0.3 else operators
    faults = list(setup.faults)
    for _ in range(rng.randrange(1, 4) if setup.config.cut_ns == Config().cut_ns else 0):
        node, at_ms = Name(f"n{rng.randrange(min(setup.nodes, 4))}"), rng.randrange(200, setup.safety_ms)
        if rng.random() < 0.5:
            faults.append(Fault(kind="crash", at_ms=at_ms, node=node, guarded=True))
            faults.append(Fault(kind="restart", at_ms=at_ms + rng.choice((10, 200, 600)), node=node))
        else:
            faults.append(Fault(kind="stall", node=node, at_ms=at_ms, for_ms=rng.choice((120, 400, 900)), value=1.0))
    if rng.random() < 0.3:
        reader, at_ms = rng.choice(setup.topology.readers).id, rng.randrange(200, setup.safety_ms)
        faults.append(Fault(kind="stall-reader", reader=reader, at_ms=at_ms, for_ms=rng.choice((300, 700))))
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        mode, at_ms = rng.choice(("replay", "replay", *sorted(MODES))), rng.randrange(100, setup.safety_ms)
        faults.append(Fault(kind="protect", at_ms=at_ms, operator=rng.choice(operators), mode=mode))
    modes = setup.modes | dict.fromkeys(some, "replay")
    return replace(setup, modes=modes, faults=tuple(sorted(faults, key=lambda f: f.at_ms)))


def doubled(setup: Setup) -> Setup:
    """The same schedule with operators in mode `active`, nodes that freeze or are slow, and switches of modes. (Where a
    link is soon taken for cut nobody freezes more than before: a node that has just woken up looks like one behind a
    cut.)"""
    rng = Random(f"two copies {setup.seed}")
    operators = sorted({operator_of(shard.id) for shard in setup.topology.shards})
    some = rng.sample(operators, rng.randrange(1, len(operators) + 1)) if rng.random() < 0.4 else operators
    faults = list(setup.faults)
    for _ in range(rng.randrange(1, 5) if setup.config.cut_ns == Config().cut_ns else 0):
        node, at_ms = Name(f"n{rng.randrange(min(setup.nodes, 4))}"), rng.randrange(200, setup.safety_ms)
        if rng.random() < 0.3:
            faults.append(Fault(kind="slow", node=node, at_ms=at_ms, for_ms=rng.choice((300, 900)), value=20.0))
        else:
            for_ms, clock_stops = rng.choice((120, 250, 400, 900)), float(rng.random() < 0.5)
            faults.append(Fault(kind="stall", node=node, at_ms=at_ms, for_ms=for_ms, value=clock_stops))
    for _ in range(rng.choice((0, 0, 1, 3, 5))):
        mode, at_ms = rng.choice(("active", "active", *WITH_STATE)), rng.randrange(100, setup.safety_ms)
        faults.append(Fault(kind="protect", at_ms=at_ms, operator=rng.choice(operators), mode=mode))
    active = dict.fromkeys(some, "active")
    modes = setup.modes | active if rng.random() < 0.7 else active | setup.modes
    return replace(setup, modes=modes, faults=tuple(sorted(faults, key=lambda f: f.at_ms)))


def standing_in(setup: Setup) -> Setup:
    """The same schedule with operators in mode `hybrid`, and nodes that freeze, each for a moment or for good."""
    rng = Random(f"late {setup.seed}")
    operators = sorted({operator_of(shard.id) for shard in setup.topology.shards})
    some = rng.sample(operators, rng.randrange(1, len(operators) + 1)) if rng.random() < 0.4 else operators
    faults = list(setup.faults)
    for _ in range(rng.randrange(2, 7)):
        node, at_ms = Name(f"n{rng.randrange(min(setup.nodes, 4))}"), rng.randrange(200, setup.safety_ms)
        for_ms, clock_stops = rng.choice((120, 180, 250, 290, 400, 900)), float(rng.random() < 0.5)
        faults.append(Fault(kind="stall", node=node, at_ms=at_ms, for_ms=for_ms, value=clock_stops))
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        mode, at_ms = rng.choice(("hybrid", "hybrid", "passive", "none")), rng.randrange(100, setup.safety_ms)
        faults.append(Fault(kind="protect", at_ms=at_ms, operator=rng.choice(operators), mode=mode))
    modes = dict.fromkeys(some, "hybrid") | setup.modes
    config = replace(setup.config, misses_max=rng.choice((3, 3, 6)))
    return replace(setup, modes=modes, config=config, faults=tuple(sorted(faults, key=lambda f: f.at_ms)))


#: A kind of transient failure, and what `Fault.value` is for it: what a hog leaves of a CPU, a share of the time.
TRANSIENT = {"stall": (1.0,), "slow": (5.0, 20.0, 50.0), "swap": (0.3, 0.6, 0.9), "disk-stutter": (0.0,)}


def transient(seed: int) -> Setup:
    """Operators in every mode, on nodes that are unavailable again and again for a moment and never for good: CPU taken
    by others, freezes, swapping, a slow disk, at regular or Poisson times (hybrid-ha §V-A)."""
    rng = Random(f"transient {seed}")
    setup = replace(swarm_setup(seed, nodes=rng.choice((3, 4, 5)), kinds=("idle",)), faults=(), spares=0)
    operators = sorted({operator_of(shard.id) for shard in setup.topology.shards})
    faults: list[Fault] = []
    for number in rng.sample(range(setup.nodes), rng.choice((1, 2))):
        kind = rng.choice(("stall", "stall", *TRANSIENT))
        for_s = rng.choice((0.15, 0.3, 0.6))
        until_s, every_s = setup.safety_ms / 1e3, for_s / rng.choice((0.1, 0.2, 0.4))
        spells = regular(every_s, for_s, until_s) if rng.random() < 0.5 else poisson(every_s, for_s, until_s, rng)
        for spell in spells:
            at_ms, for_ms = int(spell.at_s * 1e3), max(1, int(spell.for_s * 1e3))
            value = rng.choice(TRANSIENT[kind])
            faults.append(Fault(kind=kind, node=Name(f"n{number}"), at_ms=at_ms, for_ms=for_ms, value=value))
    for _ in range(rng.choice((0, 0, 1, 3))):
        mode, at_ms = rng.choice(WITH_STATE), rng.randrange(100, setup.safety_ms)
        faults.append(Fault(kind="protect", at_ms=at_ms, operator=rng.choice(operators), mode=mode))
    return replace(
        setup,
        modes={operator: rng.choice(("hybrid", "hybrid", *WITH_STATE)) for operator in operators},
        config=replace(setup.config, misses_max=rng.choice((3, 6, 20))),
        faults=tuple(sorted(faults, key=lambda f: f.at_ms)),
    )


def chopped(setup: Setup) -> Setup:
    """The same schedule with small blocks: what one step makes is many of them, and output comes to images in parts."""
    most = Random(f"chopped {setup.seed}").choice((1, 2, 5))
    return replace(setup, topology=replace(setup.topology, block_rows_max=most))


def severed(setup: Setup) -> Setup:
    """The same schedule with links that stay cut for long, and a cluster that soon goes around them."""
    rng = Random(f"severing {setup.seed}")
    faults = list(setup.faults)
    for _ in range(rng.choice((1, 1, 2))):
        one, other = rng.sample(range(setup.nodes), 2)
        kind, at_ms = rng.choice(("cut", "cut-one-way")), rng.randrange(100, setup.safety_ms // 2)
        node, far = Name(f"n{one}"), Name(f"n{other}")
        faults.append(Fault(kind=kind, at_ms=at_ms, for_ms=setup.safety_ms, node=node, other=far))
    config = replace(setup.config, cut_ns=rng.choice((100, 300)) * MS, mend_ns=rng.choice((300, 1_000)) * MS)
    return replace(setup, config=config, faults=tuple(sorted(faults, key=lambda f: f.at_ms)))


def lasting_cut(seed: int) -> Setup:
    """One link between two that are not coordinator is cut, and stays cut: output must go on all the same."""
    rng = Random(f"lasting cut {seed}")
    nodes = rng.choice((3, 3, 4, 5))
    one, other = rng.sample(range(1, nodes), 2)  # n0 is elected, since nothing happens before
    kind = rng.choice(("cut", "cut-one-way"))
    cut = Fault(kind=kind, node=Name(f"n{one}"), other=Name(f"n{other}"), at_ms=800, for_ms=60_000)
    shards = rng.choice((2, 3, 4))
    return Setup(
        seed=seed,
        nodes=nodes,
        topology=layered(stages=rng.choice((1, 2)), shards=shards, tops=rng.choice((0, 0, 1, 2)), placed=True),
        config=Config(
            standby=rng.random() < 0.5,
            joins_max=rng.choice((1, 2)),
            cut_ns=500 * MS,
            retained_soft_max=10,
            retained_hard_max=30,
        ),
        faults=(cut,),
        safety_ms=5_000,
        rows_per_second=60,
        keys=16,
        pause_max_ms=2_500,
    )


def poisoned(setup: Setup) -> Setup:
    """The same schedule with sums that do not fit, so that some results are set aside."""
    return replace(setup, sum_max=Random(f"sums {setup.seed}").choice((3, 8, 20, 60)))


def choking(setup: Setup) -> Setup:
    """The same schedule with batches that some operators cannot take, on one node or on all, until they are skipped."""
    rng = Random(f"choking {setup.seed}")
    stages = [stage.id for stage in setup.topology.stages if stage.shards]
    faults = list(setup.faults)
    for _ in range(rng.randrange(1, 5)):
        node = Name(f"n{rng.randrange(min(setup.nodes, 4))}") if rng.random() < 0.7 else Name("")
        at_ms, tears = rng.randrange(100, setup.safety_ms - 200), float(rng.random() < 0.3)
        faults.append(Fault(kind="poison", stage=rng.choice(stages), node=node, at_ms=at_ms, value=tears))
    return replace(setup, faults=tuple(sorted(faults, key=lambda f: f.at_ms)))


def patient(setup: Setup) -> Setup:
    """The same schedule with captures that wait while a take-over would have little to do again."""
    rng = Random(f"patient {setup.seed}")
    protection = replace(setup.config.protection, period_ns=rng.choice((50, 100)) * MS)
    return replace(
        setup, config=replace(setup.config, protection=protection, replay_ns=rng.choice((20_000, MS, 50 * MS)))
    )


def scheduled(setup: Setup) -> Setup:
    """The same schedule with captures and pastes in another order than that of their periods."""
    rng = Random(f"scheduled {setup.seed}")
    config = replace(setup.config, scheduler=rng.choice(("min_max", "min_max", "round_robin", "whole")))
    if rng.random() < 0.5:  # soon enough for units to be formed, and formed anew
        times = {"load_period_ns": 100 * MS, "load_window_ns": 500 * MS, "balance_ns": 300 * MS}
        config = replace(config, **times, unit_capture_ns=rng.choice((20_000, 100_000, 5 * MS)))
    return replace(setup, config=config)


def assigned(setup: Setup) -> Setup:
    """The same schedule with backups that an assignor moves, racks, and primaries that leave busy nodes."""
    rng = Random(f"assigned {setup.seed}")
    setup = skewed(setup)
    racks = rng.choice((0, 0, 2, 3))
    names = [Name(f"n{i}") for i in range(setup.nodes + setup.spares)]
    config = replace(
        setup.config,
        assignor=rng.choice(("dynamic", "dynamic", "dynamic", "random_static", "load")),
        scheduler=rng.choice(("period", "min_max", "min_max", "round_robin", "whole")),
        domains={name: f"zone/rack-{rng.randrange(racks)}" for name in names} if racks else {},
        move_primaries=rng.random() < 0.5,
        protection=replace(setup.config.protection, recover_ns=rng.choice((0, 0, 20, 50)) * MS),
    )
    costs = replace(setup.costs, row_ns=rng.choice((300_000, MS)))
    return replace(setup, config=config, costs=costs, keys=rng.choice((4, 8, 20)), rows_per_second=200)


def stored(setup: Setup) -> Setup:
    """The same schedule with checkpoints in a stable store, which answers badly, and everything killed at once."""
    rng = Random(f"stored {setup.seed}")
    faults = list(setup.faults)
    for _ in range(rng.randrange(3)):
        at_ms, for_ms = rng.randrange(300, setup.safety_ms), rng.choice((50, 300, 700))
        faults.append(Fault(kind=rng.choice(("store-full", "store-silent")), at_ms=at_ms, for_ms=for_ms))
    for _ in range(rng.choice((0, 1, 1, 2))):
        at_ms = rng.randrange(200, setup.safety_ms - 100)
        faults.append(Fault(kind="crash-all", at_ms=at_ms, when=draw_step(rng, ALL_STEPS)))
        for i in range(setup.nodes):
            if rng.random() < 0.9:
                restart_ms = at_ms + rng.randrange(10, 500)
                faults.append(Fault(kind="restart", at_ms=restart_ms, node=Name(f"n{i}")))
    wants = Random(f"wanted {setup.seed}")
    for _ in range(wants.randrange(4)):
        faults.append(Fault(kind="checkpoint", at_ms=wants.randrange(100, setup.safety_ms)))
    protection = replace(setup.config.protection, checkpoint="paged", checkpoint_ns=rng.choice((20, 100, 400)) * MS)
    return replace(
        setup,
        topology=replace(setup.topology, has_store=True),
        config=replace(setup.config, protection=protection),
        unstored=_some(rng, setup) if rng.random() < 0.25 else (),
        peaceful=rng.random() < 0.3,
        faults=tuple(sorted(faults, key=lambda f: f.at_ms)),
        revive=True,
    )


def paired(seed: int) -> Setup:
    """Two nodes and a store that votes: each may be lost, cut off or late, and the store too."""
    return replace(stored(swarm_setup(seed, nodes=2)), spares=0)


def fragile(setup: Setup) -> Setup:
    """The same schedule with operators that nobody backs up, so that a crash leaves a gap."""
    rng = Random(f"unprotected {setup.seed}")
    return replace(setup, modes=dict.fromkeys(_some(rng, setup), "none"))


def _some(rng: Random, setup: Setup) -> tuple[str, ...]:
    operators = sorted({operator_of(shard.id) for shard in setup.topology.shards})
    return tuple(rng.sample(operators, rng.randrange(1, len(operators) + 1)))


def rough(setup: Setup) -> Setup:
    """The same schedule with little memory for output, a sink that stands still, and disks that answer badly."""
    rng = Random(f"rough {setup.seed}")
    reader = rng.choice(setup.topology.readers).id
    at_ms, for_ms = rng.randrange(200, 700), rng.choice((300, 700, 1_100))
    faults = [Fault(kind="stall-reader", reader=reader, at_ms=at_ms, for_ms=for_ms)]
    for _ in range(rng.randrange(1, 4)):
        kind = rng.choice(("disk-full", "disk-silent", "disk-stutter", "disk-stutter"))
        node, at_ms = Name(f"n{rng.randrange(setup.nodes)}"), rng.randrange(200, setup.safety_ms)
        faults.append(Fault(kind=kind, node=node, at_ms=at_ms, for_ms=rng.choice((50, 300, 700))))
    config = replace(setup.config, queue_memory_max=rng.choice((4, 12)), queue_spill_max=rng.choice((20, 60)))
    faults = sorted((*setup.faults, *faults), key=lambda f: f.at_ms)
    return replace(setup, config=config, faults=tuple(faults), window_ms=50)


def switching(setup: Setup) -> Setup:
    """The same schedule while some operators change their mode, down and up again."""
    rng = Random(f"switches {setup.seed}")
    switches = []
    for shard in setup.topology.shards:
        times = sorted(rng.sample(range(100, setup.safety_ms), rng.randrange(4)))
        for i, at_ms in enumerate(times):
            mode = ("none", "passive")[i % 2]
            switches.append(Fault(kind="protect", at_ms=at_ms, operator=operator_of(shard.id), mode=mode))
    return replace(setup, faults=tuple(sorted((*setup.faults, *switches), key=lambda f: f.at_ms)))


def heavy(setup: Setup) -> Setup:
    """The same schedule with much state: images come in many chunks, and what is held takes several idle moments."""
    return replace(
        setup,
        config=replace(setup.config, chunk_bytes=128),
        costs=replace(setup.costs, paste_window_ns=MS),
        rows_per_second=400,
        keys=60,
        window_ms=1_000,
    )


def skewed(setup: Setup) -> Setup:
    """The same schedule with some shards that have much to do, in a cluster that measures it and soon moves backups."""
    rng = Random(f"skews {setup.seed}")
    period_ns = rng.choice((50, 100)) * MS
    return replace(
        setup,
        config=replace(
            setup.config,
            load_period_ns=period_ns,
            load_window_ns=rng.choice((1, 5, 20)) * period_ns,
            balance_ns=rng.choice((3, 5)) * period_ns,
            imbalance_ns=rng.choice((10, 50, 150)) * MS,
        ),
        costs=replace(
            setup.costs,
            row_ns=rng.choice((100_000, 300_000)),
            capture_window_ns=100_000,
            paste_window_ns=rng.choice((100_000, MS)),
        ),
        keys=rng.choice((1, 2, 5)),
        window_ms=200,
    )


def _topology(rng: Random, shards: int) -> Topology:
    shape = layered(
        stages=rng.choice((1, 1, 2)),
        shards=shards,
        tops=rng.choice((0, 0, 1, 2)) if shards > 1 else 0,
        delay_ns=rng.choice((0, 50, 200)) * MS,
        idle_ns=rng.choice((200, 600)) * MS,
        placed=rng.random() < 0.5,
    )
    if rng.random() < 0.15:
        guest = ReaderSpec(id=Consumer("g0"), edges=(shape.shards[0].outputs[0],), leased=True)
        return Topology(shards=shape.shards, stages=shape.stages, readers=(*shape.readers, guest))
    return shape


def _looks(rng: Random, topology: Topology, safety_ms: int) -> tuple[Look, ...]:
    if rng.random() < 0.7:
        return ()
    edges = [edge for shard in topology.shards for edge in shard.outputs]
    chosen = tuple(sorted(rng.sample(edges, rng.randrange(1, len(edges) + 1))))
    at_ms, pause_ms = rng.randrange(300, safety_ms), rng.choice((20, 150, 250))
    return (Look(id=Consumer("b0"), edges=chosen, at_ms=at_ms, pause_ms=pause_ms),)


#: Between which steps a driver, or a node, dies: at the first note of this kind after the drawn time.
STAGE_STEPS = ("stage-open", "delivered", "all-delivered", "ledgered", "committed", "batch-done")
NODE_STEPS = (
    "captured",
    "pasted",
    "sealed",
    "joining",
    "promoted",
    "acked",
    "demoted",
    "proposed",
    "elected",
    "delivered",
)


#: Between which steps everything dies.
ALL_STEPS = ("logged", "all-delivered", "committed", "sealed", "stored", "restoring", "restored", "trimmed")


def draw_step(rng: Random, steps: tuple[str, ...], thing: str = "") -> str:
    step = rng.choice(steps)
    return f"{step} {thing}" if rng.random() < 0.5 else ""


def draw_fault(rng: Random, kind: str, nodes: int, topology: Topology, safety_ms: int) -> list[Fault]:
    at_ms = rng.randrange(100, safety_ms - 100)
    for_ms = rng.choice((30, 150, 400, 700))
    node = Name(f"n{rng.randrange(nodes)}")
    other = Name(f"n{rng.randrange(nodes)}")
    stage = rng.choice([stage.id for stage in topology.stages if stage.shards])
    reader = rng.choice(topology.readers).id
    match kind:
        case "crash":
            crash = Fault(kind=kind, at_ms=at_ms, node=node, guarded=True, when=draw_step(rng, NODE_STEPS))
            if rng.random() < 0.5:
                return [crash]
            return [crash, Fault(kind="restart", at_ms=at_ms + rng.choice((10, 200, 600)), node=node)]
        case "stall" | "disk-full" | "drain":
            return [Fault(kind=kind, at_ms=at_ms, node=node, for_ms=for_ms, value=float(rng.random() < 0.3))]
        case "slow":
            return [Fault(kind=kind, at_ms=at_ms, node=node, for_ms=for_ms, value=float(rng.choice((5, 50))))]
        case "drift":
            return [Fault(kind=kind, at_ms=at_ms, node=node, value=float(rng.choice((-20_000, 500, 20_000))))]
        case "cut" | "cut-one-way":
            if other == node:
                other = Name(f"n{(int(node[1:]) + 1) % nodes}")
            target = reader if rng.random() < 0.1 else other
            return [Fault(kind=kind, at_ms=at_ms, node=node, other=target, for_ms=for_ms)]
        case "loss" | "doubling" | "damage":
            return [Fault(kind=kind, at_ms=at_ms, for_ms=for_ms, value=rng.choice((0.02, 0.1, 0.3)))]
        case "reorder":
            return [Fault(kind=kind, at_ms=at_ms, for_ms=for_ms, value=float(rng.choice((5, 50))))]
        case "crash-stage" | "stall-stage":
            when = draw_step(rng, STAGE_STEPS, stage)
            for_ms = rng.choice((100, 700, 1_100))
            return [Fault(kind=kind, at_ms=at_ms, stage=stage, for_ms=for_ms, when=when)]
        case "idle":
            return [Fault(kind=kind, at_ms=at_ms, stage=stage, for_ms=for_ms)]
        case _:
            return [Fault(kind=kind, at_ms=at_ms, reader=reader, for_ms=for_ms)]
