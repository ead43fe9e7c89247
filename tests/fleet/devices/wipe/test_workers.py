"""Starting, following and ending workers."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core.errors import BackendFailed
from fleet.core.processes import WorkerIdentity, end, survivors
from fleet.devices.wipe.result import Failure
from fleet.devices.wipe.workers import Died, Ended, Finished, Spawner, Worker
from tests.crowding import crowded
from tests.fleet.devices.wipe.orders import break_it, eventually, node, order_for, whole

LONG_S = 30.0
"""Far longer than anything here takes, on however busy a machine."""


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    """A spawner; closing it ends every worker left."""
    made = Spawner()
    yield made
    made.close()


def ended(worker: Worker) -> Ended:
    """How a worker ended, waited for."""
    assert eventually(lambda: worker.poll() is not None)
    found = worker.poll()
    assert found is not None
    return found


def test_a_worker_tells_its_whole_story(tmp_path: Path, spawner: Spawner) -> None:
    """Ready with an identity, then go, then progress in bytes, then a verified result."""
    backend = node(tmp_path, mib=32)
    device = whole(backend)
    worker = spawner.spawn(order_for(backend, device))
    assert survivors(worker.identity) == (worker.identity.pid,)
    worker.go()
    assert eventually(lambda: worker.progress().total == 4 * device.memory_bytes)
    found = ended(worker)
    assert isinstance(found, Finished)
    assert found.result.verified, found.result.detail
    assert found.result.extra["worker"] == worker.identity.worker_id
    assert worker.kill(1.0)


def test_a_process_with_thousands_of_descriptors_starts_workers(
    tmp_path: Path, spawner: Spawner
) -> None:
    """E1: a node with many devices has descriptors beyond 1,024, which select() does not take."""
    backend = node(tmp_path)
    with crowded():
        worker = spawner.spawn(order_for(backend, whole(backend)))
        worker.go()
        assert isinstance(ended(worker), Finished)


def test_a_worker_runs_the_installed_code_wherever_it_is_started(
    tmp_path: Path, spawner: Spawner
) -> None:
    """Promise 8: a package named like ours in the current directory never becomes the wiper."""
    backend, stranger = node(tmp_path / "node"), tmp_path / "here" / "fleet"
    stranger.mkdir(parents=True)
    (stranger / "__init__.py").write_text("raise RuntimeError('the current directory was run')")
    with contextlib.chdir(stranger.parent):
        worker = spawner.spawn(order_for(backend, whole(backend)))
        worker.go()
        assert isinstance(ended(worker), Finished)


def test_workers_of_several_devices_run_at_once(tmp_path: Path, spawner: Spawner) -> None:
    """One worker per device, each with its own pid and its own result."""
    backend = node(tmp_path, accelerators=3)
    running = [spawner.spawn(order_for(backend, whole(backend, index))) for index in range(3)]
    for worker in running:
        worker.go()
    results = [ended(worker) for worker in running]
    assert [found.result.verified for found in results if isinstance(found, Finished)] == [True] * 3
    assert len({worker.identity.pid for worker in running}) == 3


def test_b02_a_killed_worker_died_and_left_no_result(tmp_path: Path, spawner: Spawner) -> None:
    """B02, B44, gpus-8.15: death without the end mark is Died, with its signal, and no result."""
    backend = node(tmp_path)
    device = whole(backend)
    break_it(backend, device, "worker-crash")
    worker = spawner.spawn(order_for(backend, device))
    worker.go()
    found = ended(worker)
    assert isinstance(found, Died)
    assert found.exit_code == -signal.SIGKILL
    again = spawner.spawn(order_for(backend, device))
    again.go()
    assert isinstance(ended(again), Finished), "the fault strikes once"


def test_a_failure_is_a_finished_worker(tmp_path: Path, spawner: Spawner) -> None:
    """D4: a device that fails its wipe is told apart from a worker that died."""
    backend = node(tmp_path)
    device = whole(backend)
    break_it(backend, device, "dirty-word")
    worker = spawner.spawn(order_for(backend, device))
    worker.go()
    found = ended(worker)
    assert isinstance(found, Finished)
    assert found.result.failure is Failure.MISMATCH


def test_b06_hang_is_ended_by_kill(tmp_path: Path, spawner: Spawner) -> None:
    """B6: a worker that hangs is killed and proven gone within the bound."""
    backend = node(tmp_path)
    device = whole(backend)
    break_it(backend, device, "hang", at=0.5)
    worker = spawner.spawn(order_for(backend, device))
    worker.go()
    assert eventually(lambda: "hang" not in backend.registers(device.uuid).read().faults)
    assert worker.poll() is None
    assert worker.kill(5.0)
    assert isinstance(worker.poll(), Died)


def test_the_end_of_a_worker_ends_the_wait_for_it(tmp_path: Path, spawner: Spawner) -> None:
    """Issue 8: what a worker says and its end are seen when they happen, not at the next look."""
    backend = node(tmp_path)
    worker = spawner.spawn(order_for(backend, whole(backend)))
    worker.go()
    began = time.monotonic()
    while worker.poll() is None:
        worker.wait(2 * LONG_S)
    worker.wait(2 * LONG_S)
    assert time.monotonic() - began < LONG_S
    assert isinstance(worker.poll(), Finished)


def test_the_wait_for_a_silent_worker_has_an_end(tmp_path: Path, spawner: Spawner) -> None:
    """B6: who waits for a worker that hangs comes back to look at its deadline."""
    backend = node(tmp_path)
    break_it(backend, whole(backend), "hang", at=0.5)
    worker = spawner.spawn(order_for(backend, whole(backend)))
    worker.go()
    assert eventually(lambda: "hang" not in backend.registers(whole(backend).uuid).read().faults)
    worker.progress()
    worker.wait(0.01)
    assert worker.poll() is None
    os.kill(worker.identity.pid, signal.SIGKILL)
    began = time.monotonic()
    while worker.poll() is None:
        worker.wait(2 * LONG_S)
    assert time.monotonic() - began < LONG_S
    assert isinstance(worker.poll(), Died)


def test_b29_a_wedged_worker_is_not_gone_until_it_is(tmp_path: Path, spawner: Spawner) -> None:
    """B29, gpus-8.14: what outlives the kill keeps it "not gone", also after a restart."""
    backend = node(tmp_path)
    device = whole(backend)
    break_it(backend, device, "wedge", at=0.5, seconds=30)
    worker = spawner.spawn(order_for(backend, device))
    worker.go()
    assert eventually(lambda: len(survivors(worker.identity)) == 2)
    assert not worker.kill(0.2)
    journalled = WorkerIdentity.from_json(worker.identity.as_json())
    assert not end(journalled, 0.1)
    (left,) = survivors(journalled)
    assert left != journalled.pid
    assert eventually(lambda: [one.pid for one in backend.processes(device.uuid)] == [left])
    backend.clear_fault(device.uuid, "wedge")
    assert end(journalled, 5.0)


def test_a_wedged_worker_blocks_the_next_wipe(tmp_path: Path, spawner: Spawner) -> None:
    """gpus-8.14: an older worker that may still write makes a new wipe fail before it writes."""
    backend = node(tmp_path)
    device = whole(backend)
    break_it(backend, device, "wedge", at=0.5, seconds=30)
    first = spawner.spawn(order_for(backend, device))
    first.go()
    assert eventually(lambda: len(survivors(first.identity)) == 2)
    first.kill(0.0)
    assert isinstance(ended(first), Died)
    assert eventually(lambda: [p.kind for p in backend.processes(device.uuid)] == ["ours"])
    second = spawner.spawn(order_for(backend, device))
    second.go()
    found = ended(second)
    backend.clear_fault(device.uuid, "wedge")
    assert isinstance(found, Finished)
    assert found.result.failure is Failure.HOLDER


def test_b44_the_end_of_the_spawning_thread_ends_its_workers(tmp_path: Path) -> None:
    """B44: the kernel's signal follows the thread, so one long-lived thread starts them all."""
    backend = node(tmp_path)
    spawner = Spawner()
    found: list[Worker] = []
    asking = threading.Thread(
        target=lambda: found.append(spawner.spawn(order_for(backend, whole(backend))))
    )
    asking.start()
    asking.join()
    worker = found[0]
    assert survivors(worker.identity), "it died with the thread that asked for it"
    spawner.close()
    assert eventually(lambda: not survivors(worker.identity))
    assert isinstance(ended(worker), Died)
    with pytest.raises(BackendFailed, match="closing"):
        spawner.spawn(order_for(backend, whole(backend)))


