"""A user's file, and the pipeline in it."""

from __future__ import annotations

import sys
import textwrap

import pytest

from holdfast.errors import ConfigError
from holdfast.pipeline import load
from holdfast.pipeline.load import digest_of, file_of_run


def written(tmp_path, text, name="netmon.py"):
    file = tmp_path / name
    file.write_text(textwrap.dedent(text))
    return file


def test_the_pipeline_of_a_file_is_found(tmp_path):
    named = written(tmp_path, 'import holdfast as hf\nother = hf.Pipeline("a")\npipeline = hf.Pipeline("b")\n')
    assert load(named).name == "b"
    only = written(tmp_path, 'import holdfast as hf\ndef make():\n    return hf.Pipeline("c")\nmine = [make()]\n')
    assert load(str(only)).name == "c"


def test_a_file_can_import_what_lies_beside_it_and_leaves_no_module_behind(tmp_path):
    written(tmp_path, 'NAME = "from_beside"\n', "settings_beside.py")
    file = written(tmp_path, "import holdfast as hf\nimport settings_beside as s\npipeline = hf.Pipeline(s.NAME)\n")
    before = set(sys.modules)
    assert load(file).name == "from_beside"
    assert {m for m in set(sys.modules) - before if "netmon" in m} == set()


@pytest.mark.parametrize(
    ("text", "what", "detail"),
    [
        ("x = 1\n", "netmon.py makes no pipeline", ""),
        ("import holdfast as hf\na = hf.Pipeline('a')\nb = hf.Pipeline('b')\n", "makes 2 pipelines", "'a', 'b'"),
        ("def f(:\n", "netmon.py is not valid Python", "Line 1"),
        ("\n\nx = 1 / 0\n", "netmon.py fails with ZeroDivisionError", "line 3"),
        ("import sys\nsys.exit(2)\n", "netmon.py fails with SystemExit", "line 2"),
        ("import holdfast as hf\nhf.Pipeline('Big')\n", "pipeline name 'Big' cannot be used", "netmon.py:2"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(tmp_path, text, what, detail):
    with pytest.raises(ConfigError) as error:
        load(written(tmp_path, text))
    assert what in error.value.what
    assert detail in error.value.detail


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"'.*absent.py' does not exist"):
        load(tmp_path / "absent.py")
    with pytest.raises(ConfigError, match="is a directory"):
        load(tmp_path)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load(written(tmp_path, "", "netmon.txt"))


def test_a_run_goes_by_the_users_file_only_while_it_is_what_was_planned(tmp_path):
    original, copy = tmp_path / "netmon.py", tmp_path / "run" / "pipeline.py"
    copy.parent.mkdir()
    original.write_text("x = 1")
    planned = digest_of(original)
    assert file_of_run(str(original), copy.parent, planned) == original
    copy.write_text("x = 1")
    assert file_of_run(str(original), copy.parent, planned) == original
    original.write_text("x = 2")
    assert file_of_run(str(original), copy.parent, planned) == copy
    assert file_of_run(str(original), copy.parent, "") == copy
    assert file_of_run("", copy.parent, planned) == copy  # submitted from another machine
    for hurt in (b"", b"x = 3", b"\xff\xfe\0"):
        copy.write_bytes(hurt)
        with pytest.raises(ConfigError, match="no longer the one that was planned") as error:
            file_of_run(str(original), copy.parent, planned)
        assert str(copy) in error.value.detail
    copy.unlink()
    original.write_text("x = 1")
    assert file_of_run(str(original), copy.parent, planned) == original


def test_a_file_that_needs_spark_before_there_is_one_is_told_where_to_call_it(tmp_path, monkeypatch):
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)  # another test of this process may have one
    monkeypatch.setattr("pyspark.sql.SparkSession._instantiatedSession", None)
    file = written(tmp_path, "from pyspark.sql import functions as F\nis_a = F.col('src') == 'a'\n", "needs.py")
    with pytest.raises(ConfigError, match=r"needs\.py fails with") as error:
        load(file)
    assert "line 2" in error.value.detail
    assert "no Spark yet" in error.value.hint
