"""`fleet evidence`: list, show, verify and export certificates, offline, from files and keys."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleet.cli import archive, keys, losses, text
from fleet.cli.options import StateOption, moment, state_directory
from fleet.cli.output import AsJson, VerbAnswer, emit
from fleet.cli.pages import certificate as pages_certificate
from fleet.core import errors
from fleet.core.messages import Message
from fleet.evidence import export as exporting
from fleet.evidence import parsed
from fleet.evidence import verify as verifying
from fleet.evidence.findings import Demand
from fleet.evidence.keys import SHORT_ID, KeyRing
from fleet.evidence.layout import PUBLIC_SUFFIX, checked_name
from fleet.evidence.segments import Damage, Entry, Sequence
from fleet.evidence.sources import Collection, Trust, collect, take_heads

app = typer.Typer(no_args_is_help=True)
app.add_typer(keys.app, name="keys")
app.command("losses")(losses.list_losses)
app.command("admin-access")(losses.list_looks)

DirectoryOption = Annotated[
    Path | None,
    typer.Option(
        "--directory",
        metavar="DIR",
        help="An export, one ledger, or a state directory; instead of --state.",
        show_default=False,
    ),
]
NodeOption = Annotated[
    str, typer.Option("--node", metavar="NODE", help="Only this node.", show_default=False)
]
DeviceOption = Annotated[
    str,
    typer.Option(
        "--device", metavar="DEVICE", help="Only this device (UUID or name).", show_default=False
    ),
]
KeysOption = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        metavar="[NODE=]FILE",
        help="Public key you trust for certificates, of one node or of all (file or directory; may"
        " be repeated).",
        show_default=False,
    ),
]
CoordinatorKeysOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--coordinator-key",
        metavar="FILE",
        help="Public key you trust for countersignatures (may be repeated).",
        show_default=False,
    ),
]
HeadsOption = Annotated[
    Path | None,
    typer.Option(
        "--heads",
        metavar="DIR",
        help="Countersignatures kept elsewhere: an earlier export, a state directory, or its"
        " coordinator/heads.",
        show_default=False,
    ),
]
HtmlOption = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Write a page to print there instead; - is the standard output.",
        show_default=False,
    ),
]


class StoredAt(Message):
    """Where a certificate lies."""

    file: str
    offset: int | None


class CertificateRow(Message):
    """What a certificate says first."""

    certificate: str
    """Its digest."""
    number: int
    place: StoredAt
    node: str
    device: str
    uuid: str
    simulated: bool
    issued_at: str
    previous_holder: str
    token: str | None
    run: str | None
    bytes: dict[str, Any]
    """Figures of the wipe, as they were signed."""
    key_id: str


class CertificatesAnswer(VerbAnswer):
    """Certificates, oldest first."""

    kind: Literal["evidence list"] = "evidence list"
    certificates: tuple[CertificateRow, ...]


class CertificateAnswer(CertificateRow, VerbAnswer):
    """One certificate with all it says."""

    kind: Literal["evidence show"] = "evidence show"
    statement: dict[str, Any]
    """The signed statement, whose predicate docs/compliance.md describes."""


class DefectRow(Message):
    """Something wrong with the evidence, and where."""

    code: str
    detail: str
    file: str
    offset: int | None
    entry: int | None
    unit: str | None


class VerifyAnswer(VerbAnswer):
    """What verification found."""

    kind: Literal["evidence verify"] = "evidence verify"
    ok: bool
    verdict: str
    defects: tuple[DefectRow, ...]
    notes: tuple[str, ...]
    ledgers: int
    certificates: int
    omitted: int
    units: int
    simulated: int
    """Certificates of simulated devices."""
    losses: int
    countersignatures: int
    countersigned: int
    countersigned_at: str | None
    """When the newest countersignature was made: nothing older can be missing unseen."""
    unsigned_index: bool


class ExportAnswer(VerbAnswer):
    """What was copied."""

    kind: Literal["evidence export"] = "evidence export"
    directory: str
    certificates: int
    omitted: int
    countersignatures: int


@app.command("list")
def list_(
    place: archive.PlaceArgument = "",
    state: StateOption = None,
    directory: DirectoryOption = None,
    node: NodeOption = "",
    device: DeviceOption = "",
    *,
    as_json: AsJson = False,
) -> None:
    """List certificates, oldest first."""
    found = list(_certificates(open_evidence(state, directory, place=place), node, device))

    def render(console: Console) -> None:
        _simulated_banner(console, [certificate for _, certificate in found])
        table = text.table(
            "certificate", "issued", "node", "device", "holder before", "token", "bytes"
        )
        for _, one in found:
            _add(
                table,
                text.digest(one.digest),
                one.predicate["issued_at"][:19].replace("T", " "),
                one.node,
                one.device_name,
                one.predicate["previous_holder"],
                one.token or "-",
                text.size(one.predicate["bytes"]["covered"]),
            )
        console.print(table)
        console.print(f"{len(found)} certificates")
        for line in archive.backlog(state) if not place and directory is None else ():
            console.print(text.plain(line, style="yellow"))

    answer = CertificatesAnswer(certificates=tuple(_row(entry, one) for entry, one in found))
    emit(answer, as_json=as_json, render=render)


@app.command()
def show(
    certificate: Annotated[str, typer.Argument(help="Digest, or its first characters.")],
    state: StateOption = None,
    directory: DirectoryOption = None,
    key: KeysOption = None,
    html: HtmlOption = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show one certificate with everything it says and everything it does not cover.

    With --html as one page to print: with the chain back to the first certificate, each link
    verified, and how to verify it by hand.
    """
    pages_certificate.check_asked(html, as_json=as_json, with_keys=bool(key))
    wanted = certificate.removeprefix("sha256:").lower()
    found = {
        one.digest: (entry, one)
        for entry, one in _certificates(open_evidence(state, directory), "", "")
        if one.digest.removeprefix("sha256:").startswith(wanted)
    }
    if len(found) != 1 or not wanted:
        raise errors.InputInvalid(
            f"{len(found)} certificates begin with {certificate!r}",
            remedy="list them with `fleet evidence list` and give more characters",
        )
    (entry, one) = next(iter(found.values()))
    if html is not None:
        written = pages_certificate.write(
            html, open_evidence(state, directory, trust(key)), one.digest
        )
        if str(html) != pages_certificate.STDOUT:
            emit(
                written,
                as_json=as_json,
                render=lambda console: pages_certificate.told(console, written),
            )
        return
    answer = CertificateAnswer.of(_row(entry, one), statement=one.envelope.statement)
    emit(answer, as_json=as_json, render=lambda console: _show(console, entry, one))


