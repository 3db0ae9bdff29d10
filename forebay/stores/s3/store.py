# SPDX-License-Identifier: Apache-2.0
"""S3 as a store of files."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice, pairwise
from typing import Any, BinaryIO, Final, NamedTuple, cast

from forebay.errors import ConfigurationError
from forebay.stores.file_status import FileStatus, FileTable
from forebay.stores.paths import KEY_NAMES, join
from forebay.stores.remote import nanoseconds
from forebay.stores.s3.client import (
    Background,
    S3Client,
    S3Request,
    client_of,
    is_changed,
    is_gone,
    is_unsupported,
    s3_error,
)
from forebay.stores.s3.object_file import SMALL, ObjectFile, ObjectReader
from forebay.stores.store import Children, Directory, StorageOptions

# -- Lists the objects below a prefix: page by page, and in parallel over ranges of keys.


_log = logging.getLogger(__name__)

PAGE: Final = 1000
"""Maximum keys in one answer of S3."""

THREADS: Final = 8
"""Number of key ranges that are listed at the same time."""

_TRIES: Final = 3
"""How often a page is requested whose answer is incomplete; botocore tries other failures as often."""

_REPORT_SECONDS: Final = 10.0
"""Seconds between progress reports in the log."""

_DIRECTORY_PAGES: Final = 16
"""Maximum pages of directories in which borders of ranges are searched. All directories after them form one range."""

_LEVELS: Final = 4
"""Maximum directory levels to descend in search of a level with several directories."""


class ListingPage(NamedTuple):
    """One answer of S3 to a listing: boto3's dicts of objects and, with a delimiter, the prefixes of directories."""

    objects: Sequence[Any]
    prefixes: Sequence[str]
    token: str | None
    """The token that requests the next page; None for the last page."""


