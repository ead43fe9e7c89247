"""What every certificate must say, judged from its own text. Pure.

`issue` applies these rules to what it is about to sign and `verify` to what it reads: whoever holds
a key cannot sign what `issue` would refuse without being found.

Only what an old certificate also fulfils may become a rule: wordings may change between versions.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from fleet.core.errors import FleetError
from fleet.core.model import ProcessKind
from fleet.devices.wipe.result import PASSES
from fleet.evidence import dsse, scope

SIMULATED_PREFIX = "SIMULATED:"
FIELDS = frozenset(
    [
        "simulated",
        "summary",
        "device",
        "node",
        "boot_id",
        "previous_holder",
        "claim",
        "run",
        "operation",
        "token",
        "profile",
        "sanitization",
        "bytes",
        "verification",
        "validation",
        "health",
        "reset",
        "posture",
        "holders",
        "scope",
        "started_at",
        "ended_at",
        "issued_at",
        "software",
        "chain",
        "signer",
    ]
)
"""Exactly what a certificate of this version says."""
_VENDOR_SCRUBS = frozenset({"on", "off", "unknown", "none"})
_HOLDERS = frozenset({ProcessKind.OURS, ProcessKind.INFRASTRUCTURE})
_MEMORY = {
    "allocatable-memory": "covered",
    "driver-reserved-memory": "reserved",
    "residual-memory": "residual",
}
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


def against(subject: object, predicate: Mapping[str, Any], *, key_id: str) -> Iterator[str]:
    """Everything a genuine certificate cannot say. `key_id` is the signature's. Never raises."""
    if predicate.keys() != FIELDS:
        yield f"its fields are not those of a certificate: {sorted(predicate.keys() ^ FIELDS)}"
    for rule in _RULES:
        try:
            yield from rule(predicate)
        except (*_MALFORMED, FleetError) as error:
            yield f"a field is missing or malformed: {error!r}"
    try:
        yield from _subject(subject, predicate)
        if predicate["signer"]["key_id"] != key_id:
            yield "it names another signing key than its envelope"
    except (*_MALFORMED, FleetError) as error:
        yield f"a field is missing or malformed: {error!r}"


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not an integer")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _subject(subject: Any, found: Mapping[str, Any]) -> Iterator[str]:
    if not isinstance(subject, list) or len(subject) != 1:
        yield "it has not exactly one subject"
        return
    (only,) = subject
    identity = hashlib.sha256(dsse.canonical(found["device"])).hexdigest()
    if only["digest"] != {"sha256": identity}:
        yield "its subject is not the device it describes"
    prefix = SIMULATED_PREFIX if found["simulated"] else ""
    if only["name"] != prefix + found["device"]["uuid"]:
        yield "its subject is not named as the device is"


def _labels(found: Mapping[str, Any]) -> Iterator[str]:
    device, simulated = found["device"], found["simulated"]
    if not isinstance(simulated, bool) or device["simulated"] is not simulated:
        yield "it is not clear whether the device is simulated"
    if simulated is not (_text(device["backend"]) == "simulated"):
        yield f"back end {device['backend']!r} contradicts simulated={simulated}"
    if simulated is not _text(found["summary"]).startswith(scope.SIMULATED_LABEL):
        yield "its summary does not say whether the device is simulated"
    for name in ("uuid", "name", "accelerator"):
        if not _text(device[name]):
            yield f"the device has no {name}"
    named = {"node": found["node"], "boot": found["boot_id"], "previous holder": None}
    named["previous holder"] = found["previous_holder"]
    named["software version"] = found["software"]["version"]
    for name, value in named.items():
        if not _text(value):
            yield f"the {name} is not named"
    for name, value in found["posture"].items():
        _text(name), _text(value)


def _figures(found: Mapping[str, Any]) -> Iterator[str]:
    figures = {name: _integer(found["bytes"][name]) for name in ("total", *_MEMORY.values())}
    covered, reserved, total = figures["covered"], figures["reserved"], figures["total"]
    size = _integer(found["device"]["memory_bytes"])
    if _of_reset(found):
        yield from unread_problems(total, reserved, covered, memory_bytes=size)
    else:
        yield from memory_problems(total, reserved, covered, memory_bytes=size)
    if total != covered + reserved + figures["residual"]:
        yield "its byte figures do not add up: total is not the sum of its parts"
    passes = found["sanitization"]["passes"]
    if _of_reset(found):
        if passes or found["verification"]["bytes"] or found["bytes"]["floor"] != "none":
            yield "it claims a pass, or bytes, that a reset does not have"
        return
    floor = float(_text(found["bytes"]["floor"]))
    yield from floor_problems(total, reserved, covered, floor=floor)
    if tuple(one["name"] for one in passes) != PASSES:
        yield f"its passes are not {', '.join(PASSES)}"
    counts = [_integer(one["bytes"]) for one in passes]
    if any(count != covered for count in (*counts, found["verification"]["bytes"])):
        yield "a pass did not cover all bytes"
    if any(_integer(one["duration_us"]) < 0 for one in passes):
        yield "a pass took less than no time"


def _of_reset(found: Mapping[str, Any]) -> bool:
    """Whether the device was only reset. The technique says so, and it alone."""
    return bool(found["sanitization"]["technique"] == scope.RESET_TECHNIQUE)


