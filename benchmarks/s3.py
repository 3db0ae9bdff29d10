# SPDX-License-Identifier: Apache-2.0
"""`forebay_files` beside Spark's own readers through `s3a`: the same objects of a native S3 server on this machine.

Scans take turns in one session: every column of every row, into nothing. "small" is 20,000 objects of 5 KB, JSON lines,
listed by each read. "first row" is the time from `spark.read` to the first row of a Parquet data set, with its schema
inferred, in a new process each time. For each data set the server's raw ceiling is measured by plain GETs. If that is
less than twice our rate, the server may have held us back, and the program says so. The last table says where the CPU
time goes: in the JVM, in Spark's Python workers, and, measured alone in one process, in reading and in GETs only.

Run it: ``make bench BENCH=s3``, with less data by ``BENCH_ARGS='--megabytes 20 --small 2000 --repeats 3'``. On loopback
a request costs no time on the way: ``--latency 20`` delays each one by 20 ms, as S3 does. The first run downloads
690 MB of jars, for `s3a`, and builds the server with Go.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pyspark
from files import ROW_BYTES, Took, alone, rows, took
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from report import Cell, publish
from s3_server import KEY, REGION, SECRET, S3Server

import forebay
from forebay.options import Secret
from forebay.sources.files import FileSource
from forebay.sources.files.catalog import BUILT_INS
from forebay.testkit import Fault, FaultProxy
from forebay.testkit.kafka_broker import Module, fetched
from forebay.text_tables import text_table

BUCKET = "bench"
COUNTED = "counted"
"""The same bucket by another name: s3a has one connector, with one URL, for each name."""
MOST_SHARE = 0.5
"""The share of the server's raw ceiling up to which the server does not decide the comparison."""
PEER = "Spark's own reader through s3a"
FORMATS = ("csv", "json", "parquet", "orc", "avro")
ROWS_OF = {**ROW_BYTES, "orc": 62, "avro": 95}
# The Hadoop of Spark 4.2.0, and the SDK that its connector names.
_S3A = (
    Module("org.apache.hadoop", "hadoop-aws", "3.5.0", alone=True),
    Module("software.amazon.awssdk", "bundle", "2.35.4", alone=True),
    Module("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", "1.3.1", alone=True),
)
# The newest one there is on Maven Central.
_AVRO = (Module("org.apache.spark", "spark-avro_2.13", "4.1.1", alone=True),)


