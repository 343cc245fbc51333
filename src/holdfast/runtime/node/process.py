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
from typing import Any, TextIO

import msgspec

from holdfast.core.invariants import Invariants
from holdfast.core.node import Node
from holdfast.core.ready import (
    ChildDied,
    DiskFull,
    Effect,
    Spill,
    StageBusy,
    StartStage,
    StopStage,
    Unreachable,
    WarmStage,
)
from holdfast.errors import ConfigError, DamagedJournalError, HoldfastError, exit_code
from holdfast.model import found
from holdfast.model import messages as m
from holdfast.model.block import Block
from holdfast.model.ids import Address, Asset, Edge, Name, maker_of, name_of
from holdfast.model.note import Note
from holdfast.model.plan import Plan
from holdfast.model.record import NO_RECORD, Record, first_record
from holdfast.runtime.config import NodeConfig, duration_ns, read_plan, size_bytes
from holdfast.runtime.disk.journal import Journal, write_whole
from holdfast.runtime.disk.lock import Lock, take
from holdfast.runtime.disk.spill import SpillStore
from holdfast.runtime.net.links import Link, host_port
from holdfast.runtime.net.security import Security, check_listen
from holdfast.runtime.net.transport import NODE, Caller, Server
from holdfast.runtime.node.actions import Actions
from holdfast.runtime.node.children import Children
from holdfast.runtime.node.desk import Desk
from holdfast.runtime.node.events import EventLog
from holdfast.runtime.node.lean import settle
from holdfast.runtime.node.loop import MachineLoop
from holdfast.runtime.node.metrics import Figures
from holdfast.runtime.node.pulse import Pulse
from holdfast.runtime.node.status import figures, waiting, waiting_text
from holdfast.runtime.node.story import Story

BROKEN = 70
SPILL_RETRY_S = 2.0
#: How often the event log says what waits.
QUEUES_NS = 10 * 10**9