def test_a_spare_waits_untold_and_serves_exactly_its_own_order(
    tmp_path: Path, spawner: Spawner
) -> None:
    """A spare is started for one device, touches nothing, and becomes the worker of its order."""
    backend = node(tmp_path)
    device = whole(backend)
    spawner.keep_ready(device.uuid, backend.kind)
    plain = order_for(backend, device)
    assert eventually(lambda: device.uuid in spawner._spares)
    spare = spawner._spares[device.uuid]
    assert list(backend.processes(device.accelerator)) == []
    assert spawner.next_id(device.uuid) == spare.worker_id
    assert spawner.next_id("another device") != spare.worker_id
    worker = spawner.spawn(replace(plain, worker_id=spare.worker_id))
    assert worker is spare
    assert worker.identity.worker_id == spare.worker_id
    worker.go()
    found = ended(worker)
    assert isinstance(found, Finished)
    assert found.result.verified
    assert device.uuid not in spawner._spares


def test_an_order_under_another_id_gets_a_worker_of_its_own(
    tmp_path: Path, spawner: Spawner
) -> None:
    """The journal knows a worker by the id in its environment: a spare never serves another's."""
    backend = node(tmp_path)
    device = whole(backend)
    spawner.keep_ready(device.uuid, backend.kind)
    assert eventually(lambda: device.uuid in spawner._spares)
    worker = spawner.spawn(order_for(backend, device))
    assert worker.worker_id != spawner._spares[device.uuid].worker_id
    worker.kill(5.0)


