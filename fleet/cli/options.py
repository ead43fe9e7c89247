"""Options several verbs share, and the reading of sizes."""

from __future__ import annotations

import getpass
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from fleet.core import errors, logs

DEFAULT_STATE = "~/.local/state/fleetscrub"
ADDRESS = "FLEET_ADDRESS"
"""Where it is set, as in the pod of Ray's head, verbs go through that Ray without being told."""


def _log_format(told: str) -> str:
    if told not in ("", *logs.LogFormat):
        raise errors.InputInvalid(
            f"{told!r} is no format of a log", remedy=f"write {' or '.join(logs.LogFormat)}"
        )
    return told


StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        envvar="FLEET_STATE",
        help=f"State directory; {DEFAULT_STATE} when not given.",
        show_default=False,
    ),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="RAY",
        envvar=ADDRESS,
        help="Address of a running Ray whose node actors own the devices.",
        show_default=False,
    ),
]
OperatorOption = Annotated[
    str | None,
    typer.Option(
        "--operator",
        metavar="NAME",
        help="Who decides, for the record; your login name when not given.",
        show_default=False,
    ),
]
LogFormatOption = Annotated[
    str,
    typer.Option(
        "--log-format",
        metavar="FORMAT",
        envvar=logs.FORMAT,
        callback=_log_format,
        help="How log lines look: text, or json for one object a line.",
        show_default=False,
    ),
]


def state_directory(state: Path | None) -> Path:
    """The state directory to use, absolute."""
    return (state or Path(DEFAULT_STATE)).expanduser().absolute()


def operator_name(operator: str | None) -> str:
    """The name an operator's decision is recorded under."""
    if operator:
        return operator
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def moment(told: str, *, end: bool = False) -> float | None:
    """Seconds since the epoch of an ISO time, UTC when it names no zone; None for "".

    `end`: a day stands for its last moment. Raises `InputInvalid`.
    """
    if not told:
        return None
    try:
        found = datetime.fromisoformat(told)
    except ValueError as error:
        raise errors.InputInvalid(
            f"{told!r} is not a time", remedy="write it like 2026-01-31 or 2026-01-31T12:00:00"
        ) from error
    if end and len(told) <= len("2026-01-31"):
        found = found.replace(hour=23, minute=59, second=59, microsecond=999_999)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