def session(url: str, counting: str) -> SparkSession:
    """Return a session that reads `s3a://` and `forebay_files`; the bucket `COUNTED` has a URL of its own."""
    if not pyspark.__version__.startswith("4.2."):
        raise SystemExit(f"the jars of s3a are those of Spark 4.2, and this is {pyspark.__version__}")
    jars = [*fetched("hadoop-aws-3.5.0", _S3A).iterdir(), *fetched("spark-avro-4.1.1", _AVRO).iterdir()]
    builder = SparkSession.builder.master("local[*]")
    for name, value in {
        "spark.jars": ",".join(map(str, jars)),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "3g",
        "spark.sql.session.timeZone": "UTC",
        "spark.hadoop.fs.s3a.endpoint": url,
        f"spark.hadoop.fs.s3a.bucket.{COUNTED}.endpoint": counting,
        "spark.hadoop.fs.s3a.endpoint.region": REGION,
        "spark.hadoop.fs.s3a.access.key": KEY,
        "spark.hadoop.fs.s3a.secret.key": SECRET,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    forebay.register(spark)
    return spark


@dataclass(frozen=True)
class DataSet:
    """Objects below a prefix: their format, number of rows and schema."""

    name: str
    kind: str
    keys: list[str]
    rows: int
    schema: str


def scan(spark: SparkSession, ours: bool, data: DataSet, url: str, bucket: str = BUCKET) -> None:
    """Read every column of every row into nothing."""
    reader = spark.read.schema(data.schema)
    if ours:
        reader = reader.format("forebay_files").option("fileFormat", data.kind).options(**storage(url))
        frame = reader.load(f"s3://{bucket}/{data.name}")
    else:
        frame = reader.format(data.kind).load(f"s3a://{bucket}/{data.name}")
    frame.write.format("noop").mode("overwrite").save()


def storage(url: str) -> dict[str, str]:
    """Return the options of `forebay_files` for the server."""
    return {"storage.endpoint_url": url, "storage.key": KEY, "storage.secret": SECRET}


def requests(spark: SparkSession, proxy: FaultProxy, ours: bool, data: DataSet) -> str:
    """Read once more through a proxy that counts; return the numbers of requests."""
    proxy.forget()
    scan(spark, ours, data, proxy.url, COUNTED)
    return ", ".join(f"{count} {operation}" for operation, count in sorted(proxy.operations().items()))


def upload(spark: SparkSession, server: S3Server, kind: str, megabytes: int, files: int) -> DataSet:
    """Write one data set to a local directory, and upload it."""
    count = megabytes * 1_000_000 // ROWS_OF[kind]
    with tempfile.TemporaryDirectory() as where:
        rows(spark, count).repartition(files).write.mode("overwrite").format(kind).save(where)
        found = sorted(path for path in Path(where).iterdir() if path.name[0] not in "._")
        server.put((f"{kind}/{path.name}", path.read_bytes()) for path in found)
        typed = kind in ("parquet", "orc", "avro")
        schema = spark.read.format(kind).load(where).schema if typed else rows(spark, 1).schema
    ddl = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
    return DataSet(kind, kind, [f"{kind}/{path.name}" for path in found], count, ddl)


def upload_small(server: S3Server, objects: int) -> DataSet:
    """Upload many objects of 5 KB of JSON lines."""
    lines = 50
    keys = [f"small/part-{number:06}.json" for number in range(objects)]

    def body(number: int) -> bytes:
        found = ({"id": number * lines + line, "name": f"customer-{line}", "note": "x" * 50} for line in range(lines))
        return "".join(json.dumps(each) + "\n" for each in found).encode()

    server.put((key, body(number)) for number, key in enumerate(keys))
    return DataSet("small", "json", keys, objects * lines, "id bigint, name string, note string")


class Servers(NamedTuple):
    """The server, where it is read for time, and where requests are counted."""

    server: S3Server
    url: str
    counting: FaultProxy


class Compared(NamedTuple):
    """What was measured with one data set: the comparison, and a row of each of the other tables."""

    cell: Cell
    share: float
    ceiling: list[str]
    requests: list[str]
    cpu: list[str]


def compare(spark: SparkSession, servers: Servers, data: DataSet, repeats: int) -> Compared:
    """Warm both up once, then take turns."""
    taken: dict[str, list[Took]] = {"ours": [], "s3a": []}
    raw = []
    for turn in range(repeats + 1):
        for who, each in taken.items():
            ours = who == "ours"
            each.append(took(lambda ours=ours: scan(spark, ours, data, servers.url), servers.server.pid))  # type: ignore[misc]  # bound at once
        raw.append(servers.server.raw(data.keys))
        times = ", ".join(f"{who} {each[-1].wall:.2f} s" for who, each in taken.items())
        print(f"  {data.name}, turn {turn}: {times}, raw {raw[-1].megabytes_per_s:.0f} MB/s", file=sys.stderr)
    both = [each[1:] for each in taken.values()]
    walls = [[one.wall for one in each] for each in both]
    used = [[one.jvm + one.python for one in each] for each in both]
    cell = Cell(data.name, PEER, walls[0], walls[1], used[0], used[1], data.rows)
    megabytes = raw[0].megabytes_per_s * len(data.keys) / raw[0].objects_per_s
    ceiling, rate = median(one.megabytes_per_s for one in raw), megabytes / median(cell.ours_s)
    figures = [len(data.keys), megabytes, ceiling, median(one.objects_per_s for one in raw), rate]
    share = [data.name, *(f"{figure:.0f}" for figure in figures), f"{rate / ceiling:.0%}"]
    asked = [data.name, *(requests(spark, servers.counting, ours, data) for ours in (True, False))]
    return Compared(cell, rate / ceiling, share, asked, cpu_row(spark, servers, data, *both))


def cpu_row(spark: SparkSession, servers: Servers, data: DataSet, ours: list[Took], peer: list[Took]) -> list[str]:
    """Return where the CPU time goes, in seconds for a million rows."""
    path = f"s3://{BUCKET}/{data.name}"
    secrets = {name.removeprefix("storage."): Secret(value) for name, value in storage(servers.url).items()}
    schema = to_arrow_schema(spark.createDataFrame([], data.schema).schema, timezone="UTC")
    source = FileSource(path=path, file_format=data.kind, storage=secrets).with_schema(schema)
    parts = [median(one.jvm for one in peer), median(one.jvm for one in ours), median(one.python for one in ours)]
    parts += [alone(source)[0], median(fetch(source) for _ in range(3))]
    return [data.name, *(f"{part / data.rows * 1e6:.2f}" for part in parts)]


def fetch(source: FileSource) -> float:
    """Return the CPU seconds of getting all objects through the store, without reading what is in them."""
    files = [source.stored(status) for status in source.list().files]
    began = time.process_time()
    for file in files:
        with file.open() as raw:
            while raw.read(1 << 20):
                pass
    return time.process_time() - began


def first_row(url: str, ours: bool) -> float:
    """Return the seconds from `spark.read` to the first row, in this new process."""
    spark = session(url, url)
    spark.range(1).collect()
    began = time.perf_counter()
    if ours:
        spark.read.format("forebay_files").options(**storage(url)).load(f"s3://{BUCKET}/parquet").first()
    else:
        spark.read.parquet(f"s3a://{BUCKET}/parquet").first()
    return time.perf_counter() - began


def cold(url: str, repeats: int) -> str:
    """Compare the time to the first row, each in a process of its own; return a line."""
    taken: dict[str, list[float]] = {"ours": [], "s3a": []}
    for _ in range(repeats):
        for who, seconds in taken.items():
            command = [sys.executable, "-P", __file__, "--first-row", who, "--url", url]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stdout + done.stderr)
            seconds.append(float(done.stdout.split()[-1]))
        print(f"  first row: ours {taken['ours'][-1]:.2f} s, s3a {taken['s3a'][-1]:.2f} s", file=sys.stderr)
    figures = (f"{who} {median(each):.2f} s ({min(each):.2f}-{max(each):.2f})" for who, each in taken.items())
    return f"First row of Parquet in a new process: {', '.join(figures)}"


