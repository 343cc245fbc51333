# ruff: noqa: E501
"""Eighty and more pipelines that a person could write, each with a mistake: (what is wrong, the file, what its line says).

Each file begins with `PRELUDE`: `p`, `read`, `out` and `counted`. `{out}` is a directory that does not exist yet.
"""

from __future__ import annotations

PRELUDE = """import os, holdfast as hf
p = hf.Pipeline("p")
COLUMNS = "ts timestamp, src string, bytes long, ratio double, tags array<string>, text string, day date"
def read(schema=COLUMNS, **more):
    given = {"event_time": "ts", "watermark": "2 s", **more}
    return p.read(lambda spark: spark.readStream.schema(schema).json(os.path.abspath("in")), **given)
def out(stream, path="out", format="parquet", **more):
    stream.write(lambda df: df.writeStream.format(format).option("path", path), **more)
def counted(stream, **more):
    return stream.window("10 s").by("src").agg(n=hf.count(), **more)
"""

#: (what is wrong, what follows on the prelude, pieces of the line)
Case = tuple[str, str, tuple[str, ...]]

GRAPH: list[Case] = [
    ("no sink", "counted(read())", ("pipeline 'p' has no sink",)),
    ("reads nothing", "", ("pipeline 'p' reads nothing",)),
    ("a result not used", "s = read(); out(counted(s, name='a')); counted(s, name='loose')", ("operator loose: its result is not used", "bad.py:")),
    ("a source not used", "out(counted(read())); read(name='idle_one')", ("read idle_one", "its result is not used")),
    ("a step not used", "s = read(); out(counted(s)); s.filter('bytes > 1')", ("filter", "its result is not used")),
    ("nothing stateful", "out(read().filter('bytes > 1'), name='o')", ("o: nothing stateful stands between read",)),
    ("two sinks to one path", "c = counted(read()); out(c, name='a'); out(c, name='b')", ("b: writes to the same path as a", "out")),
    ("two sinks, paths written differently", "c = counted(read()); out(c, name='a'); out(c, './out/', name='b')", ("b: writes to the same path as a",)),
    ("a sink inside its source", "out(counted(read()), 'in/out', name='o')", ("o: writes into what read", "reads")),
    ("a sink into its own source", "out(counted(read()), 'in', name='o')", ("o: writes into what read", "reads")),
    ("one name twice", "s = read(); out(counted(s, name='a')); out(counted(s, name='a'))", ("two operators are named 'a'", "bad.py:")),
    ("a sink named as an operator", "out(counted(read(), name='a'), name='a')", ("two operators are named 'a'",)),
    ("a name in capitals", "out(counted(read(), name='Talkers'))", ("Talkers", "cannot be used", "bad.py:")),
    ("a name with a slash", "out(counted(read(), name='a/b'))", ("a/b", "cannot be used")),
    ("an empty name", "out(counted(read(), name=''))", ("name ''", "cannot be used", "bad.py:")),
    ("a name that is a number", "out(counted(read(), name=3))", ("name 3", "cannot be used", "bad.py:")),
    ("a pipeline with a bad name", "hf.Pipeline('../x')", ("../x", "bad.py:")),
    ("a pipeline without a name", "hf.Pipeline()", ("bad.py fails with TypeError", "line 11")),
    ("streams of two pipelines", "q = hf.Pipeline('q'); counted(read()).union(q.read(lambda s: s, event_time='t', watermark='1 s'))", ("union: the streams are of two pipelines", "bad.py:11")),
    ("a union with nothing", "read().union()", ("union: no other stream is given", "bad.py:11")),
    ("a union with a list", "a = read(); a.union([read()])", ("union: ", "is not a stream", "bad.py:11")),
    ("a join with a window", "a = read(); a.join(a.window('1 s'), on='src', within='1 s')", ("join: ", "is not a stream", "bad.py:11")),
    ("a union of different types", "out(counted(read('ts timestamp, src string').union(read('ts timestamp, src long')), name='t'))", ("t: a union of different schemas", "'src' is string and int64")),
    ("a union of two event times", "a = read('ts timestamp, at timestamp, src string'); b = read('ts timestamp, at timestamp, src string', event_time='at'); out(counted(a.union(b), name='t'))", ("t: a union of different schemas", "'at' is missing", "'ts' is")),
    ("a cycle", "s = read(); c = counted(s); c.node.parent = c.node; out(c)", ("read (bad.py:6): its result is not used",)),
]  # fmt: skip

