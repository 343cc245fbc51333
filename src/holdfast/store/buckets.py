"""Object stores without a JVM: `s3://bucket/path`, `gs://`, `az://`, by obstore (Rust's object_store).

    put    one request "only if there is none" (If-None-Match) for what fits into one; a larger object goes up in parts,
           of which a few are in memory, and appears as a whole at the end. The condition is then only looked at before.
    swap   one request "only if it still has this tag" (If-Match): the store itself is the fence.

Credentials come from where the tools of each provider look (environment, profile, instance), or from the settings given
with the store; they are never part of a URL, a log line or an error of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn
from urllib.parse import urlsplit

from holdfast.errors import (
    ConfigError,
    HoldfastError,
    ObjectExistsError,
    StoreError,
    StoreFullError,
    StoreRefusedError,
    StoreUnreachableError,
    SwapConflictError,
)
from holdfast.store.port import (
    SMALL_BYTES_MAX,
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

#: What goes up in one request, and the size of a part of what does not.
PART_BYTES = 8 << 20
#: Parts of one object that are on their way at once: so many are in memory.
PARTS_AT_ONCE = 2
TIMEOUT_S = 30
_AWAY = re.compile(
    r"error sending request|connection (refused|reset|closed|error)|trying to connect|timed out|dns error"
    r"|reset by peer|status(: | code: )50[0234]",
    re.I,
)
_FULL = re.compile(r"\b507\b|quota|insufficient.?storage|EntityTooLarge|StorageFull", re.I)
_SECRET = re.compile(r"(key|secret|token|signature|sig|credential)[^\s,;]*[=:]\s*\S+", re.I)


class BucketStore:
    """`settings` are obstore's for this kind of store ("endpoint", "region", "access_key_id", ...)."""

    def __init__(self, url: str, settings: Mapping[str, str] | None = None) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError:
            raise ConfigError(
                f"a store in {urlsplit(url).scheme}:// needs obstore", hint="pip install 'holdfast[store]'"
            ) from None
        self.url = url.rstrip("/")
        self._obstore = obstore
        given = dict(settings or {})
        options: Any = {"timeout": f"{TIMEOUT_S}s", "connect_timeout": "5s"}
        if given.get("endpoint", given.get("endpoint_url", "")).startswith("http://"):
            options["allow_http"] = True
        retries: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=TIMEOUT_S)}
        try:
            self._store: Any = from_url(_plain(self.url), config=given, client_options=options, retry_config=retries)  # type: ignore[call-overload]
        except BaseException as error:  # a setting that it does not expect is a panic, not an Exception
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            names = f"Settings: {', '.join(sorted(given)) or 'none'}."
            raise ConfigError(f"{self.url} cannot be opened", detail=f"{_said(error)} {names}") from None

    def put(self, key: str, chunks: Iterable[Buffer]) -> int:
        check_key(key)
        parts = _parts(chunks)
        first = next(parts, b"")
        second = next(parts, None)
        try:
            if second is None:
                self._obstore.put(self._store, key, bytes(first), mode="create")
                return len(first)
            return self._put_parts(key, first, second, parts)
        except HoldfastError:
            raise
        except Exception as error:
            self._raise(error, "write", key)

    def _put_parts(self, key: str, first: bytes, second: bytes, rest: Iterator[bytes]) -> int:
        if self._is_there(key):
            raise ObjectExistsError(f"{key} is in {self.url} already")
        nbytes = 0
        failed: list[BaseException] = []

        def all_parts() -> Iterator[bytes]:
            nonlocal nbytes
            try:
                for part in (first, second):
                    nbytes += len(part)
                    yield part
                for part in rest:
                    nbytes += len(part)
                    yield part
            except BaseException as error:
                failed.append(error)  # obstore would tell of it in words of its own
                raise

        try:
            self._obstore.put(
                self._store, key, all_parts(), use_multipart=True, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )
        except Exception:
            if failed:
                raise failed[0] from None
            raise
        return nbytes

    def _is_there(self, key: str) -> bool:
        try:
            self._obstore.head(self._store, key)
        except Exception as error:
            if _is(error, "NotFoundError"):
                return False
            raise
        return True

    def read(self, key: str, ranges: Sequence[Range]) -> None:
        check_key(key)
        pieces = [(offset, into.cast("B")) for offset, into in ranges if len(into)]
        try:
            starts, lengths = [offset for offset, _ in pieces], [len(into) for _, into in pieces]
            found = self._obstore.get_ranges(self._store, key, starts=starts, lengths=lengths) if pieces else []
        except BaseException as error:
            # obstore joins ranges that lie close, and panics (not an Exception) if the object ends between them
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            self._short(error, key, pieces)
            self._raise(error, "read", key)
        for (offset, into), raw in zip(pieces, found, strict=True):
            view = memoryview(raw)
            if len(view) != len(into):
                raise too_short(self.url, key, offset, len(into), len(view))
            into[:] = view

    def _short(self, error: BaseException, key: str, pieces: list[Range]) -> None:
        """A range that an object does not have is refused in as many words as there are stores: its size is asked."""
        if _is(error, "NotFoundError") or _AWAY.search(str(error)):
            return
        length = self.size(key)
        for offset, into in pieces:
            if offset + len(into) > length:
                raise too_short(self.url, key, offset, len(into), max(0, length - offset)) from None

    def get(self, key: str, bytes_max: int) -> bytes:
        check_key(key)
        try:
            found = self._obstore.get(self._store, key)
            nbytes = found.meta["size"]
            if nbytes <= bytes_max:
                return bytes(found.bytes())
        except Exception as error:
            self._raise(error, "read", key)
        raise too_long(self.url, key, nbytes, bytes_max)

    def size(self, key: str) -> int:
        check_key(key)
        try:
            return self._obstore.head(self._store, key)["size"]
        except Exception as error:
            self._raise(error, "read", key)

    def list(self, prefix: str) -> list[StoredObject]:
        check_prefix(prefix)
        try:
            metas = [
                meta for some in self._obstore.list(self._store, prefix=folder_of(prefix) or None) for meta in some
            ]
        except Exception as error:
            self._raise(error, "list", prefix)
        found = (StoredObject(m["path"], m["size"], m["last_modified"].timestamp()) for m in metas)
        return sorted(one for one in found if one.key.startswith(prefix))

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
            try:
                self._obstore.delete(self._store, key)
            except Exception as error:
                if not _is(error, "NotFoundError"):
                    self._raise(error, "delete", key)

    def look(self, key: str) -> tuple[bytes, Version] | None:
        check_key(key)
        try:
            found = self._obstore.get(self._store, key)
            if found.meta["size"] > SMALL_BYTES_MAX:
                raise too_long(self.url, key, found.meta["size"], SMALL_BYTES_MAX)
            return bytes(found.bytes()), _version(found.meta)
        except HoldfastError:
            raise
        except Exception as error:
            if _is(error, "NotFoundError"):
                return None
            self._raise(error, "look at", key)

    def swap(self, key: str, data: bytes, version: Version | None) -> Version:
        check_key(key)
        mode: Any = "create" if version is None else _expected(version)
        try:
            return _version(self._obstore.put(self._store, key, data, mode=mode))
        except Exception as error:
            if _is(error, "AlreadyExistsError", "PreconditionError", "NotFoundError"):
                raise SwapConflictError(f"{key} in {self.url} has changed") from None
            self._raise(error, "replace", key)

    def close(self) -> None:
        """Its connections end with it."""

    def _raise(self, error: BaseException, what: str, key: str) -> NoReturn:
        raise self._error_of(error, f"{what} {key}".rstrip(), key) from None

    def _error_of(self, error: BaseException, where: str, key: str) -> HoldfastError:
        said = _said(error)
        if _is(error, "AlreadyExistsError", "PreconditionError"):
            return ObjectExistsError(f"{key} is in {self.url} already")
        if _is(error, "NotFoundError"):
            if "NoSuchBucket" in str(error):
                return ConfigError(f"there is no {self.url}", detail=said, hint="Make the bucket first.")
            return missing(self.url, key)
        if _is(error, "PermissionDeniedError", "UnauthenticatedError"):
            hint = "Look at the credentials that the nodes find (environment, profile, instance)."
            return StoreRefusedError(f"{self.url} may not be used: {where}", detail=said, hint=hint)
        if _is(error, "NotSupportedError"):
            hint = "It must know If-Match and If-None-Match."
            return ConfigError(f"{self.url} cannot hold checkpoints", detail=said, hint=hint)
        if _FULL.search(str(error)):
            return StoreFullError(f"{self.url} is full", detail=f"{where}: {said}")
        if _AWAY.search(str(error)):
            return StoreUnreachableError(f"{self.url} does not answer: {where}", detail=said)
        return StoreError(f"{self.url} cannot {where}", detail=said)