def show(found: Sequence[Compared], first: str) -> None:
    """Print all tables, and write the comparison to build/bench."""
    publish("s3", [one.cell for one in found])
    print(first)
    print("The server's raw ceiling, plain GETs of the same objects by four threads, and our share of it:")
    names = ["cell", "objects", "MB", "raw MB/s", "raw objects/s", "ours MB/s", "share"]
    print(text_table(names, [one.ceiling for one in found]))
    near = [one.cell.name for one in found if one.share > MOST_SHARE]
    print(f"Less than twice our rate, so the server may hold us back: {', '.join(near) or 'none'}")
    print("Requests of one read:")
    print(text_table(["cell", "ours", "s3a"], [one.requests for one in found]))
    print("Where the CPU time goes, in seconds for a million rows; the last two, alone, are parts of the third:")
    names = ["cell", "s3a's, JVM", "ours, JVM", "ours, Python", "reading", "of it GETs"]
    print(text_table(names, [one.cpu for one in found]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=300, help="size of the data set of each format")
    parser.add_argument("--files", type=int, default=8, help="objects of each format")
    parser.add_argument("--small", type=int, default=20_000, help="number of small objects; 0: leave them out")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--latency", type=int, default=0, help="milliseconds by which a proxy delays each request")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--first-row", choices=("ours", "s3a"), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.first_row:
        print(first_row(args.url, args.first_row == "ours"))
        return
    found: list[Compared] = []
    slow = Fault("delay", seconds=args.latency / 1000)
    with (
        S3Server(BUCKET, COUNTED) as server,
        FaultProxy(server.url, slow) as delaying,
        FaultProxy(server.url) as counting,
    ):
        servers = Servers(server, delaying.url if args.latency else server.url, counting)
        spark = session(servers.url, counting.url)
        for kind in args.formats.split(","):
            if kind not in BUILT_INS:
                print(f"  {kind} is left out: forebay_files does not read it", file=sys.stderr)
                continue
            found.append(compare(spark, servers, upload(spark, server, kind, args.megabytes, args.files), args.repeats))
        if args.small:
            found.append(compare(spark, servers, upload_small(server, args.small), args.repeats))
        spark.stop()
        first = cold(servers.url, args.repeats) if "parquet" in args.formats.split(",") else ""
    show(found, first)


if __name__ == "__main__":
    main()
