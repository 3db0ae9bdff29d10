# SPDX-License-Identifier: Apache-2.0
"""Small objects of S3 are requested before they are read: how many, whose errors, and what a stopped read leaves."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.errors import ConfigurationError, DataError, RetriableError
from forebay.options import Secret
from forebay.sources.files import FileSource, small_files
from forebay.sources.files.schema import _inside
from forebay.sources.files.split import FileSplit
from forebay.sources.files.split_reader import FileSplitReader
from forebay.stores.file_status import FileStatus
from forebay.stores.stored_file import FileOpenedAhead, StoredFile

pytest.importorskip("boto3")

MB = 1 << 20
COUNT = 20
TIMEOUT = 20.0
LINES = pa.schema([("value", pa.string())])


class Server:
    """Serves objects `o/0.txt`, `o/1.txt`, … of a bucket, which a test may change.

    `requests` counts the GETs of each object. GETs wait while `gate` is closed; `arrived` is released by each one.
    """

    def __init__(self) -> None:
        self.objects = {f"/b/o/{number}.txt": f"line of {number}\n".encode() for number in range(COUNT)}
        self.listed = dict(self.objects)
        self.status: dict[str, int] = {}
        self.requests: Counter[str] = Counter()
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Semaphore(0)
        self._lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                owner.answer(self)

            def do_HEAD(self) -> None:
                owner.answer(self)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        if request.command == "GET" and "?" not in request.path:
            with self._lock:
                self.requests[path] += 1
            self.arrived.release()
            assert self.gate.wait(TIMEOUT)
        body, code = self.objects.get(path), self.status.get(path, 200)
        if code == 200 and body is None:
            code = 404
        if body is not None and code == 200 and request.headers.get("If-Match", f'"{etag(body)}"') != f'"{etag(body)}"':
            code = 412
        names = {403: "AccessDenied", 404: "NoSuchKey", 412: "PreconditionFailed", 503: "SlowDown"}
        sent = body if code == 200 and body is not None else f"<Error><Code>{names[code]}</Code></Error>".encode()
        request.send_response(206 if code == 200 and request.command == "GET" else code)
        request.send_header("Content-Length", str(len(sent)))
        request.send_header("Last-Modified", "Wed, 01 Jan 2025 00:00:00 GMT")
        if code == 200:
            request.send_header("ETag", f'"{etag(sent)}"')
            request.send_header("Content-Range", f"bytes 0-{len(sent) - 1}/{len(sent)}")
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(sent)

    def splits(self) -> list[FileSplit]:
        return [
            FileSplit.of(FileStatus(f"s3:/{path}", len(body), 0, etag(body)), ()) for path, body in self.listed.items()
        ]

    def source(self, **options: bool) -> FileSource:
        settings = {"endpoint_url": self.url, "key": "x", "secret": "y"}
        settings["config_kwargs"] = '{"retries": {"total_max_attempts": 1}}'
        storage = {name: Secret(value) for name, value in settings.items()}
        return FileSource(path="s3://b/o", file_format="text", storage=storage, **options).with_schema(LINES)  # type: ignore[arg-type]

    def reader(self, **options: bool) -> FileSplitReader:
        reader = FileSplitReader(self.source(**options))
        reader.add_splits(self.splits())
        return reader

    def read_before(self) -> None:
        """Read all objects, so that later GETs are direct ones. botocore repeats each of these that fails."""
        assert read_all(self.reader()) == expected()
        self.requests.clear()

    def wait_for(self, requests: int) -> None:
        for _ in range(requests):
            assert self.arrived.acquire(timeout=TIMEOUT), "too few requests at the same time"

    def close(self) -> None:
        self.gate.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def etag(body: bytes) -> str:
    return f"{len(body)}-{sum(body)}"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is parsed alone, as larger ones are."""
    monkeypatch.setattr(small_files, "SMALL_BYTES", -1)


def read_all(reader: FileSplitReader, into: list[str] | None = None) -> list[str]:
    found: list[str] = [] if into is None else into
    while parts := reader.fetch():
        found += [value for part in parts if part.batch is not None for value in part.batch["value"].to_pylist()]
    return found


def ahead() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "forebay-s3-ahead"]


def expected(*without: int) -> list[str]:
    return [f"line of {number}" for number in range(COUNT) if number not in without]


def test_the_next_objects_are_requested_together_and_each_once(server: Server) -> None:
    server.gate.clear()
    reader = server.reader()
    found: list[str] = []
    reading = threading.Thread(target=lambda: found.extend(read_all(reader)))
    reading.start()
    server.wait_for(1 + small_files.AHEAD)  # none is answered before all have come
    assert not server.arrived.acquire(blocking=False)
    server.gate.set()
    reading.join(TIMEOUT)
    assert found == expected()
    assert server.requests == dict.fromkeys(server.listed, 1)


@pytest.mark.usefixtures("alone")
def test_no_more_is_requested_than_is_read_soon(server: Server) -> None:
    reader = server.reader()
    reader.fetch()
    for thread in ahead():
        thread.join(TIMEOUT)
    assert sum(server.requests.values()) == 1 + small_files.AHEAD
    reader.close()


def test_a_long_object_and_an_empty_one_are_not_requested_ahead(server: Server) -> None:
    server.listed |= {"/b/o/1.txt": b"x" * (MB + 1), "/b/o/2.txt": b""}
    server.objects |= server.listed
    server.gate.clear()
    reader = server.reader()
    reading = threading.Thread(target=lambda: read_all(reader))
    reading.start()
    server.wait_for(1 + small_files.AHEAD - 2)
    assert server.requests.keys() == {f"/b/o/{number}.txt" for number in (0, *range(3, 1 + small_files.AHEAD))}
    server.gate.set()
    reading.join(TIMEOUT)
    assert set(server.requests) == set(server.listed) - {"/b/o/2.txt"}


