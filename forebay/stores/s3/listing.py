# SPDX-License-Identifier: Apache-2.0
"""Lists the objects below a prefix: page by page, and in parallel over ranges of keys."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

from forebay.stores.file_status import FileStatus
from forebay.stores.file_table import FileTable
from forebay.stores.fsspec_info import nanoseconds
from forebay.stores.s3.background import Background
from forebay.stores.s3.client import S3Client

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


class Page(NamedTuple):
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
    ) -> Page:
        """Return the first page of keys that sort after `after`, or the page after the one with this `token`."""
        arguments: dict[str, object] = {"Bucket": self._bucket, "Prefix": prefix, "MaxKeys": most or PAGE}
        options = {"StartAfter": after, "Delimiter": delimiter, "ContinuationToken": token}
        arguments |= {name: value for name, value in options.items() if value}
        answer = self._complete(arguments)
        prefixes = [found["Prefix"] for found in answer.get("CommonPrefixes", ())]
        token = answer.get("NextContinuationToken") if answer.get("IsTruncated") else None
        return Page(answer.get("Contents", ()), prefixes, token)

    def _complete(self, arguments: Mapping[str, object]) -> Any:  # noqa: ANN401 - boto3 has no types
        """Return a whole answer. botocore takes one that ended after its head for a listing without objects."""
        for _ in range(_TRIES):
            answer = self._client.call("list_objects_v2", **arguments)
            if "IsTruncated" in answer:
                return answer
        raise importlib.import_module("botocore.exceptions").IncompleteReadError(actual_bytes=0, expected_bytes="some")

    def pages(self, prefix: str, *, after: str = "", delimiter: str = "", stop: str | None = None) -> Iterator[Page]:
        """Yield the pages of keys after `after`, up to the page that reaches the key `stop`; by default all pages."""
        token: str | None = None
        while True:
            page = self.page(prefix, after=after, delimiter=delimiter, token=token)
            yield page
            token = page.token
            if token is None or (stop is not None and page.objects and page.objects[-1]["Key"] >= stop):
                return

    def status(self, found: Any) -> FileStatus:  # noqa: ANN401 - boto3 has no types
        """Return the `FileStatus` of an object in `Page.objects`."""
        return FileStatus(*self._fields(found))

    def _fields(self, found: Any) -> tuple[str, int, int, str | None]:  # noqa: ANN401 - boto3 has no types
        etag = str(found.get("ETag") or "").strip('"') or None
        return self._root + found["Key"], int(found["Size"]), nanoseconds(found.get("LastModified")), etag

    def tree(self, prefix: str, accepts: Callable[[str], bool], after: str = "") -> FileTable:
        """Return all objects below a prefix for whose key `accepts` returns True, sorted by key.

        Usually the first page has all keys. If not, the remaining keys are cut into ranges at directories. The ranges
        are listed at the same time, each page by page. So a small tree costs one request, and a large tree hardly more
        requests than it has pages.
        """
        first = self.page(prefix, after=after)
        found = FileTable()
        self._add(found, first, accepts)
        if first.token is None or not first.objects:
            return found
        last = first.objects[-1]["Key"]
        borders = [last, *self._borders(prefix, last)]
        work = [partial(self._range, prefix, accepts, start, stop) for start, stop in pairwise([*borders, None])]
        reported = time.monotonic()
        for number, part in enumerate(_in_order(work), start=1):
            found.extend(part)
            if time.monotonic() - reported >= _REPORT_SECONDS:
                reported = time.monotonic()
                _log.info(
                    "listed %d objects below %s%s; %d of %d ranges of keys are done",
                    len(found),
                    self._root,
                    prefix,
                    number,
                    len(work),
                )
        return found

    def _range(self, prefix: str, accepts: Callable[[str], bool], after: str | None, stop: str | None) -> FileTable:
        found = FileTable()
        for page in self.pages(prefix, after=after or "", stop=stop):
            self._add(found, page, accepts, stop)
        return found

    def _add(self, table: FileTable, page: Page, accepts: Callable[[str], bool], stop: str | None = None) -> None:
        for found in page.objects:
            # A key that ends in a slash marks a directory.
            if not (key := found["Key"]).endswith("/") and (stop is None or key < stop) and accepts(key):
                table.append(*self._fields(found))

    def _borders(self, prefix: str, last: str) -> list[str]:
        """Return directories after the key `last` on one level, at which the remaining keys can be cut into ranges."""
        inside = prefix
        for _ in range(_LEVELS):
            pages = list(islice(self.pages(inside, after=last, delimiter="/"), _DIRECTORY_PAGES))
            prefixes = [found for page in pages for found in page.prefixes]
            directories = [found for found in prefixes if found > last]
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
