"""One node: membership, placement, shards and ledgers behind a single `step(event, now_ns) -> Ready`.

The node routes and nothing more: each message goes to the part that owns it. Only the coordinator's loop is here,
since it joins two parts: what was reported (`placement.plan`) and who may change the record (`Election`).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from holdfast.core.detector import Detector
from holdfast.core.election import Election, Standing
from holdfast.core.fence import Behind
from holdfast.core.fetch import Fetches
from holdfast.core.gate import Gate
from holdfast.core.hand_over import HandOver
from holdfast.core.host import Host
from holdfast.core.ledger import Ledger
from holdfast.core.links import LinkWatch
from holdfast.core.load import LoadWatch
from holdfast.core.membership import Membership
from holdfast.core.objective import Objective
from holdfast.core.operator import OperatorFactory
from holdfast.core.placement import Reports, plan
from holdfast.core.ready import (
    Again,
    Benchmarked,
    ChildDied,
    Done,
    Idle,
    Left,
    Ready,
    Received,
    StageBusy,
    StandbyReady,
    StartStage,
    StopStage,
    Tick,
    Unreachable,
    WarmStage,
)
from holdfast.core.standbys import Standbys
from holdfast.core.suspicions import Suspicions
from holdfast.core.tasks import scheduler_of
from holdfast.core.witness import Witness, has_witness
from holdfast.errors import WrongMessageError
from holdfast.model import messages as m
from holdfast.model import notes
from holdfast.model.config import Config
from holdfast.model.found import Found, life_entry, record_entry
from holdfast.model.ids import Address, Asset, Name, ledger_of, life_of, name_of, seat_of
from holdfast.model.record import NO_RECORD, Record
from holdfast.model.successor import record_objection
from holdfast.model.topology import Topology

#: A part's method for one kind of message: (source, message, now_ns, ready). Its name says which: `Message.handler`.
Handler = Callable[..., object]

#: With every tick, idle or not, so many budgets of an idle moment: who is never idle is protected all the same.
TICK_BUDGETS = 4

#: In place of an epoch: the driver only stands by.
WARM = 0


class Node:
    def __init__(
        self,
        name: Name,
        peers: tuple[Name, ...],
        topology: Topology,
        config: Config,
        factory: OperatorFactory,
        rng: Random,
        found: Found,
        first: Record,
        now_ns: int,
        *,
        joined: bool = False,
    ) -> None:
        """`first`: the record that a pipeline begins with; one that has joined later never makes it."""
        self.name = name
        self.topology = topology
        self.config = config
        self.rng = rng
        self.life = found.life + 1
        self.seat = seat_of(name, self.life)
        self.record: Record = NO_RECORD
        self.reports = Reports()
        #: The record for which there is nothing more to plan, until something is reported.
        self.planned: Record | None = None
        self.detector = Detector(name, config)
        #: By its own benchmark.
        self.slow = False
        self.host = Host(self.seat, topology, config, factory)
        self.host.pace.is_late = lambda name: name in self.detector.alarms
        self.hand_over = HandOver(self.host)
        self.fetches = Fetches(self.host)
        self.loads = LoadWatch(name, self.host, config)
        self.objective = Objective(self.host)
        self.standbys = Standbys(self.seat, config, frozenset(s.id for s in topology.stages if s.light))
        #: The highest life in which each of them has said something right.
        self.lives: dict[Name, int] = {}
        self.ledgers = {ledger: Ledger(ledger, name, found.ledgers.get(ledger)) for ledger in topology.ledgers}
        self.scheduler = scheduler_of(config.scheduler)
        #: Epoch of each stage whose driver runs here (`WARM`: stands by); and of those whose driver was found dead.
        self.stages: dict[Asset, int] = {}
        self.dead_children: dict[Asset, int] = {}
        #: A decided record that asks of this node what it cannot do, once that was said.
        self.impossible: Record | None = None
        #: Since when (as coordinator) something is without a backup; 0: nothing is.
        self.unprotected_since_ns = 0
        self.told: dict[m.Message, int] = {}  # when each report was last sent
        self.election = Election(name, config, found.vote.term, found.vote.voted_for, found.record)
        self.membership = Membership(name, peers, self.election, lambda: self.reports)
        if has_witness(topology, tuple(first.members)):
            self.election.witness = Witness(name, self.host.tickets, self.election, config.election_ns // 2)
        self.election.heard_ns = now_ns
        self.election.patience_ns = 2 * config.heartbeat_ns * sorted(peers).index(name)
        self.suspicions = Suspicions(name, self.election, config)
        self.links = LinkWatch(name, topology, self.election, config)
        self.first = first if self.life == 1 and not joined else None
        self.handlers: dict[type, Handler] = _handlers(self)
        self.gate = Gate(
            self.seat,
            topology,
            self.host.fence,
            lambda message: type(message) in self.handlers,
            is_node=True,
            term=lambda: self.election.term,
            fence_of=lambda stage: self.ledgers[ledger_of(stage)].page.fence,
            impossible=self.host.impossible,
            accepted=lambda: self.election.accepted,
        )
        self.refusals: dict[type, Handler] = {
            kind: getattr(part, kind.refusal)
            for kind in self.handlers
            for part in (self, self.host, self.hand_over, self.fetches)
            if hasattr(part, kind.refusal)
        }

    # --- driving

    def start(self, now_ns: int) -> Ready:
        """The first step of a life: it is on disk before anybody hears of it."""
        ready = Ready()
        ready.persist.append(life_entry(self.life))
        ready.notes.append(notes.Started(self.seat))
        if self.first is not None and self.name in self.first.members:
            ready.persist.append(record_entry(self.first))
            self.election.take(self.first, ready)
        else:
            self.election.heard_ns = now_ns
            self.election.patience_ns = self.config.election_ns + self._jitter()
        self._settle(now_ns, ready)
        ready.wake_ns = now_ns + self.config.heartbeat_ns
        return ready

    def step(
        self,
        event: Received | Tick | Idle | Done | ChildDied | StageBusy | StandbyReady | Unreachable | Left | Benchmarked,
        now_ns: int,
    ) -> Ready:
        ready = Ready()
        if self.host.recoveries.under_way:
            self.host.recoveries.look(now_ns, ready)
        if isinstance(event, Received):
            self._on_message(event.source, event.message, now_ns, ready)
        elif isinstance(event, Again):
            self.hand_over.on_again(now_ns, ready)
        elif isinstance(event, ChildDied):
            epoch = max(event.epoch, self.dead_children.get(event.stage, 0))  # word of an earlier one may come late
            self.dead_children[event.stage] = epoch
        elif isinstance(event, StageBusy):
            self.loads.on_stage_busy(event, now_ns)
        elif isinstance(event, StandbyReady):
            self.standbys.on_ready(event, self.record)
        elif isinstance(event, Idle):
            self._work(event.budget_ns, now_ns, ready, idle=True)
        elif isinstance(event, Left):
            self.host.on_left(event, now_ns, ready)
        elif isinstance(event, Benchmarked):
            self._on_benchmarked(event, ready)
        elif isinstance(event, Unreachable):
            self._on_unreachable(event, now_ns, ready)
        elif isinstance(event, Done):
            self.host.on_done(event, now_ns, ready)
        else:
            self._on_tick(now_ns, ready)
        self._settle(now_ns, ready)
        self.fetches.look_again(now_ns, ready)
        return ready

    def _on_message(self, source: Address, message: m.Message, now_ns: int, ready: Ready) -> None:
        """What comes from outside passes the gate first."""
        why = self.gate.objection(source, message)
        try:
            if not why and (self.record.version or message.before_record):
                self._take(source, message, now_ns, ready)
            if not why and self.membership.knows(name_of(source)):
                self.lives[name_of(source)] = max(life_of(source), self.lives.get(name_of(source), 0))
        except WrongMessageError as error:
            why = f"{error.what}: {error.detail}"
        if why:
            self.gate.refuse(source, message, why, ready)
            if isinstance(message, m.Fetch):  # whoever asks waits for an answer
                self.fetches.refuse_wrong(source, message, ready)

    def _take(self, source: Address, message: m.Message, now_ns: int, ready: Ready) -> None:
        """The part that owns it takes it, unless it is behind."""
        behind = self.host.fence.behind(source, message)
        if behind is None:
            self.handlers[type(message)](source, message, now_ns, ready)
        elif type(message) in self.refusals:
            self.refusals[type(message)](source, message, behind, ready)

    def _jitter(self) -> int:
        return self.rng.randrange(self.config.heartbeat_ns * 2)

    def _heartbeat(self) -> m.Heartbeat:
        return m.Heartbeat(life=self.life, version=self.record.version, slow=self.slow)

    def _on_benchmarked(self, event: Benchmarked, ready: Ready) -> None:
        """Whoever exchanges anything with this node hears of it at once, not with the next tick."""
        self.slow = event.slow
        heartbeat = self._heartbeat()
        ready.send.extend((name, heartbeat) for name in sorted(self.detector.near))

    def _on_tick(self, now_ns: int, ready: Ready) -> None:
        self.loads.on_tick(self.election.coordinator, now_ns, ready)
        detector = self.detector
        suspect = detector.on_tick(now_ns)
        heartbeat = self._heartbeat()
        ready.send.extend((name, heartbeat) for name in detector.hearers())
        self.host.stand_ins.tell(detector.missed(now_ns), now_ns, ready)
        if suspect is not None:
            ready.notes.append(notes.Suspects(self.name, suspect.name, suspect.life))
            ready.send.extend((name, suspect) for name in sorted(self.record.members) if name != self.name)
            self._take(self.seat, suspect, now_ns, ready)
        if self.record.members.get(self.name) != self.life:
            version = self.record.version if self.name in self.record.roster else 0
            hello = m.Hello(name=self.name, life=self.life, version=version)
            ready.send.extend((peer, hello) for peer in self.membership.to_greet())
            self.membership.on_hello(self.seat, hello, now_ns, ready)
        if self.election.standing is not Standing.COORDINATOR and self.election.hears(now_ns):
            self.reports = Reports()  # the coordinator has them too; a later one must not act on old news
        if self.election.standing is Standing.COORDINATOR:
            self.reports.suspects.update(self.suspicions.silent(now_ns))
        self.links.on_tick(now_ns, ready)
        self.election.on_tick(now_ns, self._jitter(), ready)
        self.host.on_tick(now_ns, ready)
        self.objective.look(now_ns, ready)
        self._work(TICK_BUDGETS * self.config.idle_budget_ns, now_ns, ready, idle=False)
        for ledger in self.ledgers.values():
            ledger.on_tick(ready)
        ready.wake_ns = now_ns + self.config.heartbeat_ns

    def _work(self, budget_ns: int, now_ns: int, ready: Ready, *, idle: bool) -> None:
        """Captures and pastes, piece by piece while the moment lasts; what is left waits for the next one."""
        while budget_ns > 0:
            agenda = self.host.agenda(now_ns)
            task = self.scheduler.pick(agenda, idle=idle)
            if task is None:  # with a tick there may be something that only waits for an idle moment
                ready.idle = ready.idle or (bool(agenda.tasks) and not idle)
                return
            task.run(now_ns, ready)
            budget_ns -= max(task.cost_ns, self.config.idle_budget_ns // 16)
        ready.idle = True

    def _settle(self, now_ns: int, ready: Ready) -> None:
        """After any event: act on a new record, report, and (as coordinator) plan the next one."""
        for _ in range(8):  # a coordinator without peers may decide at once; a bound keeps every step finite
            decided = self.election.decided
            if decided.version > self.record.version:
                why = record_objection(decided, self.gate)
                if why:  # it came in pieces that were each right: better to stand still than to do what cannot be
                    self._cannot(decided, why, ready)
                    return
                self._on_record(decided, now_ns, ready)
            self._report(now_ns, ready)
            if not self.election.may_propose() or not self._propose(now_ns, ready):
                return

    def _cannot(self, record: Record, why: str, ready: Ready) -> None:
        if self.impossible is not record:
            self.impossible = record
            self.gate.refuse(self.seat, m.Push(record=record), why, ready)

    def _propose(self, now_ns: int, ready: Ready) -> bool:
        reports = self.reports
        due = self.loads.is_due(now_ns) or self.links.is_due()
        if reports.is_empty() and self.planned is self.election.accepted and not due:
            return False
        reports.suspects, waiting = self.suspicions.judge(reports.suspects, now_ns, ready)
        if reports.suspects and not self.unprotected_since_ns:
            silence_ns = max(self.election.silence_ns(name, now_ns) for name in reports.suspects)
            self.unprotected_since_ns = now_ns - min(silence_ns, self.config.election_ns)
        self.membership.judge(reports, now_ns)
        loads = self.loads.take(now_ns)
        loads.drivers = self.standbys.drivers(loads.up, now_ns)
        made = plan(self.election.accepted, reports, loads, self.config, self.links.take())
        if made is None:
            self.reports = Reports()
            self.reports.suspects = waiting
            self.planned = self.election.accepted
            return False
        ready.notes.append(notes.Proposed(self.name, made.version, self.election.term))
        if made.move is not None:
            move = made.move
            told = (move.asset, move.source, move.target, made.version, (move.high, move.low, move.weight), move.what)
            ready.notes.append(notes.Balanced(self.name, *told))
        for each in made.reassigned:
            times = (each.high_ns, each.low_ns, each.unit_ns)
            told = (each.unit, each.source, each.target, made.version, loads.epoch, times)
            ready.notes.append(notes.Reassigned(self.name, *told))
        if made.spread is not None:
            ready.notes.append(notes.SpreadOut(self.name, *made.spread, made.version))
        for what, asset, source, target in made.detours:
            ready.notes.append(notes.Detoured(self.name, asset, what, source, target, made.version))
        self.membership.tell(made, ready)
        self.election.propose(
            made.members, made.places, made.draining, made.protection, made.units, made.roster, now_ns, ready
        )
        return self.election.commit == made.version

    def _on_record(self, record: Record, now_ns: int, ready: Ready) -> None:
        before = self.record
        self.record = record
        self.told = {}
        self.suspicions.on_record(record)
        self.links.on_record(record)
        self.detector.on_record(record, now_ns, self.links.neighbours(record))
        self.host.on_record(record, now_ns, ready)
        for ledger in self.topology.ledgers:
            place = record.places[ledger]
            if place != before.places.get(ledger):
                self.ledgers[ledger].on_place(place, ready)
        for stage in self.topology.stages:
            if not stage.foreign:
                self._on_stage_place(stage.id, record, ready)
        self.standbys.on_record(record, now_ns)
        self._watch_protection(record, now_ns, ready)

    def _on_stage_place(self, stage: Asset, record: Record, ready: Ready) -> None:
        place = record.places[stage]
        runs = self.stages.get(stage)
        wanted = place.epoch if place.primary == self.seat else WARM if place.backup == self.seat else None
        if runs == wanted:
            return
        if runs is not None:
            del self.stages[stage]
            if runs != WARM or wanted is None:  # a warm one is not stopped to be started
                ready.apply.append(StopStage(stage=stage, epoch=runs))
        if wanted is not None:
            self.stages[stage] = wanted
            start = WarmStage(stage=stage) if wanted == WARM else StartStage(stage=stage, epoch=wanted)
            ready.apply.append(start)

    def _watch_protection(self, record: Record, now_ns: int, ready: Ready) -> None:
        """Report the period of instability: from the last word of who failed until nothing lacks a backup."""
        open_assets = record.unprotected()
        if self.election.standing is not Standing.COORDINATOR:
            self.unprotected_since_ns = 0
        elif open_assets and not self.unprotected_since_ns:
            self.unprotected_since_ns = now_ns
        elif not open_assets and self.unprotected_since_ns:
            ready.notes.append(notes.StableAgain(self.name, record.version, now_ns - self.unprotected_since_ns))
            self.unprotected_since_ns = 0
        if open_assets and len(record.members) == 1 and self.election.standing is Standing.COORDINATOR:
            ready.notes.append(notes.Degraded(self.name, record.version, len(open_assets)))

    def _report(self, now_ns: int, ready: Ready) -> None:
        """Tell the coordinator what shards and ledgers of this node have to say (again every tick, until it acts)."""
        coordinator = self.election.coordinator
        found = self.host.reports()
        for ledger in self.ledgers.values():
            seat = ledger.report()
            if seat is not None and ledger.place is not None:
                found.append(m.Joined(asset=ledger.id, since=ledger.place.since, seat=seat))
            yielded = ledger.yielded()
            if yielded is not None:
                found.append(yielded)
        found.extend(m.StageDown(stage=s, epoch=e) for s, e in self.dead_children.items() if self.stages.get(s) == e)
        found.extend(self.standbys.reports(now_ns))
        found.extend(self.links.report(self.detector.unheard))
        for message in found:
            if coordinator == self.name:
                self._take(self.seat, message, now_ns, ready)
            elif coordinator is not None and self._is_due(message, now_ns):
                ready.send.append((coordinator, message))

    def _is_due(self, message: m.Message, now_ns: int) -> bool:
        """Not told, or told a while ago without effect."""
        if now_ns - self.told.get(message, -self.config.retry_ns) < self.config.retry_ns:
            return False
        self.told[message] = now_ns
        return True

    # --- messages that are not simply passed on

    def on_heartbeat(self, source: Address, message: m.Heartbeat, now_ns: int, ready: Ready) -> None:
        name = name_of(source)
        self.detector.on_heartbeat(name, now_ns, message.stalled_ns, message.slow)
        self.election.on_contact(name, now_ns)
        if message.version < self.record.version:
            ready.send.append((name, m.Push(record=self.record)))
        elif message.version > self.record.version:
            ready.send.append((name, m.Pull(version=self.record.version)))

    def on_suspect(self, source: Address, message: m.Suspect, now_ns: int, ready: Ready) -> None:
        """(From a member in this life: who is out of the ring hears nobody, and would blame everybody.)"""
        if message.name == self.name:
            return
        self.reports.suspects[message.name] = message.life
        if self.election.coordinator == message.name:
            ring = [n for n in sorted(self.record.members) if n != message.name]
            if self.name in ring:
                self.election.hasten(ring.index(self.name), now_ns, self._jitter(), ready)

    def _on_unreachable(self, event: Unreachable, now_ns: int, ready: Ready) -> None:
        """The network says that it is gone: whatever it said last counts no more."""
        if self.record.members.get(event.name) == event.life and event.name != self.name:
            heard_ns = self.election.contacts.pop(event.name, now_ns)
            if self.election.standing is Standing.COORDINATOR and not self.unprotected_since_ns:
                self.unprotected_since_ns = heard_ns
            ready.notes.append(notes.Unreachable(self.name, event.name, event.life))
            self._take(self.seat, m.Suspect(name=event.name, life=event.life), now_ns, ready)

    def on_joined(self, source: Address, message: m.Joined, now_ns: int, ready: Ready) -> None:
        self.reports.joined[message.asset] = (message.since, message.seat)

    def on_unfit(self, source: Address, message: m.Unfit, now_ns: int, ready: Ready) -> None:
        self.reports.unfit[message.asset] = (message.since, message.seat)

    def on_fell_back(self, source: Address, message: m.FellBack, now_ns: int, ready: Ready) -> None:
        self.reports.fell_back[message.shard] = (message.since, message.seat)

    def on_set_protection(self, source: Address, message: m.SetProtection, now_ns: int, ready: Ready) -> None:
        self.reports.protection[message.operator] = message.protection

    def on_yielded(self, source: Address, message: m.Yielded, now_ns: int, ready: Ready) -> None:
        self.reports.yielded[message.asset] = message.since

    def on_given_up(self, source: Address, message: m.GivenUp, now_ns: int, ready: Ready) -> None:
        self.reports.given_up[message.shard] = message

    def on_skips_passed(self, source: Address, message: m.SkipsPassed, now_ns: int, ready: Ready) -> None:
        self.reports.passed[message.shard] = message

    def on_stage_down(self, source: Address, message: m.StageDown, now_ns: int, ready: Ready) -> None:
        self.reports.downs[message.stage] = message.epoch

    def on_warmed(self, source: Address, message: m.Warmed, now_ns: int, ready: Ready) -> None:
        self.reports.warmed[message.stage] = (message.since, message.seat)

    def on_drain(self, source: Address, message: m.Drain, now_ns: int, ready: Ready) -> None:
        self.reports.drains[message.name] = None

    def refuse_ledger_write(self, source: Address, message: m.LedgerWrite, behind: Behind, ready: Ready) -> None:
        self.ledgers[message.ledger].refuse_ledger_write(source, message, ready)

    def on_request_vote(self, source: Address, message: m.RequestVote, now_ns: int, ready: Ready) -> None:
        if tuple(message.record_rank) < self.record.rank:
            ready.send.append((name_of(source), m.Push(record=self.record)))
        self.election.on_request_vote(name_of(source), message, now_ns, ready)

    def on_pull(self, source: Address, message: m.Pull, now_ns: int, ready: Ready) -> None:
        name = name_of(source)
        self.election.on_pull(name, ready)
        if message.version < self.record.version:
            ready.send.append((name, m.Push(record=self.record)))


def _handlers(node: Node) -> dict[type, Handler]:
    """Which part owns which message: the first that has a method of its name. What the node does not simply pass on, it
    takes itself."""
    found: dict[type, Handler] = {}
    for kind in m.all_messages():
        for part in (
            node, node.membership, node.election, node.host, node.hand_over, node.fetches, node.loads, node.links,
            node.host.stand_ins, node.host.twins, node.host.replays,
        ):  # fmt: skip
            if hasattr(part, kind.handler):
                found[kind] = getattr(part, kind.handler)
                break
        else:
            if hasattr(Ledger, kind.handler):
                found[kind] = _to_ledger(node.ledgers, kind.handler)
    return found


def _to_ledger(ledgers: dict[Asset, Ledger], handler: str) -> Handler:
    return lambda source, message, now_ns, ready: getattr(ledgers[message.ledger], handler)(
        source, message, now_ns, ready
    )
