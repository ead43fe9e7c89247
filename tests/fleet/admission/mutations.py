"""Manifests of the corpus changed at random, as careless or ill-meaning people would."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

from fleet.kube.shapes import Object

Place = tuple[Any, Any]
"""A container and a key or index in it."""
VALUES: dict[str, tuple[Any, ...]] = {
    "add": (["CHOWN"], ["CAP_SYS_ADMIN"], ["all"], []),
    "adminAccess": (True, False),
    "agent": (True,),
    "allocationMode": ("All", "ExactCount"),
    "config": ([],),
    "count": (1, 2, 8),
    "coverageFloor": (0, 1, 2, 0.5, -0.5),
    "deallocation": ("Retain", "WipeOnDeallocate", ""),
    "deviceClassName": (
        "agent.gpu.fleetscrub.dev",
        "nic.example.com",
        "gpu.fleetscrub.dev",
        "gpu.nvidia.com",
    ),
    "driver": ("nic.example.com", "gpu.fleetscrub.dev"),
    "expression": (
        'device.driver == "gpu.fleetscrub.dev"',
        'device.driver == "nic.example.com"',
        '"gpu.fleet" + "scrub.dev" in device.attributes',
        "device.allowMultipleAllocations",
    ),
    "hostNetwork": (True, False),
    "hostPID": (True, False),
    "isolationTag": ("", "fst1.eyJ9.b", "fst1.a.b", "fst1.eyJ9.b "),
    "key": ("gpu.fleetscrub.dev/x", "gpu.fleetscrub.devx/y", ""),
    "matchAttribute": ("gpu.fleetscrub.dev/uuid", "gpu.fleetscrub.dev/numaNode"),
    "name": ("gpu", "device", "other", "nic.example.com"),
    "path": ("/etc/./cdi", "/home", "/var/../dev", "/var/run/x", "/proc"),
    "privileged": (True, False),
    "hostPort": (0, 8086),
    "nodeName": ("", "node-1"),
    "procMount": ("Default", "Unmasked"),
    "readOnly": (True, False),
    "replicas": (0, 1, 2),
    "value": ("all", "void", ""),
    "profile": ("strict", "lab"),
    "requests": ([], ["gpu"], ["other"], ["gpu/best"]),
    "reset": ("always", "often"),
    "resourceClaimName": ("shared",),
    "resourceClaims": ([],),
    "terminationGracePeriodSeconds": (0, 1, 29, 30, 31),
}
"""What a field of this name may be changed to."""


def changed(document: Object, random: Random) -> Object:
    """A copy with one to three changes."""
    found = copy.deepcopy(dict(document))
    for _ in range(random.randint(1, 3)):
        places = _places(found)
        if not places:
            break
        container, key = places[random.randrange(len(places))]
        _change(container, key, random)
    return found


def _places(value: Any) -> list[Place]:
    pairs: Any = ()
    if isinstance(value, dict):
        pairs = [pair for pair in value.items() if pair[0] not in ("apiVersion", "kind")]
    elif isinstance(value, list):
        pairs = enumerate(value)
    return [place for key, one in pairs for place in ((value, key), *_places(one))]


def _change(container: Any, key: Any, random: Random) -> None:
    value = container[key]
    of_same_kind = [one for one in VALUES.get(key, ()) if isinstance(one, type(value) | int)]
    if of_same_kind and random.random() < 0.7:
        container[key] = copy.deepcopy(random.choice(of_same_kind))
    elif isinstance(value, list) and value and random.random() < 0.7:
        value.append(copy.deepcopy(random.choice(value)))
    else:
        del container[key]
