"""A small JVM beside the node, with the Hadoop client out of Spark's own jars; made for one store and gone with it.

Python tells it what to do by py4j, over a port of loopback and with a secret; bytes do not go that way. They go over a
Unix socket in a directory of our own, straight between a buffer here and a stream of Hadoop's there, and the loop that
moves them is Hadoop's `IOUtils.copyBytes`: there is no Java code of ours. A JVM that dies closes its sockets, so
nothing waits for it.

The user's own configuration counts: HADOOP_CONF_DIR (as Spark reads it) is on the class path, and settings given with
the store come on top. What we would like otherwise (shorter waits: the service above tries again by itself) is set only
where the user has said nothing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError, StoreUnreachableError
from holdfast.jvm import find_java
from holdfast.store.port import Buffer

HEAP_MB = 96
COPY_BYTES = 1 << 17
#: How long a socket may not move: shorter than the service's limit, so that the thread is free when that is over.
SOCKET_LIMIT_S = 45.0
#: The jars of Spark that the client needs.
_JARS = ("hadoop-client-api", "hadoop-client-runtime", "slf4j-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl",
         "commons-logging", "jcl-over-slf4j", "log4j-1.2-api")  # fmt: skip
#: Java's own packages that Hadoop and py4j look into.
_OPENS = ("--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED")
#: Set where the user's configuration does not.
_OURS = {
    "ipc.client.connect.max.retries": "2",
    "ipc.client.connect.max.retries.on.timeouts": "1",
    "ipc.client.connect.timeout": "5000",
    "ipc.client.rpc-timeout.ms": "20000",
}
_DEFAULTS = ("core-default.xml", "hdfs-default.xml")


class HadoopJvm:
    """`jvm` and `conf` for py4j; `feed` and `drain` move bytes."""

    def __init__(self, settings: Mapping[str, str], log: Path | None = None, workers: int = 8) -> None:
        self._folder = tempfile.mkdtemp(prefix="holdfast-store-")  # only its owner can reach the sockets in it
        self._number = 0
        self._lock = threading.Lock()
        #: For the end of a copy that Python does not work on itself.
        self._calls = ThreadPoolExecutor(2 * workers, thread_name_prefix="hadoop")
        try:
            self._start(log)
            self._find_classes()
            self.conf = self._configuration(settings)
        except BaseException:
            self.close()
            raise

    def _start(self, log: Path | None) -> None:
        try:
            import pyspark
            from py4j.java_gateway import launch_gateway

            from holdfast.store.gateway import OwnGateway
        except ImportError:
            raise ConfigError(
                "a store on HDFS needs PySpark",
                detail="Its jars have the Hadoop client.",
                hint="pip install 'holdfast[spark]'",
            ) from None
        folder = Path(pyspark.__file__).parent / "jars"
        found = [str(jar) for name in _JARS for jar in sorted(folder.glob(f"{name}-[0-9]*.jar"))]
        (py4j,) = folder.glob("py4j-*.jar")
        user = os.environ.get("HADOOP_CONF_DIR", "")
        with open(log, "ab") if log else open(os.devnull, "wb") as out:
            started: Any = launch_gateway(
                jarpath=str(py4j), classpath=os.pathsep.join(filter(None, [user, *found])), die_on_exit=True,
                javaopts=[f"-Xmx{HEAP_MB}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k", *_OPENS],
                java_path=f"{find_java()}/bin/java", enable_auth=True, redirect_stdout=out, redirect_stderr=out,
                return_proc=True, create_new_process_group=True,
            )  # fmt: skip
        port, token, self.process = started
        self.gateway = OwnGateway(port, token)
        self.jvm: Any = self.gateway.jvm

    def _find_classes(self) -> None:
        """py4j asks the JVM about every part of a name, every time: these are used for every object."""
        hadoop = self.jvm.org.apache.hadoop
        channels = self.jvm.java.nio.channels
        self.path: Any = hadoop.fs.Path
        self._copy_bytes: Any = hadoop.io.IOUtils.copyBytes
        self._limited: Any = hadoop.util.LimitInputStream
        self._connect: Any = channels.SocketChannel.open
        self._address: Any = self.jvm.java.net.UnixDomainSocketAddress.of
        self._input: Any = channels.Channels.newInputStream
        self._output: Any = channels.Channels.newOutputStream

    def _configuration(self, settings: Mapping[str, str]) -> Any:
        conf = self.jvm.org.apache.hadoop.conf.Configuration()
        for key, value in _OURS.items():
            sources = conf.getPropertySources(key)
            if sources is None or all(source in _DEFAULTS for source in sources):
                conf.set(key, value)
        for key, value in settings.items():
            conf.set(key, value)
        return conf

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        process, gateway = getattr(self, "process", None), getattr(self, "gateway", None)
        if process is not None:
            process.kill()
            with contextlib.suppress(Exception):
                process.wait(10)
        if gateway is not None:
            with contextlib.suppress(Exception):
                gateway.close()
        self._calls.shutdown(wait=False, cancel_futures=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- bytes

    @contextlib.contextmanager
    def _pair(self) -> Iterator[tuple[socket.socket, Any]]:
        """Two ends of one connection: ours, and the JVM's as a channel."""
        with self._lock:
            self._number += 1
            path = os.path.join(self._folder, str(self._number))
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel = ours = None
        try:
            listening.bind(path)
            listening.listen(1)
            listening.settimeout(SOCKET_LIMIT_S)
            channel = self._connect(self._address(path))
            ours, _ = listening.accept()
            ours.settimeout(SOCKET_LIMIT_S)
            yield ours, channel
        except TimeoutError:
            raise StoreUnreachableError("the JVM beside the node does not take bytes") from None
        finally:
            listening.close()
            with contextlib.suppress(OSError):
                os.unlink(path)
            if ours is not None:
                ours.close()
            if channel is not None:
                with contextlib.suppress(Exception):
                    channel.close()

    def _copy(self, source: Any, target: Any) -> Future[Any]:
        """Hadoop's own loop, on a thread of the JVM; the future is ours."""
        return self._calls.submit(self._copy_bytes, source, target, COPY_BYTES, False)

    def feed(self, chunks: Iterable[Buffer], out: Any) -> int:
        """All chunks into a stream of Hadoop's; how many bytes. The stream stays open."""
        nbytes = 0
        with self._pair() as (ours, channel):
            copied = self._copy(self._input(channel), out)
            copied.add_done_callback(lambda done: _hang_up(ours) if done.exception() else None)  # nobody reads any more
            for chunk in chunks:  # an error of theirs is theirs
                view = memoryview(chunk).cast("B")
                _send(ours, view, copied)
                nbytes += len(view)
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_WR)
            copied.result()
        return nbytes

    def drain(self, source: Any, pieces: list[tuple[int, memoryview]]) -> list[int]:
        """Fill these pieces from a stream of Hadoop's that can seek; how many bytes each got."""
        came: list[int] = []
        with self._pair() as (ours, channel):
            target = self._output(channel)
            for offset, into in pieces:
                source.seek(offset)
                copied = self._copy(self._limited(source, len(into)), target)
                came.append(_receive(ours, into, copied))
        return came


def _send(ours: socket.socket, view: memoryview, copied: Future[Any]) -> None:
    try:
        ours.sendall(view)
    except TimeoutError:
        raise
    except OSError:
        copied.result(SOCKET_LIMIT_S)  # its error says why
        raise StoreUnreachableError("the JVM beside the node hung up") from None


def _hang_up(ours: socket.socket) -> None:
    with contextlib.suppress(OSError):
        ours.shutdown(socket.SHUT_RDWR)


def _receive(ours: socket.socket, into: memoryview, copied: Future[Any]) -> int:
    """Until the piece is full, or the copy has ended and nothing of it is left on the way."""
    done = 0
    ours.settimeout(0.2)
    waited = 0.0
    while done < len(into):
        try:
            came = ours.recv_into(into[done:])
        except TimeoutError:
            if copied.done():
                break
            waited += 0.2
            if waited > SOCKET_LIMIT_S:
                raise StoreUnreachableError("the JVM beside the node gives no bytes") from None
            continue
        if not came:
            break
        done, waited = done + came, 0.0
    copied.result(SOCKET_LIMIT_S)
    return done
