"""Failures of boto3 become ours, by what they say of the request: was it carried out?"""

from __future__ import annotations

from typing import Any

import pytest
from botocore import exceptions

from fleet.core import errors
from fleet.stores import aws
from fleet.stores.aws import Kind


def answered(code: str, status: int = 400, **told: Any) -> exceptions.ClientError:
    """An error as the service answers it."""
    response: Any = {
        "Error": {"Code": code, "Message": "told"},
        "ResponseMetadata": {"HTTPStatusCode": status},
        **told,
    }
    return exceptions.ClientError(response, "Some")


def failing(error: Exception) -> errors.CloudFailed:
    """What a call that fails so raises."""

    def call() -> None:
        raise error

    with pytest.raises(errors.CloudFailed) as found:
        aws.ask(call)
    return found.value


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("ProvisionedThroughputExceededException", 400, Kind.THROTTLED),
        ("SlowDown", 503, Kind.THROTTLED),
        ("TransactionInProgressException", 400, Kind.CONFLICT),
        ("ConditionalRequestConflict", 409, Kind.CONFLICT),
        ("ConditionalCheckFailedException", 400, Kind.UNMET),
        ("PreconditionFailed", 412, Kind.UNMET),
        ("ResourceNotFoundException", 400, Kind.ABSENT),
        ("404", 404, Kind.ABSENT),
        ("AccessDeniedException", 400, Kind.DENIED),
        ("403", 403, Kind.DENIED),
        ("InternalServerError", 500, Kind.UNCERTAIN),
        ("NeverHeardOf", 503, Kind.UNCERTAIN),
        ("ValidationException", 400, Kind.REFUSED),
        ("InvalidToken", 400, Kind.DENIED),
        ("ExpiredToken", 400, Kind.THROTTLED),
        ("ExpiredTokenException", 400, Kind.THROTTLED),
        ("RequestTimeout", 400, Kind.UNCERTAIN),
        ("IncompleteBody", 400, Kind.THROTTLED),
        ("BadDigest", 400, Kind.THROTTLED),
        ("XAmzContentSHA256Mismatch", 400, Kind.THROTTLED),
        ("KMS.ThrottlingException", 400, Kind.THROTTLED),
        ("KMS.AccessDeniedException", 400, Kind.DENIED),
        ("KMS.DisabledException", 400, Kind.REFUSED),
    ],
)
def test_an_answer_says_whether_it_was_carried_out(code: str, status: int, kind: Kind) -> None:
    """B27: 412, 409 and 5xx are three different things."""
    failure = failing(answered(code, status))
    assert (failure.kind, failure.code) == (kind, code)


@pytest.mark.parametrize(
    ("reasons", "kind"),
    [
        (["None", "ConditionalCheckFailed"], Kind.UNMET),
        (["TransactionConflict", "ConditionalCheckFailed"], Kind.UNMET),
        (["TransactionConflict", "ThrottlingError"], Kind.CONFLICT),
        (["None", "ProvisionedThroughputExceeded"], Kind.THROTTLED),
        (["ValidationError", "ConditionalCheckFailed"], Kind.REFUSED),
        ([], Kind.UNCERTAIN),
    ],
)
def test_a_cancelled_transaction_is_read_item_by_item(reasons: list[str], kind: Kind) -> None:
    """B27: a condition that did not hold, a conflict and throttling are not the same."""
    told: Any = {"CancellationReasons": [{"Code": reason} for reason in reasons]}
    failure = failing(answered("TransactionCanceledException", **told))
    assert failure.kind is kind
    assert failure.reasons == tuple(reasons)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.ReadTimeoutError(endpoint_url="x"), Kind.UNCERTAIN),
        (exceptions.EndpointConnectionError(endpoint_url="x"), Kind.UNCERTAIN),
        (exceptions.ConnectionClosedError(endpoint_url="x"), Kind.UNCERTAIN),
        (exceptions.NoCredentialsError(), Kind.DENIED),
        (exceptions.SSOTokenLoadError(error_msg="x"), Kind.DENIED),
        (exceptions.CredentialRetrievalError(provider="x", error_msg="x"), Kind.THROTTLED),
        (exceptions.TokenRetrievalError(provider="x", error_msg="x"), Kind.THROTTLED),
        (exceptions.MetadataRetrievalError(error_msg="x"), Kind.THROTTLED),
        (exceptions.ParamValidationError(report="x"), Kind.REFUSED),
    ],
)
def test_no_answer_is_no_answer(error: Exception, kind: Kind) -> None:
    """B43: what was sent and not answered may have been carried out; what was not sent because a
    source of credentials did not answer is sent later, and no right that is missing (B6)."""
    failure = failing(error)
    assert failure.kind is kind
    assert (failure.code in aws.NO_CREDENTIALS) is (kind is Kind.DENIED)


def test_what_succeeds_is_handed_through() -> None:
    """Nothing is added and nothing hidden."""
    assert aws.ask(lambda: 7) == 7


def test_a_place_that_is_none_is_a_settings_error() -> None:
    """E5: said when the client is made, with what to write instead."""
    with pytest.raises(errors.SettingsInvalid, match="no client for dynamodb"):
        aws.dynamodb(aws.Place("eu-central-1", "not an address"), timeout_s=1.0)


def test_a_client_never_retries_by_itself() -> None:
    """B43: who calls decides what may be repeated, and for how long."""
    for client in (
        aws.dynamodb(aws.Place("eu-central-1", "http://127.0.0.1:9"), timeout_s=3.0),
        aws.s3(aws.Place("eu-central-1", "http://127.0.0.1:9"), timeout_s=3.0),
    ):
        options: Any = client.meta.config
        assert options.retries["total_max_attempts"] == 1
        assert (options.connect_timeout, options.read_timeout) == (3.0, 3.0)
