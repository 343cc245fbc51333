"""What a user writes, and what becomes of it before anything runs.

api.py       Pipeline, Stream          aggs.py      count, sum, …            durations.py  "10 seconds"
graph.py     the nodes they make       layout.py    stages, shards, edges     explain.py    all of it as text
frames.py    the user's functions      checks.py    what Spark says of them  planner.py    the Plan
load.py      a user's file             verify.py    the same in plain Spark batch, compared
arguments.py what a call may say       replay.py    its input again          recompute.py  its operators in SQL
                                       compare.py   rows as multisets        generators.py streams for the examples
kafka.py     a topic as a sink

No module imports pyspark: whoever needs DataFrames is handed a SparkSession.
"""

from holdfast.pipeline.api import Pipeline, Stream
from holdfast.pipeline.explain import describe, explain
from holdfast.pipeline.frames import StageFeed, feed_of, light_sink, stage_frame, stage_function, stage_writer
from holdfast.pipeline.graph import SinkBatch
from holdfast.pipeline.load import load
from holdfast.pipeline.planner import plan

__all__ = [
    "Pipeline",
    "SinkBatch",
    "StageFeed",
    "Stream",
    "describe",
    "explain",
    "feed_of",
    "light_sink",
    "load",
    "plan",
    "stage_frame",
    "stage_function",
    "stage_writer",
]
