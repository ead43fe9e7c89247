"""From a claim and what its devices' back end grants to the bytes of a spec. Pure.

The same claim and grants give the same bytes. Nothing but what the grants name gets in (A6): each
device node with path, host path, type, numbers, mode and permissions; each mount with its options.

A grant that cannot be written is the back end's fault and `InputInvalid`: a path that is not
absolute and plain, a device without numbers, a variable without a name.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from fleet.core import errors
from fleet.core.model import ClaimUid, Uuid
from fleet.devices.base import DeviceNode, Grant, Mount
from fleet.node.cdi import rules, versions
from fleet.node.cdi.model import Spec
from fleet.node.cdi.names import Kind, device_name

VARIABLE = "FLEETSCRUB_DEVICE"
"""Environment variable that tells a container the UUID of its device (the last of several)."""
READ_ONLY = ("ro", "nosuid", "nodev", "bind")
READ_WRITE = ("rw", "nosuid", "nodev", "bind")


def spec(kind: Kind, uid: ClaimUid, grants: Mapping[Uuid, Grant]) -> Spec:
    """The spec of one claim: a device for each grant, by name. Raises `InputInvalid`."""
    tree: dict[str, Any] = {
        "cdiVersion": versions.WRITTEN,
        "kind": str(kind),
        "devices": tuple(
            {
                "name": device_name(uid, device),
                "containerEdits": _edits(device, grants[device]),
            }
            for device in sorted(grants)
        ),
    }
    try:
        found = Spec.model_validate(tree)
    except ValidationError as error:
        raise errors.InputInvalid(f"the grants of claim {uid} make no CDI spec: {error}") from error
    version = versions.written(found)
    if version != found.cdi_version:
        found = found.model_copy(update={"cdi_version": version})
    problems = [*rules.problems(found), *rules.doubts(found)]
    if problems:
        raise errors.InputInvalid(
            f"the grants of claim {uid} make no valid CDI spec: {'; '.join(problems)}",
            remedy="nothing was written; this is a fault of the back end, report it",
        )
    return found


def text(found: Spec) -> bytes:
    """The bytes of the file, ending with a newline. Raises `InputInvalid` for what is no text."""
    try:
        rendered = found.model_dump_json(by_alias=True, exclude_none=True, indent=2)
    except PydanticSerializationError as error:
        raise errors.InputInvalid(f"a grant of {found.kind} is no UTF-8: {error}") from error
    return rendered.encode() + b"\n"


def _edits(device: str, grant: Grant) -> dict[str, Any]:
    variables = {**grant.environment, VARIABLE: device}
    edits: dict[str, Any] = {"env": tuple(_variable(*item) for item in sorted(variables.items()))}
    nodes = sorted(grant.nodes, key=lambda node: node.path)
    mounts = sorted(grant.mounts, key=lambda mount: mount.container_path)
    if nodes:
        edits["deviceNodes"] = tuple(_node(node) for node in nodes)
    if mounts:
        edits["mounts"] = tuple(_mount(mount) for mount in mounts)
    _unique("device node", [node.path for node in nodes])
    _unique("mount", [mount.container_path for mount in mounts])
    return edits


def _node(node: DeviceNode) -> dict[str, Any]:
    if node.kind not in ("b", "c") or node.major < 1 or node.minor < 0:
        raise errors.InputInvalid(
            f"device node {node.path} needs type c or b, a major number from 1 and a minor from 0;"
            f" it has {node.kind!r} {node.major}:{node.minor}"
        )
    if not node.permissions:  # to a runtime, none given means all
        raise errors.InputInvalid(f"device node {node.path} is granted without any permission")
    return {
        "path": _plain(node.path),
        "hostPath": _plain(node.host_path or node.path),
        "type": node.kind,
        "major": node.major,
        "minor": node.minor,
        "fileMode": node.file_mode,
        "permissions": "".join(sorted(set(node.permissions), key="rwm".find)),
    }


def _mount(mount: Mount) -> dict[str, Any]:
    return {
        "hostPath": _plain(mount.host_path),
        "containerPath": _plain(mount.container_path),
        "options": READ_ONLY if mount.read_only else READ_WRITE,
    }


def _plain(path: str) -> str:
    """An absolute path that means the same wherever it is read. Raises `InputInvalid`."""
    if not path.startswith("/") or "\0" in path or posixpath.normpath(path) != path:
        raise errors.InputInvalid(f"{path!r} is no absolute path without '.', '..' and '//'")
    return path


def _variable(name: str, value: str) -> str:
    if not name or "=" in name or "\0" in name + value:
        raise errors.InputInvalid(f"{name!r} cannot name an environment variable")
    return f"{name}={value}"


def _unique(what: str, paths: list[str]) -> None:
    for earlier, later in pairwise(paths):
        if earlier == later:
            raise errors.InputInvalid(f"a grant has two {what}s at {later}")
