# SPDX-License-Identifier: Apache-2.0
"""Starts queries whose options have secrets, and writes all that a session shows of them to a directory.

Files that begin with `ours` have what forebay itself prints; names in the input have control characters.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import forebay
from forebay import cli
from forebay.changelog import PostgresTarget, apply_changes, materialize
from forebay.framework.source import Source
from forebay.registry import default_registry

SECRET = "hunter2-canary"
NAME = "a\x1b[31m\x07\u202eb"
LOGIN = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="b" password="{SECRET}";'
KAFKA = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "subscribe": "t",
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.default.api.timeout.ms": "300",
    "fetchOffset.numRetries": "0",
    "retries": "0",
}
TEXT = {"fileFormat": "text"}
S3 = {"path": "s3://b/x", "storage.key": SECRET, "storage.secret": SECRET, "storage.endpoint_url": "http://127.0.0.1:1"}
HYBRID = {"first.format": "forebay_files", "first.fileFormat": "text", "then.format": "forebay_kafka"}
QUERIES: list[tuple[str, dict[str, str]]] = [
    ("forebay_files", TEXT | {"stateStorage.key": SECRET, "stateStorage.secret": SECRET}),
    ("forebay_files", TEXT | {"path": "s3://b/x", "storage.key": SECRET, "storage.token": SECRET}),
    ("forebay_files", TEXT | S3 | {"retryTimeout": "1s"}),
    ("forebay_files", TEXT | S3 | {"storage.secrt": SECRET}),
    ("forebay_files", TEXT | {"path": f"https://bob:{SECRET}@127.0.0.1:1/x.txt"}),
    ("forebay_kafka", {"kafka.bootstrap.servers": f"bob:{SECRET}@h:9092", "subscribe": "t"}),
    ("forebay_kafka", KAFKA | {"kafka.sasl.jaas.config": LOGIN}),
    ("forebay_kafka", KAFKA | {"kafka.sasl.jaas.config": LOGIN.replace(";", "")}),
    ("forebay_kafka", KAFKA | {"kafka.sasl.jaas.config": SECRET}),
    ("forebay_kafka", KAFKA | {"kafka.sasl.pasword": SECRET}),
    ("forebay_kafka", KAFKA | {"kafka.security.protocol": "SSL", "kafka.ssl.keystore.key": f"-----BEGIN {SECRET}"}),
    (
        "forebay_hybrid",
        HYBRID
        | {f"first.{name}": value for name, value in S3.items()}
        | {f"then.{name}": value for name, value in KAFKA.items()}
        | {"then.kafka.sasl.jaas.config": LOGIN},
    ),
]
DSNS = [
    f"postgresql://bob:{SECRET}@127.0.0.1:1/x",
    f"postgres//bob:{SECRET}@127.0.0.1:1/x",
    f"postgresql://bob:{SECRET}@127.0.0.1:port/x",
    f"host=127.0.0.1 port=1 passwd={SECRET}",
    f"host=127.0.0.1 port=1 password='{SECRET}",
]
PAGES = ["jobs/", "stages/", "storage/", "environment/", "executors/", "SQL/", "StreamingQuery/"]
ANSWERS = [
    "jobs",
    "stages?details=true",
    "environment",
    "allexecutors",
    "sql?details=true&planDescription=true&length=999",
]


class Captures:
    """Writes what is shown to files, by number."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self._count = 0

    def keep(self, name: str, text: str) -> None:
        """Write a text."""
        self._count += 1
        (self.directory / f"{name}-{self._count}.txt").write_text(text, errors="surrogateescape")

    @contextlib.contextmanager
    def printed(self, name: str) -> Iterator[None]:
        """Write what the block prints, and the error that ends it."""
        out, error = io.StringIO(), None
        with contextlib.redirect_stdout(out):
            try:
                yield
            except (forebay.ForebayError, PySparkException) as raised:
                error = forebay.unwrap(raised)
                out.write(f"{''.join(traceback.format_exception(raised))} {raised} {raised!r}")
        self.keep(name, out.getvalue())
        if error is not None:
            self.keep("ours-error", f"{''.join(traceback.format_exception(error))}\n{error}\n{error!r}")