class Listing:
    """Lists the objects of one bucket. For any thread. The methods raise botocore's errors.

    Args:
        client: The client.
        bucket: The bucket.
        scheme: The scheme of the paths in the result, as the user writes it.
    """

    def __init__(self, client: S3Client, bucket: str, scheme: str) -> None:
        self._client = client
        self._bucket = bucket
        self._root = f"{scheme}://{bucket}/"

    def page(
        self, prefix: str, *, after: str = "", delimiter: str = "", most: int | None = None, token: str | None = None
    ) -> ListingPage:
        """Return the first page of keys that sort after `after`, or the page after the one with this `token`."""
        arguments: dict[str, object] = {"Bucket": self._bucket, "Prefix": prefix, "MaxKeys": most or PAGE}
        options = {"StartAfter": after, "Delimiter": delimiter, "ContinuationToken": token}
        arguments |= {name: value for name, value in options.items() if value}
        answer = self._complete(arguments)
        prefixes = [entry["Prefix"] for entry in answer.get("CommonPrefixes", ())]
        token = answer.get("NextContinuationToken") if answer.get("IsTruncated") else None
        return ListingPage(answer.get("Contents", ()), prefixes, token)

    def _complete(self, arguments: Mapping[str, object]) -> Any:  # noqa: ANN401 - boto3 has no types
        """Return a whole answer. botocore takes one that ended after its head for a listing without objects."""
        for _ in range(_TRIES):
            answer = self._client.call("list_objects_v2", **arguments)
            if "IsTruncated" in answer:
                return answer
        raise importlib.import_module("botocore.exceptions").IncompleteReadError(actual_bytes=0, expected_bytes="some")

    def pages(
        self, prefix: str, *, after: str = "", delimiter: str = "", stop: str | None = None
    ) -> Iterator[ListingPage]:
        """Yield the pages of keys after `after`, up to the page that reaches the key `stop`; by default all pages."""
        token: str | None = None
        while True:
            page = self.page(prefix, after=after, delimiter=delimiter, token=token)
            yield page
            token = page.token
            if token is None or (stop is not None and page.objects and page.objects[-1]["Key"] >= stop):
                return

    def status(self, entry: Any) -> FileStatus:  # noqa: ANN401 - boto3 has no types
        """Return the `FileStatus` of an object in `ListingPage.objects`."""
        return FileStatus(*self._fields(entry))

    def _fields(self, entry: Any) -> tuple[str, int, int, str | None]:  # noqa: ANN401 - boto3 has no types
        etag = str(entry.get("ETag") or "").strip('"') or None
        return self._root + entry["Key"], int(entry["Size"]), nanoseconds(entry.get("LastModified")), etag

    def tree(self, prefix: str, accepts: Callable[[str], bool], after: str = "") -> FileTable:
        """Return all objects below a prefix for whose key `accepts` returns True, sorted by key.

        Usually the first page has all keys. If not, the remaining keys are cut into ranges at directories. The ranges
        are listed at the same time, each page by page. So a small tree costs one request, and a large tree hardly more
        requests than it has pages.
        """
        first = self.page(prefix, after=after)
        table = FileTable()
        self._add(table, first, accepts)
        if first.token is None or not first.objects:
            return table
        last = first.objects[-1]["Key"]
        borders = [last, *self._borders(prefix, last)]
        work = [partial(self._range, prefix, accepts, start, stop) for start, stop in pairwise([*borders, None])]
        reported = time.monotonic()
        for number, part in enumerate(_in_order(work), start=1):
            table.extend(part)
            if time.monotonic() - reported >= _REPORT_SECONDS:
                reported = time.monotonic()
                _log.info(
                    "listed %d objects below %s%s; %d of %d ranges of keys are done",
                    len(table),
                    self._root,
                    prefix,
                    number,
                    len(work),
                )
        return table

    def _range(self, prefix: str, accepts: Callable[[str], bool], after: str | None, stop: str | None) -> FileTable:
        table = FileTable()
        for page in self.pages(prefix, after=after or "", stop=stop):
            self._add(table, page, accepts, stop)
        return table

    def _add(
        self, table: FileTable, page: ListingPage, accepts: Callable[[str], bool], stop: str | None = None
    ) -> None:
        for entry in page.objects:
            # A key that ends in a slash marks a directory.
            if not (key := entry["Key"]).endswith("/") and (stop is None or key < stop) and accepts(key):
                table.append(*self._fields(entry))

    def _borders(self, prefix: str, last: str) -> list[str]:
        """Return directories after the key `last` on one level, at which the remaining keys can be cut into ranges."""
        inside = prefix
        for _ in range(_LEVELS):
            pages = list(islice(self.pages(inside, after=last, delimiter="/"), _DIRECTORY_PAGES))
            prefixes = [directory for page in pages for directory in page.prefixes]
            directories = [directory for directory in prefixes if directory > last]
            if len(directories) > 1:
                return _spread(directories, THREADS * 4)
            # One directory is left: that in which the first page ended, or the one after it.
            if len(prefixes) != 1 or pages[0].objects:
                return directories
            inside = prefixes[0]
        return []


