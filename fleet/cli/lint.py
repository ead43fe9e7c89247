"""`fleet lint`: manifests judged by the rules of admission, before anybody submits them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from fleet.admission import documents, rules
from fleet.admission.documents import Document
from fleet.admission.ground import CLUSTER_NAMESPACE, DRIVER, Ground
from fleet.cli import text
from fleet.cli.output import AsJson, VerbAnswer, emit
from fleet.core import errors
from fleet.kube.shapes import is_sharing, is_understood

STANDARD_INPUT = "-"
REFUSED, INCOMPLETE = 1, 3
"""Exit codes: something is refused; nothing is, but not all could be judged."""
BROKEN = "document"
"""Rule id of what cannot be read."""
SUFFIXES = (".yaml", ".yml", ".json")
SIZE_MAX = 64 * 2**20
"""Size, bytes, of a file; what is larger holds no manifests."""


@dataclass(frozen=True, slots=True)
class Remark:
    """A finding with where it is, as it is printed."""

    file: str
    line: int
    rule: str
    object: str
    """Kind and name of what it is about."""
    path: str
    wrong: str
    remedy: str
    source: str
    """The chart's template, where Helm says it."""
    refuses: bool = True
    """Whether admission, or the API server, refuses it; False: it is advice."""

    def __str__(self) -> str:
        what = " ".join(part for part in (self.object, self.path) if part)
        said = f"{what}: {self.wrong}" if what else self.wrong
        said = said if self.refuses else f"advice: {said}"
        from_chart = f" ({self.source})" if self.source else ""
        return f"{self.file}:{self.line}: {self.rule} {said} — {self.remedy}{from_chart}"


@dataclass(frozen=True, slots=True)
class Unjudged:
    """An object that nothing can be said about."""

    file: str
    line: int
    object: str
    why: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: not judged: {self.object}: {self.why}"


@dataclass
class _Count:
    """What came along, whatever was found."""

    files: int = 0
    objects: int = 0
    unjudged: list[Unjudged] = field(default_factory=list)


class LintAnswer(VerbAnswer):
    """What was judged, and what was found."""

    kind: Literal["lint"] = "lint"
    files: int
    objects: int
    """Objects judged."""
    not_judged: tuple[Unjudged, ...]
    findings: tuple[Remark, ...]
    unread: tuple[str, ...]
    """What could not be read, and why."""


