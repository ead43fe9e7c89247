"""The log of a service: lines for people, or one JSON object a line for what collects them.

Every line carries what is known about it: claim, device, token, run and node, from where the work
was taken up (`about`), so that whoever logs deep below needs no word about it. Threads begin with
nothing known: whoever starts one for a piece of work says again what it is about.

Decisions:

1. The format is asked for by option or by ``FLEET_LOG_FORMAT``, which child processes and Ray's
   actors inherit; a wrong value is text and a warning, never a service that does not start.
2. Whatever would act on a terminal is written out, in both formats: a log is read with `cat` too.
   That holds for a command without a log as well, whose warnings Python itself prints (`guard`).
3. Uncaught errors of any thread are lines of the log like all others.
4. Ray keeps the standard error of actors in files of its session, where its dashboard finds them.
   ``FLEET_LOG_ALSO`` names what takes the lines besides: the container's own standard error.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import Any, TextIO

from fleet.core.terminal import visible

FORMAT = "FLEET_LOG_FORMAT"
LEVEL = "FLEET_LOG_LEVEL"
ALSO = "FLEET_LOG_ALSO"
"""A file that takes every line as well, such as the standard error of a container: Ray keeps that
of its processes in files of its own, where nobody who reads the pod's log sees it."""
FACTS = ("claim", "device", "token", "run", "node", "operation")
"""What a line can say it is about, in this order; each is a text, or absent."""
LOG = logging.getLogger(__name__)

OURS = ("fleet", "actors", "jobs", "node_plugin")
"""Loggers whose level is ours to choose; libraries are heard from warnings on."""

_about: ContextVar[Mapping[str, str] | None] = ContextVar("fleet_log_about", default=None)


class LogFormat(StrEnum):
    """How lines look."""

    TEXT = "text"
    JSON = "json"


@contextmanager
def about(**facts: object) -> Iterator[None]:
    """Within the block every line of this thread says it is about these; "" and None say nothing.

    Raises `ValueError` for a fact that is not one of `FACTS`.
    """
    if unknown := facts.keys() - set(FACTS):
        raise ValueError(f"no such fact: {', '.join(sorted(unknown))}")
    told = {name: str(value) for name, value in facts.items() if value not in (None, "")}
    token = _about.set({**(_about.get() or {}), **told})
    try:
        yield
    finally:
        _about.reset(token)


def begin(
    service: str,
    *,
    wanted: str = "",
    level: int | None = None,
    stream: TextIO | None = None,
    **facts: object,
) -> logging.Handler:
    """Log to `stream` (standard error) from now on, instead of whatever was set up before.

    `service` names the process; `facts` are those of every line, such as the node. `wanted` is an
    option's value, which child processes inherit; "" leaves it to ``FLEET_LOG_FORMAT``. Lines of
    ours are written from ``FLEET_LOG_LEVEL`` on, else `level`, else warnings. Raises nothing.
    """
    asked = wanted or os.environ.get(FORMAT, "")
    if wanted:
        os.environ[FORMAT] = wanted
    known = {name: str(value) for name, value in facts.items() if value}
    handler = logging.StreamHandler(stream or sys.stderr)
    as_json = asked == LogFormat.JSON
    root = logging.getLogger()
    for earlier in list(root.handlers):
        if getattr(earlier, "fleet_log", False) or type(earlier) is logging.StreamHandler:
            root.removeHandler(earlier)
            if isinstance(earlier, _Besides):
                earlier.close()
    for one in (handler, *_also(handler)):
        one.setFormatter(JsonLines(service, known) if as_json else TextLines(service, known))
        one.addFilter(_note)
        one.fleet_log = True  # type: ignore[attr-defined] # told from handlers of others
        root.addHandler(one)
    root.setLevel(logging.WARNING)
    for name in OURS:
        logging.getLogger(name).setLevel(_level(logging.WARNING if level is None else level))
    sys.excepthook = _uncaught
    threading.excepthook = _uncaught_in_thread
    if asked not in ("", *LogFormat):
        LOG.warning("%s is neither text nor json: text is written", asked)
    return handler


