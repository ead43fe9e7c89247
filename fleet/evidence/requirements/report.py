"""Does the evidence of every device of a fleet answer a requirement, and if not, what is missing.

Decisions:

1. Without a period the question is about now: the newest certificate of each of a device's units
   must be whole and answer. With one it is about all wipes in it: each must.
2. A certificate that verification found fault with answers nothing and is named, however old.
3. A device that is handed out, or may be, must rest on a certificate that answers; its node's
   journal names it.
4. Simulated devices are listed and never answered (promise 10).
5. What a copy leaves out is missing. Its index says what was left out and is signed by nobody:
   the countersignatures name what must be there, also whole nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fleet.core.messages import Message
from fleet.core.model import Digest, State, UnitId
from fleet.evidence.dsse import moment
from fleet.evidence.judged import Evidence, Judged
from fleet.evidence.requirements.mapping import Answer, Requirement, values
from fleet.evidence.segments import Damage

OFFERED = frozenset({str(State.CLEAN), str(State.IN_USE)})
_VERIFY = "see `fleet evidence verify`; keep the files as they are for inquiry"
_WIPE = "wipe it with `fleet scrub`, or widen the period"
_WHOLE = "get a copy in which it is (`fleet evidence export`); ask who made this one"
_COUNTERSIGN = "a coordinator at work does within minutes, `fleet scrub` at its end; ask again then"
_SIMULATED = "the device is simulated: what is proven of it is proven of no hardware"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One device the report is about."""

    node: str
    uuid: str
    name: str
    units: frozenset[UnitId]
    simulated: bool
    state: str = ""
    """As its node says; "" where only evidence was read."""
    certificate: str = ""
    """Digest of the certificate its node has in force; "" for none."""


@dataclass(frozen=True, slots=True)
class Period:
    """Times of issue that count, seconds since the epoch; None: no bound. Both ends belong."""

    since: float | None = None
    until: float | None = None

    @property
    def given(self) -> bool:
        """Whether the question is about a period rather than about now."""
        return self.since is not None or self.until is not None

    def holds(self, at: float) -> bool:
        """Whether `at` is in it."""
        after = self.since is None or at >= self.since
        return after and (self.until is None or at <= self.until)


class Missing(Message):
    """One thing that keeps a device from being answered."""

    what: str
    remedy: str
    certificate: str = ""
    """The certificate it is about; "" for none."""
    place: str = ""
    """File, byte and entry, where a defect was found."""


class LastWipe(Message):
    """The newest certificate of a device in the period that nothing is wrong with."""

    certificate: str
    issued_at: str
    technique: str
    verification: str
    """Status and method."""
    covered_bytes: int
    total_bytes: int
    previous_holder: str


class DeviceAnswer(Message):
    """What the evidence of one device says to a requirement."""

    node: str
    device: str
    uuid: str
    state: str
    simulated: bool
    answered: bool
    certificates: int
    verified: int
    """Certificates in the period without a defect."""
    answering: int
    """Certificates in the period that count as an answer: verified, real, meeting all demands."""
    last: LastWipe | None
    figures: dict[str, list[Any]]
    """Each figure of the requirement as the newest verified certificate has it."""
    missing: tuple[Missing, ...]


class ComplianceReport(Message):
    """The answer for a fleet."""

    requirement: str
    title: str
    source: str
    since: str
    until: str
    simulated: bool
    """Whether any device is simulated."""
    answered: int
    devices: tuple[DeviceAnswer, ...]
    missing: tuple[Missing, ...]
    """What is missing of the fleet and is no device's: nodes that must have evidence."""
    ledger: dict[str, Any]
    """What verification found, without the defects."""
    notes: tuple[str, ...]
    not_covered: tuple[str, ...]
    operator: tuple[str, ...]
    """What the organisation adds."""

    @property
    def exit_code(self) -> int:
        """0: there are devices, every one is answered, and nothing else is missing; else 1."""
        return int(not self.devices or self.answered < len(self.devices) or bool(self.missing))


