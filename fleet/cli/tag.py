"""`fleet tag`: the authority that gives namespaces a right to devices, as signed tags."""

from __future__ import annotations

import secrets
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from fleet.cli import text
from fleet.cli.options import moment
from fleet.cli.output import AsJson, VerbAnswer, emit
from fleet.core import errors
from fleet.core.messages import Message
from fleet.evidence.keys import SHORT_ID
from fleet.plugin import tags, tags_list
from fleet.plugin.configuration import TAG_MAX, Deallocation
from fleet.plugin.tags import ANY, TagKeys, Use
from fleet.plugin.tags_authority import Authority, Right
from fleet.plugin.tags_file import TagKeyFile

DEFAULT_DIRECTORY = "~/.local/share/fleetscrub-tags"
SKEW_S = 300
"""Time, s, a tag is good before it is issued, for API servers whose clocks are behind."""
DAY_S = 86400

app = typer.Typer(no_args_is_help=True)
key_app = typer.Typer(no_args_is_help=True)
app.add_typer(key_app, name="key", help="Keys that tags are signed with, and the list of them.")

AuthorityOption = Annotated[
    Path | None,
    typer.Option(
        "--authority",
        metavar="DIR",
        envvar="FLEET_TAG_AUTHORITY",
        help=f"Directory of the tag authority; {DEFAULT_DIRECTORY} when not given.",
        show_default=False,
    ),
]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why, in your words.")]


@app.callback()
def tag() -> None:
    """Issue and verify isolation tags (docs/isolation-tags.md)."""


@key_app.command("new")
def key_new(authority: AuthorityOption = None, *, as_json: AsJson = False) -> None:
    """Make a tag authority: a root key, a key for tags, and the list signed by the root."""
    found = _authority(authority)
    found.create(now=_now())
    _show(found, as_json=as_json)


@key_app.command("list")
def key_list(authority: AuthorityOption = None, *, as_json: AsJson = False) -> None:
    """Show the keys, the tags revoked, and what nodes and the webhook must be told."""
    _show(_authority(authority), as_json=as_json)


@key_app.command("rotate")
def key_rotate(authority: AuthorityOption = None, *, as_json: AsJson = False) -> None:
    """Make a new key for tags; the old private key is destroyed, tags it signed stay good."""
    found = _authority(authority)
    found.rotate(now=_now())
    _show(found, as_json=as_json)


