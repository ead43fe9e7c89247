"""One certificate as a page to print: what it says, what it does not cover, its chain, its proof.

The page stands alone: no script, nothing fetched, one style sheet inside. It is read by people who
have neither the command nor the fleet, so it says in words what was proven and how to check that
with openssl.

Decisions:

1. Everything in a certificate was written by others. All of it goes through `_text`, and the page
   itself forbids scripts and sources of any kind.
2. What verification found stands on top, before anything the certificate says.
3. Every certificate on the way back to the units' first ones is a row; none is left out.
4. Names, dates and categories that only the organisation knows are lines to fill in by hand.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from fleet.cli import text
from fleet.cli.output import VerbAnswer
from fleet.cli.pages import markup
from fleet.cli.pages.markup import document, put
from fleet.cli.pages.markup import row as _row
from fleet.cli.pages.markup import table as _table
from fleet.cli.pages.markup import text as _text
from fleet.core import errors
from fleet.core.model import Digest
from fleet.evidence import by_hand, dsse
from fleet.evidence.findings import Demand
from fleet.evidence.judged import Evidence, Judged, judge
from fleet.evidence.keys import PublicKey
from fleet.evidence.requirements.mapping import values
from fleet.evidence.segments import Damage
from fleet.evidence.sources import Collection

STDOUT = markup.STDOUT
_FIGURES = (
    ("device", "device.name"),
    ("device UUID", "device.uuid"),
    ("accelerator", "device.accelerator"),
    ("units of memory", "device.units"),
    ("profile of the partition", "device.profile"),
    ("what the driver says it is", "device.attributes"),
    ("size, bytes", "device.memory_bytes"),
    ("back end", "device.backend"),
    ("node", "node"),
    ("boot", "boot_id"),
    ("holder before", "previous_holder"),
    ("claim", "claim"),
    ("run", "run"),
    ("token of the lease", "token"),
    ("profile of sanitization", "profile"),
    ("standard", "sanitization.standard"),
    ("technique", "sanitization.technique"),
    ("medium", "sanitization.media"),
    ("method", "sanitization.method"),
    ("pattern", "sanitization.pattern"),
    ("SHA-256 of the nonce", "sanitization.nonce_sha256"),
    ("passes", "sanitization.passes[].name"),
    ("bytes of each pass", "sanitization.passes[].bytes"),
    ("bytes in all", "bytes.total"),
    ("bytes covered", "bytes.covered"),
    ("bytes reserved by the driver, not covered", "bytes.reserved"),
    ("bytes residual, not covered", "bytes.residual"),
    ("coverage asked for, of total less reserved", "bytes.floor"),
    ("verification", "verification.status"),
    ("method of verification", "verification.method"),
    ("bytes read back", "verification.bytes"),
    ("bytes that did not match", "verification.mismatched_bytes"),
    ("self-test of the verifier", "verification.self_test"),
    ("validation", "validation.status"),
    ("reset performed", "reset.performed"),
    ("method of reset", "reset.method"),
    ("why, or why not", "reset.reason"),
    ("posture of the driver", "posture"),
    ("processes on the device", "holders"),
    ("begun", "started_at"),
    ("ended", "ended_at"),
    ("issued", "issued_at"),
    ("software", "software.name"),
    ("version", "software.version"),
)
_BY_HAND = (
    "Asset number of the device",
    "Confidentiality category before, and after",
    "Validation: is this adequate for the data (who decided)",
    "Name, title, organisation, location",
    "Date and signature",
)


@dataclass(frozen=True, slots=True)
class Source:
    """A certificate with everything the page says about it."""

    evidence: Evidence
    one: Judged
    key: PublicKey | None
    """The key it names, if it is among those verified with."""

    def problems(self) -> list[str]:
        """Everything that speaks against the certificate, its ledger and its chain."""
        here = (*self.one.defects, *self.evidence.against(self.one.node))
        chain = self.evidence.lineage(self.one.certificate.digest)
        broken = [one for one in chain if not isinstance(one, Judged) or not one.sound]
        links = [one for one in broken if one is not self.one]
        told = [_defect(damage) for damage in here]
        if links:
            told.append(f"{len(links)} of the {len(chain)} links of its chain are not verified")
        return told


def check_asked(file: Path | None, *, as_json: bool, with_keys: bool) -> None:
    """Raise `InputInvalid` on options that do not go together."""
    if file is None and with_keys:
        raise errors.InputInvalid(
            "--key is for the page, which verifies", remedy="add --html FILE, or leave --key out"
        )
    markup.check_place(file, as_json=as_json)


class PageAnswer(VerbAnswer):
    """The page of a certificate that was written."""

    kind: Literal["evidence page"] = "evidence page"
    file: str
    bytes: int
    certificate: str
    verified: bool
    chain: int
    """Certificates in the chain back to the first."""


def write(file: Path, collection: Collection, digest: Digest) -> PageAnswer:
    """Write the page of a certificate to `file` ("-": stdout); what was written.

    Raises `InputInvalid` when the certificate is not there or the file cannot be written.
    """
    evidence = judge(collection, Demand(now=time.time()))
    one = next((each for each in evidence.certificates if each.certificate.digest == digest), None)
    if one is None:
        raise errors.InputInvalid(f"no certificate {digest}", remedy="see `fleet evidence list`")
    key_id = one.certificate.envelope.key_id
    rings = [log.keys for log in collection.ledgers if log.node == one.node]
    key = next((found for ring in rings if (found := ring.get(key_id))), None)
    source = Source(evidence, one, key)
    size = put(file, render(source))
    return PageAnswer(
        file=str(file),
        bytes=size,
        certificate=digest,
        verified=not source.problems(),
        chain=len(evidence.lineage(digest)),
    )


def told(console: Console, written: PageAnswer) -> None:
    """Say what `write` did."""
    verdict = "verified" if written.verified else "NOT verified: the page says why"
    console.print(
        text.plain(
            f"certificate {text.digest(written.certificate)} ({verdict}) with a chain of"
            f" {written.chain} written to {written.file}"
        )
    )


def render(source: Source) -> str:
    """The page. Never raises for what a certificate says."""
    one = source.one
    simulated = one.certificate.simulated
    title = f"Certificate of sanitization {text.digest(one.certificate.digest)}"
    body = [
        '<div class="watermark">SIMULATED</div>' if simulated else "",
        f"<h1>{_text(title)}</h1>",
        f'<p class="simulated">{_text(text.SIMULATED)}</p>' if simulated else "",
        *_verdict(source),
        *_words(one),
        *_figures(one),
        *_scope(one),
        *_health(one),
        *_chain(source),
        *_signer(source),
        *_organisation(),
        *_commands(one),
    ]
    return document(f"SIMULATED: {title}" if simulated else title, body)


def _said(one: Judged, figure: str) -> str:
    return ", ".join(_word(value) for value in values(one.certificate.predicate, figure)) or "-"


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_word(each)}" for name, each in value.items())
    if isinstance(value, list):
        return "; ".join(_word(each) for each in value) or "none"
    return "none" if value is None else str(value)


# --- sections -------------------------------------------------------------------------------------


def _verdict(source: Source) -> Iterator[str]:
    report, one = source.evidence.report, source.one
    found = source.problems()
    if found:
        yield f'<div class="verdict broken">NOT VERIFIED: {len(found)} problems'
        yield "<ul>" + "".join(f"<li>{_text(each)}</li>" for each in found) + "</ul></div>"
    else:
        yield '<div class="verdict whole">Verified: the signature is that of the key below over'
        yield "exactly this content, and its chain and ledger are whole.</div>"
    mine = [note for note in report.notes if note.startswith((f"{one.node}:", "the keys come"))]
    yield "".join(f"<p>Note: {_text(note)}</p>" for note in mine)


def _defect(damage: Damage) -> str:
    return f"{damage.code}: {damage.detail} ({damage.place})"


def _words(one: Judged) -> Iterator[str]:
    yield "<h2>In words</h2>"
    yield f"<p><b>{_text(_said(one, 'summary'))}</b></p>"
    yield (
        f"<p>Device {_text(_said(one, 'device.name'))} ({_text(_said(one, 'device.uuid'))}) of"
        f" node {_text(_said(one, 'node'))} was held before by"
        f" {_text(_said(one, 'previous_holder'))}. Method:"
        f" {_text(_said(one, 'sanitization.method'))}. Verification"
        f" {_text(_said(one, 'verification.status'))}: {_text(_said(one, 'verification.method'))}."
        f" From {_text(_said(one, 'started_at'))} to {_text(_said(one, 'ended_at'))}.</p>"
    )
    yield f"<p>Validation {_text(_said(one, 'validation.status'))}:"
    yield f"{_text(_said(one, 'validation.words'))}</p>"


def _figures(one: Judged) -> Iterator[str]:
    yield "<h2>Figures</h2>"
    rows = [_row("certificate", one.certificate.digest)]
    rows += [_row(name, _said(one, figure)) for name, figure in _FIGURES]
    yield from _table(("what", "as signed"), rows)


def _scope(one: Judged) -> Iterator[str]:
    yield "<h2>Scope: what was cleared and what was not</h2>"
    rows, missing = [], []
    for region in values(one.certificate.predicate, "scope[]"):
        covered = region.get("covered") is True
        size = region.get("bytes")
        if not covered:
            missing.append(str(region.get("region")))
        rows.append(
            _row(
                region.get("region"),
                "yes" if covered else "NO",
                region.get("cleared_by"),
                region.get("verified"),
                "not measured" if size is None else size,
                region.get("words", ""),
                open_=not covered,
            )
        )
    yield from _table(
        ("region", "covered", "cleared by", "verified", "bytes", "note"), rows, kind="words"
    )
    yield f"<p><b>Not covered:</b> {_text(', '.join(missing) or 'nothing that is listed')}.</p>"


def _health(one: Judged) -> Iterator[str]:
    yield "<h2>Health after the wipe</h2>"
    rows = [
        _row(found.get("check"), found.get("verdict"), found.get("detail", ""))
        for found in values(one.certificate.predicate, "health.findings[]")
    ]
    yield from _table(("check", "verdict", "detail"), rows, kind="words")
    yield f"<p>Counters that rose during the wipe: {_text(_said(one, 'health.counters_risen'))}"
    read = values(one.certificate.predicate, "health.faults_after") != [None]
    faults = _said(one, "health.faults_after") if read else "not read"
    yield f"; driver faults after it: {_text(faults)}.</p>"


def _chain(source: Source) -> Iterator[str]:
    found = source.evidence.lineage(source.one.certificate.digest)
    numbers = {one.certificate.digest: one.entry.number for one in found if isinstance(one, Judged)}
    yield "<h2>Chain back to the first certificate of each unit</h2>"
    yield f"<p>{len(found)} certificates, newest first; each names its predecessor by digest.</p>"
    rows = []
    for one in found:
        if isinstance(one, Judged):
            rows.append(_link(one, numbers))
        else:
            rows.append(_row("-", "-", one, "-", "not here: known by its digest only", open_=True))
    yield from _table(("entry", "issued", "certificate", "units", "verification"), rows)


def _link(one: Judged, numbers: Mapping[Digest, int]) -> str:
    units = []
    for unit, link in sorted(one.certificate.chain.items()):
        before = "the first"
        if link.previous is not None:
            entry = numbers.get(link.previous)
            before = f"after entry {entry}" if entry is not None else f"after {link.previous}"
        units.append(f"{unit}: number {link.sequence}, {before}")
    return _row(
        one.entry.number,
        dsse.moment(one.certificate.issued_at)[:19],
        one.certificate.digest,
        "; ".join(units),
        "; ".join(_defect(each) for each in one.defects) or "verified",
        open_=not one.sound,
    )


def _signer(source: Source) -> Iterator[str]:
    one = source.one
    yield "<h2>Signer</h2>"
    yield f"<p>{_text(_said(one, 'signer.service'))}, Ed25519 key"
    yield f"<code>{_text(one.certificate.envelope.key_id)}</code> (SHA-256 of its 32 bytes).</p>"
    if source.key is None:
        yield "<p>This key is not among the public keys given.</p>"
        return
    yield f"<pre>{_text_lines(source.key.pem().decode())}</pre>"
    yield "<p>Compare the key id with one you got another way than with this page.</p>"


def _text_lines(lines: str) -> str:
    return "\n".join(_text(line) for line in lines.splitlines())


def _organisation() -> Iterator[str]:
    yield "<h2>To be added by the organisation</h2>"
    yield '<table class="blank"><tbody>'
    yield from (_row(what, "") for what in _BY_HAND)
    yield "</tbody></table>"


def _commands(one: Judged) -> Iterator[str]:
    lines = by_hand.commands(
        one.node, one.entry.number, one.certificate.digest, key_id=one.certificate.envelope.key_id
    )
    yield "<h2>How to verify it by hand</h2>"
    yield "<p>In a directory made by <code>fleet evidence export</code>, with openssl 3:</p>"
    yield f'<pre id="commands">{_text_lines(lines)}</pre>'
    yield "<p>The first line must show the digest of this certificate, the second the key id, and"
    yield "the last must say that the signature verified. The signed text is in $w/payload. Its"
    yield "<code>chain</code> names the digest of each predecessor: go on with that file.</p>"