def known(evidence: Evidence) -> tuple[Asked, ...]:
    """The devices certificates name, as each one's newest describes it."""
    newest: dict[str, Judged] = {}
    for one in _in_order(evidence.certificates):
        newest[one.certificate.device] = one
    return tuple(
        Asked(
            node=one.node,
            uuid=uuid,
            name=one.certificate.device_name,
            units=frozenset(one.certificate.chain),
            simulated=one.certificate.simulated,
        )
        for uuid, one in sorted(newest.items())
    )


def compare(
    requirement: Requirement, evidence: Evidence, devices: Iterable[Asked], *, period: Period
) -> ComplianceReport:
    """The report. Never raises for bad evidence."""
    of_units: dict[UnitId, list[Judged]] = defaultdict(list)
    for judged in evidence.certificates:
        for unit in judged.certificate.chain:
            of_units[unit].append(judged)
    answers = []
    for device in devices:
        found = {id(one): one for unit in device.units for one in of_units.get(unit, ())}
        mine = _in_order(found.values())
        answers.append(_answer(requirement, evidence, device, mine, period=period))
    report = evidence.report
    ledger = report.as_json()
    del ledger["defects"], ledger["notes"]
    return ComplianceReport(
        requirement=requirement.id,
        title=requirement.title,
        source=requirement.source,
        since="" if period.since is None else moment(period.since),
        until="" if period.until is None else moment(period.until),
        simulated=any(one.simulated for one in answers) or report.simulated > 0,
        answered=sum(one.answered for one in answers),
        devices=tuple(answers),
        missing=tuple(
            Missing(what=one.words, remedy=_WHOLE) for one in report.doubts if not one.units
        ),
        ledger=ledger,
        notes=tuple(report.notes),
        not_covered=tuple(f"{one.what}: {one.why}" for one in requirement.not_covered),
        operator=requirement.operator,
    )


def _answer(
    requirement: Requirement,
    evidence: Evidence,
    device: Asked,
    mine: Sequence[Judged],
    *,
    period: Period,
) -> DeviceAnswer:
    """`mine`: all certificates of its units, oldest first."""
    within = [one for one in mine if period.holds(one.certificate.issued_at)]
    verified = [one for one in within if one.sound]
    missing = tuple(
        dict.fromkeys(
            (
                *_of_device(requirement, evidence, device, mine),
                *_of_certificates(requirement, device, within, period),
                *_in_force(requirement, device, mine, period),
            )
        )
    )
    last = verified[-1] if verified else None
    return DeviceAnswer(
        node=device.node,
        device=device.name,
        uuid=device.uuid,
        state=device.state,
        simulated=device.simulated,
        answered=not missing,
        certificates=len(within),
        verified=len(verified),
        answering=sum(_counts(requirement, one) for one in verified),
        last=_last(last) if last else None,
        figures=_figures(requirement, evidence, last) if last else {},
        missing=missing,
    )


def _in_order(found: Iterable[Judged]) -> list[Judged]:
    return sorted(found, key=lambda one: (one.certificate.issued_at, one.entry.number))


def _counts(requirement: Requirement, one: Judged) -> bool:
    met = not any(requirement.against(one.certificate.predicate))
    met = met and (one.countersigned or not requirement.countersigned)
    certified = requirement.answered_by is Answer.CERTIFICATE
    return certified and one.sound and not one.certificate.simulated and met


# --- what is missing ------------------------------------------------------------------------------


def _of_device(
    requirement: Requirement, evidence: Evidence, device: Asked, mine: Sequence[Judged]
) -> Iterator[Missing]:
    if device.simulated:
        yield Missing(what=_SIMULATED, remedy="ask about a fleet of real devices")
    if requirement.answered_by is Answer.ORGANISATION:
        yield Missing(
            what="no certificate answers this: it is the organisation's decision",
            remedy=f"{requirement.operator[0]}; the figures are in the certificates",
        )
    for node in sorted({device.node, *(one.node for one in mine)}):
        for damage in evidence.against(node):
            yield _defect(f"the evidence of node {node} is not whole", damage)
    for doubt in evidence.report.doubts:
        if not device.units.isdisjoint(doubt.units):
            yield Missing(what=doubt.words, remedy=_WHOLE)


