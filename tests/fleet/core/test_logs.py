"""The log of a service, as people and as machines read it."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.core import logs

LOG = logging.getLogger("fleet.test_logs")
HOSTILE = 'claim \x1b[2J\n{"level": "forged"}\u202e'


@pytest.fixture(autouse=True)
def around(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything that `begin` changes of the process, put back."""
    monkeypatch.delenv(logs.FORMAT, raising=False)
    monkeypatch.delenv(logs.LEVEL, raising=False)
    root = logging.getLogger()
    kept, level = list(root.handlers), root.level
    hooks, levels = (sys.excepthook, threading.excepthook), {}
    for name in logs.OURS:
        levels[name] = logging.getLogger(name).level
    yield
    root.handlers[:], sys.excepthook, threading.excepthook = kept, *hooks
    root.setLevel(level)
    for name, found in levels.items():
        logging.getLogger(name).setLevel(found)


def begun(wanted: str = "json", **more: Any) -> io.StringIO:
    """A service that logs into memory."""
    stream = io.StringIO()
    logs.begin("tester", wanted=wanted, stream=stream, **more)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    """What was logged, line by line as JSON."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_and_says_what_it_is_about() -> None:
    """E4: ts, level, logger, service, message, and claim, device, token, run, node where known."""
    stream = begun(node="n1")
    lease = {"claim": "uid-1", "token": "1.7"}
    with logs.about(**lease), logs.about(device="GPU-1", run="", operation=None):
        LOG.warning("wiped %d bytes", 5)
    LOG.warning("outside", extra={"claim": "uid-2"})
    first, second = lines(stream)
    assert first.pop("ts").endswith("Z")
    assert first == {
        "level": "warning",
        "logger": "fleet.test_logs",
        "service": "tester",
        "message": "wiped 5 bytes",
        "claim": "uid-1",
        "device": "GPU-1",
        "token": "1.7",
        "node": "n1",
    }
    assert (second["claim"], "device" in second) == ("uid-2", False)


@pytest.mark.parametrize("wanted", list(logs.LogFormat))
def test_nothing_of_others_acts_or_forges_a_line(wanted: str) -> None:
    """E4: escapes, line breaks and reading order in names and errors are written out."""
    stream = begun(wanted)
    with logs.about(claim=HOSTILE):
        LOG.warning("refused: %s", HOSTILE)
    written = stream.getvalue()
    assert written.count("\n") == 1
    assert not {"\x1b", "\u202e"} & set(written)
    assert "\\x1b[2J" in written.replace("\\\\", "\\")


@pytest.mark.parametrize("wanted", list(logs.LogFormat))
def test_an_error_is_told_with_its_trace(wanted: str) -> None:
    """Whoever reads the log of a node at night finds the fault in it, in either format."""
    stream = begun(wanted)
    try:
        int(HOSTILE)
    except ValueError:
        LOG.exception("the step failed")
    written = stream.getvalue()
    assert "ValueError" in written
    assert "\x1b" not in written
    if wanted == logs.LogFormat.JSON:
        (line,) = lines(stream)
        assert line["exception"][0] == "Traceback (most recent call last):"


def test_what_nobody_caught_is_a_line_too() -> None:
    """A thread that dies of an error says so in the log's own format, and so does the process."""
    stream = begun()

    def fall() -> None:
        raise RuntimeError("in a thread")

    thread = threading.Thread(target=fall, name="worker-7")
    thread.start()
    thread.join()
    error = RuntimeError("at the top")
    sys.excepthook(RuntimeError, error, None)
    first, second = lines(stream)
    assert "worker-7" in first["message"]
    assert "in a thread" in first["exception"][-1]
    assert "at the top" in second["exception"][-1]


def test_threads_do_not_inherit_what_another_work_is_about() -> None:
    """One claim's trouble is never told as another's: a thread starts with nothing known."""
    stream = begun()
    with logs.about(claim="uid-1"):
        thread = threading.Thread(target=lambda: LOG.warning("mine"))
        thread.start()
        thread.join()
    (line,) = lines(stream)
    assert "claim" not in line


def test_an_unknown_fact_is_a_mistake() -> None:
    """Labels of a log are few and fixed, so that queries over it find everything."""
    with pytest.raises(ValueError, match="colour"), logs.about(colour="red"):
        pass


def test_the_format_is_inherited_and_a_wrong_one_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An option counts for child processes as well; a wrong variable is text and a warning."""
    begun("json")
    assert os.environ[logs.FORMAT] == "json"
    monkeypatch.setenv(logs.FORMAT, "xml")
    stream = begun("")
    assert "xml is neither text nor json" in stream.getvalue()


def test_levels_are_of_our_own_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLEET_LOG_LEVEL opens our own loggers; libraries stay at warnings."""
    monkeypatch.setenv(logs.LEVEL, "debug")
    stream = begun()
    LOG.debug("ours")
    logging.getLogger("urllib3").info("theirs")
    logging.getLogger("urllib3").warning("loud")
    assert [line["message"] for line in lines(stream)] == ["ours", "loud"]


@pytest.mark.parametrize(
    "formatter", [logs.JsonLines("tester", {}), logs.TextLines("tester", {})], ids=["json", "text"]
)
def test_a_message_that_cannot_be_put_together_is_told(formatter: logging.Formatter) -> None:
    """A mistake in a call of the log costs no line, and no work."""
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "%d bytes", ("many", 2), None)
    assert "%d bytes ('many', 2)" in formatter.format(record)


def test_beginning_again_writes_no_line_twice() -> None:
    """A process that begins its log anew has one log."""
    first, second = begun(), begun()
    LOG.warning("once")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


def test_f69_a_command_without_a_log_writes_out_what_would_act() -> None:
    """F69: what Python prints of a log that nobody set up is one line, and nothing in it acts."""
    program = """
import logging, sys
from fleet.cli.main import run
sys.argv = ["fleet", "--version"]
try:
    run()
except SystemExit:
    logging.getLogger("fleet.kube").warning("claim %s", "a\\x1b[2J\\nERROR forged")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr.count("\n") == 1
    assert r"fleet.kube: claim a\x1b[2J\nERROR forged" in done.stderr


def test_f71_lines_are_written_to_a_second_place_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F71: the log of the container that Ray runs in; where that cannot be, and once nobody reads
    it any more, the first place is as good as ever."""
    reading, writing = os.pipe()
    first = io.StringIO()
    monkeypatch.setenv(logs.ALSO, f"/proc/{os.getpid()}/fd/{writing}")
    logs.begin("coordinator", stream=first)
    logging.getLogger("fleet.x").warning("said")
    assert os.read(reading, 1000).decode() == first.getvalue()
    os.close(reading)
    logging.getLogger("fleet.x").warning("nobody reads it")
    os.close(writing)
    for path in (tmp_path / "nothing", tmp_path):
        monkeypatch.setenv(logs.ALSO, str(path))
        logs.begin("coordinator", stream=first)
        logging.getLogger("fleet.x").warning("at %s", path)
    assert [line.rpartition(": ")[2] for line in first.getvalue().splitlines()] == [
        "said",
        "nobody reads it",
        f"at {tmp_path / 'nothing'}",
        f"at {tmp_path}",
    ]
    log = tmp_path / "log"
    monkeypatch.setenv(logs.ALSO, str(log))
    with log.open("a") as own:
        logs.begin("coordinator", stream=own)
        logging.getLogger("fleet.x").warning("once")
    assert log.read_text().count("once") == 1
    monkeypatch.delenv(logs.ALSO)
    logs.begin("coordinator", stream=first)
