# SPDX-License-Identifier: Apache-2.0
"""The boto3 client: one per process and settings, shared by all threads, with renewed credentials."""

from __future__ import annotations

import datetime as dt
import email.utils
import importlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

from forebay.errors import ConfigurationError, ForebayError, RetriableError
from forebay.options.secret import Secret
from forebay.stores.s3.direct_gets import DirectGets
from forebay.stores.s3.settings import S3Settings, is_endpoint
from forebay.stores.store import NO_OPTIONS, StorageOptions
from forebay.version import __version__

# -- Runs requests to S3 on other threads.


T = TypeVar("T")


class Background(Generic[T]):
    """Runs a function at once on a new thread. A thread costs 0.1 ms, a request at least ten times as much.

    The thread is a daemon: a store that never answers does not keep the process alive.
    """

    def __init__(self, run: Callable[[], T], name: str) -> None:
        self._run = run
        self._result: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._call, name=name, daemon=True)
        self._thread.start()

    def result(self) -> T:
        """Wait for the function, and return its result or raise its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # set, unless there is an error

    def _call(self) -> None:
        try:
            self._result = self._run()
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            self._error = error


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
        byte_range, match = f"bytes={start}-{end - 1}", None if etag is None else f'"{etag}"'
        headers = {"Range": byte_range} if match is None else {"Range": byte_range, "If-Match": match}
        direct = self._direct
        answer = direct.get(bucket, key, headers)
        if answer is None:
            condition = {} if match is None else {"IfMatch": match}
            answer = self.call("get_object", Bucket=bucket, Key=key, Range=byte_range, **condition)
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
        client = _clients.pop(settings, None) or S3Client(settings)
        _clients[settings] = client  # the last one is the most recently used
        while len(_clients) > _KEPT:
            del _clients[next(iter(_clients))]
        return client


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
        client = session.client("s3", **{**arguments, **more})
    except ConfigurationError:
        raise
    except Exception as error:
        if "Invalid endpoint" in str(error):  # it shows the URL
            raise settings.wrong_endpoint() from None
        raise ConfigurationError(
            f"boto3 cannot create a client with these settings of S3 ({type(error).__name__}: {error})",
            option=settings.option("profile") if type(error).__name__ == "ProfileNotFound" else "path",
            advice=f"check {settings.prefix}* and boto3's own settings (~/.aws, AWS_…)",
        ) from error
    if not is_endpoint(client.meta.endpoint_url):  # it may be from the environment, a profile or `client_kwargs`
        raise settings.wrong_endpoint()
    return client


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
                parsed = parse(value)
            except ValueError:
                continue
            return parsed if parsed.tzinfo else parsed.replace(tzinfo=dt.UTC)
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


# -- Converts errors of S3 to ForebayErrors with advice. Used for files and for state.


_CREDENTIALS: Final = frozenset(
    {
        "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "ExpiredTokenException", "InvalidToken",
        "TokenRefreshRequired", "InvalidClientTokenId", "UnrecognizedClientException", "InvalidSecurity",
        "RequestExpired", "InvalidIdentityToken", "XAdminUserNotFound",
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
_TEMPORARY: Final = frozenset({408, 409, 421, 423, 425, 429})
_CHANGED: Final = frozenset({"PreconditionFailed", "412"})
_GONE: Final = frozenset({"NoSuchKey", "NoSuchVersion", "404"})
# Exceptions of botocore and its libraries, by name: they are imported only with boto3.
_NO_CREDENTIALS: Final = frozenset(
    {
        "NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError", "SSOTokenLoadError",
        "UnauthorizedSSOTokenError", "NoAuthTokenError",
    }
)  # fmt: skip
_UNSUPPORTED: Final = "NotImplemented"


@dataclass(frozen=True)
class S3Request:
    """A request to S3, as error texts describe it.

    Attributes:
        doing: The action and its object, such as `read 's3://bucket/key'`. Error texts have it after "could not".
        bucket: The bucket.
        settings: The settings of the client. Errors name their options.
        server: Host and port of the service.
        option: The option that holds the location.
        permissions: The permissions that the request needs.
    """

    doing: str
    bucket: str
    settings: S3Settings
    server: str
    option: str = "path"
    permissions: str = "s3:GetObject and s3:ListBucket"


def is_gone(error: BaseException) -> bool:
    """Return whether an error is S3's answer that an object does not exist. A missing bucket does not count."""
    return error_code(error)[0] in _GONE


def is_changed(error: BaseException) -> bool:
    """Return whether an error is S3's answer that the object is not the version in the condition of the request."""
    return error_code(error)[0] in _CHANGED


def is_unsupported(error: BaseException) -> bool:
    """Return whether an error is a store's answer that it does not support a condition or an operation of S3."""
    code, status = error_code(error)
    return code == _UNSUPPORTED or status == 501


