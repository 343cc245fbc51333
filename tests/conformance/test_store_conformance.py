"""The promises of a store, on the adapters that start in a moment: memory, local disk, an S3-like server."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator

import pytest
from conformance.store_promises import StorePromises
from support.run import free_ports

from holdfast.errors import (
    ConfigError,
    ObjectExistsError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreRefusedError,
    StoreUnreachableError,
)
from holdfast.store import LocalStore, MemoryStore, Store, check_url, open_store
from holdfast.store.buckets import BucketStore
from holdfast.store.files import FileCalls
from holdfast.store.local import ABANDONED_S, WRITING

KEYS = {"access_key_id": "somebody", "secret_access_key": "nobody-knows-this", "region": "us-east-1"}


class TestMemory(StorePromises):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


class TestLocalDisk(StorePromises):
    @pytest.fixture
    def store(self, tmp_path) -> Store:
        return open_store(f"file://{tmp_path}/a/store")

    def test_what_a_killed_writer_left_is_removed_a_day_later(self, tmp_path):
        store = LocalStore(tmp_path)
        old, new = tmp_path / WRITING / "old", tmp_path / WRITING / "new"
        old.parent.mkdir()
        for path in (old, new):
            path.write_bytes(b"half")
        os.utime(old, (1, os.path.getmtime(new) - ABANDONED_S - 5))
        assert store.list("") == []
        LocalStore(tmp_path)
        assert not old.exists()
        assert new.exists()

    def test_two_processes_see_the_same_store(self, tmp_path):
        one, two = LocalStore(tmp_path), LocalStore(tmp_path)
        one.put("k", [b"1"])
        with pytest.raises(ObjectExistsError):
            two.put("k", [b"2"])
        two.swap("h", b"x", None)
        assert one.look("h") == two.look("h")

    def test_a_folder_that_cannot_be_one_is_refused(self, tmp_path):
        (tmp_path / "file").write_text("x")
        with pytest.raises(ConfigError, match="not a folder"):
            LocalStore(tmp_path / "file" / "store").put("k", [b"x"])

    def test_a_folder_that_cannot_be_listed_does_not_look_empty(self, tmp_path, monkeypatch):
        store = LocalStore(tmp_path)
        store.swap("head/x", b"1", None)
        scan = os.scandir

        def broken(path):
            if str(path).endswith("head/x"):
                raise OSError(errno.EIO, "Input/output error", path)
            return scan(path)

        monkeypatch.setattr(os, "scandir", broken)
        with pytest.raises(StoreUnreachableError):
            store.look("head/x")

    def test_looking_makes_nothing(self, tmp_path):
        store = LocalStore(tmp_path / "not" / "there")
        assert store.list("") == []
        assert store.look("head/x") is None
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_may_not_be_written_is_refused_and_can_be_read(self, tmp_path):
        LocalStore(tmp_path / "store").put("k", [b"x"])

        class NotOurs(FileCalls):
            def create(self, path: str) -> int:
                raise PermissionError(errno.EACCES, "Permission denied", path)

        class ReadOnly(FileCalls):
            def create(self, path: str) -> int:
                raise OSError(errno.EROFS, "Read-only file system", path)

        class FullDisk(FileCalls):
            def write(self, handle: int, chunk: memoryview) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

        for calls, error in ((NotOurs, StoreRefusedError), (ReadOnly, StoreReadOnlyError), (FullDisk, StoreFullError)):
            store = LocalStore(tmp_path / "store", calls())
            with pytest.raises(error):
                store.put("another", [b"x"])
            assert store.get("k", 10) == b"x"
            assert [one.key for one in store.list("")] == ["k"]
        assert list((tmp_path / "store" / WRITING).iterdir()) == []


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """moto's server: it keeps everything in memory, and conditions as S3 does."""
    from moto.server import ThreadedMotoServer

    (port,) = free_ports(1)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop()


class TestS3(StorePromises):
    made = 0

    @pytest.fixture
    def store(self, s3: str) -> Store:
        import boto3

        TestS3.made += 1
        client = boto3.client(
            "s3", endpoint_url=s3, aws_access_key_id="somebody", aws_secret_access_key="x", region_name="us-east-1"
        )
        client.create_bucket(Bucket=f"bucket-{TestS3.made}")
        return open_store(f"s3://bucket-{TestS3.made}/some/where", {**KEYS, "endpoint": s3})

    def test_a_bucket_that_is_not_there_is_one_clear_line(self, s3: str):
        store = open_store("s3://no-such-bucket/x", {**KEYS, "endpoint": s3})
        with pytest.raises(ConfigError, match="there is no s3://no-such-bucket/x") as caught:
            store.put("k", [b"x"])
        assert KEYS["secret_access_key"] not in str(caught.value)


def test_a_setting_that_the_client_does_not_know_is_one_clear_error():
    """One that belongs to its HTTP client makes obstore panic."""
    for name in ("allow_http", "no_such_setting"):
        with pytest.raises(ConfigError, match="s3://bucket cannot be opened") as caught:
            BucketStore("s3://bucket", {**KEYS, name: "true"})
        assert name in caught.value.detail
        assert KEYS["secret_access_key"] not in str(caught.value)


def test_a_server_that_is_not_there_is_unreachable_and_no_secret_is_told():
    (port,) = free_ports(1)
    store = BucketStore("s3://bucket", {**KEYS, "endpoint": f"http://127.0.0.1:{port}"})
    with pytest.raises(StoreUnreachableError) as caught:
        store.look("k")
    assert not any(secret in str(caught.value) for secret in KEYS.values() if secret != "us-east-1")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://host/x", "no store is known for ftp://"),
        ("/var/holdfast", "is not the URL of a store"),
        ("file://relative/path", "is not a folder of this machine"),
        ("file:///", "is not a folder of this machine"),
        ("s3:///path", "names no bucket"),
        ("s3://key:secret@bucket/x", "has a password or a query"),
        ("s3://bucket/x?token=abc", "has a password or a query"),
        ("hadoop+://x", "no store is known"),
    ],
)
def test_a_url_that_no_adapter_knows_is_one_clear_line(url, says):
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert says in caught.value.what
    assert "secret" not in str(caught.value).replace("settings", "")
    assert "abc" not in str(caught.value)


def test_a_url_chooses_its_adapter():
    for url in ("file:///var/x", "hdfs://name/x", "viewfs://c/x", "s3a://b/x", "gs://b", "hadoop+abfs://x"):
        assert check_url(url) == url.partition(":")[0]


def test_the_errors_of_a_store_are_store_errors():
    assert issubclass(StoreUnreachableError, StoreError)
    assert threading.active_count() >= 1
