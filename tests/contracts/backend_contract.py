"""What every back end must do, whatever kind of accelerator it reaches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.core.errors import FleetError
from fleet.core.model import Accelerator, UnitId, Uuid
from fleet.devices import registry
from fleet.devices.base import Backend, MemorySession
from fleet.devices.health.readings import Readings
from fleet.devices.wipe.plan import WORD_BYTES

NONCE = bytes(range(32))
OTHER_NONCE = bytes(32)
LARGEST, SMALLEST = 1 << 30, 64 * 1024


def silent(_done: int) -> None:
    """Nobody listens."""


class GroundContract:
    """What holds without reaching memory. Subclasses give the fixture `backend`, with at least one
    accelerator nobody else uses.
    """

    @pytest.fixture
    def accelerator(self, backend: Backend) -> Accelerator:
        """The first accelerator."""
        return backend.inventory()[0]

    def test_the_inventory_is_the_same_each_time(self, backend: Backend) -> None:
        """Devices keep their names and UUIDs while nobody changes the hardware."""
        assert list(backend.inventory()) == list(backend.inventory())

    def test_names_are_unique(self, backend: Backend) -> None:
        """No two devices share a UUID or a name, no two accelerators a unit."""
        devices = [device for one in backend.inventory() for device in one.devices]
        units = [unit.id for one in backend.inventory() for unit in one.units]
        assert len({device.uuid for device in devices}) == len(devices)
        assert len({device.name for device in devices}) == len(devices)
        assert len(set(units)) == len(units)

    def test_devices_are_made_of_units_of_their_accelerator(self, backend: Backend) -> None:
        """A unit id begins with its accelerator's UUID; the whole device has all of them."""
        for accelerator in backend.inventory():
            known = {unit.id: unit.size_bytes for unit in accelerator.units}
            assert set(accelerator.device.units) == set(known)
            assert all(unit.startswith(f"{accelerator.uuid}/") for unit in known)
            for device in accelerator.devices:
                assert device.memory_bytes == sum(known[unit] for unit in device.units)

    def test_promise_10_simulation_is_on_every_label(self, backend: Backend) -> None:
        """Promise 10: a device says it is simulated exactly when its back end is."""
        for accelerator in backend.inventory():
            for device in accelerator.devices:
                said = device.attributes.get("simulated", "false") == "true"
                assert said is backend.simulated
                assert ("SIMULATED" in device.attributes["product"]) is backend.simulated

    def test_settings_rebuild_the_back_end(self, backend: Backend) -> None:
        """A worker process reaches the same devices from kind and JSON settings."""
        settings = json.loads(json.dumps(dict(backend.settings())))
        assert list(registry.build(backend.kind, settings).inventory()) == list(backend.inventory())

    def test_readings_survive_json(self, backend: Backend, accelerator: Accelerator) -> None:
        """What a worker reads reaches the node unchanged."""
        found = backend.readings(accelerator.uuid)
        assert Readings.from_json(json.loads(json.dumps(found.as_json()))) == found
        assert found.present is True

    def test_unknown_devices_and_units_open_nothing(
        self, backend: Backend, accelerator: Accelerator
    ) -> None:
        """B13: an index, a prefix or a unit of elsewhere is an error of ours, never a guess."""
        for wrong in ("0", accelerator.uuid[:8], ""):
            with pytest.raises(FleetError):
                backend.readings(Uuid(wrong))
            with pytest.raises(FleetError):
                backend.session(Uuid(wrong), accelerator.device.units)
        with pytest.raises(FleetError):
            backend.session(accelerator.uuid, (UnitId(f"{accelerator.uuid}/none"),))

    @pytest.fixture
    def host_root(self) -> Path:
        """Where the host's files, which grants name, are seen."""
        return Path("/")

    def test_a_grant_names_what_exists_and_no_neighbour(
        self, backend: Backend, host_root: Path
    ) -> None:
        """A6, promise 9: absolute paths that exist; devices that share no unit share no mount that
        can be written to.
        """
        for accelerator in backend.inventory():
            granted = {one.uuid: (one, backend.grant(one)) for one in accelerator.devices}
            for device, grant in granted.values():
                assert grant.nodes or grant.mounts
                for mount in grant.mounts:
                    assert Path(mount.host_path).is_absolute()
                    assert (host_root / mount.host_path.lstrip("/")).exists()
                for other, theirs in granted.values():
                    if not set(device.units).intersection(other.units):
                        ours = {m.host_path for m in grant.mounts if not m.read_only}
                        assert not ours & {m.host_path for m in theirs.mounts}

    def test_the_agents_grant_reaches_every_device(self, backend: Backend) -> None:
        """DESIGN 7, Privilege: what a device's grant mounts lies in what the agent gets."""
        places = [Path(mount.host_path) for mount in backend.agent_grant().mounts]
        for accelerator in backend.inventory():
            for mount in backend.grant(accelerator.device).mounts:
                if not mount.read_only:
                    assert any(Path(mount.host_path).is_relative_to(place) for place in places)


