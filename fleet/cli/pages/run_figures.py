"""The figures of one campaign run: what was covered, what was not and why, rates, proof. Pure.

Made from the run's record in the store and, where it can be read, from evidence that was verified.
A record says what nodes told; only a verified certificate proves it, so a device counts as proven
only where its certificate was found and nothing is wrong with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.cli.pages.timeline import Timeline, place, timeline
from fleet.control.campaign.report import ExitReason, exit_code
from fleet.control.campaign.verdict import COVERED, Verdict, counted, verdict
from fleet.core.messages import ByteFigures, DeviceResult
from fleet.evidence.judged import Evidence
from fleet.stores.base import RunRecord, RunState

NOT_FOUND = "not in the evidence that was read"


@dataclass(frozen=True, slots=True)
class Proof:
    """What the evidence says of one certificate."""

    digest: str
    entry: int = 0
    """Number in its node's ledger; 0: it was not found."""
    issued_at: float = 0.0
    chain: int = 0
    """Its number in the longest chain of its units: how many wipes are on record."""
    previous: tuple[str, ...] = ()
    key_id: str = ""
    wrong: tuple[str, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether it was found and nothing is wrong with it."""
        return not self.wrong


@dataclass(frozen=True, slots=True)
class Row:
    """One device of a run."""

    result: DeviceResult
    verdict: Verdict
    proof: Proof | None = None
    """None: no certificate is named, or no evidence was read."""

    @property
    def place(self) -> str:
        """Node and device."""
        return place(self.result)


@dataclass(frozen=True, slots=True)
class Gap:
    """Devices that are not covered for one reason."""

    verdict: Verdict
    outcome: str
    check: str
    detail: str
    """As told of the first of them; those of others may name other numbers."""
    remedy: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Everything a page says of a run."""

    record: RunRecord
    rows: tuple[Row, ...]
    """By node and device."""
    timeline: Timeline
    counts: Mapping[Verdict, int]
    bytes: ByteFigures
    wall_s: float
    gaps: tuple[Gap, ...]
    evidence: str
    """Where it was read from; "" where none was."""
    unread: str
    """Why no evidence was read; "" where it was."""
    notes: tuple[str, ...] = ()
    """What verification says of the evidence as a whole."""

    @property
    def covered(self) -> int:
        """Devices that are done."""
        return sum(self.counts.get(word, 0) for word in COVERED)

    @property
    def devices(self) -> int:
        """Devices that were seen; a node that showed none is a row and no device."""
        return sum(row.result.device != "*" for row in self.rows)

    @property
    def unproven(self) -> tuple[Row, ...]:
        """Devices that are done by the record and whose certificate does not prove it."""
        done = [row for row in self.rows if row.verdict in COVERED]
        return tuple(row for row in done if row.proof is None or not row.proof.sound)

    @property
    def exit_code(self) -> int:
        """0: everything came out well, and all that is done is proven where evidence was read."""
        try:
            reason = ExitReason(self.record.exit_reason)
        except ValueError:
            reason = ExitReason.STOPPED
        found = exit_code((row.result for row in self.rows), reason)
        return max(found, 1) if self.evidence and self.unproven and found < 2 else found


@dataclass(frozen=True, slots=True)
class Read:
    """Evidence for a run: read and judged, or why not."""

    evidence: Evidence | None = None
    place: str = ""
    why: str = ""
    notes: tuple[str, ...] = field(default=())


def figures(record: RunRecord, read: Read, *, now: float) -> RunFigures:
    """The figures of `record`; one that still runs is shown as of `now`."""
    results = sorted(_counting(record), key=lambda one: (one.node, one.device, one.uuid))
    proofs = _proofs(read.evidence)
    rows = tuple(_row(one, proofs, read) for one in results)
    end = record.finished_at if record.finished_at is not None else now
    return RunFigures(
        record=record,
        rows=rows,
        timeline=timeline(results, record.started_at, max(end, record.started_at)),
        counts=counted(results),
        bytes=ByteFigures(
            total=sum(one.bytes.total for one in results),
            reserved=sum(one.bytes.reserved for one in results),
            covered=sum(one.bytes.covered for one in results),
            residual=sum(one.bytes.residual for one in results),
        ),
        wall_s=max(end - record.started_at, 0.0),
        gaps=tuple(_gaps(rows)),
        evidence=read.place if read.evidence is not None else "",
        unread=read.why,
        notes=read.notes,
    )


def standing(record: RunRecord) -> str:
    """Where the run stands, in words."""
    if record.state is RunState.FINISHED:
        return f"finished: {record.exit_reason}"
    if record.state is RunState.STOPPED:
        why = record.exit_reason or "stopped"
        return f"ended early: {why}; `fleet scrub --resume {record.id}` goes on with it"
    return "still running, or its process died: devices without a result are not shown"


def _counting(record: RunRecord) -> Iterator[DeviceResult]:
    """Results that count: a node's row for all of it gives way to its devices seen since."""
    seen: dict[str, float] = {}
    for one in record.results.values():
        if one.device != "*":
            seen[one.node] = max(seen.get(one.node, 0.0), one.ended_at)
    for one in record.results.values():
        if one.device != "*" or seen.get(one.node, -1.0) < one.ended_at:
            yield one


def _proofs(evidence: Evidence | None) -> Mapping[str, Proof]:
    if evidence is None:
        return {}
    found = {}
    for one in evidence.certificates:
        links = one.certificate.chain.values()
        against = [*one.defects, *evidence.against(one.node)]
        found[str(one.certificate.digest)] = Proof(
            digest=str(one.certificate.digest),
            entry=one.entry.number,
            issued_at=one.certificate.issued_at,
            chain=max((link.sequence for link in links), default=0),
            previous=tuple(sorted({str(link.previous) for link in links if link.previous})),
            key_id=one.certificate.envelope.key_id,
            wrong=tuple(f"{damage.code}: {damage.detail}" for damage in against),
        )
    return found


def _row(one: DeviceResult, proofs: Mapping[str, Proof], read: Read) -> Row:
    proof = None
    if read.evidence is not None and one.certificate:
        missing = Proof(one.certificate, wrong=(NOT_FOUND,))
        proof = proofs.get(one.certificate, missing)
    return Row(one, verdict(one), proof)


def _gaps(rows: Sequence[Row]) -> Iterator[Gap]:
    """Reasons why devices are not covered, and findings of those that are, most devices first."""
    grouped: dict[tuple[Verdict, str, str, str], list[Row]] = {}
    details: dict[tuple[Verdict, str, str, str], str] = {}
    for row in rows:
        told = [(one.check, one.remedy, one.detail) for one in row.result.findings]
        if not told and row.verdict not in COVERED:
            told = [("", "", _untold(row.verdict))]
        for check, remedy, detail in told:
            key = (row.verdict, str(row.result.outcome), check, remedy)
            grouped.setdefault(key, []).append(row)
            details.setdefault(key, detail)
    order = list(Verdict)
    found = [
        Gap(word, outcome, check, details[word, outcome, check, remedy], remedy, tuple(some))
        for (word, outcome, check, remedy), some in grouped.items()
    ]
    yield from sorted(found, key=lambda gap: (-order.index(gap.verdict), -len(gap.rows), gap.check))


def _untold(word: Verdict) -> str:
    return "a claim has it" if word is Verdict.BUSY else "no reason was given"


def rates(rows: Sequence[Row]) -> tuple[float, ...]:
    """Bytes/s of the devices that told a rate, slowest first."""
    return tuple(sorted(row.result.rate for row in rows if row.result.rate > 0))


def quantile(sorted_values: Sequence[float], part: float) -> float:
    """The value below which `part` of them lie; 0.0 of nothing."""
    if not sorted_values:
        return 0.0
    return sorted_values[min(int(part * len(sorted_values)), len(sorted_values) - 1)]


def by_node(rows: Sequence[Row]) -> Mapping[str, Counter[Verdict]]:
    """Verdicts of each node's devices, by the node's name."""
    found: dict[str, Counter[Verdict]] = {}
    for row in rows:
        found.setdefault(row.result.node, Counter())[row.verdict] += 1
    return dict(sorted(found.items()))
