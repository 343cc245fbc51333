"""Every setting of a node, as people write it: `heartbeat = "100 ms"`, `state_limit = "1 GB"`.

A node reads them from a TOML file (`holdfast node --config node.toml`) or from the command line. Settings of the core
are checked by the core's own rules; all errors name the setting.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.config import SECOND, Config
from holdfast.model.ids import Name
from holdfast.model.plan import LATENCIES, Plan
from holdfast.model.protection import Protection
from holdfast.runtime.net.endpoints import check_endpoint
from holdfast.runtime.net.security import TlsFiles
from holdfast.store.url import check_url

_TIME_NS = {"us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_BYTES = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
#: As `state/pages.py` has them, which a process without state should not have to load.
PAGE_BYTES_MIN, PAGE_BYTES_MAX = 4 << 10, 1 << 20
#: On a machine with fewer cores a second JVM for standbys would take them from the first.
SHARED_CORES = 8
#: On a machine with fewer cores what a JVM compiles takes them from what it does.
QUICK_CORES = 4
_NUMBER = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*")


class NodeConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    # --- Who and where
    #: Name of this node. It never changes: the node's disk, votes and lives belong to this name.
    name: Name
    #: Directory of the pipeline: plan.json, checkpoints/, nodes/NAME/ …
    dir: str
    #: Every node of the cluster with its address, this node included: {n0 = "grpc://127.0.0.1:7100", …}. Nodes of one
    #: machine may have sockets in a directory of mode 700 instead: "grpc+unix:///path/n0.sock".
    endpoints: dict[Name, str]
    #: This node joins a cluster that runs, whose other nodes have files without its name (`holdfast node --join`).
    join: bool = False
    #: Interface to listen on, if it differs from the one in `endpoints` (0.0.0.0 behind address translation).
    listen: str = ""

    # --- Who may talk to it
    #: File with the cluster's secret. Only its owner may be able to read it. Default: DIR/secret.
    secret_file: str = ""
    #: PEM files: `ca`, and `cert` and `key` that it signed. Needed by every node that other machines can reach. Whoever
    #: connects, node or not, needs a certificate of this CA, too; with `clients = false` the secret is enough.
    tls: TlsFiles | None = None
    #: Allow other machines to connect without TLS. Only for a network that is trusted as a whole.
    insecure: bool = False

    # --- Finding failures
    #: Time between two heartbeats that a node sends to those it exchanges anything with. A killed process is noticed at
    #: once, without heartbeats; they are for machines that freeze or are cut off.
    heartbeat: str = "100 ms"
    #: A node is taken for dead after this many missing heartbeats. With fewer, a busy machine looks dead too easily.
    misses: int = 5
    #: How the silence of a node is judged: "misses" counts missing heartbeats, "phi" asks how unlikely it is after
    #: those that came before, so that a network with much jitter is given more time. "benchmark" is "misses", and
    #: each node runs a standard set of rows when its CPU is busy, and tells the others when that takes too long.
    detector: str = "misses"
    #: Two nodes of whom one misses the other for this long beyond `misses`, while the coordinator hears both, are cut
    #: from each other. What needs their link moves.
    cut_after: str = "1 s"
    #: They are not any more when both have heard each other again for this long.
    mended_after: str = "10 s"
    #: Members elect a new coordinator after this time without one.
    election: str = "1 s"
    #: A message that was not answered is sent again after this time.
    retry: str = "200 ms"
    #: At the first start of a cluster, wait up to this long for all nodes before any of them counts as missing.
    start_wait: str = "30 s"
    #: While one long step keeps a node busy, its heartbeats go on for at most this time. Then it counts as hung.
    busy_limit: str = "5 s"
    #: A driver process that is frozen, or that stops sending its reports, is killed after this time.
    child_silence: str = "5 s"
    #: Keep a warm Spark driver of every stage on a second node.
    standby: bool = False
    #: Wait this long before starting a standby's JVM, so that it does not slow down what takes over from a dead node; a
    #: tenth of it where the JVM runs already. Nor is one started while a stage of this machine starts.
    standby_delay: str = "8 s"
    #: Where the standbys on this node are: "shared" (in the process of the stages that run here), "own" (in a second
    #: process, so that they outlive the first one, for the memory of another JVM) or "auto" (shared below 8 cores).
    standby_driver: str = "auto"
    #: How the JVMs of stages compile what they run: "quick" (so that starts and take-overs cost little CPU; work on
    #: many rows inside of Spark is slower), "full" or "auto" (quick below 4 cores).
    jit: str = "auto"

    # --- State and queues
    #: Mode of operators that name none, when a pipeline starts: "passive" (a copy on a second node), "hybrid" (which
    #: also stands in for a node that is late), "active" (which runs all the time), "replay" (which keeps input
    #: instead; joins and windows that count rows are "passive" then) or "none".
    mode: str = "passive"
    #: How state is captured: "delta" (what has changed) or "whole".
    method: str = "delta"
    #: Time between two captures of a shard.
    capture_period: str = "250 ms"
    #: A capture waits for up to 8 periods while a take-over would have less work than this to do again. "0 ms": it
    #: never waits.
    replay: str = "100 ms"
    #: A recovery shall take no longer than this once it is decided, such as "300 ms": captures are taken early enough,
    #: and the event `recover-in` says when that is not enough and why (docs/modes.md). Operators may say another time
    #: (`recover_in=`). Empty: it takes what it takes.
    recover_in: str = ""
    #: Which captures and pastes run in an idle moment: "period" (in the order in which they are due, with every
    #: heartbeat, idle or not), "min_max" (what makes the longest expected recovery shorter), "round_robin" or "whole"
    #: (everything at once). Under the last three rows go first for up to 8 periods (docs/modes.md).
    scheduler: str = "period"
    #: Shards that run on one node and are backed up on one other are captured as one unit while that takes no longer
    #: than this. "0 ms": each on its own, as under the scheduler "period".
    unit_capture: str = "5 ms"
    #: Size of the pieces in which state goes to another node.
    chunk: str = "2 MB"
    #: Bytes per second that a node may send to bring up new copies, for example "50 MB". Empty: no limit.
    transfer_limit: str = ""
    #: Number of new copies that a node brings up at the same time.
    joins: int = 2
    #: Memory for the state of one shard.
    state_limit: str = "1 GB"
    #: Size of the pages that state is kept in.
    page: str = "64 KB"
    #: A capture is taken as soon as a shard has this many rows of input that no capture covers.
    retained_soft: int = 500_000
    #: At this many rows of input that no capture covers, the shard's stage has to wait.
    retained_hard: int = 5_000_000
    #: Rows of one output queue that are kept in memory; more go to disk. As many again may wait for a slow disk.
    queue_memory: int = 1_000_000
    #: Rows of one output queue that are kept on disk; then the shard waits.
    queue_spill: int = 50_000_000
    #: Rows that a producer may send before its consumer asks for more.
    credit: int = 500_000
    #: A guest (a reader that is not a sink of the pipeline) may be silent for this time before its rows are given up.
    lease: str = "60 s"

    # --- Stable storage
    #: URL of a store that outlives all nodes: "file:///mnt/shared/netmon", "hdfs://…", "s3://…" (docs/checkpoints.md).
    #: With it state is checkpointed there, and a run that has ended, however, can go on. Empty: there is none.
    store: str = ""
    #: Settings of the store's own: Hadoop's or obstore's.
    store_conf: dict[str, str] = {}
    #: Time between two checkpoints of a shard in the store.
    checkpoint_every: str = "10 s"
    #: How many checkpoints of a shard are kept there.
    checkpoints_kept: int = 3
    #: File with a model of the network, the same on all nodes: then checkpoints are written when Peace says so, and
    #: where (docs/peace.md). Empty: whenever they are due, and where the store puts them.
    network_model: str = ""
    #: With a network model, checkpoints are written in files of at most about this size: one chunk of Peace each.
    peace_chunk: str = "64 MB"

    # --- Balance
    #: How often a node measures the load of its shards and tells the coordinator.
    load_period: str = "5 s"
    #: Load is the mean of about this time, so that a burst counts only for its share of it.
    load_window: str = "1 min"
    #: A backup, a standby or a stage is moved to a node that has less to do at most once in this time.
    balance: str = "30 s"
    #: A backup is moved only to a node that will then still have less to do than the other had, by at least this many
    #: percent of a core. (Each copy counts for 5 beside its measured load.) A tenth of a node's load moves nothing. For
    #: stages and their standbys it is twice as much: a stage that moves pauses.
    imbalance: int = 15
    #: Who says where backups are: "load" (whoever has least to do), "dynamic" (the node whose failure would take
    #: longest to recover from gets its backups spread better, docs/modes.md) or "random_static" (by lot, to compare).
    assignor: str = "load"
    #: What fails together: a label for each node, from the large to the small, such as {n0 = "zone-a/rack-1", …}, the
    #: same on all nodes. A second copy goes where least is shared with the first; in the same rack if there is no other
    #: node.
    domains: dict[Name, str] = {}
    #: A shard whose node has much more to do than that of its backup changes places with it, as in a drain. The margin
    #: is twice `imbalance`, and `balance` is a limit on these moves, too.
    move_primaries: bool = False

    # --- Stages
    #: Command that starts a driver process.
    child_command: list[str] = []
    #: Spark's master for the stages that run on this node.
    master: str = "local[*]"
    #: Spark's settings for the stages that run on this node.
    conf: dict[str, str] = {}
    #: How rows of sources that do not say it themselves come to the nodes: "micro-batch", or "real-time" (Kafka with
    #: projections and filters; everything else stays in micro-batches, see docs/pipeline.md).
    latency: str = "micro-batch"
    #: Late rows in the run's directory are removed when they are older than this. `verify` then says that it cannot
    #: compare what depends on their stage.
    late_keep: str = "720 h"
    #: At most this much of a stage's late rows is kept there; the oldest go first.
    late_keep_size: str = "10 GB"

    # --- Watching it
    #: A watermark that moves by more than this at once is told as an event, like one that is ahead of the clock.
    watermark_jump: str = "24 h"
    #: Port of /metrics, on loopback. 0: any free port (it is in the first event); -1: none.
    metrics_port: int = 0

    def core(self) -> Config:
        """The settings of the core."""
        heartbeat_ns = duration_ns(self.heartbeat, "heartbeat")
        return Config(
            heartbeat_ns=heartbeat_ns,
            misses_max=self.misses,
            detector=self.detector,
            cut_ns=duration_ns(self.cut_after, "cut_after"),
            mend_ns=duration_ns(self.mended_after, "mended_after"),
            beat_ns=heartbeat_ns,
            election_ns=duration_ns(self.election, "election"),
            retry_ns=duration_ns(self.retry, "retry"),
            protection=Protection(
                mode=self.mode,
                method=self.method,
                period_ns=duration_ns(self.capture_period, "capture_period"),
                checkpoint="paged" if self.store else "none",
                checkpoint_ns=duration_ns(self.checkpoint_every, "checkpoint_every"),
                recover_ns=_objective_ns(self.recover_in),
            ),
            chunk_bytes=size_bytes(self.chunk, "chunk"),
            transfer_bytes_per_s=size_bytes(self.transfer_limit, "transfer_limit") if self.transfer_limit else None,
            joins_max=self.joins,
            scheduler=self.scheduler,
            unit_capture_ns=duration_ns(self.unit_capture, "unit_capture"),
            replay_ns=duration_ns(self.replay, "replay"),
            retained_soft_max=self.retained_soft,
            retained_hard_max=self.retained_hard,
            queue_memory_max=self.queue_memory,
            queue_spill_max=self.queue_spill,
            credit_max=self.credit,
            lease_ns=duration_ns(self.lease, "lease"),
            load_period_ns=duration_ns(self.load_period, "load_period"),
            load_window_ns=duration_ns(self.load_window, "load_window"),
            balance_ns=duration_ns(self.balance, "balance"),
            imbalance_ns=self.imbalance * SECOND // 100,
            assignor=self.assignor,
            domains=self.domains,
            move_primaries=self.move_primaries,
            standby=self.standby,
        )

    def memory(self) -> tuple[int, int]:
        """Bytes of a page, and of all pages of a shard."""
        return size_bytes(self.page, "page"), size_bytes(self.state_limit, "state_limit")

    def keep(self) -> tuple[float, int]:
        """How long late rows are kept, in seconds, and how many bytes of them."""
        seconds = duration_ns(self.late_keep, "late_keep") / SECOND
        if seconds < 60:
            raise ConfigError(
                "setting 'late_keep' is too short", detail=f"It is {self.late_keep!r}.", hint="Choose 1 min or more."
            )
        return seconds, size_bytes(self.late_keep_size, "late_keep_size")

    def order(self, deployment: str, plan: str) -> dict[str, Any]:
        """What all stages of a driver process share: the first line that it reads."""
        return {
            "node": self.name,
            "endpoints": self.endpoints,
            "secret_file": str(self.secret_file or Path(self.dir) / "secret"),
            "tls": msgspec.to_builtins(self.tls) if self.tls else None,
            "deployment": deployment,
            "dir": self.dir,
            "plan": plan,
            "master": self.master,
            "conf": self.conf,
            "latency": self.latency,
            "quick": self.compiles_quickly,
            "core": msgspec.to_builtins(self.core()),
            "watermark_jump_us": duration_ns(self.watermark_jump, "watermark_jump") // 1_000,
            "late_keep": self.keep(),
            "store": self.stored,
        }

    @property
    def stored(self) -> dict[str, Any] | None:
        """The store, for whoever opens it; None: there is none."""
        return {"url": self.store, "settings": self.store_conf} if self.store else None

    @property
    def shares_driver(self) -> bool:
        """Do standbys share the process of the stages that run here?"""
        few = (os.cpu_count() or 1) < SHARED_CORES
        return self.standby_driver == "shared" or (self.standby_driver == "auto" and few)

    @property
    def compiles_quickly(self) -> bool:
        return self.jit == "quick" or (self.jit == "auto" and (os.cpu_count() or 1) < QUICK_CORES)

    @property
    def home(self) -> Path:
        """This node's own directory."""
        return Path(self.dir) / "nodes" / self.name

    def check(self) -> None:
        """All that can be wrong before anything starts."""
        if self.name not in self.endpoints:
            raise ConfigError(
                f"node {self.name!r} is not among the endpoints",
                detail=f"endpoints has {', '.join(sorted(self.endpoints)) or 'nothing'}.",
                hint="Every node must know all nodes, itself included.",
            )
        for name, endpoint in self.endpoints.items():
            check_endpoint(endpoint, name)
        self.core()
        self.keep()
        strangers = sorted(set(self.domains) - set(self.endpoints))
        if strangers:
            raise ConfigError(
                "setting 'domains' has a label for a node that does not exist",
                detail=f"{', '.join(strangers)}; the nodes are {', '.join(sorted(self.endpoints))}.",
            )
        if self.store:
            check_url(self.store)
        if size_bytes(self.peace_chunk, "peace_chunk") < PEACE_CHUNK_MIN:
            raise ConfigError(
                "setting 'peace_chunk' is too small", detail=f"It is {self.peace_chunk}.", hint="Write 1 MB or more."
            )
        if self.network_model and not self.store:
            raise ConfigError(
                "setting 'network_model' needs a store",
                hint="Peace orders what is written to one: set `store` as well.",
            )
        if self.checkpoints_kept < 1:
            raise ConfigError(
                "setting 'checkpoints_kept' is too small",
                detail=f"It is {self.checkpoints_kept}.",
                hint="Keep 2 or more: if one cannot be read, the one before it is used.",
            )
        for key in ("busy_limit", "child_silence", "start_wait", "standby_delay", "watermark_jump"):
            duration_ns(getattr(self, key), key)
        _check_choice("standby_driver", self.standby_driver, "shared", "own")
        _check_choice("jit", self.jit, "quick", "full")
        if self.latency not in LATENCIES:
            raise ConfigError(
                "setting 'latency' cannot be used",
                detail=f"It is {self.latency!r}.",
                hint=f"Write {' or '.join(map(repr, LATENCIES))}.",
            )
        page, limit = self.memory()
        if page & (page - 1) or not PAGE_BYTES_MIN <= page <= PAGE_BYTES_MAX:
            raise ConfigError(
                "setting 'page' cannot be used",
                detail=f"It is {self.page!r}.",
                hint="Choose a power of two from 4 KB to 1 MB; 64 KB is a good start.",
            )
        if limit < 4 * page:
            raise ConfigError(
                "setting 'state_limit' is too small", detail=f"{self.state_limit}; a page is {self.page}."
            )


