"""Reading settings from a mapping: every problem at once, each with what to write. Pure.

Sections are validated one by one, so that a mistake in one never hides those in another; rules
between fields are checked for all sections that are valid by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, NamedTuple, cast

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from fleet.core import errors
from fleet.core.settings import (
    AdmissionSettings,
    CampaignPolicy,
    EvidencePolicy,
    EvidenceSettings,
    HealthPolicy,
    Section,
    Settings,
    StoreKind,
    StoreSettings,
    WipePolicy,
)

SECTIONS: Mapping[str, type[Section]] = {
    name: field.annotation
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
}


SHOWN_MAX = 200
"""Characters of a wrong value or key that are repeated."""
WAIT_MAX_S = 1e9
"""Longest time, s, that may be set, 31 years: clocks and locks take no ten times as much."""
WHOLE_MAX = 2**63 - 1
"""Largest whole number that may be set: what databases and other programs take."""


class Problem(NamedTuple):
    """One mistake: where, what is wrong, what to write instead."""

    path: str
    wrong: str
    write: str

    def __str__(self) -> str:
        return f"{self.path}: {self.wrong}; write {self.write}"


def parse(given: Mapping[str, Any]) -> Settings:
    """The settings. Raises `SettingsInvalid`; its field ``problems`` lists every `Problem`."""
    problems = list(_unknown(given, "", tuple(Settings.model_fields)))
    valid: dict[str, Section] = {}
    for name, kind in SECTIONS.items():
        found = given.get(name, {})
        if isinstance(found, Mapping):
            problems += _unknown(found, f"{name}.", tuple(kind.model_fields))
            kept = {key: value for key, value in found.items() if key in kind.model_fields}
            section, wrong = _validated(kind, kept, f"{name}.")
            problems += wrong
            if section is not None:
                valid[name] = section
        else:
            problems.append(Problem(name, f"{_shown(found)} is not a section", f"a table [{name}]"))
    single = {k: v for k, v in given.items() if k in Settings.model_fields and k not in SECTIONS}
    root, wrong = _validated(Settings, single, "")
    problems += wrong
    problems += _between(valid)
    if problems or root is None:
        raise errors.SettingsInvalid(
            f"{len(problems)} wrong in the settings: " + " | ".join(map(str, problems)),
            problems=problems,
        )
    return cast("Settings", root).model_copy(update=valid)


def _unknown(given: Mapping[str, Any], prefix: str, known: tuple[str, ...]) -> Iterator[Problem]:
    for key in given:
        if key not in known:
            elsewhere = [f"{s}.{key}" for s, kind in SECTIONS.items() if key in kind.model_fields]
            near = elsewhere or [
                prefix + name for name in get_close_matches(named(key), known, n=1, cutoff=0.0)
            ]
            yield Problem(f"{prefix}{named(key)}", "there is no such setting", near[0])


def _validated(
    kind: type[Section], given: Mapping[str, Any], prefix: str
) -> tuple[Section | None, list[Problem]]:
    beyond = [
        Problem(f"{prefix}{name}", f"{_shown(value)} {wrong}", write)
        for name, value in given.items()
        for wrong, write in _beyond(name, value)
    ]
    if beyond:
        return None, beyond
    try:
        return kind.model_validate(given), []
    except ValidationError as error:
        return None, [
            Problem(
                prefix + ".".join(map(str, found["loc"])),
                f"{_shown(found['input'])}: {found['msg']}",
                _meant(kind, str(found["loc"][0]), found["type"]),
            )
            for found in error.errors(include_url=False, include_context=False)
        ]
    except RecursionError:  # an enum's own error writes out what it was given
        return None, [
            Problem(f"{prefix}{name}", "is nested too deep", allowed(kind, name)) for name in given
        ]


def _meant(kind: type[Section], name: str, wrong: str) -> str:
    """What may be written; where only a pattern tells, what the field is for says more."""
    told = allowed(kind, name)
    if wrong != "string_pattern_mismatch":
        return told
    return f"{told} ({kind.model_fields[name].description})"


def _beyond(name: str, value: object) -> Iterator[tuple[str, str]]:
    """What no clock, database or counter takes, wrong and right: it would fail where it is used."""
    if isinstance(value, str) and ("\0" in value or not _is_text(value)):
        yield "holds a character that no path or name can have", "it without"
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    if name.endswith("_s") and WAIT_MAX_S < value < float("inf"):
        yield "s is longer than anything is waited for", f"at most {WAIT_MAX_S:g}"
    elif isinstance(value, int) and abs(value) > WHOLE_MAX:
        yield "is too large", f"at most {WHOLE_MAX}"


def _is_text(value: str) -> bool:
    """Whether it can be written down: JSON can say half a character."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def named(name: object) -> str:
    """A key as it can be printed anywhere: quoted where it is blank or holds what is not shown."""
    text = str(name)
    return _cut(text if text.isprintable() and text.strip() else ascii(text))


