"""A user's file runs in the planner's process: what it prints must not get between the planner and the command."""

from __future__ import annotations

import json
import subprocess

import pytest

from holdfast.cli.planning import last_words, plan_file
from holdfast.cli.runs import read_run
from holdfast.cli.verify import verify_run
from holdfast.errors import ConfigError

#: Wrong in a way that shows before Spark is needed.
PRINTS = """
import holdfast as hf
print("{hello}")
first = hf.Pipeline("first")
second = hf.Pipeline("second")
rows = second.read(lambda spark: None, event_time="ts", watermark="1 s").window("10 s").agg(n=hf.count())
rows.write(lambda df: df)
print(second.explain())
"""


def test_a_file_that_prints_does_not_hide_its_own_mistake(tmp_path):
    file = tmp_path / "prints.py"
    file.write_text(PRINTS)
    with pytest.raises(ConfigError, match=r"prints\.py makes 2 pipelines"):
        plan_file(file, tmp_path / "run", query="q", conf={})


def test_verify_reads_its_own_answer_and_nothing_else(tmp_path):
    (tmp_path / "prints.py").write_text(PRINTS)
    described = {"pipeline": "p", "source": str(tmp_path / "prints.py"), "cwd": str(tmp_path), "endpoints": {}}
    (tmp_path / "run.json").write_text(json.dumps(described))
    plan = {"pipeline": "p", "query": "q", "topology": {"units": [], "stages": [], "readers": []}}
    (tmp_path / "plan.json").write_text(json.dumps({**plan, "operators": [], "stages": []}))
    with pytest.raises(ConfigError, match=r"prints\.py makes 2 pipelines"):
        verify_run(read_run(tmp_path))


def test_why_a_jvm_did_not_start_is_told_and_not_only_that_it_did_not():
    java = 'Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: org.x#y;1: not found]'
    said = f"resolving\n{java}\n\tat Main\nTraceback:\nPySparkRuntimeError: [JAVA_GATEWAY_EXITED] it exited"
    assert last_words(subprocess.CompletedProcess([], 1, "", said)) == java
    assert last_words(subprocess.CompletedProcess([], 1, "", "a\nb\n")) == "b"
    assert last_words(subprocess.CompletedProcess([], 7, "", "")) == "exit code 7"
