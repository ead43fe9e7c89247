"""Which GPUs reset together."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.core.errors import DeviceLost, DriverRefused
from fleet.core.model import Uuid
from fleet.devices.nvidia import linkage, nvml
from fleet.devices.nvidia.linkage import Card
from tests.fleet.devices.nvidia.scripted import Scripted, refuse

VOLTA, AMPERE, UNKNOWN = 5, 7, 0xFFFFFFFF
GPU, SWITCH = 0, 2


def card(number: int) -> Card:
    return Card(Uuid(f"GPU-{number}"), f"0000:{0x3B + number:02x}:00.0")


def linked(
    ends: Mapping[int, tuple[int, ...]], *, architecture: Any = VOLTA, kind: Any = GPU
) -> Scripted:
    """GPUs by number with the numbers their links lead to; handles are the numbers."""
    addresses = {card(number).address: number for number in ends}

    def by_address(address: str) -> int:
        if address not in addresses:
            raise refuse(nvml.NOT_FOUND).error("nvmlDeviceGetHandleByPciBusId")
        return addresses[address]

    def state(number: int, link: int) -> int:
        if link >= len(ends[number]):
            raise refuse(nvml.INVALID_ARGUMENT).error("nvmlDeviceGetNvLinkState")
        return 1

    def remote(number: int, link: int) -> Any:
        address = f"0000{card(ends[number][link]).address.upper()}"
        return SimpleNamespace(busId=address.encode())

    return Scripted(
        nvmlDeviceGetHandleByPciBusId=by_address,
        nvmlDeviceGetUUID=lambda number: f"GPU-{number}",
        nvmlDeviceGetArchitecture=architecture,
        nvmlDeviceGetNvLinkState=state,
        nvmlDeviceGetNvLinkRemoteDeviceType=kind,
        nvmlDeviceGetNvLinkRemotePciInfo=remote,
    )


@pytest.mark.parametrize("architecture", [VOLTA, UNKNOWN, refuse(nvml.FUNCTION_NOT_FOUND)])
def test_older_gpus_reset_with_all_they_are_linked_to(architecture: Any) -> None:
    """gpus-8.36: also through another GPU; one that does not tell what it is counts as older."""
    library = linked({0: (1,), 1: (0, 2), 2: (1,), 3: ()}, architecture=architecture)
    assert linkage.group(library, card(0)) == (card(0), card(1), card(2))
    assert linkage.group(library, card(3)) == (card(3),)


def test_from_ampere_on_each_resets_alone() -> None:
    """gpus-8.36: direct links between newer GPUs are no reason to take the neighbour down."""
    assert linkage.group(linked({0: (1,), 1: (0,)}, architecture=AMPERE), card(0)) == (card(0),)


def test_links_to_switches_make_no_group() -> None:
    """gpus-8.36: a switch is no GPU, also where the driver does not tell kinds of ends."""
    assert linkage.group(linked({0: (1,), 1: (0,)}, kind=SWITCH), card(0)) == (card(0),)
    untold = linked({0: (7,)}, kind=refuse(nvml.FUNCTION_NOT_FOUND))
    assert linkage.group(untold, card(0)) == (card(0),)


def test_a_peer_that_cannot_be_told_is_no_free_pass() -> None:
    """gpus-8.36: a GPU at the other end that the driver does not find fails the question."""
    with pytest.raises(DriverRefused):
        linkage.group(linked({0: (7,)}), card(0))


@pytest.mark.parametrize("code", [nvml.RESET_REQUIRED, 999])
def test_only_a_gpu_that_waits_for_its_reset_is_taken_alone(code: int) -> None:
    """gpus-8.36: what must be reset answers nothing; any other refusal is an error."""
    library = Scripted(nvmlDeviceGetHandleByPciBusId=refuse(code))
    if code == nvml.RESET_REQUIRED:
        assert linkage.group(library, card(0)) == (card(0),)
    else:
        with pytest.raises(DriverRefused):
            linkage.group(library, card(0))


def test_another_gpu_in_the_slot_is_not_the_one_meant() -> None:
    """gpus-8.26: a card is opened by its slot and has to be itself."""
    library = linked({0: ()})
    with pytest.raises(DeviceLost, match="has GPU-0 now"):
        linkage.handle(library, Card(Uuid("GPU-9"), card(0).address))


@pytest.mark.parametrize("code", [nvml.NO_PERMISSION, nvml.TIMEOUT, 999])
def test_f41_a_link_that_cannot_be_read_is_no_link_to_nobody(code: int) -> None:
    """F41: a GPU before Ampere whose link is not told may reset another one along with it, under
    whoever works there: nothing is reset then."""
    library = linked({0: (1,), 1: (0,)})
    library.answers["nvmlDeviceGetNvLinkState"] = refuse(code)
    with pytest.raises(DriverRefused):
        linkage.group(library, card(0))
    library.answers["nvmlDeviceGetNvLinkState"] = refuse(nvml.NOT_SUPPORTED)
    assert linkage.group(library, card(0)) == (card(0),)