FILES: list[Case] = [
    ("two pipelines", "hf.Pipeline('q')", ("bad.py makes 2 pipelines", "'p', 'q'")),
    ("raises", "1 / 0", ("bad.py fails with ZeroDivisionError", "line 11")),
    ("exits", "import sys; sys.exit(3)", ("bad.py fails with SystemExit", "line 11")),
    ("exits with nothing", "raise SystemExit", ("bad.py fails with SystemExit", "line 11")),
    ("imports what is missing", "import nosuchmodule", ("bad.py fails with ModuleNotFoundError", "nosuchmodule", "line 11")),
    ("imports a name that is missing", "from holdfast import nosuch", ("bad.py fails with ImportError", "nosuch", "line 11")),
    ("a name that is not there", "out(countd(read()))", ("bad.py fails with NameError", "countd", "line 11")),
    ("a method that is not there", "read().windows('1 s')", ("bad.py fails with AttributeError", "windows", "line 11")),
    ("an argument that is not there", "read(watermarc='1 s')", ("bad.py fails with TypeError", "watermarc", "line 6")),
    ("not Python", "out(counted(read())", ("bad.py is not valid Python", "Line 11")),
    ("tabs and blanks", "if True:\n        a = 1\n\tb = 2", ("bad.py is not valid Python", "Line 13")),
    ("asks at the terminal", "input('name? ')", ("bad.py fails with", "line 11")),
    ("endless recursion", "def f(): f()\nf()", ("bad.py fails with RecursionError", "line 11")),
    ("starts Spark itself", "from pyspark.sql import SparkSession; SparkSession.getActiveSession().sql('select * from nosuch').show()", ("bad.py fails with", "line 11")),
    ("an error of several lines", "raise ValueError('one\\ntwo\\nthree')", ("bad.py fails with ValueError", "one two three")),
    ("raises what is no Exception", "class Stop(BaseException): pass\nraise Stop('no')", ("bad.py fails with Stop", "line 12")),
    ("a pipeline that is none", "pipeline = 'p'; del p; out = None\nimport holdfast.pipeline.api as a; a._made.clear()", ("bad.py makes no pipeline",)),
]  # fmt: skip

COLUMNS: list[Case] = [
    ("an unknown key", "out(read().window('1 s').by('Src').agg(n=hf.count(), name='t'))", ("t: no column named 'Src'", "'src'?")),
    ("an unknown value", "out(read().window('1 s').agg(n=hf.sum('octets'), name='t'))", ("t: no column named 'octets'",)),
    ("an unknown column in a map", "out(counted(read().map(lambda df: df.select('ts', 'srk'))))", ("map (bad.py:11): no column named 'srk'",)),
    ("an unknown column in a filter", "out(counted(read().filter('octets > 1')))", ("filter (bad.py:11): no column named 'octets'",)),
    ("an unknown event time", "out(counted(read(event_time='time'), name='t'))", ("t: no column named 'time'",)),
    ("an event time that is text", "out(counted(read(event_time='text'), name='t'))", ("t: event time 'text' is not a timestamp",)),
    ("an event time that is a date", "out(counted(read(event_time='day'), name='t'))", ("t: event time 'day' is not a timestamp",)),
    ("an event time that is dropped", "out(counted(read().map(lambda df: df.drop('ts')), name='t'))", ("t: no column named 'ts'",)),
    ("a sum of text", "out(read().window('1 s').agg(n=hf.sum('src'), name='t'))", ("t: sum of column 'src' makes no sense",)),
    ("a mean of a date", "out(read().window('1 s').agg(n=hf.avg('day'), name='t'))", ("t: avg of column 'day' makes no sense",)),
    ("a deviation of text", "out(read().window('1 s').agg(n=hf.stddev('text'), name='t'))", ("t: stddev of column 'text' makes no sense",)),
    ("a highest list", "out(read().window('1 s').agg(n=hf.max('tags'), name='t'))", ("t: column 'tags' has a type that cannot be held",)),
    ("a key that is a list", "out(read().window('1 s').by('tags').agg(n=hf.count(), name='t'))", ("t: column 'tags' has a type that cannot be held",)),
    ("a key twice", "out(read().window('1 s').by('src', 'src').agg(n=hf.count(), name='t'))", ("t: two output columns are named 'src'", "bad.py:11")),
    ("a result named as a key", "out(read().window('1 s').by('src').agg(src=hf.count(), name='t'))", ("t: two output columns are named 'src'",)),
    ("a result named as the window", "out(read().window('1 s').agg(window_start=hf.count(), name='t'))", ("t: two output columns are named 'window_start'",)),
    ("a reserved column", "out(read('ts timestamp, pane_start string').window('1 s').by('pane_start').agg(n=hf.count(), name='t'))", ("t: a column may not be named 'pane_start'",)),
    ("two columns of one name", "out(counted(read().map(lambda df: df.selectExpr('*', 'bytes as src')), name='t'))", ("t: two columns are named 'src'",)),
    ("a key that is no text", "read().window('1 s').by(3)", ("by: 3 is not a column name", "bad.py:11")),
    ("keys as a list", "read().window('1 s').by(['src'])", ("by: ['src'] is not a column name", "bad.py:11")),
    ("no aggregate", "read().window('1 s').by('src').agg(name='t')", ("t: no aggregate is given", "bad.py:11")),
    ("an aggregate that is text", "read().window('1 s').agg(n='count', name='t')", ("t: n='count' is not an aggregate", "bad.py:11")),
    ("an aggregate that is not called", "read().window('1 s').agg(n=hf.count, name='t')", ("t: n=", "is not an aggregate", "bad.py:11")),
    ("an aggregate of a number", "out(read().window('1 s').agg(n=hf.sum(3), name='t'))", ("sum: 3 is not a column name", "bad.py:11")),
    ("Spark's aggregate", "from pyspark.sql import functions as F; read().window('1 s').agg(n=F.count('*'), name='t')", ("bad.py",)),
]  # fmt: skip

