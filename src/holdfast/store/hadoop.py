"""Stores that Spark writes to by Hadoop's client: `hdfs://`, `viewfs://`, and others as `hadoop+SCHEME://`.

    put    a file in `.writing` is written and synced to the disks of its data nodes (hsync), closed, and renamed to its
           name, which HDFS does for one of several. A writer that dies leaves a file in `.writing`, where nobody looks.
           Where a rename is a copy (S3) the store itself must create on a condition: it is asked to, and one that
           does not know how is refused when it is opened. Fences that only look like fences are worse than none.
    swap   numbered objects (`numbered.py`): HDFS has nothing that replaces on a condition.

Why the official client in a JVM and not `hdfs-native` (Rust, no JVM), which was measured beside it
(docs/checkpoints.md): it is the one that Spark uses, so whatever Spark can write to and log in to works with the
user's own configuration; it can be told on which data nodes a block should be (`favoured`), which Peace needs; and it
syncs. The price is about 100 MB beside every node that has such a store, and nothing where none is configured.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holdfast.errors import (
    ConfigError,
    HoldfastError,
    ObjectExistsError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreRefusedError,
    StoreUnreachableError,
)
from holdfast.store import numbered
from holdfast.store.jvm import HadoopJvm
from holdfast.store.port import (
    Buffer,
    Range,
    StoredObject,
    Version,
    check_key,
    check_prefix,
    folder_of,
    missing,
    too_long,
    too_short,
)

WRITING = ".writing"
ABANDONED_S = 86_400.0
PREFIX = "hadoop+"
#: Where a rename within the store is one step that fails if the name is taken.
_RENAMES = ("hdfs", "viewfs", "abfs", "abfss")
#: What the others must promise: Hadoop's name for "make this object only if there is none".
_CONDITIONAL = "fs.option.create.conditional.overwrite"


class HadoopStore:
    """`favoured` is asked before every object for the data nodes to write to, as "host:port"; they are a wish."""

    def __init__(
        self,
        url: str,
        settings: Mapping[str, str] | None = None,
        *,
        favoured: Callable[[str], Sequence[str]] | None = None,
        log: Path | None = None,
    ) -> None:
        self.url = url.removeprefix(PREFIX).rstrip("/")
        self._favoured = favoured
        self._renames = urlsplit(self.url).scheme in _RENAMES
        self._java = HadoopJvm(settings or {}, log)
        try:
            jvm = self._java.jvm
            with self._errors("open", ""):
                self._root = self._java.path(self.url)
                self._fs = self._root.getFileSystem(self._java.conf)
                self._options: Any = self._java.gateway.new_array(jvm.org.apache.hadoop.fs.Options.Rename, 1)
                self._options[0] = jvm.org.apache.hadoop.fs.Options.Rename.NONE
                #: Hadoop's other interface: only its rename says what went wrong, and never writes over anything.
                context = jvm.org.apache.hadoop.fs.FileContext
                self._files: Any = (
                    context.getFileContext(self._root.toUri(), self._java.conf) if self._renames else None
                )
                self._base = self._fs.makeQualified(self._root).toUri().getPath().rstrip("/")
                self._sweep()  # the first question to the store: one that is away is said to be now
            if not self._renames:
                self._check_conditional()
        except BaseException:
            self._java.close()
            raise

    # --- writing

    def put(self, key: str, chunks: Iterable[Buffer]) -> int:
        check_key(key)
        with self._errors("write", key):
            if not self._renames:
                return self._create(self._path(key), key, chunks)
            beside = self._path(f"{WRITING}/{uuid.uuid4().hex}")
            try:
                nbytes = self._create(beside, key, chunks)
                self._publish(beside, key)
                return nbytes
            except BaseException:
                with contextlib.suppress(Exception):
                    self._fs.delete(beside, False)
                raise

    def _create(self, path: Any, key: str, chunks: Iterable[Buffer]) -> int:
        builder = self._fs.createFile(path).overwrite(False).recursive()
        if not self._renames:
            builder = builder.must(_CONDITIONAL, True)
        nodes = self._favoured(key) if self._favoured else ()
        if nodes:
            builder = builder.favoredNodes(self._addresses(nodes))
        out = builder.build()
        try:
            nbytes = self._java.feed(chunks, out)
            if self._renames:
                out.hsync()
        except BaseException:
            self._abandon(out)
            raise
        out.close()
        return nbytes

    def _abandon(self, out: Any) -> None:
        """A writer that ends with an error. An object store must not take `close` for "that was all"."""
        with contextlib.suppress(Exception):
            if self._renames:
                out.close()
            else:
                out.abort()

    def _publish(self, beside: Any, key: str) -> None:
        target = self._path(key)
        self._fs.mkdirs(target.getParent())
        self._files.rename(beside, target, self._options)

    def _addresses(self, nodes: Sequence[str]) -> Any:
        kind = self._java.jvm.java.net.InetSocketAddress
        found: Any = self._java.gateway.new_array(kind, len(nodes))
        for i, node in enumerate(nodes):
            host, _, port = node.rpartition(":")
            found[i] = kind(host, int(port))
        return found

    def delete(self, keys: Sequence[str]) -> None:
        folders: dict[str, None] = {}
        for key in keys:
            check_key(key)
            with self._errors("delete", key):
                if self._fs.delete(self._path(key), False):
                    folders[folder_of(key)] = None
        for folder in filter(None, folders):
            with contextlib.suppress(Exception):  # not empty: it stays
                self._fs.delete(self._path(folder), False)

    def swap(self, key: str, data: bytes, version: Version | None) -> Version:
        check_key(key)
        return numbered.swap(self, key, data, version)

    # --- reading

    def look(self, key: str) -> tuple[bytes, Version] | None:
        check_key(key)
        return numbered.look(self, key)

    def read(self, key: str, ranges: Sequence[Range]) -> None:
        check_key(key)
        pieces = [(offset, into.cast("B")) for offset, into in ranges if len(into)]
        with self._errors("read", key):
            length = self._status(key).getLen()
            for offset, into in pieces:  # a seek behind the end is an error of another kind
                if offset + len(into) > length:
                    raise too_short(self.url, key, offset, len(into), max(0, length - offset))
            source = self._fs.open(self._path(key))
            try:
                came = self._java.drain(source, pieces)
            finally:
                source.close()
        for (offset, into), got in zip(pieces, came, strict=True):
            if got != len(into):
                raise too_short(self.url, key, offset, len(into), got)

    def get(self, key: str, bytes_max: int) -> bytes:
        nbytes = self.size(key)
        if nbytes > bytes_max:
            raise too_long(self.url, key, nbytes, bytes_max)
        raw = bytearray(nbytes)
        self.read(key, [(0, memoryview(raw))])
        return bytes(raw)

    def size(self, key: str) -> int:
        check_key(key)
        with self._errors("read", key):
            return self._status(key).getLen()

    def _status(self, key: str) -> Any:
        return self._fs.getFileStatus(self._path(key))

    def list(self, prefix: str) -> list[StoredObject]:
        check_prefix(prefix)
        folder = folder_of(prefix)
        found = []
        with self._errors("list", prefix):
            try:
                walk = self._fs.listFiles(self._path(folder) if folder else self._root, True)
                while walk.hasNext():
                    found.append(self._stored(walk.next()))
            except Exception as error:
                if _java_name(error) != "java.io.FileNotFoundException":
                    raise
        return sorted(one for one in found if one.key.startswith(prefix) and not one.key.startswith(WRITING))

    def _stored(self, status: Any) -> StoredObject:
        key = status.getPath().toUri().getPath()[len(self._base) + 1 :]
        return StoredObject(key, status.getLen(), status.getModificationTime() / 1000)

    def block_nodes(self, key: str) -> list[list[str]]:
        """For each block of an object, where it is ("host:port"): what became of a wish."""
        with self._errors("look at", key):
            status = self._status(key)
            blocks = self._fs.getFileBlockLocations(status, 0, status.getLen())
            return [list(block.getNames()) for block in blocks]

    def close(self) -> None:
        self._java.close()

    def _path(self, key: str) -> Any:
        return self._java.path(self._root, key)

    def _sweep(self) -> None:
        """Leave nothing behind forever of processes that were killed while they wrote."""
        try:
            found = self._fs.listStatus(self._path(WRITING))
        except Exception as error:
            if _java_name(error) == "java.io.FileNotFoundException":
                return
            raise
        for status in found:
            if time.time() - status.getModificationTime() / 1000 > ABANDONED_S:
                with contextlib.suppress(Exception):  # a store that takes no writes can still be read
                    self._fs.delete(status.getPath(), False)

    def _check_conditional(self) -> None:
        scheme = urlsplit(self.url).scheme
        probe = self._path(f"{WRITING}/{uuid.uuid4().hex}")
        try:
            self._fs.createFile(probe).overwrite(False).must(_CONDITIONAL, True).build().close()
            self._fs.delete(probe, False)
        except Exception as error:
            raise ConfigError(
                f"{self.url} cannot hold checkpoints",
                detail=f"Hadoop's client for {scheme}:// does not promise to create an object only if there is none "
                f"({_first_line(error)}), so two writers could not be told apart.",
                hint="Use hdfs://, s3://, gs:// or az://, or a newer client.",
            ) from None

    # --- errors

    @contextlib.contextmanager
    def _errors(self, what: str, key: str) -> Iterator[None]:
        """Whatever comes out of the JVM, as one of ours. Errors of ours, and of a caller's chunks, pass."""
        from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

        try:
            yield
        except Py4JJavaError as error:
            raise error_of(_java_name(error), _text(error), self.url, what, key) from None
        except (Py4JNetworkError, Py4JError, ConnectionError) as error:
            alive = "" if self._java.is_alive else " The JVM beside the node has ended."
            said = " ".join(str(error).split())[:300]
            raise StoreUnreachableError(
                f"{self.url} does not answer: {what} {key}".rstrip(), detail=f"{type(error).__name__}: {said}.{alive}"
            ) from None


