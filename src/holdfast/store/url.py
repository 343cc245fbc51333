"""A URL chooses the adapter. What none of them knows is one clear line, and nothing was opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.errors import ConfigError
from holdfast.store.port import Store

HADOOP = ("hdfs", "viewfs")
BUCKETS = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
_KNOWN = "file://, hdfs://, viewfs://, s3://, gs:// and az://; others that Spark knows as hadoop+SCHEME://"


def check_url(url: str) -> str:
    """The scheme of a URL that some adapter knows; a ConfigError otherwise. Opens nothing."""
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query:
        raise ConfigError(
            "the URL of a store has a password or a query in it",
            detail=f"It is a {parts.scheme}:// URL.",
            hint="URLs are shown in logs. Give credentials by the environment or in settings.",
        )
    scheme = parts.scheme
    if scheme == "file":
        if parts.netloc or not parts.path.startswith("/") or parts.path.rstrip("/") == "":
            raise ConfigError(f"{url} is not a folder of this machine", hint="Write file:///var/holdfast.")
    elif scheme in HADOOP or (scheme.startswith("hadoop+") and len(scheme) > 7):
        pass
    elif scheme in BUCKETS:
        if not parts.netloc:
            raise ConfigError(f"{url} names no bucket", hint=f"Write {scheme}://BUCKET/PATH.")
    elif not scheme:
        raise ConfigError(f"{url!r} is not the URL of a store", hint=f"For a folder: file://{Path(url).absolute()}")
    else:
        raise ConfigError(f"no store is known for {scheme}://", detail=f"{url}.", hint=f"There are {_KNOWN}.")
    return scheme


def is_folder(url: str) -> bool:
    """Whatever reaches this store can use it as a directory, too."""
    return check_url(url) == "file"


def can_place(url: str) -> bool:
    """Can this store be told on which servers the copies of an object shall be?"""
    return check_url(url) == "hdfs"


def open_store(
    url: str,
    settings: Mapping[str, str] | None = None,
    *,
    log: Path | None = None,
    favoured: Callable[[str], Sequence[str]] | None = None,
) -> Store:
    """The store at this URL. `settings` are the adapter's own (Hadoop's or obstore's); `log`: of a JVM beside it;
    `favoured`: asked where the copies of an object shall go, by the stores that can be told (`can_place`)."""
    scheme = check_url(url)
    if scheme == "file":
        from holdfast.store.local import LocalStore

        return LocalStore(unquote(urlsplit(url).path).rstrip("/"))
    if scheme in BUCKETS:
        from holdfast.store.buckets import BucketStore

        return BucketStore(url, settings)
    from holdfast.store.hadoop import HadoopStore

    return HadoopStore(url, settings, log=log, favoured=favoured if can_place(url) else None)
