"""Spark's side of Holdfast: stages that feed operators, sinks that read them, and data sources for Spark programs.

session.py     a SparkSession that makes micro-batches short    checkpoint.py  Spark's checkpoint agrees with the ledger
child.py       the process of one stage                         roles.py       what it does, by kind of stage
stage.py       foreachBatch                                     sink.py        format("holdfast") into the user's sink
collect.py     a micro-batch to Arrow                           partial.py     grouped by (pane, key)
bad.py         rows that no operator can hold                   aside.py       late and bad rows apart, within a limit
ahead.py       a watermark that runs away                       leftovers.py   what an earlier run has left
hand_over.py   run a batch, wait until it counts                late.py        rows set aside, recorded exactly once
datasource.py  format("holdfast")                               fetch.py       rows of an edge, from whoever has them
follower.py    where a stream stands, without its rows          connect.py     the way to the nodes
reasons.py     why a query failed, in one line
state_source.py  format("holdfast-state"): what checkpoints hold
arrow_sink.py  a sink without Spark                             light.py       the process of such sinks
orders.py      what is to be fetched, from whom                 shared.py      what every driver process finds out first
port.py        rows from a program of the user's own            writer.py      format("holdfast"), written to
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.spark.datasource import HoldfastDataSource
    from holdfast.spark.state_source import HoldfastStateSource

__all__ = ["HoldfastDataSource", "HoldfastStateSource"]


def __getattr__(name: str) -> Any:
    """Loaded when it is used: most modules here do without Spark."""
    match name:
        case "HoldfastDataSource":
            from holdfast.spark.datasource import HoldfastDataSource

            return HoldfastDataSource
        case "HoldfastStateSource":
            from holdfast.spark.state_source import HoldfastStateSource

            return HoldfastStateSource
        case _:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
