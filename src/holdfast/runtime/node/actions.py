"""What one can ask of a node (Flight actions and fetches). JSON in, JSON out, except the record (msgpack).

ping      who is there                       drain {name}       move everything away from a node
status    what it runs and holds             finish             stages read to the end, close all windows, and end
stalls    how often this node and its machine had no CPU, and for how long
trace     where the time of rows has gone here: histograms
record    the placement record               stop               end this node ({"all": true}: every one)
plan      the pipeline                       submit {plan, …}   run a pipeline
events    {since}: the events after that     config             the core's settings, for drivers and readers
protect   {operator, mode, method, capture_period_ms}: how its shards are protected; what is left out stays
pause     {seconds, marks}: sources begin no batch for this time (0: they go on); one that `marks` names goes on
          until its watermark is there; whoever wants more says it again
checkpoint  every shard that runs here is checkpointed now, if it has consumed anything since
commits   the last commit of every ledger that this node is the primary of (msgpack)
skip      {shard, source, number}: pass over the batch that a shard stands still at; asked until it has
let_in    {name, address, plan, known}: this node, which no file names, may become a member
send_away  {name}: this node, which holds nothing any more, leaves for good
endpoints  where nodes listen
leave     {consumer, edges}: a reader lets go of its lease
edges     where every edge that is made here stands (readers ask this, `status` is for people)
fences    the highest epoch that each ledger here has seen (ports ask this)
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from holdfast.core.node import Node
from holdfast.core.ready import Left, Received
from holdfast.errors import LEFT, ConfigError, HoldfastError, InputError, PeerError
from holdfast.model import messages as m
from holdfast.model.ids import Consumer, Edge, Name, asset_id, operator_of
from holdfast.model.plan import Plan
from holdfast.model.protection import MODES, Protection
from holdfast.model.reasons import FetchReason
from holdfast.runtime.config import read_plan
from holdfast.runtime.disk.journal import write_whole
from holdfast.runtime.net.refusal import FetchError
from holdfast.runtime.net.rows import batches_of
from holdfast.runtime.node.joining import check_guest, check_room, is_let_in
from holdfast.runtime.node.skipping import skip_of
from holdfast.runtime.node.status import status

if TYPE_CHECKING:
    from holdfast.runtime.node.process import NodeProcess


#: One pause ends after this time: whoever asked for it may be dead, and nobody else would end it.
PAUSE_S_MAX = 60.0


class Actions:
    def __init__(self, process: NodeProcess) -> None:
        self.process = process

    def table(self) -> dict[str, Callable[[dict], Any]]:
        looking = (
            "ping",
            "status",
            "record",
            "plan",
            "events",
            "config",
            "edges",
            "fences",
            "commits",
            "stalls",
            "trace",
            "endpoints",
        )
        doing = (
            "drain",
            "let_in",
            "send_away",
            "finish",
            "stop",
            "submit",
            "protect",
            "pause",
            "checkpoint",
            "skip",
            "leave",
            "keep_plan",
            "peace",
        )
        return {name: getattr(self, name) for name in looking + doing}

    def _ask(self, question: Callable[[Node, int], Any], timeout_s: float = 10.0) -> Any:
        loop = self.process.loop
        if loop is None:
            raise PeerError(f"{self.process.name} runs no pipeline", hint="Submit one: holdfast submit pipeline.py")
        return loop.ask(question, timeout_s)

    # --- looking

    def ping(self, body: dict) -> dict:
        """Who is there, and in which life each other node was last known: a starting node asks that of its own name."""
        process = self.process
        lives = process.past.known(dict(process.node.lives) if process.node else {})
        asker = str(body.get("name", ""))
        if 0 < int(body.get("life", 0)) <= lives.get(Name(asker), 0):
            text = f"{asker} has lost its journal: it would begin life {body['life']}, known is {lives[Name(asker)]}."
            process.events.limited(("lost", asker), 5.0, "journal-damaged", text, peer=asker)
        return {
            "name": process.name,
            "seat": process.node.seat if process.node else None,
            "pid": os.getpid(),
            "warm": process.warm,
            "ready": process.server.open.is_set(),
            "lives": lives,
        }

    def status(self, body: dict) -> dict:
        """What this node runs and holds, and the record as it knows it."""
        process = self.process
        if process.loop is None:
            return {"name": process.name, "waiting": True}
        found = self._ask(status)
        found["drivers"] = process.children.status(found["passed_over"]) if process.children else {}
        found["finished"] = sorted(process.children.done) if process.children else []
        failures = process.children.failures if process.children else {}
        found["failures"] = {stage: {"text": text, "times": n} for stage, (text, n) in list(failures.items())}
        found["pipeline"] = process.plan.pipeline if process.plan else ""
        found["waits_for"] = process.waits_for
        found["pid"] = os.getpid()
        return found

    def stalls(self, body: dict) -> dict:
        """What the sampler has seen since the node came up; nothing before that."""
        return self.process.watches.told() if self.process.watches else {}

    def trace(self, body: dict) -> dict:
        """Where the time of rows has gone here, since the node came up: histograms, by part, then by shard or stage."""
        return self.process.story.tracer.told()

    def record(self, body: dict) -> bytes:
        """The placement record, as msgpack."""
        return msgspec.msgpack.encode(self.process.record)

    def plan(self, body: dict) -> bytes:
        """The pipeline, as JSON."""
        if self.process.plan is None:
            raise PeerError(f"{self.process.name} runs no pipeline")
        return msgspec.json.encode(self.process.plan)

    def events(self, body: dict) -> dict:
        """The events after number `since`."""
        log = self.process.events
        return {"last": log.last, "events": log.since(int(body.get("since", 0)))}

    def config(self, body: dict) -> dict:
        """The core's settings: drivers and readers run with the same."""
        return msgspec.to_builtins(self.process.config.core())

    def edges(self, body: dict) -> bytes:
        """Where every edge that is made here stands, as JSON of `EdgeState`."""
        return msgspec.json.encode(self._ask(lambda node, now_ns: node.host.edges()))

    def fences(self, body: dict) -> dict:
        """The highest epoch that each ledger here has seen, by stage."""
        return self._ask(lambda node, now_ns: {ledger.stage: ledger.page.fence for ledger in node.ledgers.values()})

    def commits(self, body: dict) -> bytes:
        """The last commit of every ledger whose primary is here, by stage, as msgpack."""
        found = self._ask(
            lambda node, now_ns: {
                ledger.stage: ledger.page.commit for ledger in node.ledgers.values() if ledger.is_primary
            }
        )
        return msgspec.msgpack.encode(found)

    # --- doing

    def drain(self, body: dict) -> dict:
        """Move everything away from a node; it stays a member."""
        name = Name(str(body["name"]))
        if name not in self.process.book.endpoints:
            known = ", ".join(sorted(self.process.book.endpoints))
            raise InputError(f"no node is named {name!r}", detail=f"There are {known}.")
        self._tell_coordinator(lambda: m.Drain(name=name), lambda: name in self.process.record.draining, "changed")
        return {"draining": name}

    def endpoints(self, body: dict) -> dict:
        """Where the nodes listen, as far as this one knows."""
        return dict(self.process.book.endpoints)

    def let_in(self, body: dict) -> dict:
        """A node whose name no file of the others has may become a member. Answers when the record has its address."""
        name, address = Name(str(body["name"])), str(body["address"])
        check_guest(self.process, name, address, body)
        self._tell_coordinator(
            lambda: m.LetIn(name=name, address=address),
            lambda: is_let_in(self.process, name, address),
            "changed",
        )
        return {"endpoints": {**self.process.book.endpoints, name: address}}

    def send_away(self, body: dict) -> dict:
        """A node that holds nothing any more leaves for good."""
        name = Name(str(body["name"]))
        check_room(self.process.record, name, "leave", "It holds nothing any more: it may run on, or be stopped.")
        self._tell_coordinator(lambda: m.SendAway(name=name), lambda: self.process.record.has_left(name), "changed")
        return {"left": name}

    def finish(self, body: dict) -> dict:
        """Every stage reads what there is, closes all windows and ends."""
        if self.process.children is not None:
            if not self.process.children.finishing:  # whoever waits for the end says it again and again
                self.process.events.write("finish", "The pipeline is told to finish.")
            self.process.children.finish()
        return {"told": [self.process.name, *self._forward("finish", body)]}

    def protect(self, body: dict) -> dict:
        """Change how an operator is protected, in the record: mode, method, capture period. What is left out stays."""
        operator = str(body["operator"])
        plan = self.process.plan
        names = [o.name for o in plan.operators] if plan is not None else []
        if operator not in names:
            raise InputError(
                f"no operator is named {operator!r}", detail=f"There are {', '.join(names) or 'none yet'}."
            )
        changed = {key: str(body[key]) for key in ("mode", "method") if key in body}
        period = {"period_ns": int(float(body["capture_period_ms"]) * 1e6)} if "capture_period_ms" in body else {}

        def wanted() -> Protection:
            present = msgspec.to_builtins(self.process.record.protection.get(operator, Protection()))
            return Protection(**{**present, **changed, **period})

        def is_done() -> bool:
            return self.process.record.protection.get(operator) == wanted()

        if MODES[wanted().mode].keeps_input and plan is not None and operator in plan.topology.timeless:
            raise InputError(
                f"{operator} cannot be in mode 'replay'",
                detail="Its state is not that of windows over event time, so no stretch of its input has all of it.",
                hint="Choose passive: a second node then keeps the state itself.",
            )
        self._tell_coordinator(lambda: m.SetProtection(operator=operator, protection=wanted()), is_done, "changed")
        return {"operator": operator, **msgspec.to_builtins(wanted())}

    def pause(self, body: dict) -> dict:
        """Sources begin no batch for this time, or from their mark on. Nothing else stops: what was handed over is
        consumed and written."""
        seconds = min(max(0.0, float(body["seconds"])), PAUSE_S_MAX)
        marks = {asset_id(str(stage)): int(mark) for stage, mark in dict(body.get("marks", {})).items()}
        if self.process.children is not None:
            self.process.children.pause(seconds, marks)
        return {"seconds": seconds}

    def checkpoint(self, body: dict) -> dict:
        """Checkpoint every shard that runs here now."""
        shards = self._ask(lambda node, now_ns: sorted(node.host.runners))
        for shard in shards:
            self.process.post(Received("operator", m.CheckpointWanted(shard=shard)))
        return {"shards": shards}

    def skip(self, body: dict) -> dict:
        """Let a shard that runs here pass over the batch that it cannot take. Says whether it has, or why it cannot."""
        shard, source, number = asset_id(str(body["shard"])), str(body["source"]), int(body["number"])
        found, answer = self._ask(lambda node, now_ns: skip_of(node, shard, source, number))
        if found is not None:
            self.process.post(Received("operator", m.SkipWanted(shard=shard, input=found.edge, start=found.start)))
        return answer

    def keep_plan(self, body: dict) -> dict:
        """Put what a sink has planned into the store. Answers when it is there."""
        if self.process.checkpoints is None:
            raise PeerError(f"{self.process.name} has no store")
        self.process.checkpoints.keep_plan(asset_id(str(body["sink"])), str(body["plan"]))
        return {}

    def peace(self, body: dict) -> dict:
        """What a writer may write to the store now, by the coordinator's Peace."""
        process = self.process
        node, desk = process.node, process.checkpoints.desk if process.checkpoints else None
        if node is None or desk is None or node.election.coordinator != process.name:
            raise PeerError(f"{process.name} is not the coordinator, or has no network model")
        return desk.answer(body, node.election.term, process.record.members, time.monotonic_ns())

    def _tell_coordinator(self, message: Callable[[], m.Message], is_done: Callable[[], bool], what: str) -> None:
        """Tell whoever is coordinator until the record shows it."""
        until = time.monotonic() + 10
        while time.monotonic() < until:
            if is_done():
                return
            coordinator = self._ask(lambda node, now_ns: node.election.coordinator)
            if coordinator is not None:
                self.process.send(coordinator, message())
            time.sleep(0.1)
        why = self.process.waits_for or "No coordinator took it on within 10 s."
        raise PeerError(f"the record cannot be {what} now", detail=why)

    def leave(self, body: dict) -> dict:
        """A guest will not read these edges any more: what was kept for it alone can go."""
        self.process.post(Left(Consumer(str(body["consumer"])), tuple(Edge(str(edge)) for edge in body["edges"])))
        return {}

    def stop(self, body: dict) -> dict:
        """End this node; with {"all": true} every node; with {"left": true} this one, and it is not started again."""
        told = self._forward("stop", body) if body.get("all") else []
        code = LEFT if body.get("left") else 0
        threading.Timer(0.1, self.process.stop, (code,)).start()  # after the answer has left
        return {"told": [self.process.name, *told]}

    def submit(self, body: dict) -> dict:
        """Run a pipeline: its plan, and files (name -> text) for its directory. Goes to every node."""
        plan = msgspec.json.decode(msgspec.json.encode(body["plan"]), type=Plan)
        directory = Path(self.process.config.dir)
        files = {**body.get("files", {}), "plan.json": msgspec.json.encode(plan).decode()}
        if self.process.plan is None and not self._is_there(plan, directory / "plan.json"):
            for name, text in files.items():
                path = directory / name
                if not path.resolve().is_relative_to(directory.resolve()):
                    raise InputError("a file outside the pipeline's directory", detail=name)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, text.encode())  # private: Spark's settings may hold keys
        self.process.deploy_soon(plan)
        return {"told": [self.process.name, *self._forward("submit", body)]}

    def _is_there(self, plan: Plan, path: Path) -> bool:
        """Was this plan put there before? Nodes may share the directory: what others run must stay as it is."""
        if not path.exists():
            return False
        known = read_plan(path)
        if known.query == plan.query:
            return True
        raise ConfigError(
            f"another pipeline was submitted to the directory of {self.process.name}",
            detail=f"{path} is of {known.pipeline!r} ({known.query}), not of {plan.pipeline!r} ({plan.query}).",
            hint="Use another directory; started again, this node runs what it finds there.",
        )

    def _forward(self, action: str, body: dict) -> list[str]:
        """Tell the other nodes, unless this was passed on already. Those that do not answer are left out."""
        if body.get("forwarded"):
            return []
        others = [name for name in sorted(self.process.book.endpoints) if name != self.process.name]

        def tell(name: Name) -> str | None:
            try:
                self.process.caller.call(name, action, {**body, "forwarded": True, "all": False}, timeout=10)
                return name
            except HoldfastError as error:
                self.process.events.write("untold", f"{name} could not be told to {action}: {error}", peer=name)
                return None

        with ThreadPoolExecutor(max(1, len(others))) as pool:
            return [name for name in pool.map(tell, others) if name]

    # --- rows

    def fetch(self, asked: m.Fetch) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """The rows that the core gives for a ticket, or its refusal. Waits as long as the ticket says."""
        from holdfast.runtime.node.operators import read_schema

        process = self.process
        if process.plan is None or process.loop is None:
            raise FetchError(m.FetchRefused(ticket=asked.ticket, edge=asked.edge, reason=FetchReason.NOT_HERE), asked)
        answer = process.desk.ask(asked, process.loop.received)
        if isinstance(answer, m.FetchRefused):
            raise FetchError(answer, asked)
        shard = process.plan.topology.producer[asked.edge]
        schema = read_schema(process.plan.operator(operator_of(shard)).output)
        return schema, (batch for block in answer.blocks for batch in batches_of(block.rows))
