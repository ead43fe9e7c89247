"""The lowest CDI version a spec can carry. Pure.

A runtime refuses a version it does not know and one lower than the content needs; a field that is
there counts even if it is empty, since a runtime older than the field refuses it. The lowest that
fits is therefore the one that most runtimes accept; "the newest" is the one that fewest do.
"""

from __future__ import annotations

from collections.abc import Iterator

from fleet.node.cdi.model import Edits, Spec

KNOWN = (
    "0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0",
)  # fmt: skip
"""In ascending order."""
LOWEST = "0.3.0"
"""What a spec without any newer feature needs."""
WRITTEN = "0.5.0"
"""The lowest we write: names from UUIDs begin with a digit or a letter by chance, and the version
must not change from claim to claim."""


def rank(version: str) -> int:
    """Place of a version in the order of versions; -1 for one that is unknown."""
    return KNOWN.index(version) if version in KNOWN else -1


def minimum(spec: Spec) -> str:
    """The lowest version that has everything the spec uses, at least `LOWEST`."""
    return max(_needs(spec), key=rank)


def written(spec: Spec) -> str:
    """The version we write for this content, whatever version the spec says now."""
    return max(WRITTEN, minimum(spec), key=rank)


def _needs(spec: Spec) -> Iterator[str]:
    yield LOWEST
    if spec.annotations is not None or "." in spec.kind.partition("/")[2]:
        yield "0.6.0"
    if spec.container_edits is not None:
        yield from _edits_need(spec.container_edits)
    for device in spec.devices:
        if device.name[:1].isdigit():
            yield "0.5.0"
        if device.annotations is not None:
            yield "0.6.0"
        yield from _edits_need(device.container_edits)


def _edits_need(edits: Edits) -> Iterator[str]:
    if any(mount.type is not None for mount in edits.mounts or ()):
        yield "0.4.0"
    if any(node.host_path is not None for node in edits.device_nodes or ()):
        yield "0.5.0"
    if edits.intel_rdt is not None or edits.additional_gids is not None:
        yield "0.7.0"
    rdt = edits.intel_rdt
    newest = (edits.net_devices, rdt and rdt.schemata, rdt and rdt.enable_monitoring)
    if any(part is not None for part in newest):
        yield "1.1.0"
