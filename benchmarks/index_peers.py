# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL and OpenSearch as peers of the benchmark of indexes: the same rows, filters and text."""

from __future__ import annotations

import http.client
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow as pa
from opensearch_server import OpenSearchServer
from postgres_server import postgres_server
from pyarrow import csv

_BULK: Final = 5_000
_INDEXES = ("(status)", "(city)", "(amount)", "USING gin (to_tsvector('simple', note))")
_MAPPING = {
    "settings": {"number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": "-1"},
    "mappings": {
        "dynamic": "strict",
        "properties": {
            "id": {"type": "long"},
            "status": {"type": "keyword"},
            "city": {"type": "keyword"},
            "amount": {"type": "double"},
            "at": {"type": "long", "index": False},
            "note": {"type": "text"},
        },
    },
}


class Postgres:
    """A table with btrees and a GIN index.

    Args:
        dsn: The server.
    """

    name = "PostgreSQL"

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        directory = dsn.split(maxsplit=1)[0].removeprefix("host=")
        self.process = int((Path(directory) / "postmaster.pid").read_text().split()[0])

    def prepared(self, rows: pa.Table) -> list[bytes]:
        """Return rows as `COPY` reads them, in pieces."""
        options = csv.WriteOptions(include_header=False)
        pieces = []
        for batch in rows.to_batches(max_chunksize=50_000):
            sink = io.BytesIO()
            csv.write_csv(batch, sink, options)
            pieces.append(sink.getvalue())
        return pieces

    def build(self, pieces: list[bytes]) -> None:
        """Load rows into a new table, and build its indexes."""
        execute = self._connection.execute
        execute("DROP TABLE IF EXISTS o")
        execute("CREATE TABLE o (id bigint, status text, city text, amount numeric(12,2), at timestamptz, note text)")
        self._copy("o", pieces)
        execute("ALTER TABLE o ADD PRIMARY KEY (id)")
        for each in _INDEXES:
            execute(f"CREATE INDEX ON o {each}")
        execute("ANALYZE o")

    def change(self, pieces: list[bytes]) -> None:
        """Insert rows, or replace those of their keys."""
        execute = self._connection.execute
        with self._connection.transaction():
            execute("CREATE TEMP TABLE c (LIKE o) ON COMMIT DROP")
            self._copy("c", pieces)
            execute(
                "INSERT INTO o SELECT * FROM c ON CONFLICT (id) DO UPDATE SET status = excluded.status, "
                "city = excluded.city, amount = excluded.amount, at = excluded.at, note = excluded.note"
            )

    def get(self, key: int) -> object:
        """Return a row by its key."""
        return self._connection.execute("SELECT * FROM o WHERE id = %s", (key,)).fetchone()

    def where(self, city: str) -> object:
        """Return 20 rows by a filter."""
        return self._connection.execute("SELECT * FROM o WHERE city = %s ORDER BY id LIMIT 20", (city,)).fetchall()

    def search(self, word: str) -> object:
        """Return 20 rows by a word."""
        query = "SELECT * FROM o WHERE to_tsvector('simple', note) @@ to_tsquery('simple', %s) ORDER BY id LIMIT 20"
        return self._connection.execute(query, (word,)).fetchall()

    def _copy(self, table: str, pieces: list[bytes]) -> None:
        with self._connection.cursor().copy(f"COPY {table} FROM STDIN (FORMAT csv)") as copy:
            for piece in pieces:
                copy.write(piece)


class OpenSearch:
    """An index of OpenSearch, with one shard and no replica.

    Args:
        port: The port of its HTTP.
        process: The process of the server.
    """

    name = "OpenSearch"

    def __init__(self, port: int, process: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        self.url = f"http://127.0.0.1:{port}"
        self.process = process

    def prepared(self, rows: pa.Table) -> list[bytes]:
        """Return rows as bodies of `_bulk`."""
        bodies = []
        at = rows.column("at").cast(pa.int64())
        plain = rows.set_column(rows.schema.get_field_index("at"), "at", at)
        for batch in plain.to_batches(max_chunksize=_BULK):
            lines = []
            for row in batch.to_pylist():
                row["amount"] = float(row["amount"])
                lines += [f'{{"index":{{"_id":"{row["id"]}"}}}}', json.dumps(row)]
            bodies.append(("\n".join(lines) + "\n").encode())
        return bodies

    def build(self, bodies: list[bytes]) -> None:
        """Load rows into a new index."""
        self._request("DELETE", "/o?ignore_unavailable=true")
        self._request("PUT", "/o", json.dumps(_MAPPING).encode())
        self.change(bodies)

    def change(self, bodies: list[bytes]) -> None:
        """Write rows, and make them visible."""
        for body in bodies:
            if self._request("POST", "/o/_bulk", body)["errors"]:
                raise SystemExit("OpenSearch refused a row")
        self._request("POST", "/o/_refresh")

    def get(self, key: int) -> object:
        """Return a document by its key."""
        return self._request("GET", f"/o/_doc/{key}")

    def where(self, city: str) -> object:
        """Return 20 documents by a filter."""
        return self._search({"bool": {"filter": [{"term": {"city": city}}]}})

    def search(self, word: str) -> object:
        """Return 20 documents by a word."""
        return self._search({"bool": {"filter": [{"match": {"note": word}}]}})

    def _search(self, query: dict[str, Any]) -> object:
        body = {"query": query, "size": 20, "sort": [{"id": "asc"}], "track_total_hits": False}
        return self._request("POST", "/o/_search", json.dumps(body).encode())

    def _request(self, method: str, path: str, body: bytes | None = None) -> Any:  # noqa: ANN401 - JSON
        self._http.request(method, path, body, {"Content-Type": "application/json"})
        answer = self._http.getresponse()
        data = answer.read()
        if answer.status >= 400:
            raise SystemExit(f"OpenSearch answers {answer.status}: {data[:500]!r}")
        return json.loads(data)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Run PostgreSQL in a `with` block."""
    with postgres_server() as dsn:
        yield Postgres(dsn)


@contextmanager
def opensearch(directory: Path) -> Iterator[OpenSearch]:
    """Run OpenSearch in a `with` block; the first time its jars are fetched from Maven Central (45 MB).

    Args:
        directory: A directory for the server.
    """
    with OpenSearchServer(directory, "-Xmx1g") as server:
        yield OpenSearch(server.port, server.process)
