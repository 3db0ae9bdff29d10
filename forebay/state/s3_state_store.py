# SPDX-License-Identifier: Apache-2.0
"""A state store on S3, which writes with the condition `If-None-Match`."""

from __future__ import annotations

import io
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO, Final

from forebay.errors import ConfigurationError, ForebayError, RetriableError
from forebay.state.state_store import OPTION, STREAM, Purpose, checked_name, checked_prefix
from forebay.stores.paths import password_scheme
from forebay.stores.s3.client import (
    Background,
    S3Client,
    S3Request,
    client_of,
    error_code,
    is_gone,
    is_unsupported,
    s3_error,
)
from forebay.stores.s3.store import Listing
from forebay.stores.store import StorageOptions

# -- Probes whether a store of S3 lets at most one of several simultaneous writers of an object succeed (S13).


ROUNDS: Final = 6
"""Number of rounds in which exactly one writer must win. Each takes about as long as two requests."""

WRITERS: Final = 4
"""Number of simultaneous writers in a round."""

_LOST: Final = 4
"""Maximum rounds without a winner: answers were lost, and the repeated request found the object of the first one."""

_HALF: Final = 4 << 10
"""Bytes that each writer sends before it waits for the others."""

_PATIENCE: Final = 5.0
"""Maximum seconds to wait for the other writers. After them the round goes on without overlap."""

OTHER_STORE: Final = (
    "give a bucket of a store that compares and writes in one step for PUT with If-None-Match: *, or a directory"
)

_EVENT: Final = "before-send.s3.PutObject"

Put = Callable[[str, Callable[[], "bytes | BinaryIO"]], bool]


def refuse_racy_store(
    client: S3Client, location: str, put: Put, delete: Callable[[Iterable[str]], None], option: str = OPTION
) -> None:
    """Raise an error if the store lets a second writer of the same name succeed. May block.

    A store that looks for the object and then writes it passes a probe by one PUT after the other. So several
    connections send the headers and half of the body before any of them sends the other half.

    Args:
        client: The client, whose requests to put objects are changed during the probe.
        location: The location of the state, for errors.
        put: Writes a fact unless it exists, with a body that is made for each attempt; returns whether it wrote it.
        delete: Deletes facts.
        option: The option that gives the location, for errors.

    Raises:
        ConfigurationError: Two writers of one object succeeded.
        RetriableError: No writer succeeded.
    """
    names: list[str] = []
    won = winners = 0
    client.boto.meta.events.register(_EVENT, _hold, unique_id=_EVENT)
    try:
        while won < ROUNDS and len(names) - won < _LOST:
            names.append(f".probe-{uuid.uuid4().hex}")
            winners = _winners(put, names[-1])
            if winners > 1:
                break
            won += winners
    except BaseException:  # also Ctrl-C: objects of the probe must not stay
        with suppress(ForebayError):  # the first error says what to do
            delete(names)
        raise
    delete(names)
    if winners > 1:
        raise ConfigurationError(
            f"the store at {client.server} let {winners} of {WRITERS} simultaneous writers create one object below "
            f"{location!r}: it ignores If-None-Match, or overwrites an object that exists, so two queries or two "
            "attempts of a task could both commit",
            option=option,
            advice=OTHER_STORE,
        )
    if not won:
        raise RetriableError(
            f"the store at {client.server} could not be probed: it reports new objects below {location!r} as existing",
            option=option,
            advice="check whether a proxy or the network loses answers of the store",
        )


def _winners(put: Put, name: str) -> int:
    """Let several writers create one object at the same time; return how many of them succeeded."""
    writers = [Background(partial(_outcome, put, name, body), "forebay-s3-probe") for body in _bodies(WRITERS)]
    outcomes = [writer.result() for writer in writers]
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes.count(True)


def _outcome(put: Put, name: str, body: Callable[[], bytes | BinaryIO]) -> bool | Exception:
    try:
        return put(name, body)
    except Exception as error:  # noqa: BLE001 - raised when all writers have ended
        return error


