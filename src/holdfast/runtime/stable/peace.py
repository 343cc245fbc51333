"""Peace on real nodes: who writes a checkpoint asks the coordinator first, chunk by chunk (sguard §5).

A writer asks every `POLL_S` for what it may write; the same question says which chunks are over. So nothing is lost
with a message, and a coordinator that takes over is asked for what is left. The coordinator's side, which decides, is
`peace/machine.py`; here is only who asks whom. Chunk i of a request is the i-th file of pages of a checkpoint.

Peace makes writes faster. It is never what keeps one from being done: where no coordinator answers for `ALONE_S`, where
it does not know the writer, or after `WAIT_S_MAX`, the rest is written without it, and that is told.

The paper cancels a checkpoint that cannot start, and takes it again later. Here its pages stay marked meanwhile:
marking has cost nothing, and what is changed before it is written is copied once, as during any write.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.ids import Name
from holdfast.peace import NetworkModel, PeaceSettings, WriteDesk, WriteQuestion, read_model

POLL_S = 0.1
#: Without an answer for this long, a writer goes on alone.
ALONE_S = 10.0
#: Whatever Peace says, a checkpoint does not wait longer than this.
WAIT_S_MAX = 300.0
ANSWER_S = 5.0

#: (coordinator, body) -> its answer; an error if it does not answer.
Ask = Callable[[Name, dict[str, Any]], dict[str, Any]]


def load_model(path: str, names: list[Name], *, places: bool) -> NetworkModel:
    """The network model of a cluster; an error if it does not fit. `places`: the store can be told where."""
    try:
        model = read_model(Path(path).read_text(), path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the network model cannot be read", detail=f"{path}: {error}") from error
    missing = [name for name in names if name not in model.servers]
    if missing:
        raise ConfigError(
            f"the network model does not know {', '.join(missing)}",
            detail=f"{path}: every node that writes checkpoints is a server of it, under the node's name.",
        )
    unplaced = [name for name, server in model.servers.items() if not server.data_node and server.receive != 0]
    if model.store is None and places and unplaced:
        raise ConfigError(
            f"the network model does not say which data node is on {', '.join(unplaced[:5])}",
            detail=f"{path}: it places replicas, so it has to name them to the store.",
            hint='Give data_node = "host:port", as `hdfs dfsadmin -report` shows it; or receive = 0, if there is none.',
        )
    if model.store is None and not places:
        raise ConfigError(
            "this store cannot be told where its replicas go",
            detail=f"{path} has `replicas`.",
            hint="Leave them out, and say in [store] how much it takes: writes are ordered and paced then.",
        )
    return model


class PeaceDesk:
    """The coordinator's side on one node: asked by writers, on any thread."""

    def __init__(self, model: NetworkModel, settings: PeaceSettings | None = None, seed: int | None = None) -> None:
        self.model = model
        self._desk = WriteDesk(model, settings or PeaceSettings(), Random(seed))
        self._lock = threading.Lock()

    def answer(self, body: dict[str, Any], term: int, members: Iterable[str], now_ns: int) -> dict[str, Any]:
        """What a writer may do now: its chunks, each with the data nodes that it shall go to."""
        asked = msgspec.convert(body, WriteQuestion)
        with self._lock:
            found = self._desk.answer(asked, term, members, now_ns)
        nodes = [[self.model.servers[name].data_node or "" for name in one.chain] for one in found.granted]
        granted = [[one.chunk, chain] for one, chain in zip(found.granted, nodes, strict=True)]
        return {"granted": granted, "denied": found.denied}


class _Permit:
    """What one checkpoint may write."""

    def __init__(self, request: int, chunks: int) -> None:
        self.request = request
        self.chunks = chunks
        #: Chunk -> the data nodes for its replicas; empty: wherever the store puts it.
        self.granted: dict[int, tuple[str, ...]] = {}
        #: Chunks that have ended and were not told yet: (chunk, written).
        self.over: list[tuple[int, bool]] = []
        #: All that have ended.
        self.ended: set[int] = set()
        #: Why the rest is written without asking; "": it is not.
        self.alone = ""
        self.closed = False


