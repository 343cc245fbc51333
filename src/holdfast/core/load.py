"""Load: measured by every node for its copies, told to the coordinator every few seconds, weighed there for placement.

The coordinator keeps loads by shard and role, not by node: whoever is the next primary of a shard will have as much to
do. So a fail-over needs no new measurement, and the next move is planned with the last one counted in. What nobody
has measured (a new coordinator, a shard that has just started) counts like the mean of its kind. Without any news
every copy counts the same.

A stage also takes memory, its share of its driver process, and so does one that stands by: a gigabyte counts like a
tenth of a core (`MEMORY_NS`), so that one number says how much a node has.

What is not in it: bringing up an image (`Operator.busy_ns` leaves chunks out: a load that rose with every move would
call for the next move), and what a node does beside its operators. For that, and for its memory, each copy counts
`COPY_NS`. A core of one node counts like a core of another, and what other programs do on its machine is not seen.
"""

from __future__ import annotations

from holdfast.core.agenda import images_of
from holdfast.core.assign import Reassign, dynamic
from holdfast.core.epoch import Epoch, Exposed
from holdfast.core.gauge import Gauge
from holdfast.core.host import Host
from holdfast.core.ready import Ready, StageBusy
from holdfast.core.roles import State
from holdfast.core.units import ShardCost, form
from holdfast.model.config import MS, Config
from holdfast.model.ids import Address, Asset, Name, Seat, is_ledger
from holdfast.model.messages import Loads
from holdfast.model.record import Place

#: What a copy counts for beside its measured load, an estimate: memory, messages, and the risk of having to run it.
COPY_NS = 50 * MS
#: What a gigabyte of a stage counts for, in nanoseconds of a core per second: an estimate, too.
MEMORY_NS, GIGABYTE = 100 * MS, 10**9


class LoadView:
    """Loads as the coordinator knows them: of what runs (shards, stages) and of images."""

    __slots__ = (
        "captures", "drivers", "epoch", "images", "may_move", "memory", "reassign", "running", "standbys", "units",
        "up",
    )  # fmt: skip

    def __init__(self) -> None:
        self.running: dict[Asset, int] = {}
        self.images: dict[Asset, int] = {}
        #: Bytes that stages take where they run, and where they stand by.
        self.memory: dict[Asset, int] = {}
        self.standbys: dict[Asset, int] = {}
        #: What captures of shards take, and the units that come of that; None: as they are.
        self.captures: dict[Asset, int] = {}
        self.units: dict[Asset, Asset] | None = None
        #: Is a driver process up there? By what seats have told: it is if their stages take memory.
        self.up: dict[Seat, bool] = {}
        #: The same, by all that is known (`core/standbys.py`), of seats where there should be one with a JVM.
        self.drivers: dict[Seat, bool] = {}
        #: May a backup be moved now, only for balance?
        self.may_move = False
        #: What the last epoch has come to: units that shall have another backup; and which epoch that was.
        self.reassign: dict[Asset, Reassign] = {}
        self.epoch = 0


class Scale:
    """What each copy of these places adds to its node."""

    __slots__ = ("_bytes", "_images", "_means", "_memory", "_running", "_standbys")

    def __init__(self, loads: LoadView, places: dict[Asset, Place]) -> None:
        self._running, self._images = loads.running, loads.images
        self._memory, self._standbys = loads.memory, loads.standbys
        #: Of stages that run, of those that stand by.
        self._bytes = (_mean(list(loads.memory.values())), _mean(list(loads.standbys.values())))
        stages = {asset for asset, place in places.items() if place.is_stage}
        #: Of shards that run, of stages, of images.
        self._means = (
            _mean([load for asset, load in loads.running.items() if asset not in stages]),
            _mean([load for asset, load in loads.running.items() if asset in stages]),
            _mean(list(loads.images.values())),
        )

    def weigh(self, asset: Asset, place: Place, *, runs: bool) -> int:
        """A ledger is one small page, and the standby of a stage waits, and takes memory."""
        if is_ledger(asset):
            return COPY_NS
        shard_mean, stage_mean, image_mean = self._means
        if place.is_stage:
            known, mean = (self._memory, self._bytes[0]) if runs else (self._standbys, self._bytes[1])
            memory_ns = known.get(asset, mean) * MEMORY_NS // GIGABYTE
            return COPY_NS + memory_ns + (self._running.get(asset, stage_mean) if runs else 0)
        if runs:
            return COPY_NS + self._running.get(asset, shard_mean)
        return COPY_NS + self._images.get(asset, image_mean)


def _mean(loads: list[int]) -> int:
    return sum(loads) // len(loads) if loads else 0