def s3_error(error: Exception, request: S3Request) -> ForebayError:
    """Return the ForebayError for an error of botocore. Its class says whether to retry, its advice what to do."""
    if isinstance(error, ForebayError):
        return error
    cause = f"{request.server}: {type(error).__name__}: {error}"
    option, settings = request.option, request.settings
    if isinstance(error, importlib.import_module("botocore.exceptions").ClientError):
        return _answer_error(error, request, cause)
    if type(error).__name__ in _NO_CREDENTIALS:
        return ConfigurationError(
            f"no credentials to {request.doing} ({cause})", option=option, advice=_credentials_advice(settings)
        )
    if "CERTIFICATE_VERIFY_FAILED" in cause:
        return ConfigurationError(
            f"the certificate of the store is not trusted: could not {request.doing} ({cause})",
            option=option,
            advice=f"set AWS_CA_BUNDLE to the certificates of the store, or check {settings.option('endpoint_url')}",
        )
    if isinstance(error, (importlib.import_module("botocore.exceptions").ParamValidationError, ValueError)):
        return ConfigurationError(
            f"could not {request.doing} ({cause})",
            option=option,
            advice=f"correct the name of the bucket, or {settings.option('endpoint_url')}",
        )
    return RetriableError(
        f"the store did not answer: could not {request.doing} ({cause})",
        option=option,
        advice=f"check that the store is up, that the network reaches it, and that "
        f"{settings.option('endpoint_url')} is right",
    )


def _answer_error(error: Any, request: S3Request, cause: str) -> ForebayError:  # noqa: ANN401 - botocore has no types
    """Return the ForebayError for an error that S3 has answered; `cause` is its text."""
    code, status = error_code(error)
    if code in _BUSY or status in _TEMPORARY or (status >= 500 and status != 501):
        headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        return RetriableError(
            f"the store is too busy or has failed: could not {request.doing} ({cause})",
            option=request.option,
            advice="wait; or read with fewer tasks (numPartitions); or spread the objects over more prefixes",
            retry_after=_seconds(headers.get("retry-after")),
        )
    if str(getattr(error, "operation_name", "")).startswith("AssumeRole"):
        return ConfigurationError(
            f"could not assume the role {request.settings.role_arn!r} to {request.doing} ({cause})",
            option=request.settings.option("role_arn"),
            advice="let the role trust these credentials, and check the external id and the token file",
        )
    text, advice = _refusal(code, status, request, cause)
    return ConfigurationError(text, option=request.option, advice=advice)


def _refusal(code: str, status: int, request: S3Request, cause: str) -> tuple[str, str]:
    """Return the message and the advice for an error answer that a retry cannot change."""
    doing, settings = request.doing, request.settings
    if code == "NoSuchBucket":
        return (
            f"there is no bucket {request.bucket!r} at {request.server}: could not {doing}",
            f"create the bucket, or correct {request.option} or {settings.option('endpoint_url')}",
        )
    if code in _CREDENTIALS:
        return f"the credentials are wrong or expired: could not {doing} ({cause})", _credentials_advice(settings)
    if code in _REGION:
        return (
            f"the bucket is in another region: could not {doing} ({cause})",
            f"set {settings.option('region')} to the region of the bucket",
        )
    if code == "RequestTimeTooSkewed":
        return f"the clock of this machine is wrong: could not {doing} ({cause})", "set the clock, such as by NTP"
    if code == "InvalidObjectState":
        return (
            f"the object is archived (Glacier) and cannot be read: could not {doing} ({cause})",
            "restore it first, such as with `aws s3api restore-object`, or leave it out (path, pathGlobFilter)",
        )
    if code.startswith("KMS.") or "kms:" in cause:
        return (
            f"the KMS key of the object cannot be used: could not {doing} ({cause})",
            "enable the key, and allow these credentials kms:Decrypt on the key",
        )
    if code == _UNSUPPORTED or status == 501:
        return (
            f"the store does not support this request: could not {doing} ({cause})",
            "use another S3-compatible store",
        )
    if status in (401, 403) or code in ("AccessDenied", "AllAccessDisabled", "AccountProblem"):
        payer = "" if settings.requester_pays else f"; a bucket may need {settings.option('requester_pays')}=true"
        keys = f"{settings.option('key')} and {settings.option('secret')}"
        advice = f"grant {request.permissions} on the bucket, or set other credentials as {keys}{payer}"
        return f"no permission to {doing} ({cause})", advice
    return f"the store refuses to {doing} ({cause})", f"check {request.option} and {settings.prefix}*"


def _credentials_advice(settings: S3Settings) -> str:
    return (
        f"give {settings.option('key')} and {settings.option('secret')}, or set them for boto3: AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, a profile, or the role of the machine; for a public bucket set "
        f"{settings.option('anon')}=true"
    )


def _seconds(header: object) -> float | None:
    """Return the seconds of a `Retry-After` header; None if the header is missing or has a date."""
    text = str(header or "")
    return float(text) if text.isdigit() else None