class NodeProcess:
    """Everything a node is made of. `deploy` gives it a pipeline; until then it only answers actions."""

    def __init__(self, config: NodeConfig, echo: TextIO | None = None) -> None:
        self.started = time.monotonic()
        self.config = config
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
        self.spill: SpillStore | None = None
        self.pulse: Pulse | None = None
        self.story = Story(self.events, self._silent_for_s)
        self.invariants = Invariants()
        self.record: Record = NO_RECORD
        self.caller = Caller(self.name, config.endpoints, self.security, NODE)
        self.desk = Desk(self.name)
        self.done = threading.Event()
        self.exit_code = 0
        #: Kernels are loaded: others may count on this node.
        self.warm = False
        self._deploying = threading.Lock()
        self._heard: dict[Name, float] = {}
        self._late: dict[Asset, int] = {}
        self._links: dict[Name, Link] = {}
        self._stop_metrics = lambda: None
        self._queues_told_ns = 0
        host, port = host_port(config.endpoints[self.name], self.name)
        check_listen(config.listen or host, self.security, config.insecure)
        self.actions = Actions(self)
        self.server = Server(
            config.listen or host,
            port,
            self.security,
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
                self._belongs_to(plan)
                self.plan = plan
                return True
            if self.plan.query == plan.query:
                return False
            raise ConfigError(
                f"{self.name} runs another pipeline",
                detail=f"It runs {self.plan.pipeline!r} ({self.plan.query}), not {plan.pipeline!r} ({plan.query}).",
                hint="Stop it first, or submit to another directory.",
            )

    def _belongs_to(self, plan: Plan) -> None:
        """What is on this node's disk must be of this pipeline: votes and ledgers of another are not ours."""
        path = self.home / "query"
        known = path.read_text() if path.exists() else ""
        if known == plan.query:
            return
        if known:  # an empty file is what a crash or a full disk left of the first writing
            raise ConfigError(
                f"the directory of {self.name} belongs to another deployment",
                detail=f"{path} says {known!r}, the plan says {plan.query!r}.",
                hint="Use another --dir, or delete this one if its pipeline is over.",
            )
        write_whole(path, plan.query.encode())

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
        self.warm = True
        on_disk = found.read(self.journal.content)
        if not on_disk.life:
            self._wait_for_others()
        names = tuple(sorted(config.endpoints))
        factory = Factory(
            plan, page_bytes=size_bytes(config.page, "page"), limit_bytes=size_bytes(config.state_limit, "state_limit")
        )
        self.node = node = Node(
            self.name,
            names,
            plan.topology,
            config.core(),
            factory,
            Random(),
            on_disk,
            first_record(plan.topology, names, config.core().protection, plan.modes),
            time.monotonic_ns(),
        )
        self.server.source = node.seat
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
        self.spill = SpillStore(self.home / "spill", self._spillable, self._on_spill_full)
        self.children = Children(
            config.child_command,
            self._order,
            self.home / "logs",
            self.events,
            lambda stage, epoch: self.post(ChildDied(stage, epoch)),
            self._on_news,
            duration_ns(config.child_silence, "child_silence") / 1e9,
            duration_ns(config.standby_delay, "standby_delay") / 1e9,
            lambda stage, busy_ns: self.post(StageBusy(stage, busy_ns)),
            duration_ns(config.load_period, "load_period") / 1e9,
        )
        for name, endpoint in config.endpoints.items():
            if name != self.name:
                self._links[name] = Link(
                    name, endpoint, node.seat, NODE, self.security, self._on_message, self.trouble, self._on_gone
                )
        first = node.start(time.monotonic_ns())
        self._on_step(0)
        self.events.write(
            "started",
            f"{node.seat} is up after {time.monotonic() - self.started:.2f} s; "
            f"kernels of {kinds} operators were warmed in {warmed_s:.2f} s.",
            seat=node.seat,
            pid=os.getpid(),
            seconds=round(time.monotonic() - self.started, 3),
            warm_seconds=round(warmed_s, 3),
        )
        self.loop.start(first)
        self.pulse.start()
        threading.Thread(target=self._write_spills, name="spill", daemon=True).start()
        self.server.open.set()

    def _open_journal(self) -> Journal:
        try:
            return Journal(self.home / "journal", self._on_journal_full)
        except DamagedJournalError as error:
            self.events.write("journal-damaged", f"{self.name} stops: {error.what}. {error.detail} {error.hint}")
            raise

    def _wait_for_others(self) -> None:
        """A node that is still loading its kernels must not be taken for dead at the very start."""
        waited = time.monotonic()
        limit = waited + duration_ns(self.config.start_wait, "start_wait") / 1e9
        missing = set(self.config.endpoints) - {self.name}
        while missing and time.monotonic() < limit and not self.done.is_set():
            for name in sorted(missing):
                with contextlib.suppress(HoldfastError):
                    if self.caller.call(name, "ping", timeout=0.5)["warm"]:
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
        if self.children is not None:
            self.children.close()
        if self.pulse is not None:
            self.pulse.close()
        if self.loop is not None:
            self.loop.stop()
        self.desk.close()
        for link in self._links.values():
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
        elif name in self._links:
            self._links[name].send(target, message)
        else:
            guest = self.server.guests.get(target)
            if guest is not None:
                guest.send(target, message)

    def _on_message(self, source: Address, target: Address, message: m.Message) -> None:
        """On a link's thread. A message to an earlier life reaches nobody."""
        self._heard[name_of(source)] = time.monotonic()
        node, loop = self.node, self.loop
        if node is None or loop is None or target not in (self.name, node.seat):
            return
        if not node.hears(message):
            text = f"{source} sent a message that does not belong to this pipeline."
            self.events.limited(("foreign", source), 5, "foreign", text)
            return
        loop.received(source, message)

    def post(self, event: Any) -> None:
        if self.loop is not None:
            self.loop.post(event)

    def trouble(self, what: str, peer: str, text: str) -> None:
        """From transport: refused, turned away, damaged, not to be sent."""
        self.events.limited((what, peer), 5.0, what, text, peer=peer)

    def _on_gone(self, name: Name) -> None:
        life = self.record.members.get(name)
        if life is not None:
            self.post(Unreachable(name, life))

    def _silent_for_s(self, name: Name) -> float | None:
        heard = self._heard.get(name)
        return None if heard is None else time.monotonic() - heard

    # --- after each step, on the loop's thread

    def _on_step(self, now_ns: int) -> None:
        node = self.node
        if node is None:
            return
        if now_ns - self._queues_told_ns > QUEUES_NS:
            self._queues_told_ns = now_ns
            queues = waiting(node)
            if queues:
                self.events.write("queues", waiting_text(queues), queues=queues)
        if node.record is self.record:
            return
        self.record = node.record
        self.story.sat = {shard: node.record.places[shard].primary for shard in node.topology.shard}
        push = m.Push(record=node.record)
        for address, guest in list(self.server.guests.items()):
            guest.send(address, push)

    def _on_notes(self, noted: list[Note]) -> None:
        """On the loop's thread, before anything of the step leaves: what breaks an invariant is told, never done."""
        self.story.tell(noted)
        self.invariants.on_notes(noted)

    def _on_crash(self, error: BaseException) -> None:
        self.desk.close()
        self.events.write("broken", f"{self.name} has broken an invariant and stops: {error}", error=repr(error))
        self.stop(BROKEN)

    # --- effects, on the outbox's thread

    def _on_effect(self, effect: Effect) -> None:
        children, spill = self.children, self.spill
        if children is None or spill is None:
            return
        match effect:
            case StartStage():
                children.start(effect.stage, effect.epoch)
            case WarmStage():
                children.warm(effect.stage)
            case StopStage():
                children.stop(effect.stage, effect.epoch)
            case Spill():
                spill.want(effect)  # heartbeats leave by this thread: it must not wait for that disk

    def _order(self, stage: Asset, epoch: int | None) -> dict[str, Any]:
        """The first line that a stage's process reads."""
        config = self.config
        return {
            "stage": stage,
            "node": self.name,
            "endpoints": config.endpoints,
            "secret_file": str(config.secret_file or Path(config.dir) / "secret"),
            "tls": msgspec.to_builtins(config.tls) if config.tls else None,
            "dir": config.dir,
            "epoch": epoch,
            "master": config.master,
            "conf": config.conf,
            "core": msgspec.to_builtins(config.core()),
        }

    def _on_news(self, stage: Asset, news: dict[str, Any]) -> None:
        event = str(news.get("event"))
        fields = {k: v for k, v in news.items() if k not in ("event", "text", "number", "time", "node")}
        if event == "late":
            self._late[stage] = self._late.get(stage, 0) + int(news.get("rows", 0))
        text = str(news.get("text") or f"{stage}: {event}")
        if event in ("batch", "late", "waiting"):
            self.events.limited((stage, event), 1.0, f"stage-{event}", text, **{"stage": stage, **fields})
        else:
            self.events.write(f"stage-{event}", text, **{"stage": stage, **fields})

    def _spillable(self, edge: Edge, to: int) -> list[Block]:
        """Blocks of an edge before a position, asked of the loop."""
        shard = maker_of(edge)

        def find(node: Node, now_ns: int) -> list[Block]:
            copy = node.host.copies.get(shard)
            queues = copy.outputs if copy else []
            return [block for q in queues if q.edge == edge for block in q.blocks if block.end <= to]

        return self.loop.ask(find, timeout_s=60) if self.loop is not None else []

    def _on_spill_full(self, full: bool, text: str) -> None:
        self.events.write("disk-full" if full else "disk-again", text)
        self.post(DiskFull(full))

    def _on_journal_full(self, text: str) -> None:
        self.events.limited("journal", 5.0, "disk-full", text)

    def _write_spills(self) -> None:
        """On a thread of its own: what the core wants spilled, and again what a full disk did not take."""
        while not self.done.is_set() and self.spill is not None:
            self.spill.wait(SPILL_RETRY_S)
            try:
                self.spill.write()
            except (HoldfastError, OSError) as error:  # a loop too busy to be asked, say: soon again
                self.events.limited("spill", 5.0, "spill-late", f"Output could not be spilled yet: {error}")

    # --- figures

    def figures(self) -> Figures:
        found: Figures = []
        if self.loop is not None:
            with contextlib.suppress(HoldfastError):
                found = self.loop.ask(lambda node, now_ns: figures(node), timeout_s=2)
            found.append(("events_waiting", (), self.loop.backlog))
        counts = self.story.counts
        found += [("promotions", (), counts["promoted"]), ("gap_seconds", (), self.story.gap_s)]
        found += [("suspicions", (), counts["suspects"]), ("pulses", (), self.pulse.sent if self.pulse else 0)]
        found += [("messages_dropped", (name,), link.dropped) for name, link in self._links.items()]
        found += [("late_rows", (stage,), rows) for stage, rows in self._late.items()]
        if self.spill is not None:
            found += [("spill_bytes", (), self.spill.bytes), ("disk_full", (), float(self.spill.full))]
        return found
