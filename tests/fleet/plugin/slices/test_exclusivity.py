"""One publisher of a device: on the host by lock, in the fleet by lease."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from fleet.core.errors import BackendFailed, StoreUnavailable
from fleet.core.messages import DeviceView
from fleet.plugin.slices.exclusivity import RENEW_PERIOD_S, RETRY_PERIOD_S, Exclusivity, HostLocks


def device(uuid: str, **attributes: str) -> DeviceView:
    """A device as far as locks look at it."""
    return DeviceView(
        uuid=uuid, name=uuid.lower(), accelerator=uuid, units=("u",), memory_bytes=1,
        state="CLEAN", attributes=attributes,
    )  # fmt: skip


class Leases:
    """A lease store of one holder, with refusals on request."""

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}
        self.away = False
        self.asked: list[tuple[str, ...]] = []
        self.at: list[float] = []

    def hold(self, uuids: Sequence[str], *, now: float) -> Mapping[str, str]:
        """Refuse what is to be refused."""
        self.asked.append(tuple(uuids))
        self.at.append(now)
        if self.away:
            raise StoreUnavailable("the store does not answer")
        return self.refused


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process of this host that publishes GPU-a."""
    code = (
        "import sys, pathlib; from fleet.plugin.slices.exclusivity import HostLocks\n"
        "locks = HostLocks(pathlib.Path(sys.argv[1]))\n"
        "print(dict(locks.take(['uuid-GPU-a'])), flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "{}\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()
    assert process.stdin is not None
    process.stdin.close()


def test_a_second_process_gets_no_lock_and_learns_who_has_it(
    tmp_path: Path, other_process: subprocess.Popen[str]
) -> None:
    """B4, gpus-8.39: of one host, one publishes a UUID, also under other driver names."""
    guard = Exclusivity(locks=HostLocks(tmp_path))
    barred = guard.barred([device("GPU-a"), device("GPU-b")], now=0.0)
    assert barred.keys() == {"GPU-a"}
    assert str(other_process.pid) in barred["GPU-a"]
    guard.close()


def test_the_lock_ends_with_the_process(
    tmp_path: Path, other_process: subprocess.Popen[str]
) -> None:
    """Promise 7, gpus-8.39: kill -9 leaves no lock; the next publisher goes on within seconds."""
    guard = Exclusivity(locks=HostLocks(tmp_path))
    assert guard.barred([device("GPU-a")], now=0.0)
    other_process.kill()
    other_process.wait()
    assert guard.barred([device("GPU-a")], now=RETRY_PERIOD_S) == {}
    guard.close()


def test_the_same_slot_under_another_uuid_is_locked_too(tmp_path: Path) -> None:
    """B4, gpus-8.39: a card that two drivers name differently is one; a simulated slot is none."""
    first, second = (Exclusivity(locks=HostLocks(tmp_path)) for _ in range(2))
    assert first.barred([device("A", pci="1b:00.0"), device("P", pci="1b:00.0")], now=0.0) == {}
    assert second.barred([device("B", pci="00000000:1B:00.0")], now=0.0).keys() == {"B"}
    assert second.barred([device("S", pci="1b:00.0", simulated="true")], now=0.0) == {}
    first.close()
    second.close()


def test_what_is_no_longer_there_is_unlocked(tmp_path: Path) -> None:
    """A device that left the node can be published elsewhere on the host."""
    first, second = (Exclusivity(locks=HostLocks(tmp_path)) for _ in range(2))
    first.barred([device("A")], now=0.0)
    first.barred([], now=1.0)
    assert second.barred([device("A")], now=0.0) == {}
    first.close()
    second.close()


def test_a_directory_that_cannot_be_used_bars_everything(tmp_path: Path) -> None:
    """Doubt is no right: without locks nothing new is published, and the reason is told."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(BackendFailed):
        HostLocks(blocked).take(["x"])
    guard = Exclusivity(locks=HostLocks(blocked))
    assert guard.barred([device("A")], now=0.0).keys() == {"A"}
    assert isinstance(guard.trouble, BackendFailed)


def test_lock_files_are_private_and_named_after_the_device(tmp_path: Path) -> None:
    """Any UUID becomes one plain file name, mode 0600."""
    locks = HostLocks(tmp_path)
    locks.take(["uuid-../evil", "pci-0000:1b:00.0"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "pci-0000_1b_00.0.lock",
        "uuid-.._evil.lock",
    ]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir())
    locks.close()


def test_a_device_without_its_lease_is_barred_with_the_reason() -> None:
    """B4: a device enters a slice only under a publisher lease."""
    leases = Leases()
    leases.refused = {"A": "held by publisher:node-b"}
    guard = Exclusivity(lease=leases)
    assert guard.barred([device("A"), device("B")], now=0.0) == {"A": "held by publisher:node-b"}


def test_leases_are_renewed_on_a_period_and_asked_again_soon_when_refused() -> None:
    """A step a second does not mean a store call a second."""
    leases = Leases()
    guard = Exclusivity(lease=leases)
    for now in range(int(RENEW_PERIOD_S) + 1):
        guard.barred([device("A")], now=float(now))
    assert leases.at == [0.0, RENEW_PERIOD_S]
    leases.refused = {"A": "no"}
    guard.barred([device("A")], now=100.0)
    leases.refused = {}
    assert guard.barred([device("A")], now=101.0) == {"A": "no"}
    assert guard.barred([device("A")], now=100.0 + RETRY_PERIOD_S) == {}


def test_a_silent_store_takes_nothing_away_and_gives_nothing() -> None:
    """Availability: what was granted stays published; what never was is not."""
    leases = Leases()
    guard = Exclusivity(lease=leases)
    guard.barred([device("A")], now=0.0)
    leases.away = True
    assert guard.barred([device("A"), device("B")], now=20.0).keys() == {"B"}
    assert isinstance(guard.trouble, StoreUnavailable)
    leases.away = False
    assert guard.barred([device("A"), device("B")], now=30.0) == {}
    assert guard.trouble is None


def test_a_locked_device_takes_no_lease(tmp_path: Path) -> None:
    """A right that cannot be used is not taken from others."""
    first = HostLocks(tmp_path)
    first.take(["uuid-A"])
    leases = Leases()
    guard = Exclusivity(locks=HostLocks(tmp_path), lease=leases)
    guard.barred([device("A"), device("B")], now=0.0)
    assert leases.asked == [("B",)]
    guard.close()
    first.close()
