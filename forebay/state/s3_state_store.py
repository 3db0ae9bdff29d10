# SPDX-License-Identifier: Apache-2.0
"""State on S3, written with `If-None-Match`. boto3 is imported only here."""

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
# Options `stateStorage.*` → boto3's names.
_CLIENT: Final = {
    "endpoint_url": "endpoint_url",
    "key": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "token": "aws_session_token",
    "region": "region_name",
}
_PROFILE: Final = "profile"

_AMAZON = re.compile(r"https?://[^/]+\.amazonaws\.com(\.cn)?/?")
_probed: set[tuple[str, str]] = set()

_PAGE: Final = 1000  # keys that S3 deletes in one request
_NO_BULK_DELETE: Final = frozenset(
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
    """Keeps each fact in an object below `s3://bucket/prefix`. Implements `StateStore`; see `open_state_store`.

    Before its first write, a process probes a store other than Amazon's and refuses it if it ignores `If-None-Match`:
    two writers could both win.

    Raises:
        ConfigurationError: boto3 is not installed, the URL is invalid, or an option is unknown.
    """

    def __init__(self, location: str, options: StorageOptions) -> None:
        self.location = location
        self._options = options
        self._bucket, self._prefix = _split_location(location)
        self._client = _connect(location, options)
        self._endpoint = str(self._client.meta.endpoint_url)

    def get(self, name: str) -> bytes | None:
        """See `StateStore.get`."""
        with self._wrap_errors("read"):
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
                return bytes(answer["Body"].read())
            except self._client.exceptions.NoSuchKey:
                return None

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """See `StateStore.put_if_absent`."""
        if (self._endpoint, self._bucket) not in _probed and not _AMAZON.fullmatch(self._endpoint):
            self._probe()
        return self._put(name, data)

    def names(self, prefix: str) -> list[str]:
        """See `StateStore.names`."""
        found: list[str] = []
        with self._wrap_errors("list"):
            pages = self._client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix + prefix, Delimiter="/"):
                found.extend(each["Key"][len(self._prefix) :] for each in page.get("Contents", ()))
        return sorted(name for name in found if name != prefix)

    def delete(self, names: Iterable[str]) -> None:
        """Delete many objects in one request, or one by one if the store does not support that."""
        keys = [self._prefix + name for name in names]
        with self._wrap_errors("delete"):
            for start in range(0, len(keys), _PAGE):
                self._delete(keys[start : start + _PAGE])

    def _delete(self, keys: list[str]) -> None:
        try:
            answer = self._client.delete_objects(
                Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in keys], "Quiet": True}
            )
        except self._client.exceptions.ClientError as error:
            if _code(error)[0] not in _NO_BULK_DELETE:
                raise
            for key in keys:
                self._client.delete_object(Bucket=self._bucket, Key=key)
            return
        for refused in answer.get("Errors", ()):
            raise self._client.exceptions.ClientError({"Error": refused}, "DeleteObjects")

    def _put(self, name: str, data: bytes) -> bool:
        with self._wrap_errors("write"):
            for attempt in range(_TRIES):
                try:
                    self._client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data, IfNoneMatch="*")
                except self._client.exceptions.ClientError as error:
                    code, status = _code(error)
                    if status == 412 or code == "PreconditionFailed":
                        return False
                    # After a conflict with another writer it is not certain yet which one wins.
                    if (status != 409 and code != "ConditionalRequestConflict") or attempt == _TRIES - 1:
                        raise
                    time.sleep(0.05 * 2**attempt)
                else:
                    return True
        raise AssertionError  # the last try returned or raised

    def _probe(self) -> None:
        """Refuse a store that lets a second writer of a name win too (S13)."""
        for _ in range(_TRIES):
            probe = f".probe-{uuid.uuid4().hex}"
            first = self._put(probe, b"")
            second = self._put(probe, b"")
            self.delete([probe])
            if second:
                raise ConfigurationError(
                    f"the store of {self.location!r} overwrites an object in spite of If-None-Match",
                    option=OPTION,
                    advice=_OTHER_STORE,
                )
            if first:
                _probed.add((self._endpoint, self._bucket))
                return
            # An answer was lost: the client repeated the request, and found its own object.
        raise RetriableError(
            f"the store of {self.location!r} could not be probed: it reports new objects as existing",
            option=OPTION,
            advice="check whether a proxy or the network loses answers of the store",
        )

    @contextmanager
    def _wrap_errors(self, doing: str) -> Iterator[None]:
        """Raise a ForebayError for an error of boto3."""
        try:
            yield
        except ForebayError:
            raise
        except Exception as error:
            raise self._store_error(error, doing) from error

    def _store_error(self, error: Exception, doing: str) -> ForebayError:
        said = self._options.redact(f"{type(error).__name__}: {error}")
        task = f"{doing} the state of the stream below {self.location!r}"
        botocore = importlib.import_module("botocore.exceptions")
        if isinstance(error, botocore.ClientError):
            return self._answer_error(error, task, said)
        if isinstance(
            error, (botocore.NoCredentialsError, botocore.PartialCredentialsError, botocore.TokenRetrievalError)
        ):
            return ConfigurationError(f"no credentials to {task} ({said})", option=OPTION, advice=_CREDENTIALS_ADVICE)
        if isinstance(error, (botocore.ParamValidationError, ValueError)):
            return ConfigurationError(
                f"could not {task} ({said})",
                option=OPTION,
                advice="check the name of the bucket, and stateStorage.endpoint_url",
            )
        return RetriableError(
            f"the store did not answer: could not {task} ({said})",
            option=OPTION,
            advice="check that the store is up and the network reaches it; its address is stateStorage.endpoint_url",
        )

    def _answer_error(self, error: Exception, task: str, said: str) -> ForebayError:
        """Return the ForebayError for an error answer of the store."""
        code, status = _code(error)
        if code in _BUSY or status == 429 or (status >= 500 and status != 501):
            return RetriableError(
                f"the store is too busy to {task} ({said})", option=OPTION, advice="wait, or use another prefix"
            )
        if code == "NoSuchBucket":
            text = f"there is no bucket {self._bucket!r}: could not {task}"
            advice = "create the bucket, or correct stateLocation or stateStorage.endpoint_url"
        elif code in _CREDENTIALS:
            text, advice = f"the credentials are wrong or expired to {task} ({said})", _CREDENTIALS_ADVICE
        elif code in _REGION:
            text, advice = f"the bucket is in another region: could not {task} ({said})", "set stateStorage.region"
        elif status == 501:
            text, advice = f"the store does not support If-None-Match: could not {task} ({said})", _OTHER_STORE
        else:
            text = f"no permission to {task} ({said})"
            advice = (
                "allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket there, or give other credentials "
                "as stateStorage.key and stateStorage.secret"
            )
        return ConfigurationError(text, option=OPTION, advice=advice)


