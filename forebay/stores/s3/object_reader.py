# SPDX-License-Identifier: Apache-2.0
"""Reads ranges of one version of one object, and resumes answers that break off."""

from __future__ import annotations

import importlib
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from forebay.errors import ConfigurationError, RetriableError
from forebay.stores.file_changes import changed_error, gone_error
from forebay.stores.file_status import FileStatus
from forebay.stores.s3.client import S3Client
from forebay.stores.s3.errors import Request, is_changed, is_gone, s3_error

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
        request: Request,
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
        found = str(answer.get("ETag") or "").strip('"') or None
        self._etag = self._etag or found
        wrong = found != self._etag and found is not None
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