def _bodies(count: int) -> list[Callable[[], bytes | BinaryIO]]:
    """Return functions that make the body of a request: for a first attempt one that waits for the other writers."""
    barrier = threading.Barrier(count)

    def bodies(number: int) -> Callable[[], bytes | BinaryIO]:
        content = bytes([number]) * 2 * _HALF
        first = iter([_HeldBody(content, barrier)])
        return lambda: next(first, content)

    return [bodies(number) for number in range(count)]


class _HeldBody(io.BytesIO):
    """A body whose second half is read only when the other writers have read their first half."""

    def __init__(self, content: bytes, barrier: threading.Barrier) -> None:
        super().__init__(content)
        self._barrier: threading.Barrier | None = barrier  # None: this body has waited, and is sent again
        self.sending = False
        """Whether the request is being sent; before, botocore reads the body to sign it."""

    def read(self, size: int | None = -1) -> bytes:
        if not self.sending:
            return super().read(size)
        if self.tell() >= _HALF and self._barrier is not None:
            barrier, self._barrier = self._barrier, None
            with suppress(threading.BrokenBarrierError):
                barrier.wait(_PATIENCE)
        return super().read(_HALF)


def _hold(request: Any, **_: object) -> None:  # noqa: ANN401 - botocore has no types
    """Let the body of a request wait while it is sent, without a question to the server before it."""
    if isinstance(request.body, _HeldBody):
        request.body.sending = True
        if "Expect" in request.headers:
            del request.headers["Expect"]


_TRIES: Final = 4
"""Maximum attempts at a write that conflicts with one of another writer."""

_AMAZON = re.compile(r"https?://[^/]+\.amazonaws\.com(\.cn)?/?")
_probed: set[tuple[str, str]] = set()

_PAGE: Final = 1000  # keys that S3 deletes in one request
_NO_BULK_DELETE: Final = frozenset(
    {"NotImplemented", "MethodNotAllowed", "MissingContentMD5", "InvalidRequest", "MalformedXML", "InvalidDigest"}
)


