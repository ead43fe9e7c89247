"""Why the API server says no: code, reason and causes, as its `Status` objects carry them. Pure.

These are answers, not errors of the product: `cluster` turns them into the
errors of the Cluster port, the HTTP stand-in of the tests sends them as bodies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from fleet.kube.base import Name, Object, Resource

REQUIRED = "FieldValueRequired"
INVALID = "FieldValueInvalid"
FORBIDDEN = "FieldValueForbidden"
DUPLICATE = "FieldValueDuplicate"
TOO_LONG = "FieldValueTooLong"
TOO_MANY = "FieldValueTooMany"
NOT_SUPPORTED = "FieldValueNotSupported"
CONFLICT = "FieldManagerConflict"


@dataclass(frozen=True, slots=True)
class Cause:
    """One field that is wrong. `message` is without the field's path."""

    reason: str
    field: str
    message: str


class Refusal(Exception):
    """The server's answer to a request it did not carry out."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        causes: Sequence[Cause] = (),
        about: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`code` is the HTTP status; `about` names the object in the details."""
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.causes = tuple(causes)
        self.about = dict(about)

    def status(self) -> Object:
        """The body of the answer: a `Status` object."""
        body: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        }
        if self.reason:
            body["reason"] = self.reason
        details: Object = dict(self.about)
        if self.causes:
            details["causes"] = [
                {"reason": cause.reason, "message": cause.message, "field": cause.field}
                for cause in self.causes
            ]
        if details:
            body["details"] = details
        return body


def qualified(resource: Resource) -> str:
    """``plural.group`` as messages name a resource."""
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def not_found(resource: Resource, name: str) -> Refusal:
    """404: no such object."""
    about = {"name": name, "group": resource.group, "kind": resource.plural}
    return Refusal(404, "NotFound", f'{qualified(resource)} "{name}" not found', about=about)


def modified(resource: Resource, name: str, why: str = "") -> Refusal:
    """409: a guard (resourceVersion, UID) does not hold."""
    fact = why or (
        "the object has been modified; please apply your changes to the latest version and"
        " try again"
    )
    message = f'Operation cannot be fulfilled on {qualified(resource)} "{name}": {fact}'
    return Refusal(409, "Conflict", message)


def exists(resource: Resource, name: str, *, deleting: bool) -> Refusal:
    """409: the name is taken, maybe by an object that is being deleted."""
    prefix = "object is being deleted: " if deleting else ""
    message = f'{prefix}{qualified(resource)} "{name}" already exists'
    return Refusal(409, "AlreadyExists", message)


def invalid(resource: Resource, name: str, causes: Sequence[Cause]) -> Refusal:
    """422: the object would break the rules of its kind."""
    parts = [f"{cause.field}: {cause.message}" for cause in causes]
    told = parts[0] if len(parts) == 1 else f"[{', '.join(parts)}]"
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    return Refusal(422, "Invalid", f'{kind} "{name}" is invalid: {told}', causes=causes)


def options_invalid(kind: str, cause: Cause) -> Refusal:
    """422: the options of the request (not the object) are wrong."""
    message = f'{kind}.meta.k8s.io "" is invalid: {cause.field}: {cause.message}'
    return Refusal(422, "Invalid", message, causes=[cause])


def bad_request(message: str) -> Refusal:
    """400: the body or an option cannot be understood."""
    return Refusal(400, "BadRequest", message)


def malformed(message: str) -> Refusal:
    """500 without a reason: an apply whose body the server cannot convert, and the like."""
    return Refusal(500, "", message)


def unpatchable(message: str) -> Refusal:
    """422: the object a merge or JSON patch makes has values of wrong types."""
    cause = Cause(INVALID, "patch", f"Invalid value: {message}")
    return Refusal(422, "Invalid", f' "" is invalid: patch: {cause.message}', causes=[cause])


def unprocessable() -> Refusal:
    """422 without any cause: a JSON patch whose operation or test failed (measured)."""
    return Refusal(422, "Invalid", "the server rejected our request due to an error in our request")


def expired(message: str) -> Refusal:
    """410: the resourceVersion or continue token is older than the history kept."""
    return Refusal(410, "Expired", message)


def unsupported(accepted: Sequence[str]) -> Refusal:
    """415: the content type is not one the request takes."""
    message = (
        "the body of the request was in an unknown format - accepted media types include: "
        + ", ".join(accepted)
    )
    return Refusal(415, "UnsupportedMediaType", message)


@dataclass(frozen=True, slots=True)
class Attempt:
    """Who tried what: the words of a 403."""

    user: str
    verb: str
    resource: Resource
    subresource: str
    name: Name


def forbidden(attempt: Attempt) -> Refusal:
    """403: the caller may not do this at all."""
    resource = attempt.resource
    part = f"{resource.plural}/{attempt.subresource}" if attempt.subresource else resource.plural
    place = (
        f'in the namespace "{attempt.name.namespace}"'
        if attempt.name.namespace
        else "at the cluster scope"
    )
    subject = f' "{attempt.name.name}"' if attempt.name.name else ""
    message = (
        f'{qualified(resource)}{subject} is forbidden: User "{attempt.user}" cannot {attempt.verb}'
        f' resource "{part}" in API group "{resource.group}" {place}'
    )
    return Refusal(403, "Forbidden", message)
