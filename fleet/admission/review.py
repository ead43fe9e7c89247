"""AdmissionReview in, AdmissionReview out. Pure.

What is asked is answered in the words it was asked in: version and uid come back as they came.
Whatever cannot be understood is either no review at all (`InputInvalid`, the server's 400) or is
denied with the reason; nothing is let through for being strange.

Allowed without a look: deletions, subresources, kinds that are no claims, our own and the cluster's
namespaces, and an update that leaves the spec as it was. A finalizer, an owner or a label must
never wait for the word of a webhook: claims could not end then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from fleet.core import errors
from fleet.kube.shapes import (
    CLAIMS,
    RESOURCE_GROUP,
    RESOURCE_VERSIONS,
    Path,
    claims,
    mapping,
    text,
    written,
)

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"
MESSAGE_MAX = 4096
"""Characters of a denial; the API server hands it to whoever applied the object."""
FORBIDDEN = 403
UNPROCESSABLE = 422
VALUES_MAX = 60_000
"""Values in an object, at all depths: 32 requests of 8 alternatives with 16 tolerations each have
some 25,000. Judges walk all of them, and anybody who reaches the port may send any object."""
LENGTH_MAX = 32
"""Entries of any list in a claim's devices: no list there may be longer in Kubernetes. Judging
takes time with the product of several of them, so that what is longer is denied unseen."""
PARAMETERS_MAX = 32 * 1024
"""Characters of one entry's opaque parameters as JSON; Kubernetes stores 10 KiB at most."""
UNAVAILABLE = 503
_REASONS = {FORBIDDEN: "Forbidden", UNPROCESSABLE: "Invalid", UNAVAILABLE: "ServiceUnavailable"}

Object = Mapping[str, Any]


class Objection(NamedTuple):
    """Where an object is not as it must be, how, and what to do."""

    path: str
    wrong: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.wrong} — {self.remedy}"


@dataclass(frozen=True, slots=True)
class Subject:
    """An object somebody wants to make, or to change the spec of."""

    document: Object
    namespace: str
    user: str
    created_at: float
    """When the API server made it, s since the epoch; now for one that is being made."""


_TOO_DEEP = Objection("request.object", "is nested too deep", "no field of it needs to be")
Judge = Callable[[Subject], Iterable[Objection]]
"""What speaks against a subject. May raise a `FleetError`: then nothing can be said, and it is
denied."""


@dataclass(frozen=True, slots=True)
class Reviewing:
    """Answers reviews by these judges."""

    judges: Sequence[Judge]
    exempt: frozenset[str] = frozenset()
    """Namespaces that are never judged, should the configuration send theirs to us."""

    def answer(self, review: object, *, now: float) -> dict[str, Any]:
        """The review with its response. Raises `InputInvalid` for what is no review.

        `now`: s since the epoch.
        """
        request = _request(review)
        uid = request.get("uid")
        if not isinstance(uid, str) or not uid:
            raise errors.InputInvalid("request.uid is missing: there is nothing to be answered")
        objections, code = self._judged(request, now)
        response: dict[str, Any] = {"uid": uid, "allowed": not objections}
        if objections:
            response["status"] = {
                "status": "Failure",
                "reason": _REASONS[code],
                "code": code,
                "message": _message(objections),
            }
        return {"apiVersion": API_VERSION, "kind": KIND, "response": response}

    def _judged(self, request: Object, now: float) -> tuple[Sequence[Objection], int]:
        try:
            subject = self._subject(request, now)
            if subject is None:
                return (), FORBIDDEN
            return self._found(subject), FORBIDDEN
        except errors.InputInvalid as error:
            return [Objection("request", error.detail, error.remedy)], UNPROCESSABLE
        except errors.FleetError as error:
            return [Objection("request", error.detail, error.remedy)], UNAVAILABLE
        except RecursionError:
            return [_TOO_DEEP], UNPROCESSABLE

    def _found(self, subject: Subject) -> list[Objection]:
        """What the judges find; of a place where several find a fault, what the first says."""
        found: list[Objection] = []
        for judge in self.judges:
            places = {objection.path for objection in found}
            found += [objection for objection in judge(subject) if objection.path not in places]
        return found

    def _subject(self, request: Object, now: float) -> Subject | None:
        """What is to be judged; None: nothing. Raises `InputInvalid`."""
        operation, resource = request.get("operation"), mapping(request, "kind")
        kind = text(resource, "kind")
        if text(resource, "group") != RESOURCE_GROUP or kind not in CLAIMS:
            return None
        namespace = text(request, "namespace")
        if operation in ("DELETE", "CONNECT") or request.get("subResource"):
            return None
        if namespace in self.exempt:
            return None
        if operation not in ("CREATE", "UPDATE"):
            raise errors.InputInvalid(
                f"operation {str(operation)[:20]!r} is not known here", remedy="CREATE or UPDATE"
            )
        version = text(resource, "version")
        if version not in RESOURCE_VERSIONS:
            raise errors.InputInvalid(
                f"{kind} of version {version[:60]!r} is not known here",
                remedy=f"{RESOURCE_GROUP}/{RESOURCE_VERSIONS[0]}",
            )
        document, before = request.get("object"), request.get("oldObject")
        if not isinstance(document, Mapping):
            raise errors.InputInvalid(
                f"{operation} without an object", remedy="a review that carries the object"
            )
        if (text(document, "apiVersion"), text(document, "kind")) != (
            f"{RESOURCE_GROUP}/{version}",
            kind,
        ):
            raise errors.InputInvalid(
                "the object is of another kind than the review says",
                remedy=f"an object of {RESOURCE_GROUP}/{version}, kind {kind}",
            )
        user = text(mapping(request, "userInfo"), "username")
        is_new = operation == "CREATE"
        if not is_new and _is_same(before, document):
            return None
        _refuse_oversized(document)
        if is_new:
            return Subject(document, namespace, user, now)
        return Subject(document, namespace, user, _created_at(before, now))


