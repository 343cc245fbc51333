"""Everything a node is made of, put together: machine, loop, links, disk, children, event log.

Each part has a thread or two of its own; what they share is in the loop's queue. The order of starting and of ending
is here, and nothing else that could be called a decision.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from holdfast.core.invariants import Invariants
from holdfast.core.node import Node
from holdfast.core.ready import (
    ChildDied,
    DropSpill,
    Effect,
    FindLetters,
    SetAside,
    Spill,
    StageBusy,
    StandbyReady,
    StartStage,
    StopStage,
    StoreEffect,
    Unreachable,
    WarmStage,
)
from holdfast.errors import ConfigError, DamagedJournalError, DamagedLogError, HoldfastError, exit_code
from holdfast.model import found
from holdfast.model import messages as m
from holdfast.model.ids import Address, Asset, Name, name_of
from holdfast.model.note import Note
from holdfast.model.parts import DEAD
from holdfast.model.plan import Plan, digest
from holdfast.model.record import NO_RECORD, Record
from holdfast.runtime.config import NodeConfig, duration_ns, read_plan
from holdfast.runtime.disk.edge_logs import EdgeLogs
from holdfast.runtime.disk.journal import Journal
from holdfast.runtime.disk.letters import LetterStore
from holdfast.runtime.disk.lock import Lock, take
from holdfast.runtime.net.links import Link
from holdfast.runtime.net.security import NODE, Security, ear_of
from holdfast.runtime.net.transport import Caller, Server
from holdfast.runtime.node.actions import Actions
from holdfast.runtime.node.book import AddressBook
from holdfast.runtime.node.children import Children
from holdfast.runtime.node.desk import Desk
from holdfast.runtime.node.events import EventLog
from holdfast.runtime.node.joining import end_if_left, has_joined
from holdfast.runtime.node.lean import settle
from holdfast.runtime.node.loop import MachineLoop
from holdfast.runtime.node.metrics import Figures
from holdfast.runtime.node.past import Past
from holdfast.runtime.node.pulse import Pulse
from holdfast.runtime.node.sampler import Watches
from holdfast.runtime.node.scarce import Descriptors, last_words
from holdfast.runtime.node.status import figures, unheard, unheard_text, waiting, waiting_text
from holdfast.runtime.node.story import Story

if TYPE_CHECKING:
    from holdfast.runtime.stable.checkpoints import CheckpointStore

BROKEN = 70
#: How often the thread that writes dead letters looks whether the node has ended.
LETTERS_WAIT_S = 2.0
#: How often the event log says what waits.
QUEUES_NS = 10 * 10**9
#: A node that hears no majority for this long says so.
UNHEARD_NS = 3 * 10**9


class NodeProcess:
    """Everything a node is made of. `deploy` gives it a pipeline; until then it only answers actions."""

    def __init__(self, config: NodeConfig, echo: TextIO | None = None) -> None:
        self.started = time.monotonic()
        self.config, self.joined = config, has_joined(config)
        self.name = config.name
        self.home = config.home
        try:
            self._lock = self._take_lock()
            self.events = EventLog(self.home / "events.jsonl", self.name, echo)
        except OSError as error:
            raise ConfigError(
                f"the directory of {self.name} cannot be written",
                detail=str(error),
                hint="Give another `dir` (--dir), or the right to write there.",
            ) from None
        self.security = Security.load(config.secret_file or Path(config.dir) / "secret", config.tls)
        self.plan: Plan | None = None
        self.node: Node | None = None
        self.loop: MachineLoop | None = None
        self.children: Children | None = None
        self.spill: EdgeLogs | None = None
        self.letters: LetterStore | None = None
        self.checkpoints: CheckpointStore | None = None
        self.pulse: Pulse | None = None
        self.watches: Watches | None = None
        self.story = Story(self.events, self._silent_for_s)
        self.invariants = Invariants()
        self.past = Past(self.name, self.home)
        self.record: Record = NO_RECORD
        self.book = AddressBook(self.name, config.endpoints)
        self.caller = Caller(self.name, self.book.endpoints, self.security, NODE)
        self.desk = Desk(self.name)
        self.done = threading.Event()
        self.exit_code = 0
        #: Kernels are loaded: others may count on this node.
        self.warm = False
        self._deploying = threading.Lock()
        self._heard: dict[Name, float] = {}
        self._stop_metrics = lambda: None
        self._queues_told_ns = self._unheard_since_ns = 0
        self._descriptors = Descriptors(self.name, self.events)
        #: Why nothing can be decided now, in words; "": it can.
        self.waits_for = ""
        self.actions = Actions(self)
        self.server = Server(
            ear_of(config.endpoints[self.name], self.name, config.listen, self.security, config.insecure),
            self.name,
            self.security,
            members=self.book.endpoints.keys(),
            on_message=self._on_message,
            on_trouble=self.trouble,
            actions=self.actions.table(),
            fetch=self.actions.fetch,
        )

    # --- life

    def _take_lock(self) -> Lock:
        """Two nodes of one name would write one journal, and vote twice."""
        self.home.mkdir(parents=True, exist_ok=True)
        return take(
            self.home / "lock",
            f"node {self.name}",
            f"node {self.name} is running already in {self.config.dir}",
            "Every node needs a name of its own. Stop that one first, or give another name or directory.",
        )

    def start(self) -> None:
        if self.config.metrics_port >= 0:
            from holdfast.runtime.node import metrics

            port, self._stop_metrics = metrics.serve(self.name, self.config.metrics_port, self.figures)
            self.events.write("metrics", f"Metrics at http://127.0.0.1:{port}/metrics.", port=port)
        path = Path(self.config.dir) / "plan.json"
        if path.exists():
            self.deploy(read_plan(path))
        else:
            self.server.open.set()
            self.events.write("waiting", f"{self.name} waits for a pipeline to be submitted.")

    def deploy(self, plan: Plan) -> None:
        """Run a pipeline. A node runs one in its life; the same one again changes nothing."""
        if self._take_on(plan):
            self._deploy(plan)

    def deploy_soon(self, plan: Plan) -> None:
        """The same, but without waiting: all nodes must be told before any can wait for the others."""
        if not self._take_on(plan):
            return

        def deploy() -> None:
            try:
                self._deploy(plan)
            except Exception as error:
                self.events.write("undeployed", f"{self.name} cannot run {plan.pipeline!r}: {error}", error=repr(error))
                self.stop(exit_code(error) if isinstance(error, HoldfastError) else 1)

        threading.Thread(target=deploy, name="deploy").start()

    def _take_on(self, plan: Plan) -> bool:
        with self._deploying:
            if self.plan is None:
                plan.check_store(has_store=bool(self.config.store))
                self.past.belongs_to(plan)
                self.security.deployment = plan.query  # from now on, callers of another one are turned away
                self.plan = plan
                return True
            if digest(self.plan) == digest(plan):
                return False
            other = ", with another plan" if self.plan.query == plan.query else ""
            raise ConfigError(
                f"{self.name} runs another pipeline{other}",
                detail=f"It runs {self.plan.pipeline!r} ({self.plan.query}), not {plan.pipeline!r} ({plan.query}).",
                hint="Stop it first, or submit to another directory.",
            )

    def _deploy(self, plan: Plan) -> None:
        from holdfast.runtime.node.operators import Factory
        from holdfast.runtime.node.warm import is_cold, warm

        began = time.monotonic()
        if is_cold(plan):
            self.events.write("compiling", "Compiling kernels: once per machine, up to a minute.")
        kinds = warm(plan)
        settle()
        warmed_s = time.monotonic() - began
        config = self.config
        self.journal = self._open_journal()
        on_disk = found.read(self.journal.content)
        self.past.found(on_disk)
        self.warm = True
        self._ask_others(on_disk.life)
        names = tuple(sorted(config.endpoints))
        factory = Factory(plan, *config.memory(), self.story.tracer.on_step)
        self.node = node = Node(
            self.name,
            names,
            msgspec.structs.replace(plan.topology, has_store=bool(config.store)),
            config.core(),
            factory,
            Random(),
            on_disk,
            NO_RECORD if config.join else plan.first_record(names, config.core()),
            time.monotonic_ns(),
            joined=self.joined,
        )
        self.server.source = node.seat
        self.story.operator_of = lambda shard: node.host.copies[shard].op
        self.loop = MachineLoop(
            node,
            self.send,
            disk=self.journal,
            on_effect=self._on_effect,
            on_notes=self._on_notes,
            on_step=self._on_step,
            on_crash=self._on_crash,
            name=self.name,
        )
        self.pulse = Pulse(self.loop, node, self.send, duration_ns(config.busy_limit, "busy_limit"))
        self.spill = EdgeLogs(self.home / "spill", self.post, self._on_damage)
        self.letters = LetterStore(Path(config.dir) / DEAD, self.name, self.post)
        if config.store:  # what writes checkpoints is loaded only where there is one
            from holdfast.runtime.stable.checkpoints import open_checkpoints

            self.checkpoints = open_checkpoints(self, plan, node, factory)
        self.children = self._driver_processes()
        self.book.connect(self._make_link, on_disk.record)
        first = node.start(time.monotonic_ns())
        self._on_step(0)
        self.events.write(
            "started",
            f"{node.seat} is up after {time.monotonic() - self.started:.2f} s; "
            f"kernels of {kinds} operator{'' if kinds == 1 else 's'} were warmed in {warmed_s:.2f} s.",
            seat=node.seat, pid=os.getpid(), seconds=round(time.monotonic() - self.started, 3),
            warm_seconds=round(warmed_s, 3),
        )  # fmt: skip
        self.loop.start(first)
        self.pulse.start()
        self.watches = Watches(config.detector, plan, self.loop)
        self.spill.start(self.done)
        threading.Thread(target=self._write_letters, name="dead letters", daemon=True).start()
        self.server.open.set()

    def _make_link(self, name: Name, endpoint: str) -> Link:
        seat = self.node.seat if self.node is not None else self.name
        return Link(name, endpoint, seat, NODE, self.security, self._on_message, self.trouble, self._on_gone)

    def _open_journal(self) -> Journal:
        try:
            return Journal(self.home / "journal", lambda text: self.events.limited("journal", 5.0, "disk-full", text))
        except DamagedJournalError as error:
            raise self._damaged(error) from None

    def _damaged(self, error: DamagedJournalError) -> DamagedJournalError:
        self.events.write("journal-damaged", f"{self.name} stops: {error.what}. {error.detail} {error.hint}")
        return error

    def _ask_others(self, life: int) -> None:
        """Nobody may know of the life that is about to begin. At a first start all are waited for, too."""
        try:
            first = not life and not self.joined
            if first:
                self._wait_for_others()
            for name in () if first else sorted(set(self.config.endpoints) - {self.name}):
                self._ask_one(name, life + 1)
        except DamagedJournalError as error:
            raise self._damaged(error) from None

    def _ask_one(self, name: Name, life: int) -> bool:
        """Whether that node is there, and has loaded its kernels."""
        answer: dict[str, Any] = {}
        with contextlib.suppress(HoldfastError):
            answer = self.caller.call(name, "ping", {"name": self.name, "life": life}, timeout=0.5)
        self.past.check(life, name, answer)
        return bool(answer.get("warm"))

    def _wait_for_others(self) -> None:
        """A node that is still loading its kernels must not be taken for dead at the very start."""
        waited = time.monotonic()
        limit = waited + duration_ns(self.config.start_wait, "start_wait") / 1e9
        missing = set(self.config.endpoints) - {self.name}
        while missing and time.monotonic() < limit and not self.done.is_set():
            for name in sorted(missing):
                if self._ask_one(name, 1):
                    missing.discard(name)
            time.sleep(0.02)
        if missing:
            text = f"{self.name} starts without {', '.join(sorted(missing))}, after {time.monotonic() - waited:.1f} s."
            self.events.write("incomplete", text, missing=sorted(missing))

    def stop(self, code: int = 0) -> None:
        self.exit_code = code
        self.done.set()

    def close(self) -> None:
        """In an order in which nobody waits for anybody who is gone."""
        for part in (self.children, self.pulse, self.watches):
            if part is not None:
                part.close()
        if self.loop is not None:
            self.loop.stop()
        if self.checkpoints is not None:
            self.checkpoints.close()
        self.desk.close()
        for link in list(self.book.links.values()):
            link.close()
        self._stop_metrics()
        self.events.write("stopped", f"{self.name} stops.", code=self.exit_code)
        self._lock.release()

    # --- messages

    def send(self, target: Address, message: m.Message) -> None:
        """Never blocks. What nobody can be reached for is lost, as on any network."""
        if self.pulse is not None and isinstance(message, m.Heartbeat | m.Beat):
            self.pulse.saw(message)
        if isinstance(message, m.Fetched | m.FetchRefused):
            self.desk.answer(target, message)
            return
        name = name_of(target)
        if name == self.name:
            if self.loop is not None and self.node is not None and target in (self.name, self.node.seat):
                self.loop.received(self.node.seat, message)
        elif (link := self.book.link_to(name)) is not None:
            link.send(target, message)
        else:
            guest = self.server.guests.get(target)
            if guest is not None:
                guest.send(target, message)

    def _on_message(self, source: Address, target: Address, message: m.Message) -> None:
        """On a link's thread."""
        if name_of(source) in self.book.endpoints:
            self._heard[name_of(source)] = time.monotonic()
        node, loop = self.node, self.loop
        if node is None or loop is None or target not in (self.name, node.seat):
            return
        if name_of(source) == self.name:
            self.events.limited("impostor", 5, "impostor", f"Somebody else sends messages as {self.name}: refused.")
            return
        loop.received(source, message)

    def post(self, event: Any) -> None:
        if self.loop is not None:
            self.loop.post(event)

    def trouble(self, what: str, peer: str, text: str) -> None:
        """From transport: refused, turned away, damaged, not to be sent."""
        self.events.trouble(what, peer, text)

    def _on_gone(self, name: Name) -> None:
        if (life := self.record.members.get(name)) is not None:
            self.post(Unreachable(name, life))

    def _silent_for_s(self, name: Name) -> float | None:
        return time.monotonic() - self._heard[name] if name in self._heard else None

    # --- after each step, on the loop's thread

    def _on_step(self, now_ns: int) -> None:
        node = self.node
        if node is None:
            return
        if now_ns - self._queues_told_ns > QUEUES_NS:
            self._queues_told_ns = now_ns
            if queues := waiting(node):
                self.events.write("queues", waiting_text(queues), queues=queues)
        self._tell_unheard(node, now_ns)
        self.book.learn(node.election.accepted)
        self._descriptors.look(now_ns)
        if node.record is self.record:
            return
        self.record = node.record
        end_if_left(self)
        if self.checkpoints is not None:
            self.checkpoints.keep(node.record)
        self.story.sat = {shard: node.record.places[shard].primary for shard in node.topology.shard}
        for address, guest in list(self.server.guests.items()):
            guest.send(address, m.Push(record=node.record))

    def _tell_unheard(self, node: Node, now_ns: int) -> None:
        """Nobody waits in silence: who decides nothing, and for whom it waits."""
        silent = unheard(node, now_ns) if now_ns else []
        if not silent:
            self._unheard_since_ns, self.waits_for = 0, ""
            return
        self._unheard_since_ns = self._unheard_since_ns or now_ns
        if now_ns - self._unheard_since_ns > UNHEARD_NS:  # an election is over long before that
            self.waits_for = unheard_text(node, silent)
            self.events.limited("unheard", 30.0, "no-quorum", self.waits_for, missing=silent)

    def _on_notes(self, noted: list[Note]) -> None:
        """On the loop's thread, before anything of the step leaves: what breaks an invariant is told, never done."""
        self.story.tell(noted)
        self.invariants.on_notes(noted)

    def _on_crash(self, error: BaseException) -> None:
        self.desk.close()
        text, code = last_words(self.name, error, BROKEN)
        self.events.write("broken", text, error=repr(error))
        self.stop(code)

    def _on_damage(self, error: DamagedLogError) -> None:
        """On any thread: what this node was about to send is not what it had. Nobody may get it."""
        self.events.write("spill-damaged", f"{self.name} stops, so that others take over: {error.what}. {error.detail}")
        self.stop(BROKEN)

    # --- effects, on the outbox's thread

    def _on_effect(self, effect: Effect) -> None:
        children, spill, letters = self.children, self.spill, self.letters
        if children is None or spill is None or letters is None:
            return
        match effect:
            case StartStage():
                children.start(effect.stage, effect.epoch)
            case WarmStage():
                children.warm(effect.stage)
            case StopStage():
                children.stop(effect.stage, effect.epoch)
            case Spill() | DropSpill():
                spill.want(effect)  # heartbeats leave by this thread: it must not wait for that disk
            case SetAside() | FindLetters():
                letters.want(effect)
            case _ if isinstance(effect, StoreEffect) and self.checkpoints is not None:
                self.checkpoints.want(effect)

    def _driver_processes(self) -> Children:
        config = self.config
        return Children(
            config.child_command,
            self._order,
            self.home / "logs",
            self.events,
            lambda stage, epoch: self.post(ChildDied(stage, epoch)),
            self._on_news,
            duration_ns(config.child_silence, "child_silence") / 1e9,
            duration_ns(config.standby_delay, "standby_delay") / 1e9,
            lambda stage, busy_ns, memory_bytes: self.post(StageBusy(stage, busy_ns, memory_bytes)),
            duration_ns(config.load_period, "load_period") / 1e9,
            shared=config.shares_driver,
            run=Path(config.dir),
            name=self.name,
            is_light=lambda stage: bool(self.plan and self.plan.stage(stage).arrow),
        )

    def _order(self) -> dict[str, Any]:
        """The first line that a driver process reads."""
        order = self.config.order(self.security.deployment, digest(self.plan) if self.plan else "")
        return {**order, "endpoints": dict(self.book.endpoints)}

    def _on_news(self, stage: Asset, news: dict[str, Any]) -> None:
        if (event := str(news.get("event"))) in ("session", "ready"):  # what a standby says of itself first, and last
            self.post(StandbyReady(stage, ready=event == "ready"))
        fields = {k: v for k, v in news.items() if k not in ("event", "text", "number", "time", "node", "ticket")}
        text = str(news.get("text") or f"{stage}: {event}")
        self.story.tracer.on_news(stage, event, news)
        if event in ("batch", "late", "bad", "ahead", "waiting"):
            self.events.limited((stage, event), 1.0, f"stage-{event}", text, **{"stage": stage, **fields})
        else:
            self.events.write(f"stage-{event}", text, **{"stage": stage, **fields})

    def _write_letters(self) -> None:
        """On a thread of its own: what shards have set aside. Spills must not wait for a shared directory."""
        while not self.done.is_set() and self.letters is not None:
            self.letters.work(LETTERS_WAIT_S)

    # --- figures

    def figures(self) -> Figures:
        found: Figures = self.story.figures()
        if self.loop is not None:
            with contextlib.suppress(HoldfastError):
                found += self.loop.ask(lambda node, now_ns: figures(node), timeout_s=2)
            found.append(("events_waiting", (), self.loop.backlog))
        found.append(("pulses", (), self.pulse.sent if self.pulse else 0))
        found += [("messages_dropped", (name,), link.dropped) for name, link in list(self.book.links.items())]
        found += [("spill_bytes", (), self.spill.bytes)] if self.spill is not None else []
        return found + (self.children.figures() if self.children is not None else [])