WINDOWS: list[Case] = [
    ("a negative window", "read().window('-1 s')", ("window is negative", "bad.py:11")),
    ("a window of nothing", "read().window('0 s')", ("window cannot be used", "bad.py:11")),
    ("a step of nothing", "read().window('10 s', every='0 s')", ("window cannot be used", "bad.py:11")),
    ("a step longer than the window", "read().window('10 s', every='20 s')", ("window cannot be used", "bad.py:11")),
    ("a window that is no multiple", "read().window('10 s', every='3 s')", ("window is not a multiple of its step", "bad.py:11")),
    ("too many steps", "read().window('1000 hours', every='1 us')", ("window has more than 100,000 steps", "bad.py:11")),
    ("a window without a unit", "read().window('10')", ("window cannot be understood", "'10'", "bad.py:11")),
    ("a window that is a number", "read().window(10)", ("window is not a duration", "bad.py:11")),
    ("a window of years", "read().window('2 years')", ("window cannot be understood", "bad.py:11")),
    ("a window beyond time", "read().window('99999999999999 weeks')", ("window is longer than", "bad.py:11")),
    ("a window finer than time", "read().window('0.1 us')", ("window is finer than a microsecond", "bad.py:11")),
    ("no window", "read().window()", ("window: give either a size or a number of rows", "bad.py:11")),
    ("a window of both", "read().window('1 s', rows=3)", ("window: give either a size or a number of rows", "bad.py:11")),
    ("no rows", "read().window(rows=0)", ("window cannot be used", "bad.py:11")),
    ("half a row", "read().window(rows=1.5)", ("window: rows and every must be whole numbers", "bad.py:11")),
    ("rows and a time", "read().window(rows=10, every='1 s')", ("window: rows and every must be whole numbers", "bad.py:11")),
    ("true rows", "read().window(rows=True)", ("window: rows and every must be whole numbers", "bad.py:11")),
    ("windows over windows of rows", "out(counted(read().window(rows=5).by('src').agg(n=hf.count(), name='five'), name='t'))", ("t: the result of count windows five has no event time",)),
    ("too many shards", "counted(read(), name='t', shards=100000)", ("t: shards must be 1 to 1024", "100000", "bad.py:")),
    ("no shards", "counted(read(), name='t', shards=0)", ("t: shards must be 1 to 1024", "bad.py:")),
    ("shards as text", "counted(read(), name='t', shards='4')", ("t: shards must be 1 to 1024", "bad.py:")),
    ("shards without a key", "read().window('1 s').agg(n=hf.count(), name='t', shards=4)", ("t: shards=4 without a key", "bad.py:11")),
    ("a mode that is not known", "counted(read(), name='t', mode='magic')", ("t: mode 'magic' is not known", "bad.py:")),
    ("a mode that is a list", "counted(read(), name='t', mode=['none'])", ("t: mode ['none'] is not known", "bad.py:")),
    ("an overflow that is not known", "out(counted(read(), name='t', overflow='explode'))", ("t: overflow must be 'error' or 'wrap'", "bad.py:")),
]  # fmt: skip