def _request(review: object) -> Object:
    if not isinstance(review, Mapping):
        raise errors.InputInvalid("the body is no object", remedy=f"send a {API_VERSION} {KIND}")
    if (review.get("apiVersion"), review.get("kind")) != (API_VERSION, KIND):
        raise errors.InputInvalid(
            f"the body is no {KIND} of {API_VERSION}",
            remedy="set admissionReviewVersions: [v1] in the webhook's configuration",
        )
    request = review.get("request")
    if not isinstance(request, Mapping):
        raise errors.InputInvalid("the review has no request", remedy="send one that has")
    return request


def _is_same(before: object, document: Object) -> bool:
    """Whether an update leaves the spec as it was."""
    return isinstance(before, Mapping) and before.get("spec") == document.get("spec")


def _refuse_oversized(document: Object) -> None:
    """Raises `InputInvalid` for a claim no API server would store; in time linear to its size.

    All of it is counted: judges walk the whole object, whatever fields a caller made up.
    """
    for claim in claims(document):
        _refuse_long(claim.devices, claim.path)
    left: list[Mapping[str, Any] | list[Any]] = [document]
    count = 0
    while left:
        one = left.pop()
        inner = list(one.values()) if isinstance(one, Mapping) else one
        count += len(inner)
        if count > VALUES_MAX:
            raise errors.InputInvalid(
                f"the object has more than {VALUES_MAX} values", remedy="write several claims"
            )
        left += [value for value in inner if isinstance(value, Mapping | list)]


def _refuse_long(value: object, path: Path) -> None:
    if path[-1] == "parameters":
        # Whose they are and what is in them is their driver's affair, how large they are is not.
        if len(json.dumps(value, ensure_ascii=False)) > PARAMETERS_MAX:
            raise errors.InputInvalid(
                f"{written(path)} is longer than {PARAMETERS_MAX} characters",
                remedy="write only the parameters you need",
            )
    elif isinstance(value, Mapping):
        for key, one in value.items():
            _refuse_long(one, (*path, key))
    elif isinstance(value, list):
        if len(value) > LENGTH_MAX:
            raise errors.InputInvalid(
                f"{written(path)} has {len(value)} entries",
                remedy=f"write at most {LENGTH_MAX}, or several claims",
            )
        for index, one in enumerate(value):
            _refuse_long(one, (*path, index))


def _created_at(before: object, now: float) -> float:
    """When the object that is changed was made: the server's word, not that of the change."""
    metadata = mapping(before, "metadata") if isinstance(before, Mapping) else {}
    try:
        return datetime.fromisoformat(text(metadata, "creationTimestamp")).timestamp()
    except ValueError:
        return now


def _message(objections: Sequence[Objection]) -> str:
    found = " | ".join(map(str, objections))
    # Names and values are the tenant's own: a lone surrogate of theirs must not break the answer.
    found = found.encode("utf-8", "backslashreplace").decode()
    return found if len(found) <= MESSAGE_MAX else found[: MESSAGE_MAX - 3] + "..."