def _spread(items: Sequence[str], most: int) -> list[str]:
    """Return at most `most` of the items, at even distances."""
    count = min(most, len(items))
    return [items[len(items) * number // count] for number in range(count)]


def _in_order(work: Sequence[Callable[[], FileTable]]) -> Iterator[FileTable]:
    """Run the functions in `work` on at most `THREADS` threads at a time, and yield their results in order."""
    running: list[Background[FileTable]] = []
    for number in range(len(work)):
        while len(running) < len(work) and len(running) - number < THREADS:
            running.append(Background(work[len(running)], "forebay-s3-list"))
        yield running[number].result()


_COPY_BYTES: Final = 5 << 30
"""Maximum bytes of an object that one request can copy."""


class Location(NamedTuple):
    """The parts of an S3 URL: scheme, bucket and key; the key is None if the URL names only a bucket."""

    scheme: str
    bucket: str
    key: str | None

    @property
    def prefix(self) -> str:
        """The prefix that all keys below this location have, if it is a directory."""
        return "" if self.key is None else f"{self.key}/"


def parse_location(url: str) -> Location:
    """Return the parts of an S3 URL. `s3://bucket` is a bucket, `s3://bucket/` a directory in it with an empty name."""
    scheme, _, location = url.partition("://")
    bucket, slash, key = location.partition("/")
    return Location(scheme, bucket, key if slash else None)


class S3Store:
    """The objects of S3 and compatible stores as files. Implements `Store`; its only state is the process's client.

    Args:
        options: The user's options; see `S3Settings`.

    Raises:
        ConfigurationError: boto3 is not installed, or an option is wrong.
    """

    keeps_empty_directories = False
    paths_are_keys = True

    def __init__(self, options: StorageOptions) -> None:
        self._client: S3Client = client_of(options)

    def stat(self, path: str) -> FileStatus | Directory | None:
        """Return the object or directory at a path, the object if both exist, or None; see `Store.stat`."""
        at = self._location(path)
        if at.key:
            with self._wrap_errors(path, "read"):
                try:
                    return self._head(path, at)
                except Exception as error:  # noqa: BLE001 - another request raises it
                    # An error answer to HEAD has no body. A listing, if it fails too, says why.
                    if not is_gone(error):
                        return self._stat_by_listing(path, at)
        return Directory(path) if self._is_directory(path, at) else None

    def walk(self, path: str, keep: Callable[[str], bool], after: str = "") -> Sequence[FileStatus]:
        """Return all objects below a directory, except those with a key that ends in a slash; see `Store.walk`."""
        at = self._location(path)
        accepts = _NamesBelow(at.prefix, keep)
        with self._wrap_errors(path, "list"):
            return self._listing(at).tree(at.prefix, accepts, after)

    def children(self, path: str, keep: Callable[[str], bool]) -> Children | None:
        """Return the entries of a directory, or None; see `Store.children`."""
        at = self._location(path, buckets=True)
        children = Children([], [])
        if not at.bucket:
            with self._wrap_errors(path, "list"):
                names = [bucket["Name"] for bucket in self._client.call("list_buckets").get("Buckets", ())]
            return Children([join(path, name) for name in names if keep(name)], [])
        listing, there = self._listing(at), not at.prefix
        with self._wrap_errors(path, "list"):
            for page in listing.pages(at.prefix, delimiter="/"):
                there = there or bool(page.objects or page.prefixes)
                names = [prefix[len(at.prefix) : -1] for prefix in page.prefixes]
                children.directories.extend(join(path, name) for name in names if keep(name))
                keys = ((each, each["Key"][len(at.prefix) :]) for each in page.objects)
                children.files.extend(listing.status(each) for each, name in keys if name and keep(name))
        return children if there else None

    def open(self, path: str, file: FileStatus | None = None, read_to: int | None = None) -> BinaryIO:
        """Open an object for reading; see `Store.open`. If `file` is given, the first read sends the first request."""
        return cast("BinaryIO", self._open(path, file, read_to))

    def open_ahead(self, file: FileStatus) -> BinaryIO | None:
        """Open an object of at most 1 MB, and request its content at once on another thread.

        Return None, without a request, for an object that is larger, empty, or cannot be pinned.
        """
        if not 0 < file.size <= SMALL or not self.pins(file):
            return None
        stream = self._open(file.path, file)
        stream.fetch_ahead()
        return cast("BinaryIO", stream)

    def _open(self, path: str, file: FileStatus | None = None, read_to: int | None = None) -> ObjectFile:
        status = file or self.stat(path)
        if not isinstance(status, FileStatus):
            raise FileNotFoundError(path)
        at = self._location(path)
        request = self._request(path, at, "read")
        reader = ObjectReader(self._client, at.bucket, at.key or "", status, request, lambda: self._now(path))
        return ObjectFile(reader, read_to)

    def pins(self, file: FileStatus) -> bool:
        """Return whether the listed object has an ETag, which each read then demands; see `Store.pins`."""
        return file.etag is not None

    def delete(self, file: FileStatus) -> bool:
        """Delete an object if its ETag is the listed one; see `Store.delete`. Some stores ignore that condition."""
        at = self._location(file.path)
        with self._wrap_errors(file.path, "delete"):
            return self._delete(at, file.etag)

    def move(self, file: FileStatus, target: str) -> bool:
        """Copy an object if it is still the version that was read, then delete it under the same condition."""
        at, there = self._location(file.path), self._location(target)
        with self._wrap_errors(file.path, "move"):
            try:
                self._copy(file, at, there)
            except Exception as error:
                if is_gone(error) or is_changed(error):
                    return False
                raise
            return self._delete(at, file.etag)

    def _copy(self, file: FileStatus, at: Location, there: Location) -> None:
        source = {"Bucket": at.bucket, "Key": at.key}
        condition = {} if file.etag is None else {"CopySourceIfMatch": f'"{file.etag}"'}
        if file.size <= _COPY_BYTES:
            self._client.call("copy_object", Bucket=there.bucket, Key=there.key, CopySource=source, **condition)
        else:  # in parts, which boto3 does in threads of its own
            self._client.boto.copy(source, there.bucket, there.key, ExtraArgs={**condition, **self._client.payer})

    def _delete(self, at: Location, etag: str | None) -> bool:
        condition = {} if etag is None else {"IfMatch": f'"{etag}"'}
        try:
            self._client.call("delete_object", Bucket=at.bucket, Key=at.key, **condition)
        except Exception as error:
            if is_gone(error) or is_changed(error):
                return False
            if not condition or not is_unsupported(error):
                raise
            self._client.call("delete_object", Bucket=at.bucket, Key=at.key)
        return True

    def _head(self, path: str, at: Location) -> FileStatus:
        answer = self._client.call("head_object", Bucket=at.bucket, Key=at.key)
        entry = {**answer, "Key": at.key, "Size": answer["ContentLength"]}
        return self._listing(at).status(entry)

    def _stat_by_listing(self, path: str, at: Location) -> FileStatus | Directory | None:
        """Return the object or directory at a path, or None, by listing the keys that begin with its key."""
        page = self._listing(at).page(at.key or "", most=1)
        for entry in page.objects:
            if entry["Key"] == at.key:
                return self._listing(at).status(entry)
        return Directory(path) if self._is_directory(path, at) else None

    def _is_directory(self, path: str, at: Location) -> bool:
        """Return whether an object exists below a location. A bucket is a directory even without objects."""
        with self._wrap_errors(path, "list"):
            try:
                return bool(self._listing(at).page(at.prefix, most=1).objects) or not at.prefix
            except Exception as error:
                if is_gone(error):
                    return False
                raise

    def _now(self, path: str) -> FileStatus | None:
        status = self.stat(path)
        return status if isinstance(status, FileStatus) else None

    def _listing(self, at: Location) -> Listing:
        return Listing(self._client, at.bucket, at.scheme)

    def _location(self, path: str, *, buckets: bool = False) -> Location:
        location = parse_location(path)
        if "@" in location.bucket:
            raise ConfigurationError(
                "the URL contains credentials",
                option="path",
                advice="remove them from the URL, and set storage.key and storage.secret",
            )
        if not location.bucket and not buckets:
            raise ConfigurationError(f"the URL {path!r} names no bucket", option="path", advice="give s3://bucket/key")
        return location

    @contextmanager
    def _wrap_errors(self, path: str, doing: str) -> Iterator[None]:
        """Convert errors of boto3 in a `with` block to ForebayErrors."""
        try:
            yield
        except Exception as error:
            translated = s3_error(error, self._request(path, parse_location(path), doing))
            if translated is error:
                raise
            raise translated from error

    def _request(self, path: str, at: Location, doing: str) -> S3Request:
        client = self._client
        return S3Request(
            f"{doing} {path!r}", at.bucket, client.settings, client.server, permissions=_PERMISSIONS[doing]
        )


_PERMISSIONS: Final = {
    "read": "s3:GetObject and s3:ListBucket",
    "list": "s3:ListBucket",
    "delete": "s3:DeleteObject",
    "move": "s3:GetObject, s3:PutObject and s3:DeleteObject",
}


class _NamesBelow:
    """Decides whether `keep` accepts all names of a key below a prefix. Caches the answers for directories of keys."""

    def __init__(self, prefix: str, keep: Callable[[str], bool]) -> None:
        self._start = len(prefix)
        self._keep = keep
        self._known: dict[str, bool] = {"": True}

    def __call__(self, key: str) -> bool:
        directory, _, name = key[self._start :].rpartition("/")
        if directory not in self._known:
            self._known[directory] = all(part in KEY_NAMES or self._keep(part) for part in directory.split("/"))
        return self._known[directory] and self._keep(name)
