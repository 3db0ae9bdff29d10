# SPDX-License-Identifier: Apache-2.0
"""Converts errors of S3 to ForebayErrors with advice. Used for files and for state."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Final

from forebay.errors import ConfigurationError, ForebayError, RetriableError
from forebay.stores.s3.client import error_code
from forebay.stores.s3.settings import S3Settings

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
class Request:
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


def s3_error(error: Exception, request: Request) -> ForebayError:
    """Return the ForebayError for an error of botocore. Its class says whether to retry, its advice what to do."""
    if isinstance(error, ForebayError):
        return error
    said = f"{request.server}: {type(error).__name__}: {error}"
    option, settings = request.option, request.settings
    if isinstance(error, importlib.import_module("botocore.exceptions").ClientError):
        return _answer_error(error, request, said)
    if type(error).__name__ in _NO_CREDENTIALS:
        return ConfigurationError(
            f"no credentials to {request.doing} ({said})", option=option, advice=_credentials_advice(settings)
        )
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return ConfigurationError(
            f"the certificate of the store is not trusted: could not {request.doing} ({said})",
            option=option,
            advice=f"set AWS_CA_BUNDLE to the certificates of the store, or check {settings.option('endpoint_url')}",
        )
    if isinstance(error, (importlib.import_module("botocore.exceptions").ParamValidationError, ValueError)):
        return ConfigurationError(
            f"could not {request.doing} ({said})",
            option=option,
            advice=f"correct the name of the bucket, or {settings.option('endpoint_url')}",
        )
    return RetriableError(
        f"the store did not answer: could not {request.doing} ({said})",
        option=option,
        advice=f"check that the store is up, that the network reaches it, and that "
        f"{settings.option('endpoint_url')} is right",
    )


def _answer_error(error: Any, request: Request, said: str) -> ForebayError:  # noqa: ANN401 - botocore has no types
    """Return the ForebayError for an error that S3 has answered; `said` is its text."""
    code, status = error_code(error)
    if code in _BUSY or status in _TEMPORARY or (status >= 500 and status != 501):
        headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        return RetriableError(
            f"the store is too busy or has failed: could not {request.doing} ({said})",
            option=request.option,
            advice="wait; or read with fewer tasks (numPartitions); or spread the objects over more prefixes",
            retry_after=_seconds(headers.get("retry-after")),
        )
    if str(getattr(error, "operation_name", "")).startswith("AssumeRole"):
        return ConfigurationError(
            f"could not assume the role {request.settings.role_arn!r} to {request.doing} ({said})",
            option=request.settings.option("role_arn"),
            advice="let the role trust these credentials, and check the external id and the token file",
        )
    text, advice = _refusal(code, status, request, said)
    return ConfigurationError(text, option=request.option, advice=advice)


def _refusal(code: str, status: int, request: Request, said: str) -> tuple[str, str]:
    """Return the message and the advice for an error answer that a retry cannot change."""
    doing, settings = request.doing, request.settings
    if code == "NoSuchBucket":
        return (
            f"there is no bucket {request.bucket!r} at {request.server}: could not {doing}",
            f"create the bucket, or correct {request.option} or {settings.option('endpoint_url')}",
        )
    if code in _CREDENTIALS:
        return f"the credentials are wrong or expired: could not {doing} ({said})", _credentials_advice(settings)
    if code in _REGION:
        return (
            f"the bucket is in another region: could not {doing} ({said})",
            f"set {settings.option('region')} to the region of the bucket",
        )
    if code == "RequestTimeTooSkewed":
        return f"the clock of this machine is wrong: could not {doing} ({said})", "set the clock, such as by NTP"
    if code == "InvalidObjectState":
        return (
            f"the object is archived (Glacier) and cannot be read: could not {doing} ({said})",
            "restore it first, such as with `aws s3api restore-object`, or leave it out (path, pathGlobFilter)",
        )
    if code.startswith("KMS.") or "kms:" in said:
        return (
            f"the KMS key of the object cannot be used: could not {doing} ({said})",
            "enable the key, and allow these credentials kms:Decrypt on the key",
        )
    if code == _UNSUPPORTED or status == 501:
        return f"the store does not support this request: could not {doing} ({said})", "use another S3-compatible store"
    if status in (401, 403) or code in ("AccessDenied", "AllAccessDisabled", "AccountProblem"):
        payer = "" if settings.requester_pays else f"; a bucket may need {settings.option('requester_pays')}=true"
        keys = f"{settings.option('key')} and {settings.option('secret')}"
        advice = f"grant {request.permissions} on the bucket, or set other credentials as {keys}{payer}"
        return f"no permission to {doing} ({said})", advice
    return f"the store refuses to {doing} ({said})", f"check {request.option} and {settings.prefix}*"


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
