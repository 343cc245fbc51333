# Every target installs what it needs into .venv from pyproject.toml. Outside of this directory there is only
# ~/.cache/holdfast, which can be removed at any time: an archive of Spark's classes (180 MB), and a start script for
# the Java in .venv where the machine has none. Tests on a real HDFS, and `make long`,
# need mvn besides, which keeps the jars of Hadoop and Kafka in ~/.m2.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: test again long hdfs attack demo check lint types fast bench clean help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[spark,store,kafka,bench,dev]'
	@if ! $(BIN)/python -c 'from holdfast.jvm import find_java; find_java()' 2>/dev/null; then \
		echo "no Java 17 or later on this machine: installing one into $(VENV)"; \
		$(BIN)/python -m pip install --quiet -e '.[java]'; fi
	@echo "an archive of Spark's classes, once per machine (about a minute): Spark starts in about 60% of the time"
	-@$(BIN)/python -m holdfast.spark.archive 2>/dev/null | tail -n 1
	touch $@

demo: $(VENV)/.installed  ## four nodes, kill -9 now and then, and an audit at the end (about five minutes)
	$(BIN)/holdfast demo

test: $(VENV)/.installed  ## every test but the longest, the ones on Spark included (about 40 minutes)
	@rm -f .pytest_cache/ended; failed=0; \
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations 8 -m 'not cluster and not long' || { [ $$? -eq 1 ] && failed=1; } || exit; \
	$(BIN)/python -m pytest --durations 8 -m 'cluster and not long' || { [ $$? -eq 1 ] && failed=1; } || exit; \
	touch .pytest_cache/ended; exit $$failed

again: $(VENV)/.installed  ## the tests that failed last, each once more, with nothing beside it
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

long: $(VENV)/.installed  ## the longest tests: clusters with several JVMs under kills (about twelve minutes)
	$(BIN)/python -m pytest -m long

hdfs: $(VENV)/.installed  ## a real HDFS on loopback to try things with (needs mvn and javac); Ctrl-C stops it
	PYTHONPATH=src:tests $(BIN)/python -m support.hdfs

attack: $(VENV)/.installed  ## the attack suite in its long form (about 15 minutes)
	$(BIN)/python -m pytest --durations 8 tests/attack

check: lint types fast  ## lint, types and the fast tests (under 3 minutes)

lint: $(VENV)/.installed
	$(BIN)/ruff check src tests bench
	$(BIN)/ruff format --check src tests bench

types: $(VENV)/.installed
	$(BIN)/pyright

fast: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not cluster and not spark and not slow and not long'

bench: $(VENV)/.installed  ## every bench in its quick form
	$(BIN)/python -m bench all --quick

clean:  ## forget compiled kernels and caches, keep .venv
	find src tests bench -name __pycache__ -type d -prune -exec rm -r {} +
	rm -rf .pytest_cache .ruff_cache .hypothesis build
