"""How hard Hypothesis looks, everywhere; and kernels that are compiled once, before the tests are spread."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from holdfast.operators import warm_up

# no deadline: the first call of a kernel compiles it
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("default"), max_examples=1000, stateful_step_count=100)
settings.load_profile(os.environ.get("HOLDFAST_HYPOTHESIS", "default"))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if not hasattr(config, "workerinput"):  # the workers of xdist then find them on disk
        warm_up()


#: Files whose tests start whole clusters, most with several JVMs: side by side they would only wait for each other.
CLUSTERS = (
    "test_arrow_sinks",
    "test_attacked_run",
    "test_cli_nodes",
    "test_core_conformance",
    "test_cut_network",
    "test_dead_letters",
    "test_eventual_restarts",
    "test_faults",
    "test_gaps",
    "test_hostile_streams",
    "test_joining",
    "test_kafka_sinks",
    "test_large_state",
    "test_late_signals",
    "test_lost_journals",
    "test_node_signals",
    "test_nodes",
    "test_racing_starts",
    "test_replays",
    "test_resources",
    "test_restarts",
    "test_signals",
    "test_skips",
    "test_spark_bad_input",
    "test_spark_between",
    "test_spark_drivers",
    "test_spark_end_to_end",
    "test_spark_gaps",
    "test_spark_kafka",
    "test_spark_masters",
    "test_spark_outlets",
    "test_spark_port",
    "test_spark_reader",
    "test_spark_restarts",
    "test_spark_standbys",
    "test_spark_tls",
    "test_spark_upgrades",
    "test_spilling",
    "test_stalls_seen",
    "test_stand_ins",
    "test_store_on_hdfs",
    "test_strangers",
    "test_trace",
    "test_transient_failures",
    "test_transient_modes",
    "test_twins",
    "test_uneven_sources",
)


def pytest_itemcollected(item):
    """`make test` runs these after the others, one at a time."""
    if item.path.stem in CLUSTERS:
        item.add_marker(pytest.mark.cluster)