def unread_problems(total: int, reserved: int, covered: int, *, memory_bytes: int) -> Iterator[str]:
    """What is wrong with the figures of a device of `memory_bytes` that was only reset.

    Both are 0 where nobody tells how much memory the device has (F46).
    """
    if covered or reserved:
        yield f"{covered} bytes covered and {reserved} reserved by a reset, which reads no memory"
    untold = total == memory_bytes == 0
    if not untold and (memory_bytes <= 0 or total < memory_bytes):
        yield f"the reset was of {total} bytes, the device has {memory_bytes}"


def memory_problems(total: int, reserved: int, covered: int, *, memory_bytes: int) -> Iterator[str]:
    """What is wrong with the figures of a wipe of a device of `memory_bytes`."""
    if covered <= 0 or reserved < 0 or total - reserved - covered < 0:
        yield (f"byte figures do not add up: {covered} covered and {reserved} reserved of {total}")
    if memory_bytes <= 0 or total < memory_bytes:
        yield f"the wipe was of {total} bytes, the device has {memory_bytes}"


def floor_problems(total: int, reserved: int, covered: int, *, floor: float) -> Iterator[str]:
    """What is wrong with a coverage against a floor, which is a fraction of total - reserved."""
    if not (math.isfinite(floor) and 0 < floor <= 1):
        yield f"a coverage floor of {floor} is none"
    elif covered < floor * (total - reserved):
        yield f"coverage is below the floor of {floor}: {covered} of {total} - {reserved} bytes"


def _verification(found: Mapping[str, Any]) -> Iterator[str]:
    how, verification = found["sanitization"], found["verification"]
    if found["validation"]["status"] != "not-performed":
        yield "it claims a validation, which is never its to claim"
    if _of_reset(found):
        yield from _unverified(found)
        return
    if how["technique"] != scope.TECHNIQUE:
        yield "it claims a technique other than Clear or reset"
    if verification["status"] != "passed":
        yield "it is of an unverified device"
    if verification["self_test"] != "passed":
        yield "the verifier's self-test did not pass"
    if _integer(verification["mismatched_bytes"]) != 0:
        yield "bytes did not read back"
    for name in ("pattern", "nonce_sha256"):
        if not _text(how[name]):
            yield f"it names no {name.partition('_')[0]}"


def _unverified(found: Mapping[str, Any]) -> Iterator[str]:
    """A certificate of a reset claims no more than that."""
    how, verification, reset = found["sanitization"], found["verification"], found["reset"]
    if how["standard"] != "none":
        yield "it claims a standard for a reset"
    if verification["status"] != "none" or verification["method"] != scope.NOT_READ_BACK:
        yield "it claims to have verified what was not read back"
    if found["device"]["simulated"] is not False:
        yield "a simulated device is never only reset"
    if reset["performed"] is not True or reset["method"] != _text(how["reset_method"]):
        yield "the reset it rests on is not the one that was performed"
    if how["vendor_scrub"] not in _VENDOR_SCRUBS:
        yield "it does not say what the vendor's own switch was"


def _health(found: Mapping[str, Any]) -> Iterator[str]:
    health = found["health"]
    if health["healthy"] is not True:
        yield "it is of an unhealthy device"
    if not health["findings"]:
        yield "no health check was made"
    for one in health["findings"]:
        if _text(one["verdict"]) == "fail":
            yield f"check {_text(one['check'])} failed: {_text(one['detail'])}"
    before, after = health["counters_before"], health["counters_after"]
    rose = sorted(n for n in before if n in after and _integer(after[n]) > _integer(before[n]))
    if health["counters_risen"] != rose:
        yield "the counters named as risen are not those that rose"


def _acts(found: Mapping[str, Any]) -> Iterator[str]:
    for holder in found["holders"]:
        if holder["kind"] not in _HOLDERS:
            yield f"a foreign process had the device open: {_text(holder['name'])}"
    reset = found["reset"]
    if not _text(reset["reason"]):
        yield "no reason is given why the engine was or was not reset"
    if reset["performed"] is not bool(_text(reset["method"])):
        yield "the reset names no method, or a method without a reset"
    started, ended = (dsse.seconds_of(found[name]) for name in ("started_at", "ended_at"))
    if started <= 0 or ended < started or dsse.seconds_of(found["issued_at"]) < started:
        yield "its times run backwards"


def _chain(found: Mapping[str, Any]) -> Iterator[str]:
    units = found["device"]["units"]
    if not units or units != sorted(set(units)) or sorted(found["chain"]) != units:
        yield "its chain is not of the device's units"
    for unit, link in found["chain"].items():
        if (link["previous"] is None) != (_integer(link["sequence"]) == 1):
            yield f"unit {unit} has number {link['sequence']} after {link['previous']}"


def _scope(found: Mapping[str, Any]) -> Iterator[str]:
    regions = {_text(one["region"]): one for one in found["scope"]}
    for name, figure in _MEMORY.items():
        if regions[name]["bytes"] != found["bytes"][figure]:
            yield f"region {name} is not of the bytes {figure}"
    may = set() if _of_reset(found) else {"allocatable-memory"}
    may |= {"on-chip-memory"} if found["reset"]["performed"] else set()
    for one in found["scope"]:
        covered = one["covered"]
        if covered is not (one["cleared_by"] != scope.NOT_COVERED):
            yield f"it is not clear whether {one['region']} is covered"
        if covered is not (one["region"] in may):
            yield f"region {one['region']} cannot be covered={covered}"


_RULES = (_labels, _figures, _verification, _health, _acts, _chain, _scope)
