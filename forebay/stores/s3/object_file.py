# SPDX-License-Identifier: Apache-2.0
"""An object as a seekable stream: read-ahead for sequential reads, exact ranges for random ones."""

from __future__ import annotations

import importlib
import io
import random
import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from forebay.errors import ConfigurationError, RetriableError
from forebay.stores.file_status import FileStatus, changed_error, gone_error
from forebay.stores.s3.client import Background, S3Client, S3Request, is_changed, is_gone, s3_error

if TYPE_CHECKING:
    from typing_extensions import Buffer


# -- Reads ranges of one version of one object, and resumes answers that break off.


STEP: Final = 256 << 10
"""Bytes received at a time. Before each piece, the request is cancelled if the file was closed."""

_BREAKS: Final = 4
"""Maximum consecutive answers that break off before `STEP` bytes; with one more, the read fails."""
_PAUSE: Final = 0.1
"""Seconds before the second retry of a broken answer, doubled for each further one. The first retry follows at once."""


class Cancelled(Exception):
    """Raised in a background request if the file is closed meanwhile."""


class ObjectReader:
    """Reads ranges of an object, all from the version that was listed. Thread-safe.

    Each request has `If-Match` with the listed ETag. The ETag of each answer is compared, too, because some stores
    ignore the condition. So all bytes are of one version, and no request at the end has to check that. If the listing
    has no ETag, the ETag of the first answer counts.

    Args:
        client: The client.
        bucket: The bucket.
        key: The key.
        file: The object as it was listed.
        request: The description of the request, for errors.
        now: Returns the present status of the object, or None if it no longer exists. Called after a mismatch.
    """

    def __init__(
        self,
        client: S3Client,
        bucket: str,
        key: str,
        file: FileStatus,
        request: S3Request,
        now: Callable[[], FileStatus | None],
    ) -> None:
        self.file = file
        self._client = client
        self._bucket = bucket
        self._key = key
        self._request = request
        self._now = now
        self._etag = file.etag
        self._closed = threading.Event()

    def close(self) -> None:
        """Cancel the running requests of other threads."""
        self._closed.set()

    def read(self, start: int, end: int) -> bytearray:
        """Return the bytes `[start, end)`. Blocks.

        Raises:
            DataError: The object no longer exists, or is another version.
            ConfigurationError: S3 refuses the request.
            RetriableError: S3 does not answer, or its answers repeatedly break off.
            Cancelled: `close` was called.
        """
        buffer = bytearray(end - start)
        done = breaks = 0
        with memoryview(buffer) as view:
            while done < len(buffer):
                got, failure = self._receive(start + done, view[done:])
                done += got
                if failure is None:
                    continue
                breaks = 1 if got >= STEP else breaks + 1
                if breaks > _BREAKS:
                    raise self._broken(failure, start + done) from failure
                if breaks > 1 and self._closed.wait(_PAUSE * 2 ** (breaks - 2) * (0.5 + random.random())):
                    raise Cancelled
        return buffer

    def _receive(self, start: int, view: memoryview) -> tuple[int, Exception | None]:
        """Fill `view` with one request; return the number of bytes received, and the error if some are missing."""
        answer = self._get(start, start + len(view))
        body = answer["Body"]
        done = 0
        try:
            while done < len(view):
                if self._closed.is_set():
                    raise Cancelled
                got = body.readinto(view[done : done + STEP])
                if not got:
                    return done, EOFError(f"the answer ended after {done} of {len(view)} bytes")
                done += got
        except _breaks() as error:
            return done, error
        finally:
            body.close()
        return done, None

    def _get(self, start: int, end: int) -> Any:  # noqa: ANN401 - boto3 has no types
        try:
            answer = self._client.get_range(self._bucket, self._key, start, end, self._etag)
        except Exception as error:
            if is_gone(error):
                raise gone_error(self.file.path) from error
            # Without a condition a smaller object has no such range.
            if is_changed(error) or "InvalidRange" in str(error):
                raise self._changed() from error
            raise s3_error(error, self._request) from error
        self._check(answer, start)
        return answer

    def _check(self, answer: Any, start: int) -> None:  # noqa: ANN401 - as above
        etag = str(answer.get("ETag") or "").strip('"') or None
        self._etag = self._etag or etag
        wrong = etag != self._etag and etag is not None
        served = str(answer.get("ContentRange") or "")
        if not wrong and served.startswith(f"bytes {start}-"):
            wrong = not served.endswith(("/*", f"/{self.file.size}"))
        elif not wrong and (start or answer.get("ContentLength") != self.file.size):
            answer["Body"].close()
            raise ConfigurationError(
                f"the store ignores the range of a request for {self.file.path!r} (Content-Range: {served!r})",
                option=self._request.option,
                advice="read from a store, or through a proxy, that serves ranges",
            )
        if wrong:
            answer["Body"].close()
            raise self._changed()

    def _changed(self) -> Exception:
        now = self._now()
        if now is None:
            return gone_error(self.file.path)
        then = replace(self.file, etag=self._etag)
        if then.same_file(now):  # a store that serves several versions for a while
            return RetriableError(
                f"the store served a version of {self.file.path!r} that is not the current one",
                advice="if this persists, check for caches and replicas between this machine and the store",
            )
        return changed_error(then, now)

    def _broken(self, failure: Exception, at: int) -> RetriableError:
        return RetriableError(
            f"the responses of the store repeatedly end early, at byte {at} of {self.file.path!r} "
            f"({type(failure).__name__}: {failure})",
            advice="if this persists, check the network, and proxies between this machine and the store",
        )


