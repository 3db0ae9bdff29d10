# SPDX-License-Identifier: Apache-2.0
"""The conformance kit on the file source, for each format: on local files and on S3."""

from __future__ import annotations

import gzip
import io
import json
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from s3_servers import S3Server

from forebay.options import Secret
from forebay.sources.files import FileSource
from forebay.testkit import SourceContract, check


class Files(SourceContract):
    """A directory. Each file is a split, which the kit fills once."""

    file_format: ClassVar[str]
    suffix: ClassVar[str]
    options: ClassVar[dict[str, str]] = {}
    schema: ClassVar[pa.Schema] = pa.schema([("k", pa.int64()), ("v", pa.string())])
    empty: ClassVar[bytes] = b"\n"

    def setup_method(self) -> None:
        self.files = 0

    @pytest.fixture(autouse=True)
    def root(self, request: pytest.FixtureRequest) -> None:
        self.directory = str(request.getfixturevalue("tmp_path"))

    def put(self, path: str, data: bytes) -> None:
        Path(path).write_bytes(data)

    def source(self) -> FileSource:
        source = FileSource(path=self.directory, file_format=self.file_format, format_options=self.options)
        return source.with_schema(self.schema)

    def add_split(self) -> str:
        self.files += 1
        path = f"{self.directory}/{self.files:03d} {self.files % 3}%{self.suffix}"
        self.put(path, self.empty)
        return path

    def write(self, split_id: str, n: int) -> Sequence[dict[str, Any]]:
        rows = [{"k": number, "v": f"{Path(split_id).name} {number}"} for number in range(n)]
        self.put(split_id, self.encode(rows))
        return rows

    def encode(self, rows: Sequence[dict[str, Any]]) -> bytes:
        raise NotImplementedError


class TestCsv(Files):
    file_format, suffix, empty = "csv", ".csv", b"k,v\n"
    options: ClassVar[dict[str, str]] = {"header": "true", "blockBytes": "16"}

    def encode(self, rows: Sequence[dict[str, Any]]) -> bytes:
        return "".join(["k,v\n", *(f"{row['k']},{row['v']}\n" for row in rows)]).encode()


@pytest.mark.soak  # its positions are those of CSV
class TestJson(Files):
    file_format, suffix = "json", ".jsonl"
    options: ClassVar[dict[str, str]] = {"blockBytes": "16"}

    def encode(self, rows: Sequence[dict[str, Any]]) -> bytes:
        return "".join(json.dumps(row) + "\n" for row in rows).encode()


class TestGzippedText(Files):
    file_format, suffix, empty = "text", ".txt.gz", gzip.compress(b"")
    options: ClassVar[dict[str, str]] = {"blockBytes": "16"}
    schema: ClassVar[pa.Schema] = pa.schema([("value", pa.string())])

    def write(self, split_id: str, n: int) -> Sequence[dict[str, Any]]:
        lines = [f"line {number} of {split_id}" for number in range(n)]
        self.put(split_id, gzip.compress("".join(line + "\n" for line in lines).encode()))
        return [{"value": line} for line in lines]


# A dictionary inside a column makes the reader take one row group at a time: so there are many positions.
_TAGGED = pa.schema([("k", pa.int64()), ("v", pa.string()), ("t", pa.list_(pa.dictionary(pa.int32(), pa.string())))])


def parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    sink = pa.BufferOutputStream()
    plain = pa.Table.from_pylist(
        [{**row, "t": []} for row in rows], schema=_TAGGED.set(2, pa.field("t", pa.list_(pa.string())))
    )
    pq.write_table(plain.cast(_TAGGED), sink, row_group_size=2)
    return sink.getvalue().to_pybytes()


class TestParquet(Files):
    file_format, suffix, empty = "parquet", ".parquet", parquet([])

    def encode(self, rows: Sequence[dict[str, Any]]) -> bytes:
        return parquet(rows)


def orc_file(rows: Sequence[dict[str, Any]]) -> bytes:
    sink = pa.BufferOutputStream()
    # Stripes of a few rows, so that there are many positions.
    orc.write_table(pa.Table.from_pylist(list(rows), schema=Files.schema), sink, stripe_size=1, batch_size=2)
    return sink.getvalue().to_pybytes()


@pytest.mark.soak  # units, as of Parquet
class TestOrc(Files):
    file_format, suffix, empty = "orc", ".orc", orc_file([])

    def encode(self, rows: Sequence[dict[str, Any]]) -> bytes:
        return orc_file(rows)


def avro_file(rows: Sequence[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    fields = [{"name": "k", "type": ["null", "long"]}, {"name": "v", "type": ["null", "string"]}]
    # Blocks of a few rows, so that there are many positions.
    fastavro.writer(sink, {"type": "record", "name": "r", "fields": fields}, rows, sync_interval=40)
    return sink.getvalue()


@pytest.mark.soak  # units, as of Parquet
class TestAvro(Files):
    file_format, suffix, empty = "avro", ".avro", avro_file([])

    def encode(self, rows: Sequence[dict[str, Any]]) -> bytes:
        return avro_file(rows)


@pytest.fixture(scope="module")
def server(s3_server: S3Server) -> S3Server:
    """A server with the bucket `contract`."""
    s3_server.make_bucket("contract")
    return s3_server


class OnS3(Files):
    """Files as objects of a bucket. `make test` reads one format, whose slices begin and resume at ranges."""

    @pytest.fixture(autouse=True)
    def root(self, server: S3Server) -> None:
        self.server = server
        self.directory = f"s3://contract/{uuid.uuid4().hex}"

    def put(self, path: str, data: bytes) -> None:
        self.server.client.put_object(Bucket="contract", Key=path.removeprefix("s3://contract/"), Body=data)

    def source(self) -> FileSource:
        # The client keeps its connections for the next reader: fewer than three, or they would look like a leak.
        options = self.server.options(max_pool_connections="2")
        secrets = {name: Secret(value) for name, value in options.items()}
        return replace(super().source(), storage=secrets).with_schema(self.schema)


@pytest.mark.soak
class TestCsvOnS3(OnS3, TestCsv):
    """CSV."""


@pytest.mark.soak
class TestJsonOnS3(OnS3, TestJson):
    """JSON lines."""


@pytest.mark.soak
class TestGzippedTextOnS3(OnS3, TestGzippedText):
    """Text."""


@pytest.mark.soak
class TestParquetOnS3(OnS3, TestParquet):
    """Parquet."""


@pytest.mark.soak
class TestOrcOnS3(OnS3, TestOrc):
    """ORC."""


@pytest.mark.soak
class TestAvroOnS3(OnS3, TestAvro):
    """Avro."""


def test_a_file_that_could_not_be_opened_for_its_schema_is_read_at_the_next_try(tmp_path: Path) -> None:
    """Without a schema, as `check` and tests read it, the first fetch infers it."""
    (tmp_path / "a.csv").write_text("n\n1\n2\n")
    options = {"header": True, "inferSchema": True}
    source = FileSource(path=str(tmp_path), file_format="csv", format_options=options)
    assert "ERR-1" in check(source, rules=["ERR-1"]).rules("passed")