class S3StateStore:
    """Stores each fact in an object below `s3://bucket/prefix`. Implements `StateStore`; see `open_state_store`.

    Before the first write to a store other than Amazon's, a process probes it, and refuses it if it lets two writers
    of one fact both succeed; see `refuse_racy_store`.

    Raises:
        ConfigurationError: boto3 is not installed, the URL is invalid, or an option is unknown.
    """

    def __init__(self, location: str, options: StorageOptions, purpose: Purpose = STREAM) -> None:
        self.location = location
        self._purpose = purpose
        self._bucket, self._prefix = _split_location(location, purpose)
        try:
            self._client = client_of(options, purpose.storage)
        except ConfigurationError as error:
            error.option = purpose.option if error.option == "path" else error.option
            raise

    def get(self, name: str) -> bytes | None:
        """Return a fact, or None; see `StateStore.get`."""
        key = self._key(name)
        with self._wrap_errors("read"):
            try:
                answer = self._client.call("get_object", Bucket=self._bucket, Key=key)
                return bytes(answer["Body"].read())
            except Exception as error:
                if is_gone(error):
                    return None
                raise

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a fact unless it exists; see `StateStore.put_if_absent`."""
        self._key(name)  # refused before the probe
        store = (self._client.endpoint, self._bucket)
        with self._wrap_errors("write"):
            if store not in _probed and not _AMAZON.fullmatch(self._client.endpoint):
                refuse_racy_store(self._client, self.location, self._put, self.delete, self._purpose.option)
                _probed.add(store)
            return self._put(name, lambda: data)

    def names(self, prefix: str) -> list[str]:
        """Return the names below a prefix; see `StateStore.names`."""
        checked_prefix(prefix, self.location, self._purpose)
        names: list[str] = []
        with self._wrap_errors("list"):
            for page in Listing(self._client, self._bucket, "s3").pages(self._prefix + prefix, delimiter="/"):
                names.extend(each["Key"][len(self._prefix) :] for each in page.objects)
        return sorted(name for name in names if name != prefix)

    def directories(self, prefix: str) -> list[str]:
        """Return the directories below a prefix; see `StateStore.directories`."""
        checked_prefix(prefix, self.location, self._purpose)
        directories: list[str] = []
        with self._wrap_errors("list"):
            for page in Listing(self._client, self._bucket, "s3").pages(self._prefix + prefix, delimiter="/"):
                directories.extend(name[len(self._prefix) :] for name in page.prefixes)
        return sorted(directories)

    def delete(self, names: Iterable[str]) -> None:
        """Delete facts, many in one request, or one by one if the store does not support that."""
        keys = [self._key(name) for name in names]
        with self._wrap_errors("delete"):
            for start in range(0, len(keys), _PAGE):
                self._delete(keys[start : start + _PAGE])

    def local_path(self, name: str) -> None:
        """Return None: objects are not files of this machine; see `StateStore.local_path`."""

    def _key(self, name: str) -> str:
        return self._prefix + checked_name(name, self.location, self._purpose)

    def _delete(self, keys: list[str]) -> None:
        try:
            objects = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
            answer = self._client.call("delete_objects", Bucket=self._bucket, Delete=objects)
        except Exception as error:
            if error_code(error)[0] not in _NO_BULK_DELETE:
                raise
            for key in keys:
                self._client.call("delete_object", Bucket=self._bucket, Key=key)
            return
        for refused in answer.get("Errors", ()):
            raise self._client.boto.exceptions.ClientError({"Error": refused}, "DeleteObjects")

    def _put(self, name: str, body: Callable[[], bytes | BinaryIO]) -> bool:
        """Write an object unless it exists; return whether this call wrote it. Raises botocore's errors.

        `body` is called for each attempt.
        """
        key = self._key(name)
        for attempt in range(_TRIES):
            try:
                self._client.call("put_object", Bucket=self._bucket, Key=key, Body=body(), IfNoneMatch="*")
            except Exception as error:
                code, status = error_code(error)
                if status == 412 or code == "PreconditionFailed":
                    return False
                # After a conflict with another writer it is not certain yet which one wins.
                if (status != 409 and code != "ConditionalRequestConflict") or attempt == _TRIES - 1:
                    raise
                time.sleep(0.05 * 2**attempt)
            else:
                return True
        raise AssertionError  # the last try returned or raised

    @contextmanager
    def _wrap_errors(self, doing: str) -> Iterator[None]:
        """Convert errors of boto3 in a `with` block to ForebayErrors."""
        try:
            yield
        except ForebayError:
            raise
        except Exception as error:
            raise self._store_error(error, doing) from error

    def _store_error(self, error: Exception, doing: str) -> ForebayError:
        if is_unsupported(error):
            return ConfigurationError(
                f"the store at {self._client.server} does not support If-None-Match or the request itself: could not "
                f"{doing} {self._purpose.what} below {self.location!r} ({error})",
                option=self._purpose.option,
                advice=OTHER_STORE,
            )
        return s3_error(error, self._request(doing))

    def _request(self, doing: str) -> S3Request:
        return S3Request(
            f"{doing} {self._purpose.what} below {self.location!r}",
            self._bucket,
            self._client.settings,
            self._client.server,
            self._purpose.option,
            "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket",
        )


def _split_location(location: str, purpose: Purpose) -> tuple[str, str]:
    """Return the bucket and the prefix of an S3 URL; the prefix is empty or ends in a slash."""
    _, separator, tail = location.partition("://")
    bucket, _, prefix = tail.partition("/")
    if not separator or not bucket:
        raise ConfigurationError(
            f"URL {location!r} names no bucket", option=purpose.option, advice="give s3://bucket/prefix"
        )
    if "@" in bucket or password_scheme(location):
        raise ConfigurationError(
            f"the URL of {purpose.option} contains credentials",
            option=purpose.option,
            advice=f"remove them from the URL, and set {purpose.storage}key and {purpose.storage}secret",
        )
    parts = [part for part in prefix.split("/") if part]
    return bucket, "".join(f"{part}/" for part in parts)