def _breaks() -> tuple[type[Exception], ...]:
    """Return the classes of the errors that mean that an answer broke off."""
    botocore, urllib3 = importlib.import_module("botocore.exceptions"), importlib.import_module("urllib3.exceptions")
    return (
        botocore.IncompleteReadError,
        botocore.ResponseStreamingError,
        botocore.HTTPClientError,
        urllib3.HTTPError,
        OSError,
    )


CHUNK: Final = 8 << 20
"""Bytes of one request in a sequential read: at 80 MB/s, S3's latency (30 ms) is a quarter of the request time."""
FIRST: Final = 1 << 20
"""Bytes of the first request in a sequential read. Each next one is twice as long, up to `CHUNK`."""
AHEAD: Final = 3
"""Number of chunks requested ahead of the current one, at the same time. An open file takes (AHEAD + 1) × CHUNK bytes.

With 80 MB/s per connection and a latency of 30 ms, a parser of 300 MB/s gets 43 MB/s with no chunk ahead, and 105 MB/s
with 2 chunks.
"""
SMALL: Final = 1 << 20
"""Maximum bytes of an object that is fetched by one request, in whatever order it is read."""
_TAIL: Final = 64 << 10
"""Minimum bytes of the first request for a footer. Most footers are smaller."""
_KEPT: Final = 32 << 20
"""Maximum cached bytes of random reads, for columns that are read in turn."""
_RUNS: Final = 64
"""Maximum number of tracked runs of consecutive reads, such as columns, each by the position where it ends."""