class _Besides(logging.StreamHandler[TextIO]):
    """Lines that are written a second time: whatever becomes of them is nobody's trouble."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - of the library
        """The first copy is there."""

    def close(self) -> None:
        """Let go of the second place."""
        super().close()
        with suppress(OSError):
            self.stream.close()


def _also(first: logging.StreamHandler[TextIO]) -> Iterator[logging.StreamHandler[TextIO]]:
    """The handler of `ALSO`, where it can be opened and is not what `first` writes to."""
    path = os.environ.get(ALSO, "")
    if not path:
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY)
        stream = os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", errors="replace")
    except OSError as error:
        LOG.debug("%s takes no lines: %s", path, error)
        return
    try:
        known = os.fstat(first.stream.fileno())
    except (OSError, ValueError, AttributeError):
        known = None
    found = os.fstat(descriptor)
    if known is not None and os.path.samestat(known, found):
        stream.close()
        return
    yield _Besides(stream)


def guard(service: str) -> None:
    """Have what is logged before, or without, `begin` look as it does after it: one line, nothing
    in it that acts on a terminal. For commands, which keep no log of their own."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(TextLines(service, {}))


class JsonLines(logging.Formatter):
    """One JSON object a line: ts, level, logger, service, message, facts, and the exception."""

    def __init__(self, service: str, known: Mapping[str, str]) -> None:
        super().__init__()
        self._service = service
        self._known = known

    def format(self, record: logging.LogRecord) -> str:
        """The line. Never raises: a message that cannot be put together is told as it is."""
        line: dict[str, Any] = {
            "ts": _moment(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "service": self._service,
            "message": visible(_message(record)),
        }
        line |= {name: visible(value) for name, value in _facts(record, self._known)}
        if record.exc_info:
            told = self.formatException(record.exc_info)
            line["exception"] = [visible(one) for one in told.splitlines()]
        return json.dumps(line, ensure_ascii=True)


class TextLines(logging.Formatter):
    """A line for people; what it is about stands in brackets at its end."""

    def __init__(self, service: str, known: Mapping[str, str]) -> None:
        super().__init__()
        self._service = service
        self._known = known

    def format(self, record: logging.LogRecord) -> str:
        """The line, and the traceback below it."""
        facts = ", ".join(f"{name} {value}" for name, value in _facts(record, self._known))
        line = (
            f"{_moment(record.created)} {record.levelname} {self._service} {record.name}:"
            f" {_message(record)}"
        )
        lines = [visible(f"{line} [{facts}]" if facts else line)]
        if record.exc_info:
            told = self.formatException(record.exc_info)
            lines += [f"  {visible(one)}" for one in told.splitlines()]
        return "\n".join(lines)


def _note(record: logging.LogRecord) -> bool:
    """Keep what the line is about with it: the stream may be written by another thread."""
    record.fleet_about = dict(_about.get() or {})
    return True


def _facts(record: logging.LogRecord, known: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What the line is about: told with it (`extra`), else by its thread, else by the process."""
    around = getattr(record, "fleet_about", {})
    for name in FACTS:
        value = getattr(record, name, None) or around.get(name) or known.get(name)
        if value:
            yield name, str(value)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError):
        return f"{record.msg} {record.args}"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _level(usual: int) -> int:
    return logging.getLevelNamesMapping().get(os.environ.get(LEVEL, "").upper(), usual)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    LOG.critical("an error that nobody caught", exc_info=(kind, error, trace))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not issubclass(args.exc_type, SystemExit):
        name = args.thread.name if args.thread is not None else "unknown"
        told = (args.exc_type, args.exc_value, args.exc_traceback)
        LOG.critical("an error that nobody caught in thread %s", name, exc_info=told)