def _java_name(error: Exception) -> str:
    """The class of a Java exception; of one that came from a server, the server's."""
    java = getattr(error, "java_exception", None)
    if java is None:
        return type(error).__name__
    name = java.getClass().getName()
    return java.getClassName() if name.endswith(".RemoteException") else name


def _text(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    return str(java.getMessage() if java is not None else error)


def _first_line(error: Exception) -> str:
    return _text(error).splitlines()[0][:300]


_FULL = re.compile(r"QuotaExceeded|could only be (written|replicated) to|No space left|not enough space", re.I)
_AWAY = re.compile(
    r"Connect|Timeout|NoRouteToHost|UnknownHost|EOFException|SocketException|StandbyException|RetriableException"
    r"|ClosedChannel|BlockMissing|All datanodes .* are bad|Failed to replace a bad datanode|Call From|LastBlock"
)


def error_of(name: str, text: str, url: str, what: str, key: str) -> HoldfastError:
    """One of our errors for a Java exception, by its class and, where that says nothing, by its message."""
    said = " ".join(text.split())[:300]
    short = name.rpartition(".")[2]
    where = f"{what} {key}".rstrip()
    if short in ("FileAlreadyExistsException", "AlreadyBeingCreatedException"):
        return ObjectExistsError(f"{key} is in {url} already")
    if short in ("FileNotFoundException", "NoSuchFileException"):
        return missing(url, key)
    if short == "SafeModeException":
        hint = "Its name node is starting, or somebody has put it into safe mode."
        return StoreReadOnlyError(f"{url} takes no writes", detail=said, hint=hint)
    if _FULL.search(short) or _FULL.search(text):
        return StoreFullError(f"{url} is full", detail=f"{where}: {said}", hint="Make room there, or raise its quota.")
    if short in ("AccessControlException", "AuthorizationException", "SaslException", "KrbException"):
        hint = "The user of the nodes needs to own that path; look at Hadoop's configuration (HADOOP_CONF_DIR)."
        return StoreRefusedError(f"{url} may not be used: {where}", detail=said, hint=hint)
    if short == "UnsupportedFileSystemException":
        hint = "The jars of its client have to be among Spark's."
        return ConfigError(f"Hadoop's client does not know {url}", detail=said, hint=hint)
    if _AWAY.search(short) or _AWAY.search(text):
        return StoreUnreachableError(f"{url} does not answer: {where}", detail=said)
    return StoreError(f"{url} cannot {where}", detail=f"{short}: {said}")