class ObjectFile(io.RawIOBase):
    """A seekable stream of an S3 object. For one thread at a time.

    The first read decides the mode. A first read that ends at the end of the object, but does not begin at the start,
    reads a footer. After a footer, each read requests the exact range; consecutive reads request longer ranges.
    Otherwise reads are sequential: the file requests chunks of growing length, and other threads fetch the next chunks
    while the caller works on the current one. A seek to another position begins again with a short chunk.
    """

    def __init__(self, reader: ObjectReader, read_to: int | None = None) -> None:
        super().__init__()
        self._reader = reader
        self._size = reader.file.size
        # From this position on, nothing is fetched ahead: the next slice begins there.
        self._limit = self._size if read_to is None else min(read_to, self._size)
        self._position = 0
        self._block = bytearray()
        self._at = Range(0, 0)
        self._ahead: deque[RangeRequest] = deque()
        self._random: bool | None = None
        self._expected: ExpectedRanges | None = None
        self._step = FIRST
        self._recent: deque[tuple[Range, bytearray]] = deque()
        self._ends: dict[int, int] = {}
        self._whole: Background[bytearray] | None = None

    def fetch_ahead(self) -> None:
        """Request a small object as a whole, before any read. The first read waits for the content or its error."""
        self._whole = Background(partial(self._reader.read, 0, self._size), "forebay-s3-ahead")

    def expect(self, groups: Sequence[Sequence[tuple[int, int]]], *, whole: int | None = None) -> None:
        """Announce the ranges that will be read, group by group, so that they are fetched together and ahead.

        File formats call this method, if the stream has it, with the column chunks of row groups or the streams of ORC
        stripes. Other ranges can still be read. A group of up to `whole` bytes is fetched as a whole; the default is
        that of `ExpectedRanges`. An empty list of groups ends the announcement.
        """
        self._random, self._expected = True, ExpectedRanges(self._reader, groups, whole) if groups else None

    def readable(self) -> bool:
        """Return True: the stream can be read."""
        return True

    def seekable(self) -> bool:
        """Return True: the stream can seek."""
        return True

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another position and return it. Sends no request."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"the position {base + offset} is negative")
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Return the next `size` bytes, fewer at the end. Raises the errors of `ObjectReader.read`."""
        left = max(0, self._size - self._position)
        remaining = left if size is None or size < 0 else min(size, left)
        parts: list[bytes] = []
        while remaining:
            part = self._next(remaining)
            parts.append(part)
            remaining -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def readall(self) -> bytes:
        """Return the rest of the object."""
        return self.read()

    def readinto(self, buffer: Buffer) -> int:
        """Read the next bytes into a buffer; return their number, 0 at the end."""
        with memoryview(buffer).cast("B") as view:
            data = self.read(len(view))
            view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Cancel running requests, and close the file."""
        if not self.closed:
            self._reader.close()
            self._ahead.clear()
            self._expected = None
            self._recent.clear()
            self._whole = None
            self._block = bytearray()
        super().close()

    def _next(self, count: int) -> bytes:
        """Return the next bytes: at least one, at most `count`."""
        if not self._at.start <= self._position < self._at.end:
            self._fetch(count)
        start = self._position - self._at.start
        with memoryview(self._block) as view:
            part = bytes(view[start : start + count])
        self._position += len(part)
        return part

    def _fetch(self, count: int) -> None:
        """Load the block of bytes that contains the current position, by a request if necessary."""
        position, self._block = self._position, bytearray()
        if self._random is None:
            self._random = position > 0 and position + count == self._size
        if self._size <= SMALL:
            self._at = Range(0, self._size)
            if self._whole is not None:
                whole, self._whole = self._whole, None
                self._block = whole.result()
                return
        elif self._expected is not None and (expected := self._expected.block(position, count)) is not None:
            self._at, self._block = expected
            return
        elif self._random:
            self._read_random(position, count)
            return
        else:
            self._next_chunk(count)
            return
        self._block = self._reader.read(*self._at)

    def _read_random(self, position: int, count: int) -> None:
        """Load a block of a file with a footer: the exact range, or a longer one if reads are consecutive (columns)."""
        for where, data in self._recent:
            if where.start <= position < where.end:
                self._at, self._block = where, data
                return
        if position + count == self._size:
            self._at = Range(max(0, min(position, self._size - _TAIL)), self._size)
        else:
            # Arrow reads the columns of ORC in turn, in pieces of 0.1 MB.
            before = self._ends.pop(position, 0) if self._expected is None else 0
            step = max(count, min(2 * before, CHUNK, _KEPT // (len(self._ends) + 1)))
            self._at = Range(position, min(position + step, self._size))
            self._ends[self._at.end] = step
            if len(self._ends) > _RUNS:
                del self._ends[next(iter(self._ends))]
        self._block = self._reader.read(*self._at)
        self._recent.append((self._at, self._block))
        while sum(len(data) for _, data in self._recent) > _KEPT and len(self._recent) > 1:
            self._recent.popleft()

    def _next_chunk(self, count: int) -> None:
        position = self._position
        while self._ahead and not self._ahead[0].where.start <= position < self._ahead[0].where.end:
            self._ahead.popleft()
        continues = (position == self._at.end != 0) or bool(self._ahead)
        if not continues:
            self._step = FIRST
        request = self._ahead.popleft() if self._ahead else None
        self._at = self._chunk(position, count) if request is None else request.where
        if continues:
            self._request_ahead()
        self._block = self._reader.read(*self._at) if request is None else request.data.result()

    def _request_ahead(self) -> None:
        start = self._ahead[-1].where.end if self._ahead else self._at.end
        while start < self._limit and len(self._ahead) < AHEAD:
            where = self._chunk(start, 1)
            data = Background(partial(self._reader.read, *where), "forebay-s3-read")
            self._ahead.append(RangeRequest(where, data))
            start = where.end

    def _chunk(self, start: int, count: int) -> Range:
        """Return the next range to request. Ranges grow in length; `CHUNK` bytes or less before the limit are one."""
        if start >= self._limit:
            return Range(start, min(self._size, start + max(count, _TAIL)))
        length, self._step = max(count, self._step), min(CHUNK, self._step * 2)
        left = self._limit - start
        return Range(start, start + (left if left <= max(length, CHUNK) else length))


# -- Fetches ranges that a reader has announced, such as the column chunks of Parquet row groups, before it reads them.


GROUP: Final = 8 << 20
"""Maximum bytes of a group that is fetched as a whole, together with the next group. Neighbouring groups are joined up
to this size. Of a larger group, only the bytes to be read next are fetched."""
GAP: Final = 512 << 10
"""Maximum gap in bytes between ranges of one request. At 80 MB/s the gap costs 6 ms; a request costs 30 ms."""
PIECE: Final = 8 << 20
"""Maximum bytes of one request."""


class Range(NamedTuple):
    """The bytes `[start, end)`."""

    start: int
    end: int


class RangeRequest(NamedTuple):
    """A range that is requested, and its bytes as soon as they have arrived."""

    where: Range
    data: Background[bytearray]


class ExpectedRanges:
    """Fetches groups of announced ranges; each group may be read in any order. For one thread at a time.

    Args:
        reader: Reads the ranges of the object.
        groups: The ranges `(start, end)` of each group. Ranges outside the object are ignored.
        whole: Maximum bytes of a group that is fetched as a whole; `GROUP` by default.
    """

    def __init__(
        self, reader: ObjectReader, groups: Sequence[Sequence[tuple[int, int]]], whole: int | None = None
    ) -> None:
        self._reader = reader
        self._whole = GROUP if whole is None else whole
        size = reader.file.size
        inside = [sorted(Range(*bounds) for bounds in group if 0 <= bounds[0] < bounds[1] <= size) for group in groups]
        self._groups = _joined(sorted(group for group in inside if group))
        self._starts = [group[0].start for group in self._groups]
        self._fetched: dict[int, list[RangeRequest]] = {}
        self._ahead: dict[int, RangeRequest] = {}

    def block(self, position: int, count: int) -> tuple[Range, bytearray] | None:
        """Return the range and bytes of a block that contains a position; None if no announced range has it. May block.

        A large group is fetched in blocks of `count` bytes.

        Raises:
            ForebayError: See `ObjectReader.read`.
        """
        number = bisect_right(self._starts, position) - 1
        if number < 0:
            return None
        if self._is_small(number):
            return self._of_group(number, position)
        return self._of_range(number, position, count)

    def _is_small(self, number: int) -> bool:
        return _bytes(self._groups[number]) <= self._whole

    def _of_group(self, number: int, position: int) -> tuple[Range, bytearray] | None:
        """Return the fetched range of a group that contains a position, or None; request this group and the next one.

        Neighbouring groups stay in memory, because the columns of a file do not reach the next group together.
        """
        nearby = {each: pieces for each, pieces in self._fetched.items() if number - 1 <= each <= number + 2}
        for each in (number, number + 1):
            if each < len(self._groups) and each not in nearby and self._is_small(each):
                nearby[each] = [self._fetch(piece) for piece in _pieces(self._groups[each])]
        self._fetched = nearby
        for where, data in self._fetched[number]:
            if where.start <= position < where.end:
                return where, data.result()
        return None

    def _of_range(self, number: int, position: int, count: int) -> tuple[Range, bytearray] | None:
        """Return the next bytes of one range, and request the same number of bytes after them."""
        group = self._groups[number]
        inside = group[bisect_right(group, position, key=lambda candidate: candidate.start) - 1]
        if position >= inside.end:
            return None
        pending = self._ahead.pop(position, None)
        where = Range(position, min(position + count, inside.end)) if pending is None else pending.where
        if where.end < inside.end:
            if len(self._ahead) > len(group):  # left over from ranges that were read in another way
                self._ahead.clear()
            self._ahead[where.end] = self._fetch(Range(where.end, min(where.end + count, inside.end)))
        return where, self._reader.read(*where) if pending is None else pending.data.result()

    def _fetch(self, where: Range) -> RangeRequest:
        return RangeRequest(where, Background(partial(self._reader.read, *where), "forebay-s3-read"))


def _bytes(group: Sequence[Range]) -> int:
    return sum(end - start for start, end in group)


def _joined(groups: Sequence[list[Range]]) -> list[list[Range]]:
    """Return the groups with neighbours joined up to `GROUP` bytes: Arrow reads many small row groups at a time."""
    joined: list[list[Range]] = []
    total = 0
    for group in groups:
        size = _bytes(group)
        if joined and total + size <= GROUP:
            joined[-1] += group
            total += size
        else:
            joined.append(list(group))
            total = size
    return [sorted(group) for group in joined]


def _pieces(group: Sequence[Range]) -> list[Range]:
    """Return the ranges to request: ranges with small gaps are joined, and long ones are cut."""
    joined: list[Range] = []
    for start, end in group:
        if joined and start - joined[-1].end <= GAP:
            joined[-1] = Range(joined[-1].start, max(end, joined[-1].end))
        else:
            joined.append(Range(start, end))
    return [Range(at, min(at + PIECE, end)) for start, end in joined for at in range(start, end, PIECE)]
