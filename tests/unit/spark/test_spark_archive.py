"""The archive of Spark's classes: used if it is there, made once, and nobody waits for it or fails without it."""

import pytest

from holdfast.spark import archive


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("HOLDFAST_CLASS_ARCHIVE", raising=False)
    found = archive.archive_file()
    assert found is not None
    assert found.is_relative_to(tmp_path)
    return found


def test_a_jvm_is_told_of_it_only_if_it_is_there(file, monkeypatch):
    assert archive.java_options() == ""
    monkeypatch.setattr(archive, "_train", lambda target: target.write_bytes(b"classes"))
    done, text = archive.make()
    assert (done, file.read_bytes()) == (True, b"classes")
    assert "made in" in text
    assert str(file) in archive.java_options()
    monkeypatch.setenv("HOLDFAST_CLASS_ARCHIVE", "off")
    assert archive.java_options() == ""


def test_it_is_made_once(file, monkeypatch):
    runs = []

    def train(target):
        runs.append(target)
        assert archive.make() == (False, "Another process is making it.")
        target.write_bytes(b"")

    monkeypatch.setattr(archive, "_train", train)
    assert archive.make()[0]
    assert archive.make()[0]
    assert len(runs) == 1
    assert not archive.make_in_background()


@pytest.mark.parametrize("fails", [True, False])
def test_a_java_that_makes_none_is_not_asked_again(file, monkeypatch, fails):
    def train(target):
        if fails:
            raise OSError("no space left on device")

    monkeypatch.setattr(archive, "_train", train)
    done, text = archive.make()
    assert not done
    assert ("no space" if fails else "cannot write one") in text
    assert not archive.make_in_background()
    assert archive.java_options() == ""