class BackendContract(GroundContract):
    """What holds of a back end that reaches memory, too."""

    @pytest.fixture
    def session(self, backend: Backend, accelerator: Accelerator) -> Iterator[MemorySession]:
        """All of its memory, allocated."""
        opened = backend.session(accelerator.uuid, accelerator.device.units)
        opened.allocate(largest_bytes=LARGEST, smallest_bytes=SMALLEST)
        yield opened
        opened.close()

    def test_a_session_is_a_process_on_the_device(
        self, backend: Backend, accelerator: Accelerator
    ) -> None:
        """Whoever has the device open is listed, and no longer after closing."""
        before = {process.pid for process in backend.processes(accelerator.uuid)}
        opened = backend.session(accelerator.uuid, accelerator.device.units)
        during = {process.pid for process in backend.processes(accelerator.uuid)}
        opened.close()
        opened.close()
        after = {process.pid for process in backend.processes(accelerator.uuid)}
        assert during > before == after

    def test_the_byte_figures_add_up(self, backend: Backend, accelerator: Accelerator) -> None:
        """B06: total is all memory of the units, and nothing is covered twice."""
        opened = backend.session(accelerator.uuid, accelerator.device.units)
        coverage = opened.allocate(largest_bytes=LARGEST, smallest_bytes=SMALLEST)
        opened.close()
        assert coverage.total == accelerator.memory_bytes
        assert coverage.residual >= 0
        assert coverage.covered > 0

    def test_what_was_filled_verifies(self, session: MemorySession) -> None:
        """The pattern reads back under its nonce, and under no other."""
        session.fill(NONCE, silent)
        assert list(session.verify(NONCE, silent)) == []
        assert session.verify(OTHER_NONCE, silent)

    def test_zeros_are_zeros(self, session: MemorySession) -> None:
        """After zeros were written memory is zero, and before it was not."""
        session.fill(NONCE, silent)
        assert session.verify_zero(silent)
        session.zero(silent)
        assert list(session.verify_zero(silent)) == []
        assert session.verify(NONCE, silent)

    def test_a_disturbed_word_is_found_and_put_back(self, session: MemorySession) -> None:
        """The self-test's error is found alone, at one place, by full and partial verify alike."""
        session.fill(NONCE, silent)
        for offset in (0, 12 * WORD_BYTES, 256 * 1024 - WORD_BYTES):
            put_back = session.disturb(offset)
            (whole,) = session.verify(NONCE, silent)
            (part,) = session.verify(NONCE, silent, within=(offset, WORD_BYTES))
            assert whole == part
            assert whole.length_bytes <= WORD_BYTES
            assert not session.verify(NONCE, silent, within=(offset + WORD_BYTES, 64))
            put_back()
            assert not session.verify(NONCE, silent, within=(offset, WORD_BYTES))
        assert not session.verify(NONCE, silent)

    def test_progress_ends_with_everything(
        self, backend: Backend, accelerator: Accelerator
    ) -> None:
        """Each pass reports bytes that never go back and end at what is covered."""
        opened = backend.session(accelerator.uuid, accelerator.device.units)
        covered = opened.allocate(largest_bytes=LARGEST, smallest_bytes=SMALLEST).covered
        told: dict[str, list[int]] = {name: [] for name in ("fill", "verify", "zero", "check")}
        opened.fill(NONCE, told["fill"].append)
        opened.verify(NONCE, told["verify"].append)
        opened.zero(told["zero"].append)
        opened.verify_zero(told["check"].append)
        opened.close()
        for done in told.values():
            assert done == sorted(done)
            assert done[-1] == covered

    def test_readings_under_load_say_so(self, session: MemorySession) -> None:
        """Link speed and width are judged only from readings taken under load."""
        assert session.readings().under_load is True