@pytest.mark.parametrize(
    ("happens", "error"),
    [("deleted", DataError), ("overwritten", DataError), ("refused", ConfigurationError), ("busy", RetriableError)],
)
def test_an_error_appears_when_its_object_is_read(server: Server, happens: str, error: type[Exception]) -> None:
    path = "/b/o/5.txt"
    server.read_before()
    if happens == "deleted":
        del server.objects[path]
    elif happens == "overwritten":
        server.objects[path] = b"another line\n"
    else:
        server.status[path] = {"refused": 403, "busy": 503}[happens]
    reader, found = server.reader(), list[str]()
    with pytest.raises(error, match=r"s3://b/o/5\.txt"):
        read_all(reader, found)
    reader.close()
    assert found == expected()[:5]
    assert server.requests.pop(path) == 2
    assert set(server.requests.values()) == {1}


def test_a_missing_object_is_left_out_and_the_others_are_read_once(server: Server) -> None:
    path = "/b/o/5.txt"
    server.read_before()
    del server.objects[path]
    assert read_all(server.reader(ignore_missing_files=True)) == expected(5)
    assert server.requests == dict.fromkeys(server.listed, 1) | {path: 2}


def test_an_object_that_could_not_be_fetched_ahead_is_requested_again(server: Server) -> None:
    path = "/b/o/5.txt"
    server.read_before()
    server.status[path] = 503
    reader = server.reader()
    with pytest.raises(RetriableError):
        read_all(reader)
    del server.status[path]
    assert read_all(reader) == expected()[5:]
    assert server.requests == dict.fromkeys(server.listed, 1) | {path: 3}


@pytest.mark.usefixtures("alone")
def test_a_read_that_stops_early_leaves_no_request(server: Server) -> None:
    reader = server.reader()
    reader.fetch()
    server.gate.clear()
    reader.fetch()  # the end of the first object
    while not (parts := reader.fetch()) or parts[0].batch is None:
        pass
    server.wait_for(2 + small_files.AHEAD)
    reader.close()
    server.gate.set()
    for thread in ahead():
        thread.join(TIMEOUT)
    assert not ahead()
    assert sum(server.requests.values()) == 2 + small_files.AHEAD


@pytest.mark.usefixtures("alone")
def test_local_files_are_not_opened_ahead(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text(f"{number}\n")
    source = FileSource(path=str(tmp_path), file_format="text").with_schema(LINES)
    splits = [FileSplit.of(file, ()) for file in source.list().files]
    reader = FileSplitReader(source)
    reader.add_splits(splits)
    reader.fetch()
    (tmp_path / "2.txt").unlink()
    with pytest.raises(DataError, match="no longer exists"):
        read_all(reader)


class Together:
    """A gate. The first request passes; the next `AHEAD` requests wait for each other."""

    def __init__(self) -> None:
        self._arrived = 0
        self._lock = threading.Lock()
        self._open = threading.Event()

    def wait(self, timeout: float) -> bool:
        with self._lock:
            self._arrived += 1
            first = self._arrived == 1
            if self._arrived == 1 + small_files.AHEAD:
                self._open.set()
        return first or self._open.wait(timeout)

    def set(self) -> None:
        self._open.set()


def test_the_inference_of_a_schema_requests_the_next_objects_together_and_each_once(server: Server) -> None:
    server.listed = server.objects = {f"/b/o/{number}.json": b'{"a": 1}\n' for number in range(COUNT)}
    server.objects["/b/o/19.json"] = b'{"b": "x"}\n'
    server.gate = Together()  # type: ignore[assignment]  # it has the two methods that are used
    source = dataclasses.replace(server.source(), file_format="json")
    listed = [FileStatus(f"s3:/{path}", len(body), 1, etag(body)) for path, body in server.listed.items()]
    found = _inside(source, listed)
    assert found == pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert server.requests == dict.fromkeys(server.listed, 1)


@pytest.mark.parametrize(("file_format", "merged"), [("parquet", False), ("parquet", True), ("csv", False)])
def test_an_inference_requests_few_objects_ahead_and_none_that_it_does_not_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file_format: str, merged: bool
) -> None:
    for number in range(COUNT):
        if file_format == "csv":
            (tmp_path / f"{number:02}.csv").write_bytes(b"1,x\n")
        else:
            pq.write_table(pa.table({"a": [1]}), tmp_path / f"{number:02}.parquet")
    waiting: list[str] = []
    most = 0

    class Opened(FileOpenedAhead):
        def open(self) -> BinaryIO:
            waiting.remove(self.path)
            return super().open()

    def open_ahead(file: StoredFile) -> FileOpenedAhead:
        nonlocal most
        waiting.append(file.path)
        most = max(most, len(waiting))
        return Opened(file.status)

    monkeypatch.setattr(StoredFile, "open_ahead", open_ahead)
    monkeypatch.setattr(small_files, "is_s3", lambda _: True)
    options = {"mergeSchema": True} if merged else {"inferSchema": True} if file_format == "csv" else {}
    FileSource(path=str(tmp_path), file_format=file_format, format_options=options).schema()
    reads_all = merged or file_format == "csv"
    assert most == (small_files.AHEAD if reads_all else 0)
    assert waiting == []
