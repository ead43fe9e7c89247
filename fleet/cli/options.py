"""Options several verbs share, and the reading of sizes."""

from __future__ import annotations

import getpass
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from fleet.core import errors, logs

DEFAULT_STATE = "~/.local/state/fleetscrub"
ADDRESS = "FLEET_ADDRESS"
"""Where it is set, as in the pod of Ray's head, verbs go through that Ray without being told."""
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