class LoadWatch:
    """A node's part of it: measures and tells; as coordinator also listens, and says when balance may be thought of."""

    __slots__ = (
        "_balance_at_ns", "_epochs", "_look_at_ns", "_memory", "_name", "_stages", "config", "epoch", "exposed", "host",
        "view",
    )  # fmt: skip

    def __init__(self, name: Name, host: Host, config: Config) -> None:
        self.host = host
        self.config = config
        self.view = LoadView()
        self._name = name
        self._stages: dict[Asset, Gauge] = {}
        self._memory: dict[Asset, int] = {}
        self._look_at_ns = 0
        self._balance_at_ns = 0
        #: Where backups are assigned by expected recovery times: this node's, and (of a coordinator) everybody's.
        self.exposed = Exposed(host) if config.assignor == "dynamic" else None
        self.epoch = Epoch()
        #: How many have ended here; no two of them have the same number, also if this node leads again.
        self._epochs = 0

    # --- measuring

    def on_tick(self, coordinator: Name | None, now_ns: int, ready: Ready) -> None:
        """Called before anything else of a tick is done, so that work and time are of the same moment."""
        if coordinator != self._name:  # what it knew would be old news by the time it leads again
            self.view = LoadView()
            self.epoch.clear()
            self._balance_at_ns = now_ns + self.config.balance_ns
        if self.exposed is not None:
            self.exposed.look(now_ns)
        if now_ns < self._look_at_ns:
            return
        self._look_at_ns = now_ns + self.config.load_period_ns
        for shard, copy in self.host.copies.items():
            if self.host.states[shard] is not State.JOINING:
                copy.gauge.look(copy.op.busy_ns, now_ns, self.config.load_window_ns)
        running, images = self.measured()
        memory = self.memory()
        if coordinator is None or not (running or images or memory or self.exposed):
            return
        recovery, query_ns = self.exposed.take() if self.exposed else ({}, 0)
        cycles = self.exposed.cycles if self.exposed else 0
        message = Loads(
            running=running,
            images=images,
            memory=memory,
            captures=self._captures(),
            recovery=recovery,
            query_ns=query_ns,
            cycles=cycles,
        )
        if coordinator == self._name:
            self.on_loads(self.host.seat, message, now_ns, ready)
        else:
            ready.send.append((coordinator, message))

    def on_stage_busy(self, event: StageBusy, now_ns: int) -> None:
        gauge = self._stages.setdefault(event.stage, Gauge())
        gauge.look(event.busy_ns, now_ns, self.config.load_window_ns)
        self._memory[event.stage] = event.memory_bytes

    def memory(self) -> dict[Asset, int]:
        """Bytes that each stage takes that runs or stands by here, as far as they are known."""
        places, seat = self.host.record.places, self.host.seat
        held = {a for a in self._memory if a in places and seat in (places[a].primary, places[a].backup)}
        return {stage: taken for stage, taken in self._memory.items() if stage in held}

    def _captures(self) -> dict[Asset, int]:
        found = {shard: images_of(runner) for shard, runner in self.host.runners.items()}
        return {s: guard.tally.capture.best_ns for s, guard in found.items() if guard and guard.tally.capture.best_ns}

    def measured(self) -> tuple[dict[Asset, int], dict[Asset, int]]:
        """Loads of what runs here, and of images that are kept here, as far as they are known."""
        running: dict[Asset, int] = {}
        images: dict[Asset, int] = {}
        for shard, copy in self.host.copies.items():
            if copy.gauge.load is not None:
                (running if shard in self.host.runners else images)[shard] = copy.gauge.load
        places = self.host.record.places
        for stage, gauge in self._stages.items():
            if gauge.load is not None and stage in places and places[stage].primary == self.host.seat:
                running[stage] = gauge.load
        return running, images

    # --- as coordinator

    def on_loads(self, source: Address, message: Loads, now_ns: int, ready: Ready) -> None:
        """Only the seat that the record names speaks for a copy."""
        places = self.host.record.places
        if self.exposed is not None:
            self.epoch.on_loads(Seat(source), message, self.host.record)
        self.view.up[Seat(source)] = bool(message.memory)
        for asset, load in message.running.items():
            if asset in places and places[asset].primary == source:
                self.view.running[asset] = load
        for asset, took_ns in message.captures.items():
            if asset in places and places[asset].primary == source:
                self.view.captures[asset] = took_ns
        for asset, load in message.images.items():
            if asset in places and places[asset].backup == source:
                self.view.images[asset] = load
        for asset, taken in message.memory.items():
            if asset in places and places[asset].primary == source:
                self.view.memory[asset] = taken
            elif asset in places and places[asset].backup == source:
                self.view.standbys[asset] = taken

    def is_due(self, now_ns: int) -> bool:
        return now_ns >= self._balance_at_ns

    def take(self, now_ns: int) -> LoadView:
        """Loads for one plan. Balance is thought of once per `balance_ns`, and not before there was time for news."""
        self.view.may_move = self.is_due(now_ns)
        self.view.units = self._units() if self.view.may_move else None
        if self.view.may_move:
            self._balance_at_ns = now_ns + self.config.balance_ns
            self._end_epoch()
        return self.view

    def _end_epoch(self) -> None:
        """If it is over: what figure 6 makes of it. What is left of the last one is forgotten."""
        record = self.host.record
        if self.exposed is None or not self.epoch.is_over(record):
            return
        shares, names = self.epoch.shares(record, self.view.images), sorted(record.members)
        staying = [name for name in names if name not in record.draining]
        found = dynamic(shares, staying, self.config.domains, self.epoch.queries())
        self.view.reassign = {move.unit: move for move in found}
        self._epochs = self.view.epoch = self._epochs + 1
        self.epoch.clear()

    def _units(self) -> dict[Asset, Asset]:
        """Which shards are captured together from now on. Under `period` each is, when its own period is over."""
        if self.config.scheduler == "period":
            return {}
        view, record = self.view, self.host.record
        known = [shard for shard in view.captures if shard in view.running]
        costs = {shard: ShardCost(view.running[shard], view.captures[shard]) for shard in known}
        return form(record.places, self.host.topology, costs, record.units, self.config.unit_capture_ns)
