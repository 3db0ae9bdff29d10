# SPDX-License-Identifier: Apache-2.0
"""The boto3 client: one per process and settings, shared by all threads, with renewed credentials."""

from __future__ import annotations

import datetime as dt
import email.utils
import importlib
import json
import os
import threading
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from forebay.errors import ConfigurationError
from forebay.options.secret import Secret
from forebay.stores.s3.direct_gets import DirectGets
from forebay.stores.s3.settings import S3Settings
from forebay.stores.storage_options import NO_OPTIONS, StorageOptions
from forebay.version import __version__

ATTEMPTS: Final = 3
"""Maximum attempts of botocore at one request, within a few seconds. The framework's retry policy handles longer
failures: it repeats the read from the last record batch on."""

_DEFAULT_REGION: Final = "us-east-1"
_SESSION_NAME: Final = "forebay"
_EXPIRED: Final = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken", "InvalidAccessKeyId"}
)
_WITHOUT_PAYER: Final = frozenset({"list_buckets"})
_KEPT: Final = 16
"""Maximum clients with different settings in a process. A stream usually needs two: for files and for state."""


class S3Client:
    """Calls S3 with the credentials in its settings. Thread-safe. Get one from `client_for`.

    botocore renews the credentials of a role, a profile, a machine or a web identity before they expire. If S3 still
    answers that credentials have expired, the call creates a new boto3 client and tries once more. A new client
    resolves references to credentials again.
    """

    def __init__(self, settings: S3Settings) -> None:
        self.settings = settings
        self.boto = _make(settings)
        """The boto3 client; replaced when credentials expire."""
        self._direct = DirectGets(self.boto)
        self._lock = threading.Lock()
        self.payer = {"RequestPayer": "requester"} if settings.requester_pays else {}
        """The argument `RequestPayer` for buckets whose reader pays for requests; empty for other buckets."""

    @property
    def endpoint(self) -> str:
        """The URL of the S3 service."""
        return str(self.boto.meta.endpoint_url)

    @property
    def server(self) -> str:
        """Host and port of the endpoint, for errors: they hide the whole URL, which is the value of an option."""
        url = urlsplit(self.endpoint)
        return (url.hostname or "") + (f":{url.port}" if url.port else "")

    def call(self, operation: str, **arguments: object) -> Any:  # noqa: ANN401 - boto3 has no types
        """Call an operation of S3, such as `get_object`; return the answer of boto3. Raises botocore's errors."""
        boto = self.boto
        if operation not in _WITHOUT_PAYER:
            arguments |= self.payer
        try:
            return getattr(boto, operation)(**arguments)
        except Exception as error:
            if error_code(error)[0] not in _EXPIRED:
                raise
            return getattr(self._renewed(boto), operation)(**arguments)

    def get_range(self, bucket: str, key: str, start: int, end: int, etag: str | None) -> Any:  # noqa: ANN401 - as above
        """Get the bytes `[start, end)` of an object, if its ETag is `etag` or `etag` is None. Raises botocore's errors.

        Returns:
            The answer of boto3 to `get_object`, or a dict with only `Body`, `ContentLength`, `ContentRange` and `ETag`.
            The last two may be missing or None.
        """
        wanted, match = f"bytes={start}-{end - 1}", None if etag is None else f'"{etag}"'
        headers = {"Range": wanted} if match is None else {"Range": wanted, "If-Match": match}
        direct = self._direct
        answer = direct.get(bucket, key, headers)
        if answer is None:
            condition = {} if match is None else {"IfMatch": match}
            answer = self.call("get_object", Bucket=bucket, Key=key, Range=wanted, **condition)
            if direct is self._direct:  # else it belongs to expired credentials
                direct.learn(bucket, key)
        return answer

    def _renewed(self, expired: Any) -> Any:  # noqa: ANN401 - as above
        with self._lock:
            if self.boto is expired:  # else another thread has made the new one
                self.boto = _make(self.settings)
                self._direct = DirectGets(self.boto)
            return self.boto


_clients: dict[S3Settings, S3Client] = {}
_lock = threading.Lock()


def client_for(settings: S3Settings) -> S3Client:
    """Return the client of this process for these settings. Called by stores, on any thread.

    A client costs 20 to 50 ms and holds the pool of connections, so all files share it.

    Raises:
        ConfigurationError: boto3 is not installed, or rejects the settings.
    """
    with _lock:
        found = _clients.pop(settings, None) or S3Client(settings)
        _clients[settings] = found  # the last one is the most recently used
        while len(_clients) > _KEPT:
            del _clients[next(iter(_clients))]
        return found


def client_of(options: StorageOptions = NO_OPTIONS, prefix: str = "storage.") -> S3Client:
    """Return the client of this process for a user's options; see `S3Settings.of` and `client_for`."""
    return client_for(S3Settings.of(options, prefix))


def error_code(error: BaseException) -> tuple[str, int]:
    """Return the error code and the HTTP status of an error answer of S3; ("", 0) for any other error."""
    answer = getattr(error, "response", None)
    if not isinstance(answer, Mapping):
        return "", 0
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return str(answer.get("Error", {}).get("Code", "")), int(status)


def _forget_after_fork() -> None:
    """Give a forked child its own clients and lock: processes must not share connections."""
    global _lock  # noqa: PLW0603 - the parent's may be locked for ever
    _lock = threading.Lock()
    _clients.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


