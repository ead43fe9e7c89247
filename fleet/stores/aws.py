"""The one place that talks boto3: clients for the stores on AWS, and its errors as ours.

1. A client never retries by itself: whoever calls knows which writes are recognised as their own
   when an answer was lost, and how long it may take altogether.
2. Every failure becomes `errors.CloudFailed` with a `Kind`, which says whether the request may have
   been carried out. That, not the code, is what callers decide by.
3. Credentials are boto3's own chain (role of the pod or the instance, profile, environment). Where
   they cannot be had just now, or ran out on the way, it is a failure that waiting ends: a hiccup
   of their source must not look like a right that is missing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from fleet.core import errors

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.client import DynamoDBClient
    from mypy_boto3_s3.client import S3Client

_T = TypeVar("_T")
_LOCK = threading.Lock()
_SESSION: list[Any] = []


class Kind(StrEnum):
    """What a failed request means to its caller."""

    UNCERTAIN = "uncertain"
    """No answer, or the service failed on it: it may have been carried out, or may be yet."""
    THROTTLED = "throttled"
    """Not carried out, for now: too many requests, cut on its way, signed with what had just run
    out, or credentials that could not be had. Wait, with chance."""
    CONFLICT = "conflict"
    """Not carried out: another request was at the same item or object. Try again."""
    UNMET = "unmet"
    """Not carried out: a condition did not hold. Read again and decide anew."""
    ABSENT = "absent"
    """There is no such table, bucket, key or version."""
    EXISTS = "exists"
    """What was to be made is there, or is being made, changed or removed."""
    DENIED = "denied"
    """A right is missing, or the credentials are not valid."""
    REFUSED = "refused"
    """The request will never be accepted as it is."""


NO_CREDENTIALS = frozenset(
    {
        *("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "SSOError"),
        *("SSOTokenLoadError", "UnauthorizedSSOTokenError", "PendingAuthorizationExpiredError"),
    }
)
"""Codes of what failed before anything was sent, since there is nothing to sign it with."""
CREDENTIALS = (
    "give credentials: the role of the pod or the instance, AWS_PROFILE with a profile that there"
    " is, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
)
"""What to do then."""
_KINDS = {
    "ThrottlingException": Kind.THROTTLED,
    "ThrottlingError": Kind.THROTTLED,
    "Throttling": Kind.THROTTLED,
    "ProvisionedThroughputExceeded": Kind.THROTTLED,
    "ProvisionedThroughputExceededException": Kind.THROTTLED,
    "RequestLimitExceeded": Kind.THROTTLED,
    "LimitExceededException": Kind.THROTTLED,
    "SlowDown": Kind.THROTTLED,
    "TooManyRequestsException": Kind.THROTTLED,
    "TooManyRequests": Kind.THROTTLED,
    "RequestThrottled": Kind.THROTTLED,
    "RequestThrottledException": Kind.THROTTLED,
    "ThrottledException": Kind.THROTTLED,
    "BandwidthLimitExceeded": Kind.THROTTLED,
    "PriorRequestNotComplete": Kind.THROTTLED,
    "RequestTimeout": Kind.UNCERTAIN,  # these four are answers of S3 under 400
    "IncompleteBody": Kind.THROTTLED,
    "BadDigest": Kind.THROTTLED,
    "XAmzContentSHA256Mismatch": Kind.THROTTLED,
    "RequestTimeoutException": Kind.UNCERTAIN,
    "KMSInternalException": Kind.UNCERTAIN,
    "DependencyTimeoutException": Kind.UNCERTAIN,
    "TransactionConflict": Kind.CONFLICT,
    "TransactionConflictException": Kind.CONFLICT,
    "ReplicatedWriteConflictException": Kind.CONFLICT,
    "TransactionInProgressException": Kind.CONFLICT,
    "ConditionalRequestConflict": Kind.CONFLICT,
    "OperationAborted": Kind.CONFLICT,
    "ConditionalCheckFailed": Kind.UNMET,
    "ConditionalCheckFailedException": Kind.UNMET,
    "PreconditionFailed": Kind.UNMET,
    "ResourceNotFoundException": Kind.ABSENT,
    "TableNotFoundException": Kind.ABSENT,
    "NoSuchBucket": Kind.ABSENT,
    "NoSuchKey": Kind.ABSENT,
    "NoSuchVersion": Kind.ABSENT,
    "ContinuousBackupsUnavailableException": Kind.THROTTLED,  # for a moment after its making
    "ResourceInUseException": Kind.EXISTS,
    "TableAlreadyExistsException": Kind.EXISTS,
    "BucketAlreadyOwnedByYou": Kind.EXISTS,
    "BucketAlreadyExists": Kind.EXISTS,
    "AccessDenied": Kind.DENIED,
    "AccessDeniedException": Kind.DENIED,
    "UnrecognizedClientException": Kind.DENIED,
    "InvalidSignatureException": Kind.DENIED,
    "SignatureDoesNotMatch": Kind.DENIED,
    "IncompleteSignature": Kind.DENIED,
    "MissingAuthenticationToken": Kind.DENIED,
    "InvalidAccessKeyId": Kind.DENIED,
    "InvalidToken": Kind.DENIED,
    "ExpiredToken": Kind.THROTTLED,  # signed anew each time, with what has been renewed meanwhile
    "ExpiredTokenException": Kind.THROTTLED,
    "TokenRefreshRequired": Kind.THROTTLED,
    "RequestExpired": Kind.THROTTLED,
    "RequestTimeTooSkewed": Kind.DENIED,
}
_STATUSES = {401: Kind.DENIED, 403: Kind.DENIED, 404: Kind.ABSENT, 409: Kind.CONFLICT,
             412: Kind.UNMET, 429: Kind.THROTTLED}  # fmt: skip
_CANCELLED = (Kind.REFUSED, Kind.UNMET, Kind.CONFLICT, Kind.THROTTLED)
"""What decides when the items of one transaction failed for several reasons, the first found."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a service is asked. Empty: as boto3 finds it, and AWS's own address."""

    region: str = ""
    endpoint: str = ""