#: A chunk costs a round trip to the coordinator, and a file in the store.
PEACE_CHUNK_MIN = 1_000_000


def _check_choice(setting: str, found: str, *choices: str) -> None:
    if found not in (*choices, "auto"):
        named = ", ".join(f'"{choice}"' for choice in choices)
        raise ConfigError(
            f"setting {setting!r} cannot be used", detail=f"It is {found!r}.", hint=f'Write {named} or "auto".'
        )


def _objective_ns(text: str) -> int:
    """0: none. (Zero, written out, would be none as well, and is refused.)"""
    found = duration_ns(text, "recover_in") if text else 0
    return max(found, 1) if text else 0


def duration_ns(text: str, setting: str) -> int:
    return int(_parse(text, setting, _TIME_NS, '"250 ms" or "1.5 s"'))


def size_bytes(text: str, setting: str) -> int:
    return int(_parse(text, setting, _BYTES, '"64 KB" or "1 GB"'))


def _parse(text: str, setting: str, units: dict[str, int], example: str) -> float:
    found = _NUMBER.fullmatch(text)
    if found is None or found[2] not in units:
        raise ConfigError(
            f"setting {setting!r} cannot be read",
            detail=f"It is {text!r}; units are {', '.join(units)}.",
            hint=f"Write for example {setting} = {example}.",
        )
    return float(found[1].replace("_", "")) * units[found[2]]