@app.command()
def verify(
    place: archive.PlaceArgument = "",
    state: StateOption = None,
    directory: DirectoryOption = None,
    key: KeysOption = None,
    coordinator_key: CoordinatorKeysOption = None,
    heads: HeadsOption = None,
    not_before: Annotated[
        str,
        typer.Option(
            "--not-before",
            metavar="TIME",
            help="The newest countersignature must not be older.",
            show_default=False,
        ),
    ] = "",
    at_least: Annotated[
        int,
        typer.Option("--at-least", metavar="N", help="So many certificates must be here.", min=0),
    ] = 0,
    *,
    as_json: AsJson = False,
) -> None:
    """Verify all certificates; exit code 1 if anything is wrong, or if there is none.

    A copy that was rolled back as a whole is whole by itself: compare it with what you know from
    elsewhere, with --not-before, --at-least, or --heads and an earlier copy.
    """
    demand = Demand(moment(not_before), at_least, now=time.time())
    trusted = trust(key), ring(coordinator_key)
    collection = open_evidence(state, directory, *trusted, place=place)
    if heads is not None:
        take_heads(collection, heads, ring(coordinator_key))
    report = verifying.verify(collection, demand)
    emit(
        VerifyAnswer(**report.as_json()),
        as_json=as_json,
        render=lambda console: _report(console, report),
    )
    if not report.ok:
        raise typer.Exit(1)


