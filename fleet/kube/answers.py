"""What an answer of the API server means: HTTP status and Status body to one of our errors. Pure.

The table is the one in `fleet.kube.base.Cluster`. Three rows differ from what the numbers suggest:
a missing fine-grained right arrives as a 422, malformed bodies of server-side apply arrive as a
500, so that a 500 is no reason to try again (both measured on a real server), and a 404 says that
an object is gone only if it is a Status that names the object. Any other 404 (``404 page not
found``) comes from a proxy or from a server that does not serve the group (yet): it is no word
about the object, and passes like any other absence of the server.
"""

from __future__ import annotations

import re

from fleet.core import errors
from fleet.kube import json_limits
from fleet.kube.base import Object, Resource

MESSAGE_MAX = 600
"""Characters kept of a server's message: validation errors repeat whole objects."""

RETRY_AFTER_MAX_S = 60.0
"""Longest wait, s, taken from a server's Retry-After."""

GONE = 410
_UNAVAILABLE = frozenset({408, GONE, 429, 503, 504})
_CREDENTIALS = "the credential is not accepted: check the kubeconfig or the service account's token"
_NOT_SERVED = "retry; if it lasts, check that the address is that of an API server with this group"
_TIMED_OUT = "retry; raise kubernetes.api_timeout_s if the server is only slow"


def failure(
    status: int, body: bytes, *, what: str, retry_after: str = "", target: str = ""
) -> errors.FleetError:
    """The error that an answer other than 2xx stands for; `what` names the request.

    `retry_after` is the header of that name, `target` the path asked for: only what it names can
    be missing. Never raises, whatever `body` is.
    """
    report = parsed(body)
    return verdict(status, report, what=what, text=body, retry_after=retry_after, target=target)


def verdict(
    status: int,
    report: Object,
    *,
    what: str,
    text: bytes = b"",
    retry_after: str = "",
    target: str = "",
) -> errors.FleetError:
    """As `failure`, from a Status object (`report`) that may be empty; `text` stands in for it."""
    message = str(report.get("message") or "") or text.decode("utf-8", "replace").strip()
    if what.endswith("-"):
        message = _without_suffix(message, what.rpartition(" ")[2])
    reason = str(report.get("reason") or "")
    detail = f"{what}: HTTP {status}{f' {reason}' if reason else ''}: {_short(message)}"
    causes = _causes(report)
    if status == 404 and _names_the_missing(report, target):
        return errors.ApiNotFound(detail, reason=reason)
    if status == 409:
        return errors.ApiConflict(detail, reason=reason or "Conflict", causes=causes)
    if status in (401, 403):
        remedy = _CREDENTIALS if status == 401 else ""
        return errors.ApiForbidden(detail, remedy=remedy, status=status, causes=causes)
    if status == 422 and any(cause[0] == "FieldValueForbidden" for cause in causes):
        return errors.ApiForbidden(f"{detail}{_named(causes)}", status=status, causes=causes)
    if status == 404:
        remedy = _NOT_SERVED
        return errors.ApiUnavailable(detail, remedy=remedy, status=status, retry_after_s=0.0)
    if status in _UNAVAILABLE:
        wait_s = _wait(retry_after, report)
        return errors.ApiUnavailable(detail, status=status, retry_after_s=wait_s)
    if 400 <= status < 500:
        return errors.ApiInvalid(f"{detail}{_named(causes)}", status=status, causes=causes)
    return errors.ApiFailed(detail, status=status, reason=reason)


def unreachable(what: str, why: str, *, timed_out: bool = False) -> errors.ApiUnavailable:
    """No answer at all: no connection, a broken one or none in time."""
    remedy = _TIMED_OUT if timed_out else ""
    return errors.ApiUnavailable(
        f"{what}: {_short(why)}", remedy=remedy, status=0, retry_after_s=0.0
    )


def object_of(body: bytes, *, what: str) -> Object:
    """The object in a 2xx answer. Raises `ApiFailed` when there is none."""
    found = json_limits.parsed(body)
    if not isinstance(found, dict):
        raise errors.ApiFailed(
            f"{what}: the answer is no JSON object ({len(body)} bytes)",
            remedy="check that the address is that of an API server, not of a proxy before it",
            status=200,
            reason="",
        )
    return found


def parsed(body: bytes) -> Object:
    """The JSON object in `body`; {} when there is none."""
    found = json_limits.parsed(body)
    return found if isinstance(found, dict) else {}


def is_entry(found: object) -> bool:
    """Whether an entry of a list or watch is an object with a name (case B19: null items occur)."""
    if not isinstance(found, dict):
        return False
    metadata = found.get("metadata")
    return isinstance(metadata, dict) and isinstance(metadata.get("name"), str)


def entries(resource: Resource, page: Object, *, what: str) -> tuple[list[Object], int]:
    """The objects of one page of a list, and how many of its entries are none.

    Each gets the kind and apiVersion that lists leave out. Raises `ApiFailed` for no list.
    """
    listed = page.get("items")
    if listed is not None and not isinstance(listed, list):
        raise errors.ApiFailed(f"{what}: the answer is no list", status=200, reason="")
    found = [entry for entry in listed or [] if is_entry(entry)]
    for entry in found:
        entry.setdefault("apiVersion", resource.api_version)
        entry.setdefault("kind", resource.kind)
    return found, len(listed or []) - len(found)


def _names_the_missing(report: Object, target: str) -> bool:
    """Whether a 404 is about an object, and about one that the path `target` (if any) names."""
    details = report.get("details")
    name = details.get("name") if isinstance(details, dict) else None
    if report.get("kind") != "Status" or report.get("reason") != "NotFound":
        return False
    if not isinstance(name, str) or not name:
        return False
    return not target or name in target.partition("?")[0].split("/")


def _causes(report: Object) -> list[tuple[str, str, str]]:
    details = report.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    if not isinstance(causes, list):
        return []
    return [
        (
            str(cause.get("reason") or ""),
            str(cause.get("field") or ""),
            _short(str(cause.get("message") or "")),
        )
        for cause in causes
        if isinstance(cause, dict)
    ]


def _named(causes: list[tuple[str, str, str]]) -> str:
    fields = sorted({cause[1] for cause in causes if cause[1]})
    return f" (fields: {', '.join(fields)})" if fields else ""


def _wait(header: str, report: Object) -> float:
    details = report.get("details")
    stated = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    if header.strip().isdecimal():
        return min(float(header), RETRY_AFTER_MAX_S)
    if isinstance(stated, int) and stated > 0:
        return min(float(stated), RETRY_AFTER_MAX_S)
    return 0.0


def _without_suffix(message: str, stem: str) -> str:
    """A message about a name that the server makes anew at each try, the same at each try: so that
    it is told once."""
    return re.sub(rf"{re.escape(stem)}[a-z0-9]{{5}}\b", f"{stem}...", message)


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= MESSAGE_MAX else f"{flat[:MESSAGE_MAX]} ..."
