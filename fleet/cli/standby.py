"""`fleet node standby`: the process that owns a node while Ray does not."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from fleet import errors, plugging
from fleet.bootstrap import NodePlan

STEP_S = 0.2
"""Period, s, of the standby's step."""


def standby(
    *,
    plan: Annotated[Path, typer.Option("--plan", help="File with the node's plan, as JSON.")],
    supervised: Annotated[
        bool,
        typer.Option("--supervised", help="End when standard input is closed."),
    ] = False,
) -> None:
    """Own the node whenever nobody else does, and let go of it when a node actor asks."""
    logging.basicConfig(level=logging.WARNING, format="standby: %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if supervised:
        threading.Thread(target=_watch_parent, args=(stop,), daemon=True).start()
    standing = plugging.open_standby(_plan(plan))
    try:
        while not stop.is_set():
            standing.step()
            stop.wait(STEP_S)
    finally:
        standing.close()


def _watch_parent(stop: threading.Event) -> None:
    sys.stdin.buffer.read()
    stop.set()


def _plan(path: Path) -> NodePlan:
    try:
        return NodePlan.model_validate_json(path.read_text())
    except (OSError, ValidationError) as error:
        raise errors.InputInvalid(
            f"{path} is no plan of a node: {error}",
            remedy="name the plan.json that the node plugin wrote in the node's state directory",
        ) from error