SOURCES: list[Case] = [
    ("no function", "p.read('in.json', event_time='ts', watermark='1 s')", ("read: a function is needed", "bad.py:11")),
    ("a DataFrame instead of a function", "p.read(None, event_time='ts', watermark='1 s')", ("read: a function is needed", "bad.py:11")),
    ("no event time", "read(event_time=None)", ("read: no event time is given", "bad.py:")),
    ("an event time that is no text", "read(event_time=3)", ("read: event_time=3 is not a column name", "bad.py:")),
    ("no watermark", "read(watermark=None)", ("read: no watermark is given", "bad.py:")),
    ("a negative watermark", "read(watermark='-1 s')", ("read: watermark is negative", "bad.py:")),
    ("a watermark without a unit", "read(watermark='2')", ("read: watermark cannot be understood", "bad.py:")),
    ("a watermark in words", "read(watermark='two seconds')", ("read: watermark cannot be understood", "bad.py:")),
    ("a watermark that is a number", "read(watermark=2)", ("read: watermark is not a duration", "bad.py:")),
    ("an idle time of nothing", "read(idle='0 s')", ("read: idle", "bad.py:")),
    ("a trigger without a unit", "read(trigger='1')", ("read: trigger cannot be understood", "bad.py:")),
    ("a trigger of less than a millisecond", "read(trigger='10 us')", ("read: trigger", "bad.py:")),
    ("a future that is negative", "read(future_max='-1 s')", ("read: future_max is negative", "bad.py:")),
    ("a latency that there is not", 'read(latency="fast")', ("read: latency='fast' is not known", "bad.py:")),
    ("fewer than no bad rows", "read(bad_rows_max=-1)", ("read: bad_rows_max must be a whole number", "bad.py:")),
    ("a late_to that is no text", "read(late_to=3)", ("read: late_to is not a text", "bad.py:")),
    ("a batch that is no function", "read(batch='rows.json')", ("read: batch: a function is needed", "bad.py:")),
    ("a read without a stream", "out(counted(p.read(lambda s: s.range(3), event_time='id', watermark='1 s', name='r')))", ("read r", "the source is not a stream")),
    ("a read that gives nothing", "out(counted(p.read(lambda s: None, event_time='ts', watermark='1 s', name='r')))", ("read r", "the function gives no DataFrame")),
    ("a read that fails", "out(counted(p.read(lambda s: 1 / 0, event_time='ts', watermark='1 s', name='r')))", ("read r", "the function fails with ZeroDivisionError")),
    ("a read that takes nothing", "out(counted(p.read(lambda: None, event_time='ts', watermark='1 s', name='r')))", ("read r", "the function fails with TypeError")),
    ("a read that exits", "import sys; out(counted(p.read(lambda s: sys.exit(1), event_time='ts', watermark='1 s', name='r')))", ("read r", "the function fails with SystemExit")),
    ("a source from a socket", "out(counted(p.read(lambda s: s.readStream.format('socket').option('host', 'h').option('port', 9).load(), event_time='value', watermark='1 s', name='r')))", ("read r", "source 'socket' cannot be replayed")),
    ("a source by the clock", "out(counted(p.read(lambda s: s.readStream.format('rate').load(), event_time='timestamp', watermark='1 s', name='r')))", ("read r", "source 'rate' cannot be replayed")),
    ("a source that Spark has not", "out(counted(p.read(lambda s: s.readStream.format('nosuch').load(), event_time='ts', watermark='1 s', name='r')))", ("read r", "the source 'nosuch' is not installed")),
    ("a source without a schema", "out(counted(p.read(lambda s: s.readStream.json(os.path.abspath('in')), event_time='ts', watermark='1 s', name='r')))", ("read r", "schema")),
    ("a directory that is not there", "out(counted(p.read(lambda s: s.readStream.schema('ts timestamp, src string').json('nowhere'), event_time='ts', watermark='1 s', name='r')))", ("read r", "nowhere")),
    ("a schema that Spark cannot read", "out(counted(read('ts timestump', name='r')))", ("read r", "TIMESTUMP")),
    ("a port without a schema", "out(counted(p.port('r', schema=None, event_time='ts', watermark='1 s')))", ("port r", "its schema cannot be read")),
    ("a port of a bad schema", "out(counted(p.port('r', schema='ts timestump', event_time='ts', watermark='1 s')))", ("port r", "its schema cannot be read", "TIMESTUMP")),
    ("a step after a port", "out(counted(p.port('r', schema='ts timestamp, src string', event_time='ts', watermark='1 s').filter('src > 1'), name='t'))", ("t: filter (bad.py:11) stands between port r",)),
    ("a port twice", "r = p.port('r', schema='ts timestamp, src string', event_time='ts', watermark='1 s'); out(r.join(r, on='src', within='1 s', name='j'))", ("j: takes port r", "twice")),
]  # fmt: skip