@key_app.command("revoke")
def key_revoke(
    key: Annotated[str, typer.Argument(help="Id of the key, or its first characters.")],
    *,
    reason: ReasonOption,
    authority: AuthorityOption = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key: all its tags are void once the list is where nodes and webhook read it."""
    found = _authority(authority)
    found.revoke_key(key.lower(), reason=reason, now=_now())
    _show(found, as_json=as_json)


@app.command()
def revoke(
    tag: Annotated[str, typer.Argument(help="The tag, or its id.")],
    *,
    reason: ReasonOption,
    authority: AuthorityOption = None,
    as_json: AsJson = False,
) -> None:
    """Revoke one tag: it is void once the list is where nodes and webhook read it."""
    found = _authority(authority)
    tag_id = _read(tag).tag.id if tag.startswith(tags.PREFIX) else tag.lower()
    if tags.ID.fullmatch(tag_id) is None:
        raise errors.InputInvalid(
            f"{tag[:SHORT_ID]!r} is no id of a tag: one has 32 hex digits",
            remedy="give the tag itself, or the id that `fleet tag verify` shows of it",
        )
    found.revoke_tag(tag_id, reason=reason, now=_now())
    _show(found, as_json=as_json)


@app.command()
def issue(
    *,
    namespace: Annotated[
        list[str], typer.Option("--namespace", help="Exact name of a namespace; again for each.")
    ],
    profile: Annotated[
        list[str] | None,
        typer.Option(
            "--profile",
            help="Profile of devices, such as 1g.10gb; whole: no partitions; any. Again for each."
            " Default: any.",
            show_default=False,
        ),
    ] = None,
    minimum: Annotated[
        Deallocation, typer.Option(help="Deallocation policy a claim must state at least.")
    ] = Deallocation.ZERO_FILL,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days that it is good for.")] = 90,
    not_before: Annotated[
        str, typer.Option(metavar="TIME", help="Good from then on; default: now.")
    ] = "",
    authority: AuthorityOption = None,
    as_json: AsJson = False,
) -> None:
    """Issue a tag: one line, for isolationTag in the opaque parameters of a claim or template."""
    found, now = _authority(authority), _now()
    begins = int(moment(not_before) or now)
    right = Right(
        namespaces=namespace,
        profiles=profile or [ANY],
        minimum=minimum,
        not_before=begins if not_before else now - SKEW_S,
        not_after=begins + days * DAY_S,
    )
    issued = found.issue(right, tag_id=secrets.token_hex(16), now=now)
    said = tags.read(issued).tag.as_json()

    def render(console: Console) -> None:
        console.print(text.plain(issued), soft_wrap=True)

    emit(TagAnswer(tag=issued, **said), as_json=as_json, render=render)


class TagContent(Message):
    """What a tag gives a right to."""

    id: str
    issued_at: str
    key_id: str
    minimum: str
    namespaces: tuple[str, ...]
    not_after: str
    not_before: str
    profiles: tuple[str, ...]


class TagAnswer(TagContent, VerbAnswer):
    """A tag that was issued."""

    kind: Literal["tag"] = "tag"
    tag: str


class TagVerdictAnswer(TagContent, VerbAnswer):
    """Whether a tag is good for a use."""

    kind: Literal["tag verify"] = "tag verify"
    list_number: int
    """Number of the list of tag keys it was judged by."""
    problems: tuple[str, ...]
    """Why it is not good; empty: it is."""


class TagKeyRow(Message):
    """A key that signs tags."""

    id: str
    public: str
    since: str
    until: str | None
    revoked_at: str | None
    reason: str


class RevokedTag(Message):
    """A tag that was revoked."""

    id: str
    reason: str
    revoked_at: str


class TagKeysAnswer(VerbAnswer):
    """The list of tag keys."""

    kind: Literal["tag key"] = "tag key"
    root: str
    issuer: str
    file: str
    issued_at: str
    number: int
    keys: tuple[TagKeyRow, ...]
    revoked_tags: tuple[RevokedTag, ...]


@app.command()
def verify(
    tag: Annotated[str, typer.Argument(help="The tag, or - to read it from standard input.")],
    *,
    namespace: Annotated[
        str, typer.Option(help="Namespace of the claim; without one, any of the tag's.")
    ] = "",
    profile: Annotated[
        str, typer.Option(help="Profile of the device: 1g.10gb, or whole; without one, any.")
    ] = "",
    deallocation: Annotated[
        Deallocation | None, typer.Option(help="What the claim states.", show_default=False)
    ] = None,
    at: Annotated[
        str, typer.Option(metavar="TIME", help="When the claim was created; default: now.")
    ] = "",
    keys: Annotated[
        Path | None,
        typer.Option(
            "--keys",
            metavar="FILE",
            help="Signed list of keys; default: that of the authority.",
            show_default=False,
        ),
    ] = None,
    root: Annotated[
        list[str] | None,
        typer.Option("--root", help="Id of a root key that may sign the list (with --keys)."),
    ] = None,
    authority: AuthorityOption = None,
    as_json: AsJson = False,
) -> None:
    """Say what a tag gives a right to, and whether it is good for this use; exit code 1: no."""
    given = sys.stdin.read(TAG_MAX + 2).strip() if tag == "-" else tag.strip()
    signed = _read(given)
    known = _keys(keys, root, authority)
    use = Use(
        namespace=namespace or signed.tag.namespaces[0],
        created_at=moment(at) or time.time(),
        deallocation=deallocation,
        profile=profile or None,
    )
    found = [f"{wrong}; write {write}" for wrong, write in tags.judge(signed, known, use)]
    said = TagVerdictAnswer(**signed.tag.as_json(), list_number=known.number, problems=tuple(found))

    def render(console: Console) -> None:
        for name, value in signed.tag.as_json().items():
            shown = ", ".join(value) if isinstance(value, list) else str(value)
            console.print(text.plain(f"{name}: {shown}"))
        for problem in found:
            console.print(text.plain(f"NOT GOOD: {problem}"))
        if not found:
            console.print(text.plain(f"good, by list {known.number} of tag keys"))

    emit(said, as_json=as_json, render=render)
    raise typer.Exit(1 if found else 0)


def _read(given: str) -> tags.Signed:
    """The tag given. Raises `InputInvalid` for what is none, `TagInvalid` for one that is broken.

    An argument that is no tag is a mistake of whoever typed it, not a finding about a tag.
    """
    try:
        return tags.read(given)
    except tags.TagInvalid as error:
        if given.startswith(f"{tags.PREFIX}."):
            raise tags.TagInvalid(
                f"the tag is not good: {error.detail}", remedy=error.remedy
            ) from error
        raise errors.InputInvalid(
            f"{given[:SHORT_ID]!r} {error.detail}",
            remedy="give the whole line that `fleet tag issue` printed",
        ) from error


def _keys(keys: Path | None, root: list[str] | None, authority: Path | None) -> TagKeys:
    if keys is None:
        return _authority(authority).keys()
    if not root:
        raise errors.InputInvalid(
            "a list of keys is worth what its root is",
            remedy="name the root key that must have signed it with --root",
        )
    return TagKeyFile(keys, root).keys()


def _authority(directory: Path | None) -> Authority:
    return Authority((directory or Path(DEFAULT_DIRECTORY)).expanduser().absolute())


def _now() -> int:
    return int(time.time())


def _show(authority: Authority, *, as_json: bool) -> None:
    keys = authority.keys()
    document = tags_list.as_json(keys)
    answer = TagKeysAnswer(
        root=authority.root, issuer=authority.issuer, file=str(authority.list_path), **document
    )

    def render(console: Console) -> None:
        table = text.table("key", "listed", "replaced", "revoked", "why")
        for row in document["keys"]:
            times = [row[name] or "-" for name in ("since", "until", "revoked_at")]
            cells = [row["id"][:SHORT_ID], *times, row["reason"] or "-"]
            table.add_row(*(Text(cell) for cell in cells))
        console.print(table)
        for row in document["revoked_tags"]:
            told = f"tag {row['id']} revoked {row['revoked_at']}: {row['reason']}"
            console.print(text.plain(told))
        console.print(text.plain(f"list {document['number']}: {answer.file}"))
        console.print(text.plain(f"root: {answer.root}"))

    emit(answer, as_json=as_json, render=render)