@app.command()
def export(
    target: Annotated[
        str, typer.Argument(help="Directory to write, new or empty; or an archive, with --to.")
    ],
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="Directory to write an archive's evidence to."),
    ] = None,
    state: StateOption = None,
    directory: DirectoryOption = None,
    node: NodeOption = "",
    device: DeviceOption = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Copy certificates, keys and countersignatures to a directory that verifies by itself."""
    place = target if to is not None else ""
    if to is None and target.startswith(archive.SCHEME):
        raise errors.InputInvalid("an archive is copied to a directory", remedy="add --to DIR")
    collection = open_evidence(state, directory, place=place)
    done = exporting.export(collection, to or Path(target), node=node, device=device)
    answer = ExportAnswer(
        directory=str(done.directory),
        certificates=done.certificates,
        omitted=done.omitted,
        countersignatures=done.countersignatures,
    )

    def render(console: Console) -> None:
        console.print(
            f"{done.certificates} certificates and {done.countersignatures} countersignatures"
            f" written to {done.directory}"
        )
        console.print(
            f"verify: fleet evidence verify --directory {done.directory} --key FILE"
            " --coordinator-key FILE (keys from elsewhere)"
        )

    emit(answer, as_json=as_json, render=render)


# --- reading --------------------------------------------------------------------------------------


def ring(paths: list[Path] | None) -> KeyRing | None:
    """Keys the caller trusts. Raises `KeyUnusable`: a key named and not usable is no finding."""
    if not paths:
        return None
    found = KeyRing.load(*paths)
    for _, error in found.unreadable:
        raise error
    if not len(found):
        raise errors.KeyUnusable(
            f"no {PUBLIC_SUFFIX} file in {', '.join(map(str, paths))}",
            remedy="name the public key files, or a directory that holds them",
        )
    return found


def trust(keys: list[str] | None) -> Trust | None:
    """Keys as given with --key. ``NODE=FILE`` counts for that node only, ``FILE`` for all."""
    if not keys:
        return None
    anyone: list[Path] = []
    nodes: dict[str, list[Path]] = {}
    for key in keys:
        node, equals, file = key.partition("=")
        if equals and not Path(key).exists():
            nodes.setdefault(checked_name(node), []).append(Path(file))
        else:
            anyone.append(Path(key))
    rings = {node: found for node, paths in nodes.items() if (found := ring(paths))}
    return Trust(ring(anyone) or KeyRing(), rings)


def open_evidence(
    state: Path | None,
    directory: Path | None,
    keys: Trust | None = None,
    coordinator_keys: KeyRing | None = None,
    *,
    place: str = "",
) -> Collection:
    """What the options name, or the archive at `place`. Raises as `collect` does."""
    if place:
        return archive.collected(place, state, keys, coordinator_keys)
    found = directory if directory is not None else state_directory(state)
    return collect(found, keys, coordinator_keys=coordinator_keys)


def _certificates(
    collection: Collection, node: str, device: str
) -> Iterator[tuple[Entry, parsed.Certificate]]:
    for log in collection.ledgers:
        if node and log.node != node:
            continue
        for found in log.scan(Sequence()):
            if isinstance(found, Damage) or found.envelope is None:
                continue
            try:
                one = parsed.read(found.envelope)
            except errors.EvidenceInvalid:
                continue  # `verify` names it; it must not hide the others
            if any(parsed.contradictions(one)):
                continue  # likewise, whoever signed it
            if not device or device in (one.device, one.device_name):
                yield found, one


def _row(entry: Entry, one: parsed.Certificate) -> CertificateRow:
    predicate = one.predicate
    return CertificateRow(
        certificate=one.digest,
        number=entry.number,
        place=StoredAt(file=entry.place.file, offset=entry.place.offset),
        node=one.node,
        device=one.device_name,
        uuid=one.device,
        simulated=one.simulated,
        issued_at=predicate["issued_at"],
        previous_holder=predicate["previous_holder"],
        token=predicate["token"],
        run=predicate["run"],
        bytes=predicate["bytes"],
        key_id=one.envelope.key_id,
    )


# --- printing -------------------------------------------------------------------------------------


def _add(table: Table, *cells: object) -> None:
    """A row of plain text: what a certificate says is never taken for markup."""
    table.add_row(*(Text(str(cell)) for cell in cells))


def _simulated_banner(console: Console, found: list[parsed.Certificate]) -> None:
    text.warn(console, simulated=any(one.simulated for one in found))


def _show(console: Console, entry: Entry, one: parsed.Certificate) -> None:
    found = one.predicate
    _simulated_banner(console, [one])
    console.print(Text(found["summary"], style="bold"))
    table = Table.grid(padding=(0, 2))
    for name, value in _facts(entry, one):
        table.add_row(Text(name, style="dim"), Text(value))
    console.print(table)
    scope = text.table("region", "covered", "cleared by", "verified", "bytes", title="scope")
    for region in found["scope"]:
        _add(
            scope,
            region["region"],
            "yes" if region["covered"] else "NO",
            region["cleared_by"],
            region["verified"],
            "-" if region["bytes"] is None else text.size(region["bytes"]),
        )
    console.print(scope)
    checks = text.table("check", "verdict", "detail", title="health")
    for check in found["health"]["findings"]:
        _add(checks, check["check"], check["verdict"], check["detail"])
    console.print(checks)


def _facts(entry: Entry, one: parsed.Certificate) -> Iterator[tuple[str, str]]:
    found = one.predicate
    figures, reset, wipe = found["bytes"], found["reset"], found["sanitization"]
    yield "certificate", one.digest
    yield "stored at", str(entry.place)
    yield "signed with", f"{one.envelope.key_id[:SHORT_ID]} ({found['signer']['service']})"
    yield "device", f"{one.device_name}  {one.device}"
    yield "node, boot", f"{one.node}  {found['boot_id']}"
    yield "holder before", found["previous_holder"]
    yield "token", found["token"] or "none (wiped while nobody held it)"
    yield "run, claim", f"{found['run'] or '-'}, {found['claim'] or '-'}"
    yield "technique", f"{wipe['standard']} {wipe['technique']}: {wipe['method']}"
    yield "pattern", f"{wipe['pattern']}, nonce sha256 {wipe['nonce_sha256']}"
    rest = f"{figures['reserved']} reserved, {figures['residual']} residual"
    yield "bytes", f"{figures['covered']} covered of {figures['total']} total, {rest}"
    yield "verification", f"{found['verification']['status']}: {found['verification']['method']}"
    yield "self-test", found["verification"]["self_test"]
    yield "validation", f"{found['validation']['status']}: {found['validation']['words']}"
    yield "reset", f"{reset['method'] if reset['performed'] else 'none'}: {reset['reason']}"
    yield "posture", ", ".join(f"{k}={v}" for k, v in sorted(found["posture"].items())) or "-"
    yield "time", f"{found['started_at']} to {found['ended_at']}, issued {found['issued_at']}"
    yield "software", f"{found['software']['name']} {found['software']['version']}"
    for unit, link in sorted(one.chain.items()):
        yield f"unit {unit}", f"number {link.sequence}, after {link.previous or 'none'}"


def _report(console: Console, report: verifying.Report) -> None:
    text.warn(console, simulated=bool(report.simulated))
    for damage in report.defects:
        console.print(
            Text.assemble((f"{damage.code}: ", "bold red"), f"{damage.place}: {damage.detail}")
        )
    for note in report.notes:
        console.print(Text(f"note: {note}", style="dim"))
    omitted = f" ({report.omitted} more left out of this copy)" if report.omitted else ""
    console.print(
        f"{report.certificates} certificates{omitted} in {report.ledgers} ledgers over"
        f" {report.units} units; {report.countersigned} countersigned by"
        f" {report.countersignatures} countersignatures"
    )
    style = "bold green" if report.ok else "bold red"
    if report.ok and (report.doubts or report.countersigned_at is None):
        style = "bold yellow"
    console.print(Text(report.verdict, style=style))