def _of_certificates(
    requirement: Requirement, device: Asked, within: Sequence[Judged], period: Period
) -> Iterator[Missing]:
    newest: dict[UnitId, Judged] = {}
    for one in within:
        newest.update(dict.fromkeys(one.certificate.chain, one))
    for unit in sorted(device.units - newest.keys()):
        in_period = " in the period" if period.given else ""
        yield Missing(what=f"no certificate of unit {unit}{in_period}", remedy=_WIPE)
    current = {newest[unit].certificate.digest for unit in device.units & newest.keys()}
    for one in within:
        digest = one.certificate.digest
        for damage in one.defects:
            yield _defect("a certificate is not verified", damage, digest)
        if period.given or digest in current:
            yield from _unmet(requirement, device, one)


def _unmet(requirement: Requirement, device: Asked, one: Judged) -> Iterator[Missing]:
    digest = one.certificate.digest
    if one.certificate.simulated and not device.simulated:
        yield Missing(
            what="a certificate is of a simulated device", remedy=_VERIFY, certificate=digest
        )
    if requirement.countersigned and not one.countersigned:
        words = "it is not countersigned: that nothing was cut off behind it is not proven"
        yield Missing(what=words, remedy=_COUNTERSIGN, certificate=digest)
    for demand in requirement.against(one.certificate.predicate):
        yield Missing(what=demand.words, remedy=demand.remedy, certificate=digest)


def _in_force(
    requirement: Requirement, device: Asked, mine: Sequence[Judged], period: Period
) -> Iterator[Missing]:
    """What a device that is handed out, or may be, rests on. A period that ended says nothing."""
    if not requirement.offered or device.state not in OFFERED or period.until is not None:
        return
    if not device.certificate:
        yield Missing(what=f"it is {device.state} without a certificate", remedy="`fleet audit`")
        return
    found = next((one for one in mine if one.certificate.digest == device.certificate), None)
    if found is None:
        yield Missing(
            what=f"it is {device.state} by a certificate that is not in the evidence",
            remedy="`fleet audit`; give the evidence of its node as well",
            certificate=device.certificate,
        )
        return
    yield from (_defect("a certificate is not verified", d, found.certificate.digest)
                for d in found.defects)  # fmt: skip
    yield from _unmet(requirement, device, found)


def _defect(what: str, damage: Damage, digest: Digest | str = "") -> Missing:
    return Missing(
        what=f"{what}: {damage.code}: {damage.detail}",
        remedy=_VERIFY,
        certificate=digest,
        place=str(damage.place),
    )


# --- figures --------------------------------------------------------------------------------------


def _last(one: Judged) -> LastWipe:
    said = one.certificate.predicate

    def words(figure: str) -> str:
        return ", ".join(str(value) for value in values(said, figure))

    # Whole: `verify` found the sizes to be numbers, and holds for words only where a rule says so.
    return LastWipe(
        certificate=one.certificate.digest,
        issued_at=words("issued_at"),
        technique=words("sanitization.technique"),
        verification=f"{words('verification.status')}: {words('verification.method')}",
        covered_bytes=said["bytes"]["covered"],
        total_bytes=said["bytes"]["total"],
        previous_holder=words("previous_holder"),
    )


def _figures(requirement: Requirement, evidence: Evidence, one: Judged) -> dict[str, list[Any]]:
    ledger = {"ledger": evidence.report.as_json()}
    return {
        figure: values(
            ledger if figure.startswith("ledger.") else one.certificate.predicate, figure
        )
        for figure in requirement.figures()
    }
