"""Load a user's file and find the pipeline in it."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path

from holdfast.errors import ConfigError, HoldfastError
from holdfast.pipeline import api
from holdfast.pipeline.api import Pipeline


def load(path: str | Path) -> Pipeline:
    """The pipeline of a file: the module's `pipeline`, or the one Pipeline that is made in it.

    The file's directory is put on the path, so that it can import what lies beside it. The module does not stay
    among the imported ones: Spark then sends the user's functions to its workers by value, not by a name that they
    could not import.
    """
    file = Path(path)
    if not file.is_file():
        what = "is a directory" if file.is_dir() else "does not exist"
        raise ConfigError(f"pipeline file {str(path)!r} {what}", hint="Give a Python file that makes a hf.Pipeline.")
    if str(file.resolve().parent) not in sys.path:
        sys.path.insert(0, str(file.resolve().parent))
    made: list[Pipeline] = []
    before, api._made = api._made, made
    try:
        namespace = _run(file)
    finally:
        api._made = before
    named = namespace.get("pipeline")
    if isinstance(named, Pipeline):
        return named
    if len(made) == 1:
        return made[0]
    if made:
        raise ConfigError(
            f"{file.name} makes {len(made)} pipelines",
            detail=f"They are {', '.join(repr(p.name) for p in made)}.",
            hint="Call the one that is to run `pipeline`.",
        )
    raise ConfigError(f"{file.name} makes no pipeline", hint='It needs a line like pipeline = hf.Pipeline("name").')


def digest_of(file: Path) -> str:
    """Of a pipeline's file, as its plan has it; "": it cannot be read."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    except OSError:
        return ""


def file_of_run(source: str, directory: Path, planned: str) -> Path:
    """The user's file where it lies, so that it finds what lies beside it, if it is still what was planned (by its
    digest); else the copy of it in the run's directory. Functions of another file would give other rows.

    Who planned without a file (`planned` is "") has only the copy to compare with."""
    original, copy = Path(source), directory / "pipeline.py"
    planned = planned or digest_of(copy) or digest_of(original)
    for file in (original, copy):
        if planned and digest_of(file) == planned:
            return file
    raise ConfigError(
        "the pipeline's file is no longer the one that was planned",
        detail=f"{copy} was changed, damaged or removed, and so was {original}.",
        hint="Put one of them back as it was. A pipeline that was changed is started anew, in another --dir.",
    )


def _run(file: Path) -> dict[str, object]:
    name = f"holdfast_pipeline_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file, loader=None)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file.name} cannot be loaded", hint="A pipeline is a Python file (.py).")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except HoldfastError as error:
        line = _line(error, file)
        named = f"{file.name}:" in error.what + error.detail
        error.detail = f"{error.detail} ({file.name}:{line})".strip() if line and not named else error.detail
        raise
    except SyntaxError as error:
        where = f"Line {error.lineno}." if error.lineno else ""
        raise ConfigError(f"{file.name} is not valid Python: {error.msg}", detail=where) from error
    except BaseException as error:  # whatever it raises, it is the file's
        raise ConfigError(
            f"{file.name} fails with {type(error).__name__}",
            detail=f"{error} (line {_line(error, file)}).".strip(),
            hint="There is no Spark yet when the file is read: call Spark's functions inside of read, map and write."
            if _is_sparks(error)
            else "It is run once to find the pipeline; nothing was started.",
        ) from error
    finally:
        sys.modules.pop(name, None)
    return vars(module)


def _is_sparks(error: BaseException) -> bool:
    """Raised inside of PySpark, which has no session to ask at that moment."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "pyspark" in Path(frames[-1].filename).parts


def _line(error: BaseException, file: Path) -> int | None:
    """The last line of the file that the error went through."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == file.resolve()]
    lines += [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(file)]
    return lines[-1] if lines else None
