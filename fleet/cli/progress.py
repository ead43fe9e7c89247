"""Progress of a campaign on stderr: bars on a terminal, plain lines elsewhere.

A log file wants one line for each thing that happened and a sign of life between; a person at a
terminal wants to see every device at once. Both are fed from the same `CampaignStatus`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from fleet.cli import text
from fleet.control.campaign.breaker import Stance
from fleet.control.campaign.report import CampaignStatus, DeviceStatus, Phase

HEARTBEAT_S = 2.0
"""Period, s, of the plain sign of life."""
BARS_MAX = 64
"""More devices than this get the campaign's bar only: a screen has so many lines."""


class Display(Protocol):
    """Shows a campaign while it runs."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def show(self, status: CampaignStatus) -> None:
        """Take in the status now; called several times a second."""
        ...

    def say(self, line: str) -> None:
        """Print one line above the progress."""
        ...


def choose(console: Console) -> Display:
    """The display that fits where stderr goes."""
    return Bars(console) if console.is_terminal else Lines(console)


class Lines:
    """One line per change of a device, and a heartbeat."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seen: dict[str, tuple[Phase, str]] = {}
        self._beat_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def say(self, line: str) -> None:
        """Print one line."""
        self._console.print(text.plain(line))

    def show(self, status: CampaignStatus) -> None:
        """Print what has changed since the last call, and every 2 s how far the campaign is."""
        for device in status.devices:
            # A pass is not worth a line each: started and done are.
            now = (device.phase, device.step if device.phase is Phase.DONE else "")
            if self._seen.get(device.uuid, (Phase.WAITING, "")) != now:
                self._seen[device.uuid] = now
                if device.phase is not Phase.STARTING:
                    self.say(f"{device.node}/{device.device}: {device.step or device.phase}")
        if status.at - self._beat_at >= HEARTBEAT_S:
            self._beat_at = status.at
            self.say(overview(status))


class Bars:
    """A bar per device and one for the campaign, with rate and time left."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f}%"),
            _Figures(),
            console=console,
            refresh_per_second=5,
            expand=True,
        )
        self._campaign: TaskID | None = None
        self._devices: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def say(self, line: str) -> None:
        """Print one line above the bars."""
        self._progress.console.print(text.plain(line))

    def show(self, status: CampaignStatus) -> None:
        """Move the bars."""
        if self._campaign is None:
            self._campaign = self._progress.add_task("campaign", total=None, figures="")
        if status.number <= BARS_MAX:
            for device in status.devices:
                self._show_device(device)
        left = f"  {text.duration(status.eta_s)} left" if status.eta_s else ""
        self._progress.update(
            self._campaign,
            total=status.total or None,
            completed=status.done,
            figures=f"{counts(status)}  {text.rate(status.rate)}{left}",
        )

    def _show_device(self, device: DeviceStatus) -> None:
        task = self._devices.get(device.uuid)
        if task is None:
            task = self._progress.add_task(
                text.visible(f"{device.node}/{device.device}"),
                total=device.total or None,
                figures="",
            )
            self._devices[device.uuid] = task
        self._progress.update(
            task,
            total=device.total or 1,
            # Ended well with nothing to cover: a reset, or a tenant's device.
            completed=device.done if device.total else device.phase is Phase.DONE,
            figures=f"{device.step or device.phase}  {text.rate(device.rate)}"
            if device.rate
            else f"{device.step or device.phase}",
        )


class _Figures(ProgressColumn):
    """The free text at the end of a bar."""

    def render(self, task: Task) -> Text:
        return text.plain(str(task.fields.get("figures", "")))


def counts(status: CampaignStatus) -> str:
    """How many devices have ended, and how: an end alone says nothing."""
    return (
        f"{status.ended}/{status.number} ended: {status.certified} certified,"
        f" {status.failed} failed"
    )


def overview(status: CampaignStatus) -> str:
    """How far the campaign is, in one line."""
    share = f"{100 * status.done / status.total:.0f} %" if status.total else "0 %"
    parts = [
        f"campaign {status.run}: {share}",
        counts(status),
        f"{status.phases.get(Phase.RUNNING, 0)} running",
        text.rate(status.rate),
    ]
    if status.eta_s is not None:
        parts.append(f"{text.duration(status.eta_s)} left")
    if status.breaker not in ("", Stance.CLOSED):
        parts.append(f"breaker: {status.breaker}")
    return ", ".join(parts)
