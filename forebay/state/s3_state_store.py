# SPDX-License-Identifier: Apache-2.0
"""Small durable facts of streams on S3, written with `If-None-Match`. boto3 is imported here only."""

from __future__ import annotations

import importlib
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, Final

from forebay.errors import ConfigurationError, ForebayError, RetriableError
from forebay.state.state_store import OPTION
from forebay.stores.storage_options import StorageOptions

_CONNECT_TIMEOUT: Final = 10.0
_READ_TIMEOUT: Final = 30.0
_TRIES: Final = 4
# What `stateStorage.*` may say, and boto3's names for it.
_CLIENT: Final = {
    "endpoint_url": "endpoint_url",
    "key": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "token": "aws_session_token",
    "region": "region_name",
}
_PROFILE: Final = "profile"

_AMAZON = re.compile(r"https?://[^/]+\.amazonaws\.com(\.cn)?/?")
_tried_out: set[tuple[str, str]] = set()

_PAGE: Final = 1000
_NO_MANY: Final = frozenset(
    {"NotImplemented", "MethodNotAllowed", "MissingContentMD5", "InvalidRequest", "MalformedXML", "InvalidDigest"}
)
_CREDENTIALS: Final = frozenset(
    {
        "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired",
        "InvalidClientTokenId", "UnrecognizedClientException", "InvalidSecurity", "RequestExpired",
    }
)  # fmt: skip
_REGION: Final = frozenset(
    {"PermanentRedirect", "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
)
_BUSY: Final = frozenset(
    {
        "SlowDown", "SlowDownRead", "SlowDownWrite", "Throttling", "ThrottlingException", "RequestLimitExceeded",
        "TooManyRequests", "ServiceUnavailable", "RequestTimeout", "InternalError", "OperationAborted",
        "ConditionalRequestConflict", "BandwidthLimitExceeded", "429", "500", "502", "503", "504",
    }
)  # fmt: skip


class S3StateStore:
    """Facts are objects. Implements `StateStore`; boto3's clients may be used by any thread.

    Before the first fact is written, a store other than Amazon's is tried out, once in each process: one that overlooks
    `If-None-Match` would let two writers win, and is refused.

    Args:
        location: `s3://bucket/prefix`; `s3a:` and `s3n:` are understood.
        options: See `open_state_store`.

    Raises:
        ConfigurationError: boto3 is not installed, the URL is none, or an option is unknown.
    """

    def __init__(self, location: str, options: StorageOptions) -> None:
        self.location = location
        self._options = options
        self._bucket, self._prefix = _place(location)
        self._client = _connect(location, options)
        endpoint = str(self._client.meta.endpoint_url)
        self._tried = (endpoint, self._bucket) in _tried_out or _AMAZON.fullmatch(endpoint) is not None

    def get(self, name: str) -> bytes | None:
        """Read an object."""
        with self._explained("read"):
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
                return bytes(answer["Body"].read())
            except self._client.exceptions.NoSuchKey:
                return None

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Put an object with `If-None-Match: *`."""
        if not self._tried:
            self._try_out()
        return self._put(name, data)

    def names(self, prefix: str) -> list[str]:
        """List the objects directly below a prefix."""
        found: list[str] = []
        with self._explained("list"):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix, Delimiter="/"):
                found.extend(each["Key"][len(self._prefix) :] for each in page.get("Contents", ()))
        return sorted(name for name in found if name != prefix)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects, many at a time; one by one where the store does not understand that."""
        keys = [self._prefix + name for name in names]
        with self._explained("delete"):
            for start in range(0, len(keys), _PAGE):
                self._delete(keys[start : start + _PAGE])

    def _delete(self, keys: list[str]) -> None:
        try:
            answer = self._client.delete_objects(
                Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True}
            )
        except self._client.exceptions.ClientError as error:
            if _code(error)[0] not in _NO_MANY:
                raise
            for key in keys:
                self._client.delete_object(Bucket=self._bucket, Key=key)
            return
        for refused in answer.get("Errors", ()):
            raise self._client.exceptions.ClientError({"Error": refused}, "DeleteObjects")

    def _put(self, name: str, data: bytes) -> bool:
        with self._explained("write"):
            for attempt in range(_TRIES):
                try:
                    self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data, IfNoneMatch="*")
                except self._client.exceptions.ClientError as error:
                    code, status = _code(error)
                    if status == 412 or code == "PreconditionFailed":
                        return False
                    # Another writer is at it, and who wins is not yet certain.
                    if (status != 409 and code != "ConditionalRequestConflict") or attempt == _TRIES - 1:
                        raise
                    time.sleep(0.05 * 2**attempt)
                else:
                    return True
        raise AssertionError  # the last try returned or raised

    def _try_out(self) -> None:
        """Refuse a store in which a second writer wins too (S13)."""
        for _ in range(_TRIES):
            probe = f".probe-{uuid.uuid4().hex}"
            first = self._put(probe, b"")
            second = self._put(probe, b"")
            self.delete([probe])
            if second:
                raise ConfigurationError(
                    f"the store of {self.location!r} overwrites an object although it is told not to (If-None-Match)",
                    option=OPTION,
                    advice="give a bucket of a store that honours If-None-Match, or a directory",
                )
            if first:
                self._tried = True
                _tried_out.add((str(self._client.meta.endpoint_url), self._bucket))
                return
            # An answer got lost: the client repeated the request, and met the object that it had put itself.
        raise RetriableError(
            f"the store of {self.location!r} could not be tried out: it calls new objects already there",
            option=OPTION,
            advice="see whether answers of the store get lost on the way, such as in a proxy",
        )

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        """Raise errors of ours for those of boto3."""
        try:
            yield
        except ForebayError:
            raise
        except Exception as error:
            raise self._translated(error, doing) from error

    def _translated(self, error: Exception, doing: str) -> ForebayError:
        said = self._options.redact(f"{type(error).__name__}: {error}")
        where, core = f"{doing} what the stream remembers below {self.location!r}", importlib.import_module
        botocore = core("botocore.exceptions")
        if isinstance(error, botocore.ClientError):
            return self._answered(error, where, said)
        if isinstance(
            error, (botocore.NoCredentialsError, botocore.PartialCredentialsError, botocore.TokenRetrievalError)
        ):
            return ConfigurationError(f"no credentials to {where} ({said})", option=OPTION, advice=_GIVE)
        if isinstance(error, (botocore.ParamValidationError, ValueError)):
            return ConfigurationError(
                f"could not {where} ({said})",
                option=OPTION,
                advice="check the name of the bucket, and stateStorage.endpoint_url",
            )
        return RetriableError(
            f"the store did not answer: could not {where} ({said})",
            option=OPTION,
            advice="check that it is up and can be reached from here; stateStorage.endpoint_url says where it is",
        )

    def _answered(self, error: Exception, where: str, said: str) -> ForebayError:
        """Return the error of ours for an answer of the store that is one."""
        code, status = _code(error)
        if code == "NoSuchBucket":
            return ConfigurationError(
                f"there is no bucket {self._bucket!r}: could not {where}",
                option=OPTION,
                advice="make the bucket, or correct stateLocation or stateStorage.endpoint_url",
            )
        if code in _CREDENTIALS:
            return ConfigurationError(
                f"the credentials are wrong or too old to {where} ({said})", option=OPTION, advice=_GIVE
            )
        if code in _REGION:
            return ConfigurationError(
                f"the bucket is in another region: could not {where} ({said})",
                option=OPTION,
                advice="set stateStorage.region",
            )
        if code in _BUSY or status == 429 or (status >= 500 and status != 501):
            return RetriableError(
                f"the store is too busy to {where} ({said})", option=OPTION, advice="give it time, or another prefix"
            )
        if status == 501:
            return ConfigurationError(
                f"the store knows no If-None-Match: could not {where} ({said})",
                option=OPTION,
                advice="give a bucket of a store that honours If-None-Match, or a directory",
            )
        return ConfigurationError(
            f"no permission to {where} ({said})",
            option=OPTION,
            advice="allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket there, or give other "
            "credentials as stateStorage.key and stateStorage.secret",
        )