def load_config(path: Path, **overrides: Any) -> NodeConfig:
    """Read a TOML file; `overrides` (from a command line) win."""
    return make_config(_read(path) | overrides, str(path))


def load_cluster(path: Path) -> NodeConfig:
    """The same for a process that is not a node: a file that all nodes share names none of them."""
    found = _read(path)
    endpoints = found.get("endpoints")
    first = next(iter(endpoints), "") if isinstance(endpoints, dict) else ""
    return make_config({"name": first, **found}, str(path))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError("cannot read the node's config", detail=str(error)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("the node's config is not valid TOML", detail=f"{path}: {error}") from error


def make_config(found: dict[str, Any], where: str = "the command line") -> NodeConfig:
    try:
        config = msgspec.convert(found, NodeConfig)
    except msgspec.ValidationError as error:
        hint = _meant(str(error))
        raise ConfigError("a setting of the node cannot be used", detail=f"{where}: {error}", hint=hint) from error
    config.check()
    return config


def _meant(error: str) -> str:
    """Of a setting that there is not: which one may have been meant."""
    unknown = re.search(r"unknown field `([^`]*)`$", error)
    if unknown is None:
        return ""
    close = difflib.get_close_matches(unknown[1], NodeConfig.__struct_fields__, n=1)
    return f"Did you mean {close[0]}?" if close else "docs/configuration.md has all settings."


def read_plan(path: Path) -> Plan:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Plan)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(
            "the plan cannot be read", detail=f"{path}: {error}", hint="Plan the pipeline again."
        ) from error
