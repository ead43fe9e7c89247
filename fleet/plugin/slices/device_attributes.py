"""From a device as the node sees it to a device as a ResourceSlice carries it. Pure.

Every device carries the same attributes: a CEL selector that names a missing one aborts the
scheduling of the pod instead of not matching. What is unknown is "", -1 or version 0.0.0: one that
had another type for some values would abort it just so (F45). Names and values that drivers of GPU
vendors have are theirs, so that selectors move over with the domain alone.

Device names are the node's own ones, made fit for a DNS label: an allocation names the device by
driver, pool and name, and the plugin must find the same device again after any restart.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fleet.core import pci
from fleet.core.messages import DeviceView, NodeView
from fleet.core.profiles import RULES, Profile
from fleet.kube.base import Object
from fleet.kube.marks import AGENT, Marks

NAME_MAX = 63
TEXT_MAX = 64
"""Length, bytes, of an attribute's text."""
UNKNOWN = -1

_LABEL = re.compile(r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
_NUMBERS = re.compile(r"v?(\d{1,18})(?:\.(\d{1,18}))?(?:\.(\d{1,18}))?(?![\d])", re.ASCII)
_NO_VERSION = "0.0.0"
_SEMVER = re.compile(
    r"^(0|[1-9]\d{0,17})\.(0|[1-9]\d{0,17})\.(0|[1-9]\d{0,17})"
    r"(-(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(\.(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$",
    re.ASCII,
)
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
_PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
_TEXTS = (
    "uuid",
    "architecture",
    "brand",
    "profile",
    "partitionProfile",
    "parentUUID",
    _PCIE_ROOT,
    _PCI_BUS_ID,
)
_VERSIONS = {
    "driverVersion": "driver",
    "cudaDriverVersion": "cuda_driver",
    "cudaComputeCapability": "compute_capability",
}
"""Attributes that are versions, and what the node calls them."""
GPU, PARTITION = "gpu", "mig"
"""Types of a device, as selectors know them."""


@dataclass(frozen=True, slots=True)
class Terms:
    """On whose behalf and on what terms the node's devices are offered."""

    driver: str
    node: str
    """Name of the Node object, and of the pool."""
    profile: Profile
    simulated: bool = False
    """Whether its devices are; for what is published before the node was heard of."""

    @property
    def sanitized(self) -> str:
        """Condition: wiped and verified under the claim's token."""
        return Marks(self.driver).sanitized

    @property
    def healthy(self) -> str:
        """Condition: checked under the claim's token."""
        return Marks(self.driver).healthy

    @property
    def failed(self) -> str:
        """Failure condition: the device will not become ready for this claim."""
        return Marks(self.driver).failed


def names(devices: Iterable[DeviceView]) -> Mapping[str, str]:
    """The device name in the slice by UUID: unique DNS labels, whatever the order.

    A name that is no label, is reserved or belongs to two devices is made unique by a hash of the
    UUID, for each device that would have it.
    """
    wanted = {device.uuid: _label(device.name) for device in devices}
    count: dict[str, int] = {}
    for name in wanted.values():
        count[name] = count.get(name, 0) + 1
    raw = {device.uuid: device.name for device in devices}
    return {
        uuid: name
        if name == raw[uuid] and count[name] == 1 and name not in ("", AGENT)
        else _hashed(name, uuid)
        for uuid, name in wanted.items()
    }


def uuid_of(view: NodeView, device_name: str) -> str | None:
    """The UUID behind a device name of an allocation result; None: no such device, or the agent."""
    for uuid, name in names(view.devices).items():
        if name == device_name:
            return uuid
    return None


def render(
    device: DeviceView,
    name: str,
    *,
    taints: Iterable[Object],
    terms: Terms,
    counters: Sequence[Object] = (),
) -> Object:
    """The device as a slice carries it, without `timeAdded` of taints.

    `counters`: what it consumes (`fleet.plugin.slices.counters`).
    """
    found = device.attributes
    whole = device.accelerator in ("", device.uuid)
    entry: Object = {
        "name": name,
        "attributes": {
            **_same_for_all(terms),
            "uuid": _text(device.uuid),
            "productName": _text(found.get("product", "")),
            "architecture": _text(found.get("architecture", "")),
            **{name: _version(found.get(ours, "")) for name, ours in _VERSIONS.items()},
            "brand": _text(found.get("brand", "")),
            "type": _text(found.get("type", "") or (GPU if whole else PARTITION)),
            "profile": _text(device.profile),
            "partitionProfile": _text(device.profile),
            "parentUUID": _text("" if whole else found.get("parent", "") or device.accelerator),
            "simulated": {"bool": found.get("simulated", "") == "true"},
            "numaNode": _number(found.get("numa", "")),
            "iommuGroup": _number(found.get("iommu", "")),
            _PCIE_ROOT: _text(found.get("pcie_root", "")),
            _PCI_BUS_ID: _text(pci.address(found.get("pci", ""))),
        },
        # 0 where nobody tells the size. It is not left out: a selector that asks for memory would
        # fail on such a device, and with it the allocation of its neighbours.
        "capacity": {"memory": {"value": quantity_text(device.memory_bytes)}},
        "allowMultipleAllocations": False,
    }
    if counters:
        entry["consumesCounters"] = list(counters)
    if listed := list(taints):
        entry["taints"] = listed
    if RULES[terms.profile].binding_conditions:
        entry["bindsToNode"] = True
        entry["bindingConditions"] = [terms.sanitized, terms.healthy]
        entry["bindingFailureConditions"] = [terms.failed]
    return entry


def agent_device(terms: Terms, *, simulated: bool) -> Object:
    """The agent device: no memory, no taints, no binding conditions."""
    return {
        "name": AGENT,
        "attributes": {
            **_same_for_all(terms),
            **dict.fromkeys(_TEXTS, _text("")),
            **dict.fromkeys(_VERSIONS, _version("")),
            "type": _text(AGENT),
            "productName": _text("node agent"),
            "simulated": {"bool": simulated},
            "numaNode": {"int": UNKNOWN},
            "iommuGroup": {"int": UNKNOWN},
            "agent": {"bool": True},
        },
        "allowMultipleAllocations": False,
    }


def attribute(entry: Object, name: str) -> str:
    """The text of a device's attribute, "" without one."""
    value = (entry.get("attributes") or {}).get(name) or {}
    return str(value.get("string", ""))


def quantity_text(size_bytes: int) -> str:
    """A size in the shortest binary spelling, as the server would write it."""
    power = 0
    while size_bytes and size_bytes % 1024 == 0 and power + 1 < len(_BINARY):
        size_bytes //= 1024
        power += 1
    return f"{size_bytes}{_BINARY[power]}"


def _same_for_all(terms: Terms) -> Object:
    return {"sanitizationProfile": _text(terms.profile.value), "agent": {"bool": False}}


def _label(name: str) -> str:
    """The nearest DNS label, itself when it is one."""
    if len(name) <= NAME_MAX and _LABEL.fullmatch(name):
        return name
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:NAME_MAX].rstrip("-")


def _hashed(name: str, uuid: str) -> str:
    suffix = hashlib.sha256(uuid.encode()).hexdigest()[:10]
    return "-".join(part for part in (name[: NAME_MAX - 11].rstrip("-"), suffix) if part)


def _text(value: str) -> Object:
    """A text of at most 64 bytes, cut between characters."""
    return {"string": value.encode()[:TEXT_MAX].decode(errors="ignore")}


def _version(value: str) -> Object:
    """Always a semantic version, for CEL compares no others.

    Drivers' versions often are none: leading zeros go and missing numbers are 0, as other drivers
    have it (``580.65.06`` is 580.65.6, ``575.57`` is 575.57.0). Of more numbers the first three
    count, and what begins with none is 0.0.0.
    """
    if len(value) <= TEXT_MAX and _SEMVER.fullmatch(value):
        return {"version": value}
    found = _NUMBERS.match(value)
    if found is None:
        return {"version": _NO_VERSION}
    return {"version": ".".join(str(int(number or 0)) for number in found.groups())}


def _number(value: str) -> Object:
    return {"int": int(value) if re.fullmatch(r"-?[0-9]{1,18}", value, re.ASCII) else UNKNOWN}
