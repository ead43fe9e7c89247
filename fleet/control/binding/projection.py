"""What the coordinator keeps of each claim and Node: what it decides by, and no more. Pure.

A claim may carry 256 KiB of annotations and 10 KiB for each of 32 parameters of other drivers, and
anybody may make thousands. What is kept is some KiB at most. It is for reading: what is written
back whole is read anew (a replacement by what is kept would erase the rest, and carries its
version: `fleet.control.binding.allocator` reads live).
"""

from __future__ import annotations

from typing import Any

from fleet.control.binding import pledge
from fleet.kube.base import Object
from fleet.kube.marks import Marks

DROPPED = frozenset({"managedFields", "labels", "annotations"})
ANNOTATION_MAX = 256
"""Characters of a pledge; a longer one is none."""


def trimmed(claim: Object, marks: Marks) -> Object:
    """The claim without managed fields, labels, spec, annotations but ours, and what other drivers
    configure or report. Never changes `claim`; what cannot be understood stays as it is.
    """
    found = {key: value for key, value in claim.items() if key != "spec"}
    if isinstance(metadata := claim.get("metadata"), dict):
        found["metadata"] = _metadata(metadata, marks)
    if isinstance(status := claim.get("status"), dict):
        found["status"] = _status(status, marks)
    return found


def trimmed_node(node: Object) -> Object:
    """The Node by name, labels and conditions: a real one lists its images, and many KiB more."""
    found: Object = {key: node[key] for key in ("apiVersion", "kind") if key in node}
    if isinstance(metadata := node.get("metadata"), dict):
        kept = ("name", "uid", "resourceVersion", "labels")
        found["metadata"] = {key: metadata[key] for key in kept if key in metadata}
    status = node.get("status")
    if isinstance(status, dict) and "conditions" in status:
        found["status"] = {"conditions": status["conditions"]}
    return found


def _metadata(metadata: Object, marks: Marks) -> Object:
    found = {key: value for key, value in metadata.items() if key not in DROPPED}
    annotations = metadata.get("annotations")
    mine = annotations.get(pledge.key(marks)) if isinstance(annotations, dict) else None
    if isinstance(mine, str) and len(mine) <= ANNOTATION_MAX:
        found["annotations"] = {pledge.key(marks): mine}
    return found


def _status(status: Object, marks: Marks) -> Object:
    found = dict(status)
    if isinstance(entries := status.get("devices"), list):
        found["devices"] = [one for one in entries if _is_ours(one, marks)]
    if isinstance(allocation := status.get("allocation"), dict):
        found["allocation"] = _allocation(allocation, marks)
    return found


def _allocation(allocation: Object, marks: Marks) -> Object:
    devices = allocation.get("devices")
    config = devices.get("config") if isinstance(devices, dict) else None
    if not isinstance(devices, dict) or not isinstance(config, list):
        return allocation
    kept = {**devices, "config": [_emptied(one, marks) for one in config]}
    return {**allocation, "devices": kept}


def _is_ours(entry: Any, marks: Marks) -> bool:
    """Also an entry that cannot be understood: whoever reads it says so."""
    return not isinstance(entry, dict) or entry.get("driver") in (marks.driver, None)


def _emptied(entry: Any, marks: Marks) -> Any:
    """An entry of another driver keeps its place, for messages name places, and loses its words."""
    opaque = entry.get("opaque") if isinstance(entry, dict) else None
    if not isinstance(opaque, dict) or opaque.get("driver") == marks.driver:
        return entry
    return {**entry, "opaque": {"driver": opaque.get("driver")}}