_OTHER_STORE: Final = "give a bucket of a store that honours If-None-Match, or a directory"
_CREDENTIALS_ADVICE: Final = (
    "give stateStorage.key and stateStorage.secret, or set them for boto3: AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, a profile, or the role of the machine"
)


def _split_location(location: str) -> tuple[str, str]:
    """Return the bucket, and the prefix, which is empty or ends in a slash."""
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
    given = _known_options(options)
    try:
        boto3, config = importlib.import_module("boto3"), importlib.import_module("botocore.config")
    except ImportError:
        raise ConfigurationError(
            f"{location!r} needs boto3, which is not installed",
            option=OPTION,
            advice='pip install "forebay[s3]"',
        ) from None
    settings = config.Config(
        connect_timeout=_CONNECT_TIMEOUT,
        read_timeout=_READ_TIMEOUT,
        retries={"total_max_attempts": _TRIES, "mode": "standard"},
        # Segments have their own digests, and some compatible stores do not know these checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path"} if given.get("endpoint_url") else None,
    )
    try:
        session = boto3.session.Session(profile_name=given.pop(_PROFILE, None))
        region = given.pop("region", None) or session.region_name or "us-east-1"
        arguments = {_CLIENT[name]: value for name, value in given.items()}
        return session.client("s3", config=settings, region_name=region, **arguments)
    except Exception as error:
        said = options.redact(f"{type(error).__name__}: {error}")
        raise ConfigurationError(
            f"cannot connect to {location!r} ({said})",
            option=OPTION,
            advice="check stateStorage.* and boto3's own settings",
        ) from error


def _known_options(options: StorageOptions) -> dict[str, object]:
    given = {name.lower(): value for name, value in options.items()}
    known = sorted([*_CLIENT, _PROFILE])
    unknown = min((name for name in options if name.lower() not in known), default=None)
    if unknown is None:
        return given
    near = get_close_matches(unknown.lower(), known, 1)
    raise ConfigurationError(
        f"stateStorage has no {unknown!r}" + (f", did you mean {near[0]!r}?" if near else ""),
        option=f"stateStorage.{unknown}",
        advice=f"the options are {', '.join(f'stateStorage.{name}' for name in known)}",
    )


def _code(error: Any) -> tuple[str, int]:  # noqa: ANN401 - botocore has no types
    """Return the code and the HTTP status of the store's answer."""
    answer = error.response
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return str(answer.get("Error", {}).get("Code", "")), int(status)
