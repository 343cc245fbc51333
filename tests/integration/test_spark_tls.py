"""Nodes that speak TLS: stages, sinks and guests reach them with a certificate and the secret, and nobody without."""

from __future__ import annotations

import json

import pytest
from support.packets import write_json
from support.tls import make_tls
from test_spark_end_to_end import started

from holdfast.errors import HoldfastError
from holdfast.pipeline import load
from holdfast.pipeline.verify import verify
from holdfast.runtime.net.security import Security, make_secret
from holdfast.runtime.net.transport import Caller
from holdfast.spark import HoldfastDataSource

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_a_run_over_tls_is_finished_and_verified_and_strangers_are_refused(spark, tmp_path):
    ca, cert, key = make_tls(tmp_path)
    (tmp_path / "in").mkdir()
    for i in range(5):
        write_json(tmp_path / "in", i)
    tls = {"ca": ca, "cert": cert, "key": key}
    run = started(tmp_path, spark, tls=tls)
    try:
        run.wait_running("talkers_in")
        run.wait_running("out_0")
        assert all(url.startswith("grpc+tls://") for url in run.endpoints.values())
        _plain_words_are_refused(run)
        _guests_need_both(spark, run, tls)
        run.finish(["out_0"])
    finally:
        run.close()
    verdict = verify(load(tmp_path / "netmon.py"), run.plan, run.directory, spark)
    assert verdict.ok, verdict.text()
    assert verdict.sinks[0].comparison.rows_found > 0


def _plain_words_are_refused(run) -> None:
    plain = {name: url.replace("grpc+tls", "grpc") for name, url in run.endpoints.items()}
    caller = Caller("plain", plain, Security.load(run.directory / "secret", deployment=run.plan.query))
    with pytest.raises(HoldfastError):
        caller.call("n0", "ping", timeout=5)
    caller.close()


def _guests_need_both(spark, run, tls: dict[str, str]) -> None:
    """A Spark program of its own, that asks the nodes what they run."""
    spark.dataSource.register(HoldfastDataSource)
    make_secret(run.directory / "other")

    def columns(secret: str, tls: dict[str, str]) -> list[str]:
        reader = spark.readStream.format("holdfast").option("endpoints", json.dumps(run.endpoints))
        reader = reader.option("secret_file", str(run.directory / secret)).option("tls", json.dumps(tls))
        return reader.option("stream", "talkers").load().columns

    assert columns("secret", tls) == ["window_start", "window_end", "src", "packets", "bytes"]
    with pytest.raises(Exception, match="wrong secret"):  # whatever Spark makes of it
        columns("other", tls)
    with pytest.raises(Exception, match="cannot be reached"):
        columns("secret", {"ca": tls["ca"]})
