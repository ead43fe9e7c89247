"""`fleet node standby`: the process that owns a node while Ray does not."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from fleet.cli.options import LogFormatOption
from fleet.core import logs, termination
from fleet.node.standby import Patience
from fleet.wiring import plugin

STEP_S = 0.2
"""Period, s, of the standby's step."""


def standby(
    *,
    plan: Annotated[Path, typer.Option("--plan", help="File with the node's plan, as JSON.")],
    grace: Annotated[
        float, typer.Option("--grace", help="Seconds without an owner before it takes over.")
    ] = Patience().grace_s,
    supervised: Annotated[
        bool,
        typer.Option("--supervised", help="End when standard input is closed."),
    ] = False,
    log_format: LogFormatOption = "",
) -> None:
    """Own the node whenever nobody else does, and let go of it when a node actor asks."""
    known = plugin.read_plan(plan)
    logs.begin("standby", wanted=log_format, node=known.node)
    stop = threading.Event()
    termination.told(stop)
    if supervised:
        threading.Thread(target=_watch_parent, args=(stop,), daemon=True).start()
    standing = plugin.open_standby(known, Patience(grace_s=grace))
    try:
        while not stop.is_set():
            standing.step()
            stop.wait(STEP_S)
    finally:
        standing.close()


def _watch_parent(stop: threading.Event) -> None:
    # A thread in a buffered read would abort the process when the interpreter ends.
    while os.read(sys.stdin.fileno(), 1024):
        pass
    stop.set()
