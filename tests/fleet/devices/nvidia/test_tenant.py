"""The tenant of proofs, as the process it is, on stand-in GPUs."""

from __future__ import annotations

import io
import json
import secrets
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.devices.nvidia import tenant
from tests.drivers.host import Gpu, Host
from tests.drivers.tenants import GpuTenant
from tests.fleet.devices.nvidia.one_gpu import OneGpu

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


@given(
    places=st.lists(
        st.one_of(
            st.integers(0, 3 * MIB - 64),
            st.builds(
                lambda stretch, shift: max(stretch * tenant.STRETCH + shift, 0),
                st.integers(0, 11),
                st.integers(-70, 70),
            ),
        ),
        max_size=12,
    )
)
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_f81_nothing_is_missed_beside_stretches_of_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: list[int]
) -> None:
    """F81, promise 1: stretches of zeros are passed over, and what stands anywhere else is found,
    also where it begins in such a stretch or ends in one."""
    bench = OneGpu(tmp_path, monkeypatch)
    secret = bytes(31) + secrets.token_bytes(2) + bytes(31)
    content = bytearray(3 * MIB)
    for place in places:
        content[place : place + 64] = secret
    bench.gpu.set(scrub_on_free=0)
    bench.gpu.write_memory(512 * 1024, bytes(content))
    one = tenant.Tenant(MIB)
    expected, at = 0, 0
    while (at := content.find(secret, at)) >= 0:
        expected, at = expected + 1, at + 64
    assert abs(one.search(secret) - expected) <= sum(
        1 for a, b in pairwise(sorted(places)) if b - a < 64
    )
    one._context.close()


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