_GIVE: Final = (
    "give stateStorage.key and stateStorage.secret, or set them for boto3: AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, a profile, or the role of the machine"
)


def _place(location: str) -> tuple[str, str]:
    """Return bucket and prefix; the prefix is empty or ends in a slash."""
    _, separator, rest = location.partition("://")
    bucket, _, prefix = rest.partition("/")
    if not separator or not bucket:
        raise ConfigurationError(f"{location!r} names no bucket", option=OPTION, advice="give s3://bucket/prefix")
    if "@" in bucket:
        raise ConfigurationError(
            "the URL holds credentials", option=OPTION, advice="give them as stateStorage.key and stateStorage.secret"
        )
    parts = [part for part in prefix.split("/") if part]
    return bucket, "".join(f"{part}/" for part in parts)


def _connect(location: str, options: StorageOptions) -> Any:  # noqa: ANN401 - boto3 has no types
    known = [*_CLIENT, _PROFILE]
    unknown = sorted(name for name in options if name.lower() not in known)
    if unknown:
        near = get_close_matches(unknown[0].lower(), known, 1)
        raise ConfigurationError(
            f"stateStorage has no {unknown[0]!r}" + (f", did you mean {near[0]!r}?" if near else ""),
            option=f"stateStorage.{unknown[0]}",
            advice=f"the options are {', '.join(f'stateStorage.{name}' for name in sorted(known))}",
        )
    try:
        boto3, config = importlib.import_module("boto3"), importlib.import_module("botocore.config")
    except ImportError:
        raise ConfigurationError(
            f"{location!r} needs boto3, which is not installed",
            option=OPTION,
            advice='pip install "forebay[s3]"',
        ) from None
    given = {name.lower(): value for name, value in options.items()}
    profile = given.pop(_PROFILE, None)
    settings = config.Config(
        connect_timeout=_CONNECT_TIMEOUT,
        read_timeout=_READ_TIMEOUT,
        retries={"total_max_attempts": _TRIES, "mode": "standard"},
        # Segments carry digests of their own, and not every store that is like S3 knows these.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path"} if given.get("endpoint_url") else None,
    )
    try:
        session = boto3.session.Session(profile_name=profile)
        region = given.pop("region", None) or session.region_name or "us-east-1"
        arguments = {_CLIENT[name]: value for name, value in given.items()}
        return session.client("s3", config=settings, region_name=region, **arguments)
    except Exception as error:
        said = options.redact(f"{type(error).__name__}: {error}")
        raise ConfigurationError(
            f"no way to {location!r} ({said})", option=OPTION, advice="check stateStorage.* and boto3's own settings"
        ) from error


def _code(error: Any) -> tuple[str, int]:  # noqa: ANN401 - botocore has no types
    """Return the code and the HTTP status of the store's answer."""
    answer = error.response
    return str(answer.get("Error", {}).get("Code", "")), int(
        answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    )