def _shown(value: object) -> str:
    try:
        return _cut(ascii(value) if isinstance(value, str) else repr(value))
    except (RecursionError, ValueError):  # nested too deep, or more digits than are written out
        return f"a value of type {type(value).__name__}"


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."


def allowed(kind: type[Section], name: str) -> str:
    """What may be written for a field, in words."""
    schema = _schema(kind)
    field = schema["properties"][name]
    many = "a list; each " if field.get("type") == "array" else ""
    field = field["items"] if many else field
    reference = str(field.get("$ref", "")).rpartition("/")[2]
    choices = schema.get("$defs", {}).get(reference, {}).get("enum")
    if choices:
        return f"{many}one of " + ", ".join(f'"{choice}"' for choice in choices)
    words = {
        "integer": "a whole number",
        "number": "a number",
        "boolean": "true or false",
        "string": "a text",
    }[field["type"]]
    bounds = {
        "minimum": "at least {}",
        "exclusiveMinimum": "above {}",
        "maximum": "at most {}",
        "exclusiveMaximum": "below {}",
        "minLength": "not empty",
    }
    limits = [text.format(_plain(field[key])) for key, text in bounds.items() if key in field]
    return f"{many}{words} {' and '.join(limits)}".strip()


@cache
def _schema(kind: type[Section]) -> dict[str, Any]:
    return kind.model_json_schema()


def default_of(field: FieldInfo) -> str:
    """A default as it is written in a settings file."""
    value = field.default
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{one}"' for one in value) + "]"
    return f'"{value}"' if isinstance(value, str) else _plain(value)


def _plain(number: float) -> str:
    return f"{number:.10g}"


# --- rules between fields ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sections:
    """All sections, defaults where one is not valid; a rule runs only when its own are."""

    wipe: WipePolicy
    health: HealthPolicy
    campaign: CampaignPolicy
    store: StoreSettings
    evidence: EvidenceSettings
    admission: AdmissionSettings


def _chunks(given: _Sections) -> Problem | None:
    largest, smallest = given.wipe.chunk_largest_bytes, given.wipe.chunk_smallest_bytes
    if smallest <= largest:
        return None
    return Problem(
        "wipe.chunk_smallest_bytes",
        f"{smallest} is above chunk_largest_bytes, {largest}",
        f"at most {largest}",
    )


def _fresh(given: _Sections) -> Problem | None:
    fresh, period = given.health.fresh_s, given.health.sweep_period_s
    if fresh >= period:
        return None
    return Problem(
        "health.fresh_s",
        f"{fresh:g} s is below sweep_period_s: verdicts would be stale before the next sweep",
        f"at least {period:g}",
    )


def _readings(given: _Sections) -> Problem | None:
    timeout, period = given.health.reading_timeout_s, given.health.sweep_period_s
    if timeout < period:
        return None
    return Problem(
        "health.reading_timeout_s",
        f"{timeout:g} s is not below sweep_period_s: one stuck device would delay every sweep",
        f"below {period:g}",
    )


def _lease(given: _Sections) -> Problem | None:
    ttl, timeout = given.campaign.lease_ttl_s, given.campaign.call_timeout_s
    if ttl * 2 / 3 > timeout:
        return None
    return Problem(
        "campaign.lease_ttl_s",
        f"{ttl:g} s: renewed at a third, it would run out during one call of"
        f" campaign.call_timeout_s, {timeout:g} s",
        f"above {timeout * 1.5:g}",
    )


def _device(given: _Sections) -> Problem | None:
    timeout, ttl = given.campaign.device_timeout_s, given.campaign.lease_ttl_s
    least = max(ttl, given.wipe.deadline_base_s)
    if timeout >= least:
        return None
    return Problem(
        "campaign.device_timeout_s",
        f"{timeout:g} s is below a lease's lifetime or wipe.deadline_base_s",
        f"at least {least:g}",
    )


