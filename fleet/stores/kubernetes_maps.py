"""The ConfigMaps a store keeps its state in: read, decided on and written by compare-and-swap.

A ConfigMap takes four times what an annotation does, and every cluster has them. Each write is
guarded by the resourceVersion and UID of what it was decided on, and leaves its mark in the
object, so that a write whose answer was lost is recognised when the object is read again.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import io
import secrets
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, NoReturn, TypeVar

from fleet.core import errors
from fleet.core.clock import Clock, SystemClock
from fleet.kube.base import CONFIGMAPS, Cluster, Name, Object, Selection, uid_of, version_of

LIMIT_BYTES = 1_000_000
"""Most bytes of one object's values. The server takes 1 MiB (values of binaryData decoded)."""
PLAIN_BYTES = 128 * 1024
"""Values of an object that are longer together are stored compressed."""
UNPACKED_BYTES = 64 * 1024 * 1024
"""Most bytes that a compressed value may stand for: leases and results pack to a tenth."""
WRITES = "fleetscrub.dev/writes"
"""Annotation: marks of the newest writes, oldest first."""
WRITES_KEPT = 256
"""Marks kept (3 KB): more writes than others get in while one writer waits for an answer. 32 were
too few for eight busy processes and two answers lost in a row (`make stress-stores`)."""
PAUSE_S = 0.01
"""First pause, s, after a conflict, doubled each time up to `PAUSE_MAX_S`, half of it by chance."""
PAUSE_MAX_S = 0.5
_UNCERTAIN = (
    "retry; the write may have been carried out: a lease granted is found by asking for it again"
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one call tries, s, and how time passes meanwhile.

    A request under way when the time is over is waited for: as long as the cluster lets it take.
    """

    timeout_s: float
    away_s: float = 2.0
    """How long it tries while the server answers nothing and nothing is in doubt: a node has other
    things to do, and asks again."""
    clock: Clock = field(default_factory=SystemClock)
    pause: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class Swapped(Generic[_T]):
    """What the change that counts returned, and the object if it is known to be as it left it."""

    value: _T
    found: Object | None


class ConfigMaps:
    """The ConfigMaps of one namespace. Safe for threads.

    Raises `StoreUnavailable` when the server does not answer within the patience, and
    `SettingsInvalid` when a right or the namespace is missing.
    """

    def __init__(self, cluster: Cluster, namespace: str, patience: Patience) -> None:
        """`namespace` must exist."""
        self._cluster = cluster
        self._patience = patience
        self.namespace = namespace

    def get(self, name: str) -> Object | None:
        """One object as it is now, or None."""
        return self._tried("get", lambda: self._read(name))

    def list(self, labels: str) -> list[Object]:
        """The objects selected."""
        selection = Selection(namespace=self.namespace, labels=labels)
        return list(self._tried("list", lambda: self._cluster.list(CONFIGMAPS, selection)).items)

    def delete(self, found: Object) -> None:
        """Delete this very object; one that is gone or was replaced is left alone."""
        name = Name(str(found["metadata"]["name"]), self.namespace)

        def act() -> None:
            try:
                self._cluster.delete(CONFIGMAPS, name, uid=uid_of(found))
            except errors.ApiConflict:
                return

        self._tried("delete", act)

    def swap(
        self, name: str, change: Callable[[Object | None], tuple[Object | None, _T]]
    ) -> Swapped[_T]:
        """Write what `change` makes of the object, decided anew whenever somebody was faster.

        `change` gets the object (None: there is none) and returns the one to store (None: nothing
        is to be written) and a value. What it returned for the write that was carried out counts,
        also when the answer to that write was lost.
        """
        sent: dict[str, _T] = {}
        trying = _Trying(self._patience)
        while True:
            try:
                found = self._read(name)
            except (errors.ApiUnavailable, errors.ApiFailed) as error:
                trying.go_on(error)
                continue
            except errors.FleetError as error:
                self._refuse("get", error)
            landed = [mark for mark in _marks(found) if mark in sent]
            if landed:
                return Swapped(sent[landed[-1]], None)
            trying.stop_if_settled()
            body, value = change(found)
            if body is None:
                return Swapped(value, found)
            mark = secrets.token_hex(6)
            sent[mark] = value
            verb = "create" if found is None else "update"
            try:
                return Swapped(value, self._write(name, found, body, mark))
            except (errors.ApiUnavailable, errors.ApiFailed) as error:
                trying.go_on(error, uncertain=True)
            except errors.ApiConflict as error:
                trying.go_on(error)
            except errors.ApiNotFound as error:
                if found is None:
                    self._refuse(verb, error)
                trying.go_on(error)
            except errors.FleetError as error:
                self._refuse(verb, error)

    def _read(self, name: str) -> Object | None:
        try:
            return self._cluster.get(CONFIGMAPS, Name(name, self.namespace))
        except errors.ApiNotFound:
            return None

    def _write(self, name: str, found: Object | None, body: Object, mark: str) -> Object:
        metadata = dict(body.get("metadata", {}))
        metadata.pop("managedFields", None)
        marks = [*_marks(found), mark][-WRITES_KEPT:]
        annotations = {**metadata.get("annotations", {}), WRITES: " ".join(marks)}
        metadata |= {"name": name, "namespace": self.namespace, "annotations": annotations}
        if found is not None:
            metadata |= {"uid": uid_of(found), "resourceVersion": version_of(found)}
        whole = {**body, "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        check_size(name, whole)
        if found is None:
            return self._cluster.create(CONFIGMAPS, whole)
        return self._cluster.replace(CONFIGMAPS, whole)

    def _tried(self, verb: str, act: Callable[[], _T]) -> _T:
        trying = _Trying(self._patience)
        while True:
            try:
                return act()
            except (errors.ApiUnavailable, errors.ApiFailed) as error:
                trying.go_on(error)
            except errors.FleetError as error:
                self._refuse(verb, error)

    def _refuse(self, verb: str, error: errors.FleetError) -> NoReturn:
        """Raise what a refusal of the server means to users of a store."""
        where = f"configmaps in namespace {self.namespace}"
        if isinstance(error, errors.ApiForbidden):
            raise errors.SettingsInvalid(
                f"the store may not {verb} {where}: {error.detail}",
                remedy=f"grant the service account get, list, create, update and delete on {where}"
                if error.fields.get("status") != 401
                else error.remedy,
            ) from error
        if isinstance(error, errors.ApiNotFound):
            raise errors.SettingsInvalid(
                f"the store's namespace {self.namespace} does not exist: {error.detail}",
                remedy="create it, or name another one in store.namespace",
            ) from error
        if isinstance(error, errors.ApiInvalid):
            causes = error.fields.get("causes", [])
            too_long = any(cause[0] == "FieldValueTooLong" for cause in causes)
            if too_long or error.fields.get("status") == 413:
                raise too_large(error.detail) from error
            raise errors.StoreUnavailable(
                f"the API server refuses the store's object: {error.detail}",
                remedy="nothing was written; correct what the message names",
            ) from error
        raise error


class _Trying:
    """The pauses of one call, and what it says when its time is over."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._began = patience.clock.monotonic()
        self._limit_s = min(patience.away_s, patience.timeout_s)
        self._count = 0
        self._uncertain = False
        self._settling: errors.FleetError | None = None

    def go_on(self, error: errors.FleetError, *, uncertain: bool = False) -> None:
        """Wait before the next attempt. Raises `StoreUnavailable` when there is no time left."""
        self._uncertain = self._uncertain or uncertain
        stated_s = float(error.fields.get("retry_after_s", 0.0))
        away = isinstance(error, errors.ApiUnavailable | errors.ApiFailed) and not stated_s
        if self._uncertain or not away:
            self._limit_s = self._patience.timeout_s
        if uncertain and isinstance(error, errors.ApiFailed):
            self._settling = error
        left_s = self._began + self._limit_s - self._patience.clock.monotonic()
        if left_s <= 0:
            raise self._given_up(error)
        longest_s = min(PAUSE_MAX_S, PAUSE_S * 2.0 ** min(self._count, 10))
        self._count += 1
        chance = secrets.randbelow(1000) / 1000
        self._patience.pause(min(left_s, max(stated_s, longest_s * (0.5 + 0.5 * chance))))

    def stop_if_settled(self) -> None:
        """A request the server failed on is not sent again: it answers so to bad bodies too."""
        if self._settling is not None:
            raise errors.StoreUnavailable(
                f"the API server failed on a write of the store: {self._settling.detail}",
                remedy=_UNCERTAIN,
            ) from self._settling

    def _given_up(self, error: errors.FleetError) -> errors.StoreUnavailable:
        return errors.StoreUnavailable(
            f"the store on Kubernetes did not answer within {self._limit_s:g} s: {error.detail}",
            remedy=_UNCERTAIN if self._uncertain else "",
        )


def parts_of(found: Object) -> dict[str, str]:
    """The texts in an object, unpacked. Raises ValueError when one cannot be."""
    texts = {str(key): str(text) for key, text in (found.get("data") or {}).items()}
    for key, packed in (found.get("binaryData") or {}).items():
        name, dot, suffix = str(key).rpartition(".")
        if dot and suffix == "gz":
            try:
                texts[name] = _unpacked(base64.b64decode(packed, validate=True)).decode()
            except (OSError, EOFError, TypeError, zlib.error, binascii.Error) as error:
                raise ValueError(f"{key} cannot be unpacked: {error}") from error
    return texts


def _unpacked(packed: bytes) -> bytes:
    """Bounded: whoever can write the object must not fill our memory with a few bytes of it."""
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        found = file.read(UNPACKED_BYTES + 1)
    if len(found) > UNPACKED_BYTES:
        raise ValueError(f"it unpacks to more than {UNPACKED_BYTES} bytes")
    return found


def with_parts(found: Object | None, parts: Mapping[str, Sequence[str]]) -> Object:
    """The object with these texts (in pieces) and all else it has; long ones are compressed.

    Each piece is compressed by itself (gzip reads them as one), and once while it stays the same.
    """
    body = dict(found or {})
    ours = {*parts, *(f"{key}.gz" for key in parts)}
    data = {key: text for key, text in (body.get("data") or {}).items() if key not in ours}
    binary = {key: text for key, text in (body.get("binaryData") or {}).items() if key not in ours}
    sizes = {key: sum(len(piece) for piece in pieces) for key, pieces in parts.items()}
    packing = sum(sizes.values()) > PLAIN_BYTES
    for key, pieces in parts.items():
        if packing and sizes[key] > 1024:
            packed = b"".join(_packed(piece) for piece in pieces)
            binary[f"{key}.gz"] = base64.b64encode(packed).decode()
        else:
            data[key] = "".join(pieces)
    return {**body, "data": data, "binaryData": binary}


@lru_cache(maxsize=512)
def _packed(piece: str) -> bytes:
    return gzip.compress(piece.encode(), compresslevel=6, mtime=0)


def size_of(body: Object) -> int:
    """Bytes of an object's values as the server counts them."""
    plain = sum(len(str(text).encode()) for text in (body.get("data") or {}).values())
    packed = [str(text) for text in (body.get("binaryData") or {}).values()]
    return plain + sum(len(text) * 3 // 4 - text.count("=", -2) for text in packed)


def check_size(name: str, body: Object) -> None:
    """Raises `StoreUnavailable` (field ``too_large``) for an object the server would not take."""
    size = size_of(body)
    if size > LIMIT_BYTES:
        raise too_large(f"{name} would hold {size} bytes, {LIMIT_BYTES} are possible")


def too_large(detail: str) -> errors.StoreUnavailable:
    """The answer to what does not fit into one object."""
    return errors.StoreUnavailable(
        f"the store is full: {detail}",
        remedy="nothing was written; releases and renewals go on: end claims or campaigns, or give"
        " parts of the fleet stores (namespaces) of their own",
        too_large=True,
    )


def _marks(found: Object | None) -> list[str]:
    annotations = (found or {}).get("metadata", {}).get("annotations") or {}
    return str(annotations.get(WRITES, "")).split()
