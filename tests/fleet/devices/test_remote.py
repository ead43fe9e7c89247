"""Back ends in processes that can be killed: same answers, bounded time, nobody else held up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.model import Device, Uuid
from fleet.core.processes import is_dying
from fleet.devices.base import Backend, CanDivide, CanPartition, CanReset
from fleet.devices.remote import RemoteBackend
from fleet.devices.simulated.backend import SimulatedBackend
from tests.fleet.devices.wipe.orders import node


@pytest.fixture
def direct(tmp_path: Path) -> SimulatedBackend:
    """Two accelerators, in this process."""
    return node(tmp_path, accelerators=2)


@pytest.fixture
def remote(direct: SimulatedBackend) -> Iterator[RemoteBackend]:
    """The same ones through children."""
    opened = RemoteBackend("simulated", direct.settings())
    yield opened
    opened.close()


def test_a_child_answers_what_the_back_end_answers(
    direct: SimulatedBackend, remote: RemoteBackend
) -> None:
    """DESIGN 7: the node sees the same devices, readings, holders and grants through a child."""
    assert isinstance(remote, Backend)
    assert isinstance(remote, CanReset)
    assert isinstance(remote, CanPartition)
    assert isinstance(remote, CanDivide)
    assert list(remote.inventory()) == list(direct.inventory())
    (first, _) = direct.inventory()
    near, far = direct.readings(first.uuid), remote.readings(first.uuid)
    assert near.counters() == far.counters()
    assert near.not_applicable == far.not_applicable
    assert list(remote.processes(first.uuid)) == list(direct.processes(first.uuid))
    assert remote.grant(first.device) == direct.grant(first.device)
    assert remote.agent_grant() == direct.agent_grant()
    assert remote.reset(first.uuid).done is True
    assert remote.partitioned(first.device) is False
    assert set(remote.holders(first.uuid)) == {device.uuid for device in first.devices}
    assert remote.strays() == ()
    with pytest.raises(errors.BackendFailed, match="no partitioning"):
        remote.divide(first.uuid, on=True)
    assert list(remote.instances(first.uuid)) == []
    assert remote.settings() == direct.settings()


def test_errors_cross_as_what_they_are(remote: RemoteBackend) -> None:
    """B60: an error of the back end is the same class here, with its detail."""
    with pytest.raises(errors.DeviceUnknown, match="nonsense"):
        remote.readings(Uuid("nonsense"))
    with pytest.raises(errors.BackendFailed, match="inside a wipe worker"):
        remote.session(Uuid("any"), ())
    nowhere = Device(Uuid("d"), "d", Uuid("d"), (), 0)
    with pytest.raises(errors.BackendFailed, match="no partitions"):
        remote.make(nowhere)


@pytest.mark.parametrize(
    ("pending", "dying"),
    [
        ("SigPnd:\t0000000000000100", True),
        ("ShdPnd:\t0000000000000100", True),
        ("ShdPnd:\t0000000000004000", False),
    ],
)
def test_gpus_8_14_a_process_that_was_killed_and_lives_is_told_by_its_pending_signal(
    tmp_path: Path, pending: str, *, dying: bool
) -> None:
    """gpus-8.14: waits inside a driver show as sleeping; only the signal it never hears tells."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text(f"Name:\tx\nState:\tS (sleeping)\n{pending}\n")
    assert is_dying(7, tmp_path) is dying
    assert is_dying(8, tmp_path) is False
