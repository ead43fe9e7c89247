"""`fleet lint`: manifests judged by the rules of admission, before anybody submits them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fleet import errors
from fleet.admission import rules
from fleet.admission.documents import Document, documents
from fleet.admission.ground import CLUSTER_NAMESPACE, DRIVER, WIPE_BUDGET_S, Ground
from fleet.cli import text
from fleet.cli.output import AsJson, emit

STANDARD_INPUT = "-"
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

    def __str__(self) -> str:
        what = " ".join(part for part in (self.object, self.path) if part)
        said = f"{what}: {self.wrong}" if what else self.wrong
        from_chart = f" ({self.source})" if self.source else ""
        return f"{self.file}:{self.line}: {self.rule} {said} — {self.remedy}{from_chart}"


@dataclass
class _Count:
    """What came along, whatever was found."""

    files: int = 0
    objects: int = 0
    elsewhere: int = 0
    """Objects of namespaces where the rules do not hold."""


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
        int, typer.Option(min=1, help="Grace period, seconds, that pods with claims need.")
    ] = WIPE_BUDGET_S,
    own_namespace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Namespace of the chart, never judged; again for each. Default: fleetscrub.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Everything is judged as if it were for a governed namespace, except what says it is for
    kube-system or for the chart's own namespace. Exit code 1 when anything was found.
    """
    ground = replace(Ground.of_driver(driver), wipe_budget_s=wipe_budget)
    if own_namespace:
        ground = replace(ground, own_namespaces=(*own_namespace, CLUSTER_NAMESPACE))
    if classes:
        ground = replace(ground, classes=tuple(classes))
    count, unread = _Count(), list[str]()
    found = list(_remarks(paths, ground, count, unread))
    document = {
        "files": count.files,
        "objects": count.objects,
        "not_governed": count.elsewhere,
        "findings": [asdict(remark) for remark in found],
        "unread": unread,
    }

    def render(console: Console) -> None:
        for remark in found:
            console.print(text.plain(str(remark)))
        console.print(text.plain(_summary(count, found)))

    emit(document, as_json=as_json, render=render)
    if unread:
        raise errors.InputInvalid(
            f"{len(unread)} could not be read: {'; '.join(unread)}",
            remedy="correct the paths named; the rest was judged",
        )
    if not count.objects and not count.elsewhere and not found:
        raise errors.InputInvalid(
            f"no Kubernetes object in {', '.join(paths)}",
            remedy="name manifests, or pipe in what `helm template` prints and say -",
        )
    raise typer.Exit(1 if found else 0)


def _summary(count: _Count, found: Sequence[Remark]) -> str:
    aside = f", {count.elsewhere} not governed" if count.elsewhere else ""
    said = f"{len(found)} finding{'' if len(found) == 1 else 's'}"
    return f"{count.objects} objects in {count.files} files judged{aside}: {said}"


def _remarks(
    paths: Sequence[str], ground: Ground, count: _Count, unread: list[str]
) -> Iterator[Remark]:
    for name, content in _texts(paths, unread):
        count.files += 1
        templated = False
        for found in documents(content):
            if isinstance(found, Document):
                yield from _judged(name, found, ground, count)
                continue
            if not (found.is_template and templated):  # once for a file says it
                yield Remark(name, found.line, BROKEN, "", "", found.wrong, found.remedy, "")
            templated = templated or found.is_template


def _judged(name: str, document: Document, ground: Ground, count: _Count) -> Iterator[Remark]:
    if not rules.is_judged(document.value, ground):
        count.elsewhere += 1
        return
    count.objects += 1
    for finding in rules.judge(document.value, ground):
        yield Remark(
            file=name,
            line=document.line_of(finding.path),
            rule=finding.rule,
            object=_called(document),
            path=finding.place,
            wrong=finding.wrong,
            remedy=finding.remedy,
            source=document.source,
        )


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
