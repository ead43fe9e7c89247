"""What a GPU is, as texts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from fleet.devices.nvidia.backend import NvidiaBackend
from tests.drivers.host import Host


def told(backend: NvidiaBackend) -> Mapping[str, str]:
    """Attributes of the only GPU."""
    (found,) = backend.inventory()
    return found.device.attributes


@pytest.mark.parametrize(
    ("number", "word"), [(5, "volta"), (7, "ampere"), (9, "hopper"), (10, "blackwell"), (77, "")]
)
def test_the_architecture_is_a_word(
    host: Host, backend: NvidiaBackend, number: int, word: str
) -> None:
    """Selectors compare words; a generation nobody knows yet is "", not a guess."""
    host.add_gpu(architecture=number)
    assert told(backend)["architecture"] == word


def test_what_is_not_told_is_empty(host: Host, backend: NvidiaBackend) -> None:
    """A refused text is "", in the same keys as ever: selectors break on missing ones."""
    gpu = host.add_gpu()
    before = told(backend)
    gpu.set(
        serial="error 3", part_number="error 999", bus_width="error 3", vbios="error 4", minor="x"
    )
    after = told(backend)
    assert set(after) == set(before)
    assert [after[name] for name in ("serial", "board", "memory_rate_bytes_per_s", "vbios")] == [
        ""
    ] * 4


def test_values_do_not_move_by_themselves(host: Host, backend: NvidiaBackend) -> None:
    """The inventory stays the same while work comes and goes: no free memory, no clocks."""
    gpu = host.add_gpu()
    before = told(backend)
    gpu.set(temperature=80, pstate=0, pcie_gen=5)
    host.tree.process(4711, "tenant")
    gpu.process(4711, size=1 << 20)
    assert told(backend) == before
    assert "memory_free" not in before


def test_where_it_is(host: Host, backend: NvidiaBackend) -> None:
    """NUMA node, IOMMU group and CUDA version of the driver are those of kernel and driver."""
    gpu = host.add_gpu(numa_node=1)
    (host.root / "cuda_version").write_text("12080\n")
    found = told(backend)
    assert (found["numa"], found["iommu"]) == ("1", str(int(gpu.bus_id[5:7], 16)))
    assert found["cuda_driver"] == "12.8"


@pytest.mark.parametrize(
    ("current", "word", "partitionable"), [(0, "off", "false"), (1, "on", "true")]
)
def test_the_mode_of_partitions(
    host: Host, backend: NvidiaBackend, current: int, word: str, partitionable: str
) -> None:
    """MIG is on, off or not there; partitions are on offer while it is on."""
    host.add_gpu(mig_current=current, mig_pending=current)
    assert (told(backend)["mig"], told(backend)["partitionable"]) == (word, partitionable)


def test_a_part_without_partitions(host: Host, backend: NvidiaBackend) -> None:
    """A part that cannot be partitioned says none."""
    host.add_gpu("pascal")
    assert told(backend)["mig"] == "none"


@pytest.mark.parametrize(
    ("bytes_of_node", "kind"), [("98304", "numa node 1 of the host"), ("0", "dedicated")]
)
def test_b64_memory_of_the_gpu_that_is_a_node(
    host: Host, backend: NvidiaBackend, bytes_of_node: str, kind: str
) -> None:
    """B64: the driver names the node its memory is; an empty one holds nothing of the GPU's."""
    host.add_gpu(numa_memory_node=1)
    host.tree.put("sys/devices/system/node/node1/meminfo", f"Node 1 MemTotal: {bytes_of_node} kB\n")
    assert told(backend)["memory"] == kind


def test_b64_a_node_that_cannot_be_read_is_in_doubt(host: Host, backend: NvidiaBackend) -> None:
    """B64: where nodes cannot be seen at all, memory that may be one is not taken for its own."""
    host.add_gpu(numa_memory_node=1)
    assert told(backend)["memory"] == "numa node 1 of the host"
    (host.hardware_root / "sys/devices/system/node").mkdir(parents=True)
    assert told(backend)["memory"] == "dedicated"