STEPS: list[Case] = [
    ("a map that is no function", "read().map('src')", ("map: a function is needed", "bad.py:11")),
    ("a filter that is a number", "read().filter(3)", ("filter: a function is needed", "bad.py:11")),
    ("a filter that is Spark's column", "from pyspark.sql import functions as F; out(counted(read().filter(F.col('src') == 'a')))", ("bad.py",)),
    ("a filter that is no SQL", "out(counted(read().filter('src ==== 1')))", ("filter (bad.py:11)",)),
    ("a filter that is no condition", "out(counted(read().filter('src')))", ("filter (bad.py:11)",)),
    ("an empty filter", "out(counted(read().filter('')))", ("filter (bad.py:11)",)),
    ("a map that gives nothing", "out(counted(read().map(lambda df: None)))", ("map (bad.py:11): the function gives no DataFrame",)),
    ("a map that gives a list", "out(counted(read().map(lambda df: df.columns)))", ("map (bad.py:11): the function gives no DataFrame",)),
    ("a map that gives a schema", "out(counted(read().map(lambda df: df.schema)))", ("map (bad.py:11): the function gives no DataFrame",)),
    ("a map that fails", "out(counted(read().map(lambda df: df.nosuch)))", ("map (bad.py:11)", "nosuch")),
    ("a map that collects", "out(counted(read().map(lambda df: df.collect())))", ("map (bad.py:11)",)),
    ("a map that counts", "out(counted(read().map(lambda df: df.limit(df.count()))))", ("map (bad.py:11)",)),
    ("a map that aggregates", "out(counted(read().map(lambda df: df.groupBy('src', 'ts').count())))", ("map (bad.py:11): a streaming aggregation needs state",)),
    ("a map that drops doubles", "out(counted(read().map(lambda df: df.dropDuplicates(['src']))))", ("map (bad.py:11): dropDuplicates or distinct needs state",)),
    ("a map that sorts", "out(counted(read().map(lambda df: df.orderBy('ts'))))", ("map (bad.py:11): a sort needs state",)),
    ("a map with a limit", "out(counted(read().map(lambda df: df.limit(5))))", ("map (bad.py:11): limit needs state",)),
    ("a map that joins streams", "out(counted(read().map(lambda df: df.join(df.selectExpr('src as s'), df.src == df.src))))", ("map (bad.py:11): a join of two streams needs state",)),
    ("a map with a watermark of its own", "out(counted(read().map(lambda df: df.withWatermark('ts', '1 second'))))", ("map (bad.py:11): withWatermark",)),
    ("a map of another stream", "out(counted(read().map(lambda df: df.sparkSession.readStream.format('rate-micro-batch').option('rowsPerBatch', 1).load().selectExpr('timestamp as ts', 'string(value) as src')), name='t'))", ("map (bad.py:11): the function returns something that is not the stream", "another stream")),
    ("a map of a table", "out(counted(read().map(lambda df: df.sparkSession.sql(\"select timestamp'2026-01-01' as ts, 'a' as src\"))))", ("map (bad.py:11): the function returns something that is not the stream",)),
    ("a map of another session", "out(counted(read().map(lambda df: df.sparkSession.newSession().createDataFrame([], df.schema))))", ("map (bad.py:11)",)),
    ("random numbers", "out(counted(read().map(lambda df: df.selectExpr('*', 'rand() as x'))))", ("map (bad.py:11): rand() would give something else in a replay",)),
    ("the clock", "out(counted(read().map(lambda df: df.selectExpr('*', 'now() as x'))))", ("map (bad.py:11): now() would give something else in a replay",)),
    ("random numbers in an earlier step", "out(counted(read().filter('rand() < 0.5').map(lambda df: df)))", ("filter (bad.py:11): rand() would give something else in a replay",)),
    ("a random function of Python", "from pyspark.sql import functions as F; import random\ndef chance(df): return df.withColumn('x', F.udf(lambda: random.random(), 'double').asNondeterministic()())\nout(counted(read().map(chance)))", ("map (bad.py:13)", "would give something else in a replay")),
    ("a map that starts a query", "out(counted(read().map(lambda df: df.writeStream.format('noop').start())))", ("map (bad.py:11): the function starts the query itself",)),
    ("a map that exits", "import sys; out(counted(read().map(lambda df: sys.exit(1))))", ("map (bad.py:11)", "SystemExit")),
]  # fmt: skip