def main(root: Path) -> None:
    """Run each query as a stream, and keep what is shown below the directory `shown`."""
    files, local = root / "in", root / "local"
    shown = Captures(root / "shown")
    files.mkdir()
    (files / f"{NAME}.txt").write_text("x\n")
    settings = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(shown.directory),
        "spark.eventLog.compress": "false",
        "spark.local.dir": str(local),
    }
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    forebay.register(spark)
    for number, (name, options) in enumerate(QUERIES):
        given = {"path": str(files)} | options if name == "forebay_files" else options
        with shown.printed(name):
            run(spark, name, given, shown, number)
        command_line(shown, name, given)
    changes = spark.readStream.format("forebay_files").options(**TEXT, path=str(files)).load()
    changes = changes.selectExpr("1 AS id", "value")
    for number, dsn in enumerate(DSNS):
        with shown.printed("target"):
            write(changes, dsn, shown.directory / f"checkpoint-of-target-{number}")
    with shown.printed("state"):
        storage = {"key": SECRET, "secret": SECRET, "endpoint_url": "nonsense"}
        materialize(changes, "id", strategy="retract", state_location="s3://b/x", state_storage=storage).explain(True)
    with shown.printed("state"):
        materialize(changes, "id", strategy="retract", state_location="s3://b/x", state_storage={"secrt": SECRET})
    over_http(spark, shown)
    shutil.copytree(local, shown.directory / "local", ignore_dangling_symlinks=True)
    spark.stop()


def run(spark: SparkSession, name: str, options: dict[str, str], shown: Captures, number: int) -> None:
    """Print the plans and the progress of a query, and its error."""
    with shown.printed("described"):
        made = default_registry.lookup(name)
        assert issubclass(made, Source)
        described = forebay.describe(made.from_options(options))
        shown.keep("ours-describe", f"{described}\n{described._repr_html_()}")
    df = spark.readStream.format(name).options(**options).load()
    df.explain(extended=True)
    checkpoint = shown.directory / f"checkpoint-{number}"
    writer: Any = df.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).queryName(f"q{number}")
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination(60)
    finally:
        query.explain(extended=True)
        sys.stdout.write(f"{query.status} {query.recentProgress} {query.exception()}")
        query.stop()
        if any((checkpoint / "offsets").glob("[0-9]*")):
            found = forebay.offsets(str(checkpoint))
            shown.keep("ours-offsets", f"{found}\n{found._repr_html_()}")
            command(shown, "offsets", str(checkpoint))


def write(changes: DataFrame, dsn: str, checkpoint: Path) -> None:
    """Apply changes to a table that cannot be reached."""
    target = PostgresTarget(dsn, "t", retry_timeout="1s")
    sys.stdout.write(f"{target!r} {target}")
    apply_changes(
        changes,
        target,
        keys="id",
        sequence_by="value",
        checkpoint_location=str(checkpoint),
        trigger={"availableNow": True},
    ).awaitTermination()


def command_line(shown: Captures, name: str, options: dict[str, str]) -> None:
    """Run the commands that take options of a source."""
    given = [text for each, value in options.items() for text in ("-o", f"{each}={value}")]
    for command_name in ("describe", "peek"):
        command(shown, command_name, name, *given)


def command(shown: Captures, *arguments: str) -> None:
    """Run `forebay`, and keep what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        cli.main(arguments)
    shown.keep(f"ours-{arguments[0]}", out.getvalue())


def over_http(spark: SparkSession, shown: Captures) -> None:
    """Keep the pages of the UI and the answers of the REST API, also those of each query."""
    base = spark.sparkContext.uiWebUrl
    assert base is not None

    def get(path: str) -> str:
        with urllib.request.urlopen(f"{base}/{path}", timeout=60) as answer:
            text: str = answer.read().decode(errors="replace")
        shown.keep(f"http-{''.join(char if char.isalnum() else '_' for char in path)[:60]}", text)
        return text

    application = f"api/v1/applications/{spark.sparkContext.applicationId}"
    for path in [*PAGES, *(f"{application}/{answer}" for answer in ANSWERS)]:
        get(path)
    for execution in json.loads(get(f"{application}/sql?length=999")):
        get(f"SQL/execution/?id={execution['id']}")
    for job in json.loads(get(f"{application}/jobs")):
        get(f"jobs/job/?id={job['jobId']}")
    for stage in json.loads(get(f"{application}/stages")):
        get(f"stages/stage/?id={stage['stageId']}&attempt={stage['attemptId']}")
    for run_id in sorted({query.split("statistics?id=")[1].split('"')[0] for query in queries(get)}):
        get(f"StreamingQuery/statistics/?id={run_id}")


def queries(get: Callable[[str], str]) -> list[str]:
    """Return the links to the queries on the page of streams."""
    return [part[:100] for part in get("StreamingQuery/").split("href=") if "statistics?id=" in part]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
