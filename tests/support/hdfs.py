"""A real HDFS on loopback: a name node and data nodes in two racks, each a process of its own, from Maven's artifacts.

MiniDFSCluster would be one process, which cannot lose one data node to kill -9. What makes this one small and quick:
serial collectors, few handlers, a heartbeat every second. What makes it possible at all on one machine:

* The jars have no `webapps/`, without which the daemons exit: two empty ones are put on the class path.
* Racks are resolved by the address of the connection to the name node, which on loopback is always 127.0.0.1, unless
  a data node binds its sockets to an address of its own (127.0.0.11 and so on): `OwnAddress.java`, compiled here by
  the `javac` beside the `java` that runs everything.

By hand: `make hdfs` starts one, prints its URL and a configuration directory, and stops it at Ctrl-C.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from holdfast.jvm import cache_directory, find_java
from support.kafka import jars
from support.run import free_ports

VERSION = "3.5.0"
ARTIFACTS = tuple(
    f"org.apache.hadoop:{name}:{VERSION}" for name in ("hadoop-hdfs", "hadoop-hdfs-client", "hadoop-common")
)
START_LIMIT_S = 240.0
JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k", "-Djava.net.preferIPv4Stack=true")
#: Java's own packages that Hadoop looks into.
OPENS = ("--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.util=ALL-UNNAMED")
_FACTORY = """
import java.io.IOException;
import java.net.*;
import org.apache.hadoop.net.StandardSocketFactory;