def lint(
    paths: Annotated[
        list[str], typer.Argument(help="Files, directories, or - for what Helm printed.")
    ],
    *,
    driver: Annotated[str, typer.Option(help="Name of the driver.")] = DRIVER,
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", help="A governed device class; again for each. Default: ours."),
    ] = None,
    wipe_budget: Annotated[
        int | None,
        typer.Option(
            min=1, help="Grace period, seconds, that pods with claims need.", show_default="30"
        ),
    ] = None,
    own_namespace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Namespace of the chart, never judged; again for each. Default: fleetscrub.",
        ),
    ] = None,
    podless: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="A kind that makes no pods, where lint cannot tell; again for each.",
        ),
    ] = None,
    values: Annotated[
        str,
        typer.Option(metavar="FILE", help="Values of our chart, with what the cluster allows."),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Everything is judged as if it were for a governed namespace, except what says it is for
    kube-system or for the chart's own namespace.

    Exit code 0: all was judged, and nothing is refused; 1: something is refused; 2: something could
    not be read; 3: nothing is refused, but not all could be judged.
    """
    ground = _ground(values) if values else Ground.of_driver(driver)
    ground = replace(ground, wipe_budget_s=wipe_budget) if wipe_budget else ground
    if own_namespace:
        ground = replace(ground, own_namespaces=(*own_namespace, CLUSTER_NAMESPACE))
    if classes:
        ground = replace(ground, classes=tuple(classes))
    count, unread = _Count(), list[str]()
    found = list(_remarks(paths, _Judging(ground, frozenset(podless or ()), count), unread))
    answer = LintAnswer(
        files=count.files,
        objects=count.objects,
        not_judged=tuple(count.unjudged),
        findings=tuple(found),
        unread=tuple(unread),
    )

    def render(console: Console) -> None:
        for remark in found:
            console.print(text.plain(str(remark)))
        for one in count.unjudged:
            console.print(text.plain(str(one)))
        console.print(text.plain(_summary(count, found)))

    emit(answer, as_json=as_json, render=render)
    if unread:
        raise errors.InputInvalid(
            f"{len(unread)} could not be read: {'; '.join(unread)}",
            remedy="correct the paths named; the rest was judged",
        )
    if not count.objects and not count.unjudged and not found:
        raise errors.InputInvalid(
            f"no Kubernetes object in {', '.join(paths)}",
            remedy="name manifests, or pipe in what `helm template` prints and say -",
        )
    if any(remark.refuses for remark in found):
        raise typer.Exit(REFUSED)
    raise typer.Exit(INCOMPLETE if count.unjudged else 0)


def _ground(file: str) -> Ground:
    """What a values file of the chart says of the cluster."""
    try:
        content = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise errors.InputInvalid(
            f"{file} cannot be read: {error}", remedy="name a values file of the chart"
        ) from error
    return Ground.of_values(documents.values(content))


def _summary(count: _Count, found: Sequence[Remark]) -> str:
    refused = sum(remark.refuses for remark in found)
    advice = len(found) - refused
    aside = f", {len(count.unjudged)} not judged" if count.unjudged else ""
    said = f"{refused} finding{'' if refused == 1 else 's'}"
    more = f", {advice} of advice" if advice else ""
    return f"{count.objects} objects in {count.files} files judged{aside}: {said}{more}"


@dataclass(frozen=True, slots=True)
class _Judging:
    """What documents are judged by, and where it is counted."""

    ground: Ground
    podless: frozenset[str]
    count: _Count

    def unjudged(self, document: Document) -> str:
        """Why nothing can be said about an object; "": it is judged."""
        namespace = rules.namespace(document.value)
        if not rules.is_judged(document.value, self.ground):
            return f"the rules do not hold in namespace {namespace}"
        kind = str(document.value.get("kind"))
        if kind in self.podless or is_understood(document.value):
            return ""
        if is_sharing(document.value):
            return (
                "its pods share one claim, which is not served: leave resourceClaims out of it, so"
                " that each pod gets a claim of its own"
            )
        return (
            "no pods were found in a kind that is not known here; their own manifests are judged"
            " when they are made, or say --podless"
        )

    def remarks(self, name: str, document: Document) -> Iterator[Remark]:
        """What there is to say about a document."""
        if why := self.unjudged(document):
            self.count.unjudged.append(Unjudged(name, document.line, _called(document), why))
            return
        self.count.objects += 1
        for finding in rules.judge(document.value, self.ground):
            yield Remark(
                file=name,
                line=document.line_of(finding.path),
                rule=finding.rule,
                object=_called(document),
                path=finding.place,
                wrong=finding.wrong,
                remedy=finding.remedy,
                source=document.source,
                refuses=finding.refuses,
            )


def _remarks(paths: Sequence[str], judging: _Judging, unread: list[str]) -> Iterator[Remark]:
    for name, content in _texts(paths, unread):
        judging.count.files += 1
        templated = False
        for found in documents.documents(content):
            if isinstance(found, Document):
                yield from judging.remarks(name, found)
                continue
            if not (found.is_template and templated):  # once for a file says it
                yield Remark(name, found.line, BROKEN, "", "", found.wrong, found.remedy, "")
            templated = templated or found.is_template


def _called(document: Document) -> str:
    metadata = document.value.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{document.value.get('kind')}/{name or ''}".rstrip("/")


def _texts(paths: Sequence[str], unread: list[str]) -> Iterator[tuple[str, str]]:
    """Name and text of every file; what cannot be read goes to `unread`, and the rest goes on."""
    for given in paths:
        if given == STANDARD_INPUT:
            content = sys.stdin.buffer.read(SIZE_MAX + 1)
            yield from _decoded("<stdin>", content, unread)
            continue
        try:
            for one in _files(Path(given)):
                with one.open("rb") as opened:
                    content = opened.read(SIZE_MAX + 1)
                yield from _decoded(str(one), content, unread)
        except OSError as error:
            unread.append(f"{error.filename or given}: {error.strerror}")


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for one in sorted(path.rglob("*")):
        hidden = any(part.startswith(".") for part in one.relative_to(path).parts)
        if one.suffix in SUFFIXES and not hidden and one.is_file():
            yield one


def _decoded(name: str, content: bytes, unread: list[str]) -> Iterator[tuple[str, str]]:
    if len(content) > SIZE_MAX:
        unread.append(f"{name}: larger than {SIZE_MAX} bytes")
        return
    try:
        yield name, content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        unread.append(f"{name}: no UTF-8 text (byte {error.start})")