def dynamodb(place: Place, *, timeout_s: float) -> DynamoDBClient:
    """A client of DynamoDB; one request takes `timeout_s` at most. Sends nothing."""
    client: DynamoDBClient = _client("dynamodb", place, timeout_s)
    return client


def s3(place: Place, *, timeout_s: float, plain: bool = False) -> S3Client:
    """A client of S3; one request waits `timeout_s` for an answer at most. Sends nothing.

    `plain`: no checksum of the library's own, where none is required.
    """
    client: S3Client = _client("s3", place, timeout_s, plain=plain)
    return client


def ask(call: Callable[[], _T]) -> _T:
    """What `call`, one request of a client, returns. Raises `CloudFailed`, field ``kind``."""
    from botocore import exceptions

    try:
        return call()
    except exceptions.ClientError as error:
        raise _answered(error.response) from error
    except (
        exceptions.CredentialRetrievalError,
        exceptions.TokenRetrievalError,
        exceptions.MetadataRetrievalError,
    ) as error:
        # The instance's or the pod's source of credentials did not answer: nothing was sent.
        raise _failed(Kind.THROTTLED, type(error).__name__, str(error)) from error
    except (
        exceptions.NoCredentialsError,
        exceptions.PartialCredentialsError,
        exceptions.ProfileNotFound,
        exceptions.SSOError,
    ) as error:
        raise _failed(Kind.DENIED, type(error).__name__, str(error)) from error
    except exceptions.ParamValidationError as error:
        raise _failed(Kind.REFUSED, type(error).__name__, str(error)) from error
    except exceptions.BotoCoreError as error:
        # Connection refused, reset, closed, timed out, an answer that cannot be read.
        raise _failed(Kind.UNCERTAIN, type(error).__name__, str(error)) from error


def _client(service: str, place: Place, timeout_s: float, *, plain: bool = False) -> Any:
    import boto3  # takes 0.3 s to load: only where it is used
    from botocore import config, exceptions

    options = config.Config(
        connect_timeout=timeout_s,
        read_timeout=timeout_s,
        retries={"total_max_attempts": 1, "mode": "standard"},
        tcp_keepalive=True,
        max_pool_connections=32,
        user_agent_extra="fleetscrub",
        s3={"addressing_style": "path"} if place.endpoint else {},
        request_checksum_calculation="when_required" if plain else "when_supported",
        response_checksum_validation="when_required" if plain else "when_supported",
    )
    try:
        with _LOCK:  # sessions are not safe for threads, their clients are
            if not _SESSION:
                _SESSION.append(boto3.session.Session())  # reads 10 MB of service descriptions
            return _SESSION[0].client(
                service,
                region_name=place.region or None,
                endpoint_url=place.endpoint or None,
                config=options,
            )
    except exceptions.ProfileNotFound as error:
        raise errors.SettingsInvalid(
            f"no client for {service}: {error}", remedy=CREDENTIALS
        ) from error
    except (exceptions.NoRegionError, ValueError) as error:
        raise errors.SettingsInvalid(
            f"no client for {service} in region {place.region!r} at {place.endpoint!r}: {error}",
            remedy="name the region in the settings, and an endpoint only where it is not AWS's"
            " own (https://host:port)",
        ) from error


def _answered(response: Mapping[str, Any]) -> errors.CloudFailed:
    error = response.get("Error", {})
    code, told = str(error.get("Code", "")), str(error.get("Message", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    reasons = tuple(str(one.get("Code", "None")) for one in response.get("CancellationReasons", ()))
    if code == "TransactionCanceledException":
        return _failed(_cancelled(reasons), code, ", ".join(reasons), reasons)
    # S3 hands on what KMS answers, with its name before it.
    kind = _KINDS.get(code.removeprefix("KMS.")) or _STATUSES.get(status)
    if kind is None:
        kind = Kind.UNCERTAIN if status >= 500 or not status else Kind.REFUSED
    return _failed(kind, code, told, reasons)


def _cancelled(reasons: Sequence[str]) -> Kind:
    found = {_KINDS.get(reason, Kind.REFUSED) for reason in reasons if reason != "None"}
    return next((kind for kind in _CANCELLED if kind in found), Kind.UNCERTAIN)


def _failed(kind: Kind, code: str, told: str, reasons: tuple[str, ...] = ()) -> errors.CloudFailed:
    return errors.CloudFailed(f"{code}: {told}", kind=kind, code=code, reasons=reasons)
