"""Rules of metadata and of kinds without rules of their own; the interface of a kind's rules. Pure.

A kind's rules prepare an object (reset what this endpoint may not write, default, drop gated
fields) and judge it (causes of a 422).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fleet.kube.base import Object
from tests.lab.apiserver.refusal import (
    DUPLICATE,
    FORBIDDEN,
    INVALID,
    REQUIRED,
    TOO_LONG,
    TOO_MANY,
    Cause,
)

SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_NAME_PART = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
IMMUTABLE = "field is immutable"
STANDARD_FINALIZERS = frozenset({"kubernetes", "orphan", "foregroundDeletion"})


@dataclass(frozen=True, slots=True)
class Write:
    """One write as rules see it. `old` is None for a create; `now` is the API time."""

    new: Object
    old: Object | None
    subresource: str
    now: str


class Rules(Protocol):
    """The rules of one kind."""

    def prepare(self, write: Write) -> Object:
        """The object as it would be stored."""
        ...

    def judge(self, write: Write) -> Sequence[Cause]:
        """What is wrong with it; empty when it may be stored."""
        ...


class PlainRules:
    """No rules but the split of status and rest."""

    def __init__(self, *, has_status: bool, first_status: Object | None = None) -> None:
        """`first_status`: the status every new object starts with."""
        self._has_status = has_status
        self._first_status = first_status

    def prepare(self, write: Write) -> Object:
        """Keep what this endpoint may not write."""
        if not self._has_status:
            return write.new
        return split_status(write, first=self._first_status)

    def judge(self, write: Write) -> Sequence[Cause]:
        """Nothing is wrong, ever."""
        del write
        return ()


def split_status(write: Write, *, first: Object | None = None) -> Object:
    """Status only through its subresource, everything else only beside it."""
    new = dict(write.new)
    if write.old is None:
        new.pop("status", None)
        if first is not None:
            new["status"] = first
        return new
    if write.subresource == "status":
        kept = {key: value for key, value in write.old.items() if key != "status"}
        return {**kept, **({"status": new["status"]} if "status" in new else {})}
    new.pop("status", None)
    return {**new, **({"status": write.old["status"]} if "status" in write.old else {})}


def metadata_causes(write: Write) -> list[Cause]:
    """What is wrong with the metadata."""
    meta = write.new.get("metadata", {})
    found = []
    name = str(meta.get("name", ""))
    if len(name) > 253 or not SUBDOMAIN.fullmatch(name):
        found.append(
            wrong(
                "metadata.name",
                name,
                "a lowercase RFC 1123 subdomain must consist of lower case"
                " alphanumeric characters, '-' or '.'",
            )
        )
    found += _finalizer_causes(meta.get("finalizers", [])) + _label_causes(meta.get("labels", {}))
    found += _owner_causes(meta.get("ownerReferences", []))
    if write.old is not None:
        old = write.old["metadata"]
        if meta.get("deletionTimestamp") != old.get("deletionTimestamp"):
            found.append(
                wrong("metadata.deletionTimestamp", meta.get("deletionTimestamp"), IMMUTABLE)
            )
        if meta.get("uid") != old.get("uid"):
            found.append(wrong("metadata.uid", meta.get("uid"), IMMUTABLE))
        added = [item for item in meta.get("finalizers", []) if item not in old["finalizers"]] if (
            "finalizers" in old
        ) else list(meta.get("finalizers", []))  # fmt: skip
        if old.get("deletionTimestamp") and added:
            names = ", ".join(f'"{item}"' for item in added)
            found.append(
                Cause(
                    FORBIDDEN,
                    "metadata.finalizers",
                    "Forbidden: no new finalizers can be added if the object is being deleted,"
                    f" found new finalizers []string{{{names}}}",
                )
            )
    return found


def _finalizer_causes(finalizers: Sequence[str]) -> list[Cause]:
    found = []
    for index, finalizer in enumerate(finalizers):
        if not is_qualified(finalizer):
            found.append(wrong("metadata.finalizers", finalizer, "must be a qualified name"))
        if "/" not in finalizer and finalizer not in STANDARD_FINALIZERS:
            told = "name is neither a standard finalizer name nor is it fully qualified"
            found.append(wrong(f"metadata.finalizers[{index}]", finalizer, told))
    return found


def _label_causes(labels: Mapping[str, str]) -> list[Cause]:
    found = []
    for key, value in labels.items():
        if not is_qualified(key):
            found.append(wrong("metadata.labels", key, "must be a qualified name"))
        if not is_label_value(value):
            found.append(wrong("metadata.labels", value, "must be a label value"))
    return found


def _owner_causes(owners: Sequence[Mapping[str, Any]]) -> list[Cause]:
    field = "metadata.ownerReferences"
    found = [
        wrong(f"{field}.{name}", "", "must not be empty")
        for owner in owners
        for name in ("apiVersion", "kind", "name", "uid")
        if not owner.get(name)
    ]
    if sum(bool(owner.get("controller")) for owner in owners) > 1:
        told = "Only one reference can have Controller set to true."
        found.append(wrong(field, [dict(owner) for owner in owners], told))
    return found


def is_qualified(name: str) -> bool:
    """Whether `name` is a label name: an optional domain and a name part."""
    prefix, slash, part = name.rpartition("/")
    if slash and not (prefix and len(prefix) <= 253 and SUBDOMAIN.fullmatch(prefix)):
        return False
    return 0 < len(part) <= 63 and _NAME_PART.fullmatch(part) is not None


def is_label_value(value: str) -> bool:
    """Whether `value` may be the value of a label or taint."""
    return not value or (len(value) <= 63 and _NAME_PART.fullmatch(value) is not None)


def wrong(field: str, value: Any, why: str) -> Cause:
    """A value that is not allowed."""
    return Cause(INVALID, field, f"Invalid value: {_shown(value)}: {why}")


def required(field: str, why: str = "") -> Cause:
    """A value that is missing."""
    return Cause(REQUIRED, field, "Required value" + (f": {why}" if why else ""))


def too_many(field: str, count: int, limit: int) -> Cause:
    """A list that is too long."""
    return Cause(TOO_MANY, field, f"Too many: {count}: must have at most {limit} items")


def too_long(field: str, limit: int) -> Cause:
    """A value of too many bytes."""
    return Cause(TOO_LONG, field, f"Too long: may not be more than {limit} bytes")


def duplicate(field: str, value: Any) -> Cause:
    """An entry that occurs twice."""
    return Cause(DUPLICATE, field, f"Duplicate value: {_shown(value)}")


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