JOINS: list[Case] = [
    ("neither within nor window", "read().join(read(), on='src', name='j')", ("join j: give either within or window", "bad.py:11")),
    ("within and window", "read().join(read(), on='src', within='1 s', window='1 s', name='j')", ("join j: give either within or window", "bad.py:11")),
    ("no keys", "read().join(read(), within='1 s', name='j')", ("bad.py fails with TypeError", "'on'", "line 11")),
    ("an empty list of keys", "read().join(read(), on=[], within='1 s', name='j')", ("join j: on=[] names no keys", "bad.py:11")),
    ("a number as a key", "read().join(read(), on=3, within='1 s', name='j')", ("join j: on=3 names no keys", "bad.py:11")),
    ("numbers as keys", "read().join(read(), on=[1, 2], within='1 s', name='j')", ("join j: on=[1, 2] names no keys", "bad.py:11")),
    ("a key that one side has not", "out(read('ts timestamp, a long').join(read('ts timestamp, b long'), on='a', within='1 s', name='j'))", ("j: no column named 'a'",)),
    ("keys of two types", "out(read('ts timestamp, a long').join(read('ts timestamp, b string'), on=[('a', 'b')], within='1 s', name='j'))", ("j: keys 'a' and 'b' have different types",)),
    ("a full outer join", "read().join(read(), on='src', within='1 s', how='full', name='j')", ("join j: how='full' is not known", "bad.py:11")),
    ("a join that is a list", "read().join(read(), on='src', within='1 s', how=['inner'], name='j')", ("join j: how=['inner'] is not known", "bad.py:11")),
    ("a negative distance", "read().join(read(), on='src', within='-1 s', name='j')", ("j: within is negative", "bad.py:11")),
    ("an interval the wrong way round", "read().join(read(), on='src', within=('5 s', '0 s'), name='j')", ("j: within=('5 s', '0 s') is empty", "bad.py:11")),
    ("an interval of three", "read().join(read(), on='src', within=('1 s', '2 s', '3 s'), name='j')", ("j: within=", "is not an interval", "bad.py:11")),
    ("a window of nothing", "out(read().join(read(), on='src', window='0 s', name='j'))", ("j: window", "bad.py:11")),
    ("a where of an unknown column", "out(read('ts timestamp, k long, a long').join(read('ts timestamp, k long, b long'), on='k', within='1 s', where='a < c', name='j'))", ("j: where='a < c' names no column 'c'",)),
    ("a where with a function", "out(read('ts timestamp, k long').join(read('ts timestamp, k long'), on='k', within='1 s', where='abs(k) > 1', name='j'))", ("j: where='abs(k) > 1'",)),
    ("a where that is no condition", "out(read('ts timestamp, k long').join(read('ts timestamp, k long'), on='k', within='1 s', where='k + 1', name='j'))", ("j: where='k + 1'",)),
    ("a where that is no text", "out(read('ts timestamp, k long').join(read('ts timestamp, k long'), on='k', within='1 s', where=True, name='j'))", ("j: where", "bad.py:11")),
    ("lists in a join", "out(read().join(read(), on='src', within='1 s', name='j'))", ("j: column 'tags' has a type that cannot be held",)),
]  # fmt: skip

