"""Which TLS connections follow a look-up of their name? DNS and TLS logs of a real network, joined within 10 s.

    HOLDFAST_DATA=../shared/data holdfast run examples/dns_tls.py

HOLDFAST_FILE_ROWS: rows of a file; a batch reads one (1000); HOLDFAST_BATCH_MS (250); HOLDFAST_ROWS: only so many
rows of each log (0: all). The stream ends with the data: `holdfast stop --finish`.
"""

import holdfast as hf
from holdfast.pipeline.generators import output, setting, split_files

FILE_ROWS, BATCH_MS = setting("HOLDFAST_FILE_ROWS", 1_000), setting("HOLDFAST_BATCH_MS", 250)
DNS = split_files("net_dns", rows_per_file=FILE_ROWS, rows=setting("HOLDFAST_ROWS", 0))
TLS = split_files("net_ssl", rows_per_file=FILE_ROWS, rows=setting("HOLDFAST_ROWS", 0))

pipeline = hf.Pipeline("dns_tls")


def log(name, path, schema):
    return pipeline.read(
        lambda spark: (
            spark.readStream.schema(f"ts_us long, src_ip string, {schema}")
            .option("maxFilesPerTrigger", 1)
            .parquet(path)
            .selectExpr("timestamp_micros(ts_us) as ts", "* except (ts_us)")
        ),
        event_time="ts",
        watermark="5 seconds",
        trigger=f"{BATCH_MS} ms",
        name=name,
    )


dns = log("dns", DNS, "query string, qtype string, rcode string")
tls = log("tls", TLS, "uid string, dst_ip string, server_name string, version string").filter("server_name is not null")

followed = dns.join(
    tls, on=["src_ip", ("query", "server_name")], within=("0 seconds", "10 seconds"), name="followed", shards=4
)

followed.map(
    lambda df: df.selectExpr("ts as asked", "right_ts as spoken", "src_ip", "query", "qtype", "uid", "dst_ip")
).write(lambda df: df.writeStream.format("parquet").option("path", output("dns_tls")), name="pairs")