def test_a_spare_that_died_is_replaced(tmp_path: Path, spawner: Spawner) -> None:
    """A spare killed while it waits costs nothing: its id is given to nobody."""
    backend = node(tmp_path)
    device = whole(backend)
    spawner.keep_ready(device.uuid, backend.kind)
    assert eventually(lambda: device.uuid in spawner._spares)
    first = spawner._spares[device.uuid]
    os.kill(first._process.pid, signal.SIGKILL)
    assert eventually(lambda: not first.waiting)
    assert spawner.next_id(device.uuid) != first.worker_id
    spawner.keep_ready(device.uuid, backend.kind)
    assert eventually(lambda: spawner._spares.get(device.uuid) not in (None, first))


def test_spares_end_with_their_spawner(tmp_path: Path) -> None:
    """B44: no process is left behind by a service that ends."""
    backend = node(tmp_path)
    made = Spawner()
    made.keep_ready(whole(backend).uuid, backend.kind)
    assert eventually(lambda: bool(made._spares))
    (spare,) = made._spares.values()
    made.close()
    assert not spare.waiting


def test_a_worker_that_cannot_start_is_told_with_its_own_words(
    tmp_path: Path, spawner: Spawner
) -> None:
    """A refusal names what the worker said, and nothing stays behind."""
    backend = node(tmp_path)
    order = replace(order_for(backend, whole(backend)), settings={"root": "x", "more": 1})
    worker = spawner.spawn(order)
    worker.go()
    found = ended(worker)
    assert isinstance(found, Died)
    assert "one setting, root" in found.detail


def test_a_worker_that_is_never_ready_is_given_up(tmp_path: Path, spawner: Spawner) -> None:
    """Waiting for ready is bounded; the worker is killed and the time is named."""
    backend = node(tmp_path)
    with pytest.raises(BackendFailed):
        spawner.spawn(order_for(backend, whole(backend)), ready_wait_s=0.0)


def test_workers_share_the_session_of_their_parent(tmp_path: Path, spawner: Spawner) -> None:
    """A stop signal for the service's session reaches its workers too."""
    backend = node(tmp_path)
    worker = spawner.spawn(order_for(backend, whole(backend)))
    assert os.getsid(worker.identity.pid) == os.getsid(0)
    assert worker.kill(5.0)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((), "no complete report"),
        ((b'{"end": "another"}',), "no complete report"),
        ((b'{"result": {"accel',), "malformed report"),
        ((b'{"result": {}}', b'{"end": "x"}'), "malformed report"),
    ],
)
def test_gpus_8_15_a_worker_that_leaves_without_its_whole_report_has_failed(
    tmp_path: Path, spawner: Spawner, lines: tuple[bytes, ...], words: str
) -> None:
    """gpus-8.15: exit code 0 proves nothing; a report missing, torn or another's is none."""
    backend = node(tmp_path)
    worker = spawner.spawn(order_for(backend, whole(backend)))
    for line in lines:
        worker._hear(line)
    judged = worker._judge(0)
    worker.kill(5.0)
    assert isinstance(judged, Died)
    assert words in judged.detail
