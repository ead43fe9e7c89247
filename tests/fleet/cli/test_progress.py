"""Progress of a campaign on stderr."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fleet.cli.output import PlainConsole
from fleet.cli.progress import Bars, Lines, choose, overview
from fleet.control.campaign.report import CampaignStatus, DeviceStatus, Phase
from fleet.core.messages import Outcome


def status(phase: Phase, *, at: float, done: int = 0, step: str = "") -> CampaignStatus:
    """A campaign over one device."""
    device = DeviceStatus(
        node="node-0", device="gpu-0", uuid="u0", phase=phase, step=step, done=done, total=100
    )
    return CampaignStatus(
        run="r1",
        at=at,
        devices=(device,),
        phases={phase: 1},
        done=done,
        total=100,
        rate=2e9,
        eta_s=12.0,
    )


@pytest.fixture
def console() -> Console:
    """A console that is no terminal."""
    return Console(file=io.StringIO(), width=200, force_terminal=False)


def shown(console: Console) -> list[str]:
    """The lines printed so far."""
    stream = console.file
    assert isinstance(stream, io.StringIO)
    return stream.getvalue().splitlines()


def test_a_change_of_state_is_one_line(console: Console) -> None:
    """Without a terminal each change of a device is one line, and passes are not changes."""
    lines = Lines(console)
    with lines:
        lines.show(status(Phase.WAITING, at=0.0))
        lines.show(status(Phase.RUNNING, at=0.5, step="fill"))
        lines.show(status(Phase.RUNNING, at=0.9, step="verify", done=50))
        lines.show(status(Phase.DONE, at=1.5, step="certified", done=100))
    device = [line for line in shown(console) if line.startswith("node-0/gpu-0")]
    assert device == ["node-0/gpu-0: fill", "node-0/gpu-0: certified"]


def test_a_quiet_campaign_shows_a_sign_of_life(console: Console) -> None:
    """Without a terminal a heartbeat every two seconds tells share, rate and time left."""
    lines = Lines(console)
    for at in (100.0, 101.0, 102.5, 103.0):
        lines.show(status(Phase.RUNNING, at=at, step="fill", done=50))
    beats = [line for line in shown(console) if line.startswith("campaign r1")]
    assert len(beats) == 2
    assert "50 %" in beats[0]
    assert "2.00 GB/s" in beats[0]
    assert "12 s left" in beats[0]


def test_an_open_breaker_is_in_the_overview() -> None:
    """An operator sees at once that the breaker holds the campaign."""
    found = status(Phase.WAITING, at=0.0).model_copy(update={"breaker": "open"})
    assert "breaker: open" in overview(found)


def test_a_terminal_gets_a_bar_per_device() -> None:
    """On a terminal every device and the campaign have a bar."""
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    display = choose(console)
    assert isinstance(display, Bars)
    with display:
        display.show(status(Phase.RUNNING, at=0.0, step="fill", done=50))
        display.show(status(Phase.DONE, at=1.0, step="certified", done=100))
    text = "\n".join(shown(console))
    assert "node-0/gpu-0" in text
    assert "campaign" in text
    assert "certified" in text


def test_f51_a_stopped_campaign_is_not_shown_as_done() -> None:
    """F51: after Ctrl-C the bar stands at what was covered, and the line says ended, certified and
    failed; no rate is shown for wipes that covered nothing."""
    device = DeviceStatus(
        node="n", device="gpu-0", uuid="u", phase=Phase.DONE, step="interrupted", total=400
    )
    stopped = CampaignStatus(
        run="r1",
        at=1.0,
        devices=(device,),
        phases={Phase.DONE: 1},
        outcomes={Outcome.INTERRUPTED: 1},
        total=400,
    )
    assert overview(stopped) == "campaign r1: 0 %, 1/1 ended: 0 certified, 1 failed, 0 running, -"
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    with Bars(console) as bars:
        bars.show(stopped)
    said = "\n".join(shown(console))
    assert "1/1 ended: 0 certified, 1 failed" in said
    assert "100%" not in said
    assert "GB/s" not in said


def test_of_many_devices_only_the_campaign_has_a_bar() -> None:
    """E2: where the status lists only what moved, all devices count and none gets a bar."""
    many = status(Phase.RUNNING, at=1.0, step="fill").model_copy(update={"count": 100_000})
    terminal = Console(file=io.StringIO(), width=120, force_terminal=True)
    with Bars(terminal) as bars:
        bars.show(many)
    assert "gpu-0" not in str(terminal.file.getvalue())  # type: ignore[attr-defined]
    assert "0/100000 ended" in overview(many)


def test_a_pipe_gets_lines(console: Console) -> None:
    """A log file never gets control characters."""
    assert isinstance(choose(console), Lines)


def test_a_bar_shows_names_from_outside_as_text() -> None:
    """A node's name neither moves the cursor out of the bars nor is taken for markup."""
    console = PlainConsole(file=io.StringIO(), force_terminal=True, width=150, color_system=None)
    hostile = DeviceStatus(
        node="[red]n\x1b]0;pwn", device="d\n0", uuid="u", phase=Phase.RUNNING, step="s\x1b[2J"
    )
    with Bars(console) as bars:
        bars.show(status(Phase.RUNNING, at=0.0).model_copy(update={"devices": (hostile,)}))
        bars.say("said\x1b[2J")
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert r"[red]n\x1b]0;pwn/d\n0" in shown
    assert r"said\x1b[2J" in shown
    assert "\x1b[2J" not in shown
    assert "\x1b]0" not in shown