class PeaceWriter:
    """A node's side. One checkpoint at a time: `open`, then its files ask `may_begin`, then `close`."""

    def __init__(self, name: Name, coordinator: Callable[[], Name | None], ask: Ask, tell: Callable[[str], None]):
        self._name = name
        self._coordinator = coordinator
        self._ask = ask
        self._tell = tell
        self._changed = threading.Condition()
        self._permit: _Permit | None = None
        self._closed = False
        #: Counted up over all lives of a node.
        self._requests = time.time_ns()
        threading.Thread(target=self._work, name="peace", daemon=True).start()

    # --- of a checkpoint

    def open(self, chunks: int) -> None:
        with self._changed:
            self._requests += 1
            self._permit = _Permit(self._requests, chunks)
            self._changed.notify_all()

    def close(self) -> None:
        """The checkpoint is written, or was given up."""
        with self._changed:
            if self._permit is not None:
                self._permit.closed = True
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # --- of its files (`store/service.py` and `store/hadoop.py` ask)

    def may_begin(self, key: str) -> bool:
        chunk = _chunk_of(key)
        with self._changed:
            permit = self._permit
            return chunk is None or permit is None or bool(permit.alone) or chunk in permit.granted

    def ended(self, key: str, written: bool) -> None:
        chunk = _chunk_of(key)
        with self._changed:
            if chunk is not None and self._permit is not None and chunk not in self._permit.ended:
                self._permit.ended.add(chunk)
                self._permit.over.append((chunk, written))
                self._changed.notify_all()

    def favoured(self, key: str) -> tuple[str, ...]:
        """The data nodes that the replicas of a file shall go to."""
        chunk = _chunk_of(key)
        with self._changed:
            permit = self._permit
            return permit.granted.get(chunk, ()) if permit is not None and chunk is not None else ()

    # --- on its own thread

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._permit is not None)
                if self._closed:
                    return
                permit = self._permit
            assert permit is not None
            self._follow(permit)
            with self._changed:
                if self._permit is permit:
                    self._permit = None

    def _follow(self, permit: _Permit) -> None:
        """Ask until all of it is over."""
        began = heard = time.monotonic()
        while not self._closed:
            with self._changed:
                told, done = list(permit.over), permit.closed
                if done:  # begun and not ended: the checkpoint was given up
                    told += [(chunk, False) for chunk in permit.granted if chunk not in permit.ended]
            body = {"writer": self._name, "request": permit.request, "chunks": permit.chunks, "over": told}
            answer = self._try({**body, "withdrawn": done})
            now = time.monotonic()
            if answer is not None:
                heard = now
            with self._changed:
                if answer is not None:
                    permit.over = permit.over[len(told) :]
                    for chunk, chain in answer.get("granted", ()):
                        permit.granted.setdefault(int(chunk), tuple(chain))
                        if int(chunk) in permit.ended:  # a new coordinator does not know that it is over
                            permit.over.append((int(chunk), True))
                if done and (answer is not None or now - heard > ALONE_S):
                    return
                self._go_alone(permit, answer, now - began, now - heard)
                if answer is None or not (permit.over or permit.closed):
                    self._changed.wait(POLL_S)

    def _try(self, body: dict[str, Any]) -> dict[str, Any] | None:
        coordinator = self._coordinator()
        if coordinator is None:
            return None
        try:
            return self._ask(coordinator, body)
        except Exception:  # of whatever kind: no answer is an answer, and a checkpoint must not wait for good
            return None

    def _go_alone(self, permit: _Permit, answer: dict[str, Any] | None, waited_s: float, silent_s: float) -> None:
        if permit.alone or len(permit.granted) == permit.chunks:
            return
        if answer is not None and answer.get("denied"):
            permit.alone = f"Peace says: {answer['denied']}"
        elif silent_s > ALONE_S:
            permit.alone = f"no coordinator has answered for {silent_s:.0f} s"
        elif waited_s > WAIT_S_MAX:
            permit.alone = f"its turn has not come in {waited_s:.0f} s"
        if permit.alone:
            self._tell(f"{self._name} writes {permit.chunks} chunks without Peace: {permit.alone}.")


def _chunk_of(key: str) -> int | None:
    """The chunk that a file of pages is; None: another file, which is small."""
    _, found, number = key.rpartition("/pages-")
    return int(number) if found and number.isdecimal() else None


def differ(wanted: tuple[str, ...], blocks: list[list[str]]) -> int:
    """How many blocks of a file are not where they were wanted. Favored nodes are a wish."""
    return sum(set(block) != set(wanted) for block in blocks) if wanted else 0