def _version(told: Any) -> Version:
    """S3 and Azure go by the tag of an object, Google by the number of its generation: both are kept."""
    return f"{told['e_tag'] or ''}|{told['version'] or ''}"


def _expected(version: Version) -> dict[str, str]:
    tag, _, number = version.partition("|")
    return {name: value for name, value in (("e_tag", tag), ("version", number)) if value}


def _plain(url: str) -> str:
    """obstore knows s3a as s3 already, and Azure's two names."""
    return re.sub(r"^abfss?://", "abfs://", url)


def _parts(chunks: Iterable[Buffer]) -> Iterator[bytes]:
    """The chunks again, in pieces of PART_BYTES each that may be kept. A part that is full is given only when something
    follows it: what fits one part is one request."""
    held = bytearray()
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        while len(view):
            if len(held) >= PART_BYTES:
                yield bytes(held)
                held = bytearray()
            room = PART_BYTES - len(held)
            held += view[:room]
            view = view[room:]
    if held:
        yield bytes(held)


def _is(error: BaseException, *names: str) -> bool:
    """By the name of its class: obstore's own, or Python's where it has one (FileNotFoundError)."""
    also = ("FileNotFoundError",) if "NotFoundError" in names else ()
    return any(kind.__name__ in (*names, *also) for kind in type(error).__mro__)


def _said(error: BaseException) -> str:
    """What a library says, in one line without anything that looks like a secret."""
    said = " ".join(str(error).partition("Debug source")[0].split())[:400]
    return _SECRET.sub(r"\1=...", said)