def _make(settings: S3Settings) -> Any:  # noqa: ANN401 - boto3 has no types
    try:
        boto3 = importlib.import_module("boto3")
    except ImportError:
        raise ConfigurationError(
            "S3 needs boto3, which is not installed", option="path", advice='pip install "forebay[s3]"'
        ) from None
    try:
        # A session is not thread-safe, so each client has its own.
        session = boto3.session.Session(botocore_session=_session(settings))
        region = settings.region or session.region_name or _DEFAULT_REGION
        arguments: dict[str, Any] = {"config": _config(settings), "region_name": region, "use_ssl": settings.use_ssl}
        if settings.endpoint_url:
            arguments["endpoint_url"] = settings.endpoint_url
        if not settings.role_arn:
            arguments |= _static(settings)
        more = json.loads(settings.client_kwargs or "{}")
        return session.client("s3", **{**arguments, **more})
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"boto3 cannot create a client with these settings of S3 ({type(error).__name__}: {error})",
            option=settings.option("profile") if type(error).__name__ == "ProfileNotFound" else "path",
            advice=f"check {settings.prefix}* and boto3's own settings (~/.aws, AWS_…)",
        ) from error


def _static(settings: S3Settings) -> dict[str, str]:
    names = {"aws_access_key_id": settings.key, "aws_secret_access_key": settings.secret}
    names["aws_session_token"] = settings.token
    return {name: secret.reveal() for name, secret in names.items() if isinstance(secret, Secret)}


def _config(settings: S3Settings) -> Any:  # noqa: ANN401 - botocore has no types
    more = json.loads(settings.config_kwargs or "{}")
    style = settings.addressing_style or ("path" if settings.endpoint_url else None)
    s3 = {**({"addressing_style": style} if style else {}), **more.pop("s3", {})}
    arguments: dict[str, Any] = {
        # A fixed text: botocore's own, with all its parts, is built for each request, which costs 0.1 ms.
        "user_agent": f"forebay/{__version__} botocore/{importlib.import_module('botocore').__version__}",
        "connect_timeout": settings.connect_timeout,
        "read_timeout": settings.read_timeout,
        "max_pool_connections": settings.max_pool_connections,
        "retries": {"total_max_attempts": ATTEMPTS, "mode": "standard"},
        # Segments of state have their own digests, and some compatible stores do not know these checksums.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        **({"s3": s3} if s3 else {}),
    }
    if settings.anon:
        arguments["signature_version"] = importlib.import_module("botocore").UNSIGNED
    return importlib.import_module("botocore.config").Config(**{**arguments, **more})


def _session(settings: S3Settings) -> Any:  # noqa: ANN401 - botocore has no types
    """Return a botocore session. If the settings name a role, the session has the role's credentials."""
    session = importlib.import_module("botocore.session").Session(profile=settings.profile)
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_moment)
    if settings.role_arn:
        credentials = importlib.import_module("botocore.credentials")
        resolver = credentials.CredentialResolver([_AssumedRole(settings)])
        session.register_component("credential_provider", resolver)
    return session


def _moment(value: object) -> dt.datetime:
    """Parse a time in an answer of S3. botocore's own parser would take most of the time of a listing."""
    if isinstance(value, str):
        for parse in (dt.datetime.fromisoformat, email.utils.parsedate_to_datetime):  # of a listing, of a header
            try:
                found = parse(value)
            except ValueError:
                continue
            return found if found.tzinfo else found.replace(tzinfo=dt.UTC)
    moment: dt.datetime = importlib.import_module("botocore.utils").parse_timestamp(value)
    return moment


class _AssumedRole:
    """Provides one session of botocore with the credentials of a role. The session calls `load`."""

    METHOD: Final = "assume-role"
    CANONICAL_NAME: Final = None

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings

    def load(self) -> Any:  # noqa: ANN401 - botocore has no types
        """Return credentials that botocore renews before they expire."""
        settings = self._settings
        credentials = importlib.import_module("botocore.credentials")
        base = importlib.import_module("botocore.session").Session(profile=settings.profile)
        base.set_config_variable("region", settings.region or base.get_config_variable("region") or _DEFAULT_REGION)
        if settings.key is not None and settings.secret is not None:
            static = _static(settings)
            base.set_credentials(*static.values())

        def create(service: str, **arguments: object) -> Any:  # noqa: ANN401 - as above
            if settings.sts_endpoint_url:
                arguments["endpoint_url"] = settings.sts_endpoint_url
            return base.create_client(service, **arguments)

        more = {"RoleSessionName": settings.role_session_name or _SESSION_NAME}
        if settings.external_id:
            more["ExternalId"] = settings.external_id
        if settings.web_identity_token_file:
            token = importlib.import_module("botocore.utils").FileWebIdentityTokenLoader
            fetcher = credentials.AssumeRoleWithWebIdentityCredentialFetcher(
                create, token(settings.web_identity_token_file), settings.role_arn, more
            )
        else:
            fetcher = credentials.AssumeRoleCredentialFetcher(create, base.get_credentials(), settings.role_arn, more)
        return credentials.DeferredRefreshableCredentials(fetcher.fetch_credentials, self.METHOD)
