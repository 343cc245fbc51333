"""The one Java class that real-time stages need: built from its source here, once for each Java and each PySpark.

Spark's real-time mode gives rows to classes of the JVM only (its Python sinks wait until a pickle has a megabyte), so
`java/RealTimeWriter.java` pushes them to the stage's process. It is compiled against the jars of the installed PySpark
with the `javac` beside the `java` that Spark runs on, and kept in ~/.cache/holdfast. Nothing is loaded from anywhere.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

from holdfast.jvm import cache_directory, find_java

SOURCE = Path(__file__).with_name("java") / "RealTimeWriter.java"
WRITER = "holdfast.RealTimeWriter"
BUILD_S_MAX = 120.0


class NoJar(Exception):
    """It cannot be built here. Says why, in words that can follow a colon."""


def jar() -> Path:
    """The jar with the class; it is built if it is not there."""
    try:
        source = SOURCE.read_bytes()
    except OSError as error:
        raise NoJar(f"{SOURCE} cannot be read ({error.strerror})") from error
    of = "|".join([version("pyspark"), os.path.realpath(find_java()), hashlib.sha256(source).hexdigest()])
    file = cache_directory() / f"real-time-{hashlib.sha256(of.encode()).hexdigest()[:16]}.jar"
    if not file.exists():
        _build(file)
    return file


def with_jar(conf: dict[str, str], master: str) -> tuple[dict[str, str], str]:
    """Settings of a session that has what real-time stages need; or why it cannot."""
    if not master.startswith("local") or master.startswith("local-cluster"):
        return conf, f"with master {master} tasks do not run in the driver's process, which rows are pushed from"
    try:
        jars = [given for given in (conf.get("spark.jars"), str(jar())) if given]
        return {**conf, "spark.jars": ",".join(jars)}, ""
    except NoJar as error:
        return conf, f"the Java class that pushes rows cannot be built: {error}"


def _javac() -> str:
    beside = Path(find_java()) / "bin" / "javac"
    found = str(beside) if beside.exists() else shutil.which("javac")
    if not found:
        raise NoJar(f"there is no javac beside the Java in {find_java()} (a JDK is needed, once)")
    return found


def _build(file: Path) -> None:
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars" / "*"
    with tempfile.TemporaryDirectory(prefix="holdfast-javac-") as made:
        command = [_javac(), "--release", "17", "-nowarn", "-cp", str(jars), "-d", made, str(SOURCE)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S_MAX, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoJar(f"javac cannot be run ({error})") from error
        if done.returncode:
            raise NoJar(f"javac refuses it ({(done.stderr.strip().splitlines() or ['no word'])[0]})")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_suffix(f".{os.getpid()}")
            with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
                for path in sorted(Path(made).rglob("*.class")):
                    archive.write(path, path.relative_to(made))
            part.replace(file)  # others may be building it too, and it is the same
        except OSError as error:
            raise NoJar(f"{file} cannot be written ({error.strerror})") from error