/** Sockets that come from an address of their own, so that the name node can tell data nodes apart on one machine. */
public class OwnAddress extends StandardSocketFactory {
    @Override public Socket createSocket() throws IOException {
        Socket made = super.createSocket();
        String own = System.getProperty("holdfast.address");
        if (own != null) made.bind(new InetSocketAddress(own, 0));
        return made;
    }
}
"""
_LOG = """
log4j.rootLogger=WARN,err
log4j.appender.err=org.apache.log4j.ConsoleAppender
log4j.appender.err.target=System.err
log4j.appender.err.layout=org.apache.log4j.PatternLayout
log4j.appender.err.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
"""


def _xml(settings: dict[str, str]) -> str:
    inside = "".join(f"<property><name>{k}</name><value>{v}</value></property>\n" for k, v in settings.items())
    return f"<configuration>\n{inside}</configuration>\n"


def _cached_jars(directory: Path) -> list[str]:
    """Maven takes a minute of a busy machine to say what it said last time."""
    known = cache_directory() / f"jars-{hashlib.sha256(repr(ARTIFACTS).encode()).hexdigest()[:16]}.txt"
    with contextlib.suppress(OSError):
        found = known.read_text().split(os.pathsep)
        if all(map(os.path.exists, found)):
            return found
    found = jars(directory, ARTIFACTS, with_what_they_need=True)
    known.parent.mkdir(parents=True, exist_ok=True)
    beside = known.with_suffix(f".{os.getpid()}")
    beside.write_text(os.pathsep.join(found))
    beside.replace(known)
    return found


class Hdfs:
    """Name node and `nodes` data nodes, alternately in racks /a and /b. `start` returns when all have reported."""

    def __init__(self, directory: Path, nodes: int = 3) -> None:
        self.directory = directory
        self.conf = directory / "conf"
        self._java = f"{find_java()}/bin/java"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.names = [f"d{i}" for i in range(nodes)]
        self._addresses = {name: f"127.0.0.{11 + i}" for i, name in enumerate(self.names)}
        ports = free_ports(2 + 3 * nodes)
        self.port, self._http = ports[:2]
        self._ports = {name: ports[2 + 3 * i : 5 + 3 * i] for i, name in enumerate(self.names)}
        self.url = f"hdfs://127.0.0.1:{self.port}"
        self.classpath = self._class_path()
        self._write_conf()

    # --- what it consists of

    def _class_path(self) -> str:
        found = _cached_jars(self.directory / "jars")
        classes = self.directory / "classes"
        for app in ("hdfs", "datanode"):
            web = classes / "webapps" / app / "WEB-INF"
            web.mkdir(parents=True, exist_ok=True)
            (web / "web.xml").write_text("<web-app/>")
        (classes / "log4j.properties").write_text(_LOG)
        source = self.directory / "OwnAddress.java"
        source.write_text(_FACTORY)
        compile_ = Path(self._java).with_name("javac")
        command = [str(compile_), "-cp", os.pathsep.join(found), "-d", str(classes), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"the socket factory cannot be compiled: {done.stderr[:1000]}"
        return os.pathsep.join([str(self.conf), str(classes), *found])

    def _write_conf(self) -> None:
        self.conf.mkdir(parents=True, exist_ok=True)
        table = self.conf / "racks"
        racks = {address: ("/a", "/b")[i % 2] for i, address in enumerate(self._addresses.values())}
        table.write_text("".join(f"{address} {rack}\n" for address, rack in racks.items()))
        core = {
            "fs.defaultFS": self.url,
            "hadoop.tmp.dir": str(self.directory / "tmp"),
            "ipc.client.connect.max.retries": "2",
            "ipc.client.connect.timeout": "3000",
            "net.topology.node.switch.mapping.impl": "org.apache.hadoop.net.TableMapping",
            "net.topology.table.file.name": str(table),
        }
        hdfs = {
            "dfs.namenode.rpc-address": f"127.0.0.1:{self.port}",
            "dfs.namenode.http-address": f"127.0.0.1:{self._http}",
            "dfs.namenode.name.dir": str(self.directory / "name"),
            "dfs.replication": "2",
            "dfs.blocksize": str(4 << 20),
            "dfs.namenode.fs-limits.min-block-size": "4096",
            "dfs.namenode.safemode.extension": "0",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            # how busy a data node looks after a restart depends on the machine: wishes for it would be passed over
            "dfs.namenode.redundancy.considerLoad": "false",
            "dfs.namenode.handler.count": "4",
            "dfs.namenode.service.handler.count": "2",
            "dfs.namenode.heartbeat.recheck-interval": "2000",
            "dfs.namenode.stale.datanode.interval": "3000",
            "dfs.namenode.avoid.read.stale.datanode": "true",
            "dfs.namenode.avoid.write.stale.datanode": "true",
            "dfs.heartbeat.interval": "1",
            "dfs.datanode.handler.count": "3",
            "dfs.datanode.max.transfer.threads": "64",
            "dfs.datanode.du.reserved": "0",
            "dfs.client.block.write.replace-datanode-on-failure.best-effort": "true",
            "dfs.client.socket-timeout": "10000",
            "dfs.permissions.superusergroup": "root",
        }
        (self.conf / "core-site.xml").write_text(_xml(core))
        (self.conf / "hdfs-site.xml").write_text(_xml(hdfs))

    # --- starting and stopping

    def start(self) -> Hdfs:
        log = (self.directory / "format.log").open("wb")
        command = [
            *self._command("192m"),
            "org.apache.hadoop.hdfs.server.namenode.NameNode",
            "-format",
            "-nonInteractive",
        ]
        done = subprocess.run(command, stdout=log, stderr=log, timeout=START_LIMIT_S, check=False)
        assert done.returncode == 0, f"no name node: {(self.directory / 'format.log').read_text()[-2000:]}"
        self.start_name_node()
        for name in self.names:
            self.start_data_node(name)
        self.wait_up(len(self.names))
        return self

    def _command(self, heap: str, *more: str) -> list[str]:
        return [self._java, f"-Xmx{heap}", *JAVA, *OPENS, *more, "-cp", self.classpath]

    def _spawn(self, name: str, command: list[str]) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def start_name_node(self) -> None:
        self._spawn("name", [*self._command("192m"), "org.apache.hadoop.hdfs.server.namenode.NameNode"])

    def start_data_node(self, name: str) -> None:
        data, web, ipc = self._ports[name]
        address = self._addresses[name]
        own = {
            "hadoop.rpc.socket.factory.class.default": "OwnAddress",
            "dfs.datanode.address": f"{address}:{data}",
            "dfs.datanode.http.address": f"{address}:{web}",
            "dfs.datanode.ipc.address": f"{address}:{ipc}",
            "dfs.datanode.hostname": address,
            "dfs.datanode.data.dir": str(self.directory / name),
        }
        flags = [flag for key, value in own.items() for flag in ("-D", f"{key}={value}")]
        java = self._command("160m", f"-Dholdfast.address={address}")
        self._spawn(name, [*java, "org.apache.hadoop.hdfs.server.datanode.DataNode", *flags])

    def kill(self, name: str) -> None:
        """kill -9, of a data node or of "name"."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(10)

    def data_address(self, name: str) -> str:
        """Where a data node takes blocks, as a client names it."""
        return f"{self._addresses[name]}:{self._ports[name][0]}"

    def is_writing(self, name: str) -> bool:
        """Has it a block that is not finished? (HDFS keeps these in a folder of their own.)"""
        return any((self.directory / name).glob("current/*/current/rbw/blk_*"))

    def _bean(self, name: str) -> dict[str, object]:
        """What the name node says of itself, over HTTP: a JVM for each question would take seconds."""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self._http}/jmx?qry=Hadoop:service=NameNode,name={name}", timeout=5
        ) as told:
            return json.load(told)["beans"][0]

    def live(self) -> int:
        return int(str(self._bean("FSNamesystemState")["NumLiveDataNodes"]))

    def wait_up(self, nodes: int) -> None:
        """Until that many data nodes are in and the name node takes writes."""
        until = time.monotonic() + START_LIMIT_S
        while True:
            for name, process in self._processes.items():
                assert process.poll() is None, f"{name} ended: {(self.directory / f'{name}.log').read_text()[-2000:]}"
            with contextlib.suppress(OSError, LookupError, ValueError):
                state = self._bean("FSNamesystemState")
                if state["NumLiveDataNodes"] == nodes and state["FSState"] == "Operational":
                    return
            assert time.monotonic() < until, f"HDFS is not up after {START_LIMIT_S:g} s: see {self.directory}"
            time.sleep(0.2)

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait(10)
        self._processes.clear()


@contextlib.contextmanager
def running(directory: Path, nodes: int = 3) -> Iterator[Hdfs]:
    made = Hdfs(directory, nodes)
    try:
        yield made.start()
    finally:
        made.stop()


def main() -> None:
    directory = Path(tempfile.mkdtemp(prefix="holdfast-hdfs-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        print("starting HDFS: a name node and four data nodes in two racks (up to a minute)", flush=True)
        with running(directory, nodes=4) as hdfs:
            print(f"{hdfs.url}\nHADOOP_CONF_DIR={hdfs.conf}\nCtrl-C stops it and removes {directory}", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        print("stopped")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
