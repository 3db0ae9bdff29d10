# SPDX-License-Identifier: Apache-2.0
"""Files of a web server: the answers that mean a missing file, and all other answers."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.errors import ConfigurationError, DataError, ForebayError, RetriableError
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.tasks.assign_tasks import plan_bounded
from forebay.options import Secret
from forebay.sources.files import FileSource
from forebay.sources.files.file_index import list_files
from forebay.sources.files.split_reader import FileSplitReader
from forebay.stores.file_status import FileStatus
from forebay.stores.stored_file import StoredFile

pytest.importorskip("aiohttp", reason="fsspec reads http:// with it")

ROWS = 4000
DATA = b"".join(b"%d,value %d\n" % (number, number) for number in range(ROWS))
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
RESET = 0
GONE = [404, 410]
DENIED = [401, 403]
TRANSIENT = [429, 500, 503, RESET]


class Web:
    """A server of one file, whose answers a test can change."""

    def __init__(self) -> None:
        self.body = DATA
        self.content_type = "text/csv"
        self.fault: int | None = None
        self.from_byte = 0
        web = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # or each answer in two parts takes 40 ms

            def do_HEAD(self) -> None:
                self.answer(head=True)

            def do_GET(self) -> None:
                self.answer(head=False)

            def answer(self, *, head: bool) -> None:
                wanted = self.headers.get("Range", "")
                start, end = 0, len(web.body)
                if wanted:
                    first, _, last = wanted.removeprefix("bytes=").partition("-")
                    start, end = int(first), min(end, int(last) + 1)
                if web.fault is not None and (start >= web.from_byte if wanted else not web.from_byte):
                    self.fail(web.fault)
                    return
                self.send_response(206 if wanted else 200)
                self.send_header("Content-Type", web.content_type)
                self.send_header("ETag", '"1"')
                self.send_header("Content-Length", str(end - start))
                if wanted:
                    self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(web.body)}")
                self.end_headers()
                if not head:
                    self.wfile.write(web.body[start:end])

            def fail(self, status: int) -> None:
                if status == RESET:
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.close_connection = True
                    self.connection.close()
                    return
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def web() -> Iterator[Web]:
    made = Web()
    yield made
    made.close()


def source_of(web: Web, *, ignore: bool) -> FileSource:
    # 5 KB at a time, so that a fault can begin in the middle of the file.
    return FileSource(
        path=f"{web.url}/a.csv",
        ignore_missing_files=ignore,
        format_options={"blockBytes": "4096"},
        storage={"block_size": Secret("5000")},
    ).with_schema(SCHEMA)


def begun(source: FileSource) -> FileSplitReader:
    (task,) = plan_bounded(source, HostOptions(num_partitions=1))
    reader = FileSplitReader(source)
    reader.add_splits(task)
    return reader


def rest(reader: FileSplitReader) -> list[int]:
    keys: list[int] = []
    finished = False
    while not finished:
        (part,) = reader.fetch()
        finished = part.finished
        keys += [] if part.batch is None else part.batch.column("k").to_pylist()
    return keys


def expected(status: int) -> type[ForebayError]:
    return ConfigurationError if status in DENIED else RetriableError


@pytest.mark.parametrize("status", [*GONE, *DENIED, *TRANSIENT, 400])
def test_a_listing_says_that_a_file_does_not_exist_only_if_the_server_does(web: Web, status: int) -> None:
    web.fault = status
    with pytest.raises(ForebayError) as raised:
        list_files([f"{web.url}/a.csv"])
    assert ("path does not exist" in raised.value.message) == (status in GONE)
    if status not in GONE:
        assert type(raised.value) is (ConfigurationError if status == 400 else expected(status))
        assert str(status or "reset") in raised.value.message
    assert raised.value.advice


@pytest.mark.parametrize("ignore", [False, True])
@pytest.mark.parametrize("status", [*DENIED, *TRANSIENT])
def test_a_file_that_the_server_denies_or_fails_to_give_is_not_gone(web: Web, status: int, ignore: bool) -> None:
    reader = begun(source_of(web, ignore=ignore))
    web.fault = status
    with pytest.raises(expected(status)) as raised:
        reader.fetch()
    assert "credentials" in str(raised.value.advice) if status in DENIED else "server" in str(raised.value.advice)
    web.fault = None
    if status not in DENIED:
        assert rest(reader) == list(range(ROWS))


@pytest.mark.parametrize("ignore", [False, True])
@pytest.mark.parametrize("status", [*DENIED, *TRANSIENT])
def test_an_answer_in_the_middle_of_a_file_keeps_its_meaning(web: Web, status: int, ignore: bool) -> None:
    reader = begun(source_of(web, ignore=ignore))
    web.fault, web.from_byte = status, 20_000
    found: list[int] = []
    with pytest.raises(expected(status)):
        while True:
            (part,) = reader.fetch()
            assert not part.finished
            found += [] if part.batch is None else part.batch.column("k").to_pylist()
    assert 0 < len(found) < ROWS
    web.fault = None
    if status not in DENIED:
        assert found + rest(reader) == list(range(ROWS))


@pytest.mark.parametrize("status", GONE)
def test_a_file_that_the_server_no_longer_has_is_gone(web: Web, status: int) -> None:
    strict, lenient = (begun(source_of(web, ignore=ignore)) for ignore in (False, True))
    web.fault = status
    with pytest.raises(DataError, match="was listed but no longer exists"):
        strict.fetch()
    assert rest(lenient) == []


def test_damage_during_a_failure_of_the_store_is_no_end_of_the_file(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.body = b"\x1f\x8b\x08 this is no gzip"
    reader = begun(FileSource(path=f"{web.url}/a.csv.gz").with_schema(SCHEMA))
    now = StoredFile.now
    faults = iter([None, 503])  # when the file is opened, and when its damage is looked into

    def look(stored: StoredFile) -> FileStatus | None:
        web.fault = next(faults, None)
        return now(stored)

    monkeypatch.setattr(StoredFile, "now", look)
    with pytest.raises(RetriableError):
        reader.fetch()
    with pytest.raises(DataError, match="is not a complete gz file"):
        reader.fetch()


INDEX = b"<!DOCTYPE html>\n<html><body><ul><li><a href=a.csv>a.csv</a></ul></body></html>\n"


@pytest.mark.parametrize("path", ["/", "/data/", "/a.csv", "/a.csv?x=.html"])
@pytest.mark.parametrize("page", [INDEX, b"\n<html>", b'<?xml version="1.0"?>\n<html lang="en">'])
def test_a_web_page_in_place_of_data_is_refused(web: Web, path: str, page: bytes) -> None:
    web.body, web.content_type = page, "text/html; charset=utf-8"
    with pytest.raises(ConfigurationError, match="with a web page") as raised:
        forebay.run(FileSource(path=web.url + path, file_format="csv").with_schema(SCHEMA)).to_table()
    assert "name the data files" in str(raised.value.advice)


def test_what_is_no_web_page_or_is_asked_for_as_one_is_read(web: Web) -> None:
    web.content_type = "text/html"
    table = forebay.run(FileSource(path=f"{web.url}/export.php", file_format="csv").with_schema(SCHEMA)).to_table()
    assert table.num_rows == ROWS
    web.body = INDEX
    assert forebay.run(FileSource(path=f"{web.url}/a.html", file_format="text")).to_table().num_rows == 2