def _hosts(given: _Sections) -> Problem | None:
    hosts = given.store.hosts
    if hosts == 1 or given.store.kind is not StoreKind.SQLITE:
        return None
    return Problem(
        "store.hosts",
        f"an SQLite store is for one host, {hosts} would use it",
        "1, or a store for clusters: store.kind = kubernetes or dynamodb",
    )


def _archive(given: _Sections) -> Problem | None:
    evidence = given.evidence
    asked = "policy" in evidence.model_fields_set and evidence.policy is EvidencePolicy.REPLICATED
    if evidence.archive or not asked:
        return None
    return Problem(
        "evidence.archive",
        "policy is replicated, and no archive is named to replicate to",
        "s3://bucket/prefix, or evidence.policy = local",
    )


def _tags(given: _Sections) -> Problem | None:
    admission = given.admission
    if bool(admission.tag_keys) != bool(admission.tag_roots):
        missing = "tag_roots" if admission.tag_keys else "tag_keys"
        wrong = "a list of tag keys needs the ids of its roots, and they need the list"
        return Problem(f"admission.{missing}", wrong, "both tag_keys and tag_roots, or neither")
    if admission.required and not admission.tag_keys:
        return Problem(
            "admission.required",
            "true, and no list of tag keys is named to judge tags by",
            "tag_keys and tag_roots too, or required = false",
        )
    return None


_RULES: tuple[tuple[frozenset[str], Callable[[_Sections], Problem | None]], ...] = (
    (frozenset({"wipe"}), _chunks),
    (frozenset({"health"}), _fresh),
    (frozenset({"health"}), _readings),
    (frozenset({"campaign"}), _lease),
    (frozenset({"campaign", "wipe"}), _device),
    (frozenset({"store"}), _hosts),
    (frozenset({"evidence"}), _archive),
    (frozenset({"admission"}), _tags),
)


def _between(valid: Mapping[str, Section]) -> list[Problem]:
    """Problems between fields of sections that are valid by themselves."""
    all_sections = {name: valid.get(name, kind()) for name, kind in SECTIONS.items()}
    given = _Sections(
        wipe=cast("WipePolicy", all_sections["wipe"]),
        health=cast("HealthPolicy", all_sections["health"]),
        campaign=cast("CampaignPolicy", all_sections["campaign"]),
        store=cast("StoreSettings", all_sections["store"]),
        evidence=cast("EvidenceSettings", all_sections["evidence"]),
        admission=cast("AdmissionSettings", all_sections["admission"]),
    )
    found = [rule(given) for needed, rule in _RULES if needed <= valid.keys()]
    return [problem for problem in found if problem is not None]


# --- the reference -------------------------------------------------------------------------------


def reference() -> str:
    """docs/settings.md: every setting with what may be written, its default and its reason."""
    lines = [
        "# Settings",
        "",
        "Generated from `fleet/core/settings.py`. A TOML or JSON file; every setting is optional.",
        "Unknown keys are errors, and all problems are reported at once.",
        "",
        *_table(Settings, skip=frozenset(SECTIONS)),
    ]
    for name, kind in SECTIONS.items():
        lines += ["", f"## [{name}]", "", (kind.__doc__ or "").strip(), "", *_table(kind)]
    return "\n".join(lines) + "\n"


def _table(kind: type[Section], skip: frozenset[str] = frozenset()) -> Iterator[str]:
    yield "| setting | write | default | why |"
    yield "| --- | --- | --- | --- |"
    for name, field in kind.model_fields.items():
        if name not in skip:
            why = (field.description or "").replace("|", "\\|")
            yield f"| `{name}` | {allowed(kind, name)} | `{default_of(field)}` | {why} |"


_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_size(text: str) -> int:
    """Bytes of a size such as ``64MiB``, ``1.5GiB``, ``500MB`` or ``4096``.

    Raises `InputInvalid` on anything else, on zero, and on a fraction of a byte.
    """
    found = _SIZE.fullmatch(text)
    factor = _UNITS.get(found.group(2).lower()) if found else None
    if found is None or factor is None:
        raise errors.InputInvalid(
            f"{text!r} is not a size", remedy="write it like 64MiB, 1GiB, 500MB or 4096"
        )
    size = float(found.group(1)) * factor
    if size < 1 or size != int(size):
        raise errors.InputInvalid(
            f"{text!r} is not a whole number of bytes above zero",
            remedy="write it like 64MiB, 1GiB, 500MB or 4096",
        )
    return int(size)
