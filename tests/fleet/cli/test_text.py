"""Numbers, states and reasons as an operator reads them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from fleet.cli import quarantine, status, text
from fleet.core.messages import DeviceView, NodeView, ReasonView, Replication

HOSTILE = "t\x1b[2J\n\x1b]0;pwn"


@pytest.mark.parametrize(
    ("count", "expected"),
    [(0, "0 B"), (1023, "1023 B"), (64 * 2**20, "64.0 MiB"), (3 * 2**40, "3.0 TiB")],
)
def test_bytes_are_shown_with_a_binary_unit(count: int, expected: str) -> None:
    """Memory is shown in the unit operators size it in."""
    assert text.size(count) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.25, "0.2 s"), (59.9, "59 s"), (125, "2 min 05 s"), (7900, "2 h 11 min")],
)
def test_durations_are_shown_in_at_most_two_units(seconds: float, expected: str) -> None:
    """A duration is read at a glance."""
    assert text.duration(seconds) == expected


def test_a_digest_is_cut_to_what_finds_it() -> None:
    """Twelve hex digits find a certificate; none is a dash."""
    assert text.digest("sha256:" + "ab" * 32) == "abababababab"
    assert text.digest("") == "-"


def test_a_reason_is_shown_with_its_remedy() -> None:
    """Whatever puts a device out of service is shown with what to do about it."""
    console = Console(file=io.StringIO(), width=200)
    reason = ReasonView(
        code="ecc", source="health", liftable=False, detail="7 errors", remedy="replace the card"
    )
    text.explain(console, "node-0/gpu-1", [reason])
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "node-0/gpu-1: ecc (health; only an operator lifts it): 7 errors" in shown
    assert "do: replace the card" in shown


@pytest.mark.parametrize("simulated", [True, False])
def test_simulated_devices_are_announced(simulated: bool) -> None:
    """Promise 10: nothing simulated is shown without saying so, and nothing real is called so."""
    console = Console(file=io.StringIO(), width=200)
    view = NodeView(
        node="n", incarnation="1", boot_id="b", at=0, simulated=simulated, backend="simulated"
    )
    text.banner(console, [view])
    assert ("SIMULATED" in console.file.getvalue()) is simulated  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (HOSTILE, r"t\x1b[2J\n\x1b]0;pwn"),
        ("a\tb\rc\x07\x7f\x9b31m", r"a\tb\rc\x07\x7f\x9b31m"),
        ("gpu\u202e0\u2066\u2028", r"gpu\u202e0\u2066\u2028"),
        ("\udcff", r"\udcff"),
        ("[red]größe 漢字", "[red]größe 漢字"),
    ],
)
def test_what_would_act_on_a_terminal_is_written_out(written: str, expected: str) -> None:
    """Controls, direction overrides and half characters are shown, real letters stay letters."""
    assert text.visible(written) == expected
    assert text.visible(text.visible(written)) == expected


def test_a_text_made_visible_keeps_its_styles_in_place() -> None:
    """What is coloured stays coloured when a character before it becomes four."""
    found = Text.assemble("a\x1bb ", ("red\n", "red"), " end")
    shown = text.shown(found)
    assert shown.plain == r"a\x1bb red\n end"
    assert {shown.plain[span.start : span.end] for span in shown.spans} <= set(r"red\n") | {r"\n"}
    assert sum(span.end - span.start for span in shown.spans) == len(r"red\n")
    assert text.shown(Text("as it is")).plain == "as it is"


def test_a_backlog_is_told_with_its_age_and_why() -> None:
    """E5: how many certificates are on the node only, since when, and what is in the way."""
    found = Replication(
        archive="s3://b/p",
        backlog=2,
        oldest_at=1_700_000_000.0,
        error="no answer",
        aside=("entry 3: another is there",),
    )
    assert list(text.replication("node-1", found)) == [
        "  node-1: evidence: 2 not in the archive s3://b/p, the oldest of 2023-11-14T22:13:20Z",
        "    no answer",
        "    set aside: entry 3: another is there",
    ]
    unknown = Replication(backlog=None, error="the ledger cannot be read")
    (line, _) = text.replication("node-1", unknown)
    assert "unknown how many not in the archive" in line
    assert list(text.replication("node-1", Replication())) == []
    assert list(text.replication("node-1", None)) == []


def test_b36_who_keeps_a_device_is_shown_with_what_to_do() -> None:
    """B36, B33: the quarantine list names pod or process, and says that nobody is ended for it;
    a device that nobody keeps adds no line.
    """
    device = DeviceView(
        uuid="g", name="gpu-0", accelerator="g", units=("g/all",), memory_bytes=1, state="IN_USE",
        kept_by="claim a/b (c): pod 77",
    )  # fmt: skip
    view = NodeView(
        node="n", incarnation="1", boot_id="b", at=0, simulated=False, backend="nvidia",
        devices=(device, device.model_copy(update={"name": "gpu-1", "kept_by": ""})),
    )  # fmt: skip
    shown = []
    for render in (quarantine._render, status._render):
        console = Console(file=io.StringIO(), width=200)
        render(console, [view])
        shown.append(console.file.getvalue())  # type: ignore[attr-defined]
    for page in shown:
        assert "n/gpu-0: kept by claim a/b (c): pod 77" in page
        assert "kubectl delete pod" in page
        assert "gpu-1" not in page
    assert "no device has a reason" not in shown[0]