SINKS: list[Case] = [
    ("a path instead of a function", "counted(read()).write('out')", ("write: a function is needed", "bad.py:11")),
    ("nothing", "counted(read()).write(None, name='o')", ("write o: a function is needed", "bad.py:11")),
    ("a result that is no function", "counted(read()).write(lambda df: df.writeStream.format('noop'), name='o', result='x')", ("write o: result: a function is needed", "bad.py:11")),
    ("a format that does not exist", "out(counted(read()), format='parkay', name='o')", ("o: Spark knows no sink format 'parkay'",)),
    ("a class that does not exist", "out(counted(read()), format='a.b.C', name='o')", ("o: Spark knows no sink format 'a.b.C'",)),
    ("a file sink without a path", "counted(read()).write(lambda df: df.writeStream.format('json'), name='o')", ("o: a json sink needs a path",)),
    ("no format", "counted(read()).write(lambda df: df.writeStream, name='o')", ("o: a parquet sink needs a path",)),
    ("an empty path", "out(counted(read()), '', name='o')", ("o: a parquet sink needs a path",)),
    ("a path that is a file", "out(counted(read()), 'bad.py', name='o')", ("sink o: bad.py is a file",)),
    ("a batch writer", "counted(read()).write(lambda df: df.write.format('parquet'), name='o')", ("o: the writer fails with",)),
    ("a frame", "counted(read()).write(lambda df: df, name='o')", ("o: the function gives no DataStreamWriter", "bad.py:11")),
    ("nothing back", "counted(read()).write(lambda df: None, name='o')", ("o: the function gives no DataStreamWriter", "NoneType")),
    ("a writer that starts", "counted(read()).write(lambda df: df.writeStream.format('noop').start(), name='o')", ("o: the writer starts the query itself",)),
    ("a table", "counted(read()).write(lambda df: df.writeStream.toTable('t'), name='o')", ("o: the writer starts the query itself",)),
    ("complete", "counted(read()).write(lambda df: df.writeStream.format('noop').outputMode('complete'), name='o')", ("o: output mode 'complete' cannot be used here",)),
    ("a checkpoint of its own", "counted(read()).write(lambda df: df.writeStream.format('noop').option('checkpointLocation', 'c'), name='o')", ("o: checkpointLocation is Holdfast's to set",)),
    ("an unknown column", "counted(read()).write(lambda df: df.select('m').writeStream.format('noop'), name='o')", ("o: no column named 'm'",)),
    ("an aggregation", "counted(read()).write(lambda df: df.groupBy('src').count().writeStream.format('noop'), name='o')", ("o: a streaming aggregation needs state",)),
    ("random numbers", "counted(read()).write(lambda df: df.selectExpr('rand()').writeStream.format('noop'), name='o')", ("o: rand() would give something else in a replay",)),
    ("a writer of something else", "counted(read()).write(lambda df: df.sparkSession.readStream.format('rate-micro-batch').option('rowsPerBatch', 1).load().writeStream.format('noop'), name='o')", ("o: the function returns something that is not the stream",)),
    ("a writer that exits", "import sys; counted(read()).write(lambda df: sys.exit(3), name='o')", ("o: the writer fails with SystemExit",)),
    ("a partition that is not there", "counted(read()).write(lambda df: df.writeStream.format('parquet').option('path', 'out').partitionBy('nosuch'), name='o')", ("o: no column named 'nosuch'",)),
    ("a text sink of several columns", "out(counted(read()), format='text', name='o')", ("o: a text sink takes one column of type string",)),
    ("a topic's key that is not there", "counted(read()).write_kafka(topic='t', bootstrap='k:9092', key='nosuch', name='o')", ("o: key has no column named 'nosuch'", "bad.py:11")),
    ("a topic without a broker", "counted(read()).write_kafka(topic='t', bootstrap='k', name='o')", ("write_kafka o: bootstrap 'k' names no broker", "bad.py:11")),
    ("a setting that Kafka does not know", "counted(read()).write_kafka(topic='t', bootstrap='k:9092', options={'nosuch': 1}, name='o')", ("o: Kafka's client refuses the options", "nosuch")),
]  # fmt: skip

BAD: list[Case] = [
    (f"{group}: {name}", *case)
    for group, cases in {
        "graph": GRAPH,
        "file": FILES,
        "columns": COLUMNS,
        "windows": WINDOWS,
        "sources": SOURCES,
        "steps": STEPS,
        "joins": JOINS,
        "sinks": SINKS,
    }.items()
    for name, *case in cases
]
