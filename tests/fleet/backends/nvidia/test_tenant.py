"""The tenant of proofs, as the process it is, on stand-in GPUs."""

from __future__ import annotations

import io
import json
import secrets
from pathlib import Path

import pytest

from fleet.backends.nvidia import tenant
from tests.drivers.host import Gpu, Host
from tests.drivers.tenants import GpuTenant
from tests.fleet.backends.nvidia.one_gpu import OneGpu

MIB = 1 << 20


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """A GPU that keeps what is in freed memory; only child processes load its driver."""
    host = Host(tmp_path / "machine")
    for name, text in host.environment().items():
        monkeypatch.setenv(name, text)
    return host.add_gpu(total=4 * MIB, reserved=65536, context_bytes=65536, scrub_on_free=0)


def test_a_secret_is_all_over_memory_and_found_at_every_place(gpu: Gpu) -> None:
    """Promise 1: planted at the ends of every chunk and between, each block counted once."""
    secret = secrets.token_bytes(200)  # three whole blocks and a rest
    with GpuTenant(gpu.uuid) as one:
        places = one.plant(secret)
        assert one.search(secret) == 3 * places
        assert one.size == 4 * MIB - 2 * 65536, "all that can be had"
    assert gpu.memory().count(secret) == places
    assert places >= 4


def test_what_is_left_is_found_by_the_next_and_nothing_else(gpu: Gpu) -> None:
    """Promise 1: without a wipe a killed tenant's secret is there, at any offset, in parts too."""
    secret = secrets.token_bytes(64)
    gpu.write_memory(2 * MIB + 7, secret)
    gpu.write_memory(3 * MIB, secret[:63])
    with GpuTenant(gpu.uuid) as one:
        assert one.search(secret) == 1
        assert one.search(secrets.token_bytes(64)) == 0


def test_a_short_secret_is_one_block(gpu: Gpu) -> None:
    """Promise 1: a secret shorter than a block is searched for whole."""
    gpu.write_memory(MIB, b"hunter2!hunter2!")
    with GpuTenant(gpu.uuid) as one:
        assert one.search(b"hunter2!") == 2


def test_no_place_is_missed_or_met_twice_where_two_reads_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 1: memory is read slab by slab; a secret counts once wherever it lies in them."""
    bench = OneGpu(tmp_path, monkeypatch)
    secret, slab = secrets.token_bytes(64), 8192
    copies = 15000  # 200 B apart they begin at every place of a slab there is
    bench.gpu.write_memory(MIB // 2, b"".join(secret + bytes(136) for _ in range(copies)))
    assert tenant.Tenant(slab).search(secret) == copies


def test_more_than_one_device_is_refused(gpu: Gpu) -> None:
    """gpus-8.31: a tenant that sees two devices would search another one; it says so."""
    other = gpu.host.add_gpu(total=4 * MIB)
    with GpuTenant(f"{gpu.uuid},{other.uuid}") as one, pytest.raises(RuntimeError, match="sees 2"):
        one.search(bytes(64))


def test_an_order_it_does_not_know_is_answered_and_not_the_end() -> None:
    """A tenant answers every line, so that nobody waits for one."""
    answers = io.StringIO()
    tenant.serve(io.StringIO("not json\n{}\n"), answers)
    told = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert len(told) == 2
    assert all(set(one) == {"error"} for one in told)
