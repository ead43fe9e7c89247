"""The one builder of what we write into slices: what is stored, with our own fields set. Pure.

A slice is written as a whole, and we are not the only ones who have something to say in it: an
administrator taints a device, a newer server or a newer tool keeps a field that we do not know.
Whatever is built here starts from the stored object. Fields, attributes, taints and owners of
others stay as they are, are no difference, and so are never a reason to write (cases B55, B74).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from fleet.kube.base import SLICES, Object, object_in, objects_in, version_of

DEVICE_FIELDS = frozenset(
    {
        "name",
        "attributes",
        "capacity",
        "taints",
        "consumesCounters",
        "allowMultipleAllocations",
        "bindsToNode",
        "bindingConditions",
        "bindingFailureConditions",
        "nodeName",
        "nodeSelector",
        "allNodes",
        "nodeAllocatableResourceMappings",
    }
)
"""Fields of a device that are ours, also where we leave them out: each decides who gets it."""
SLICE_FIELDS = frozenset(
    {
        "driver",
        "nodeName",
        "nodeSelector",
        "allNodes",
        "perDeviceNodeSelection",
        "pool",
        "devices",
        "sharedCounters",
    }
)
"""Fields of a slice's spec that are ours, also where we leave them out."""
TAINTS_MAX = 16
"""Taints of a device: the server's limit."""
_KUBERNETES = "resource.kubernetes.io"
_EVICTING = "NoExecute"


def merged_device(
    wanted: Object,
    stored: Object,
    *,
    driver: str,
    keys: Collection[str],
    earlier: Object | None = None,
) -> Object | None:
    """The device as stored, saying of us what `wanted` says; None: others leave no room for that.

    `keys`: of our taints, the one that counts last. `earlier`: the device as we knew it last, whose
    taints keep their times; as stored if None.
    """
    known = stored if earlier is None else earlier
    taints = merged_taints(
        [one for one in objects_in(wanted.get("taints")) if str(one.get("key")) in keys],
        objects_in(stored.get("taints")),
        keys=keys,
        earlier=objects_in(known.get("taints")),
    )
    if taints is None:
        return None
    body = _over(wanted, stored, DEVICE_FIELDS)
    for name, own in (("attributes", None), ("capacity", frozenset({"value", "requestPolicy"}))):
        listed = _qualified(object_in(wanted.get(name)), object_in(stored.get(name)), driver, own)
        if listed or name in body:
            body[name] = listed
    if counters := objects_in(wanted.get("consumesCounters")):
        body["consumesCounters"] = _named(
            counters, objects_in(stored.get("consumesCounters")), "counterSet"
        )
    body.pop("taints", None)
    return {**body, "taints": taints} if taints else body


def merged_taints(
    wanted: Sequence[Object],
    stored: Sequence[Object],
    *,
    keys: Collection[str],
    earlier: Sequence[Object],
) -> list[Object] | None:
    """The stored taints, of ours (`keys`) exactly those wanted; None: not one of ours has room.

    Of ours the last one counts most, and goes last for want of room. `earlier` has their times.
    """
    others = sum(str(one.get("key")) not in keys for one in stored)
    room = max(0, TAINTS_MAX - others)
    if wanted and not room:
        return None
    left = {str(one["key"]): one for one in wanted[max(0, len(wanted) - room) :]}
    found: list[Object] = []
    for taint in stored:
        key = str(taint.get("key"))
        if key not in keys:
            found.append(taint)
        elif key in left:
            found.append(_stamped(left.pop(key), taint, earlier))
    found += [_stamped(one, {}, earlier) for one in left.values()]
    return found


def merged_set(wanted: Object, stored: Iterable[Object]) -> Object:
    """A counter set, with what else its stored namesake has."""
    (found,) = _named([wanted], stored, "name")
    return found


def merged_slice(
    spec: Object, stored: Object | None, *, owner: Object, generated: str = ""
) -> Object:
    """The whole slice: as it is stored, with these fields in its spec and this Node as its owner.

    `stored` None: a new one, named by the server from `generated`. The body carries the stored
    resourceVersion, which guards the write.
    """
    if stored is None:
        metadata: Object = {"generateName": generated}
    else:
        metadata = {k: v for k, v in stored["metadata"].items() if k != "managedFields"}
        metadata["resourceVersion"] = version_of(stored)
    before = object_in((stored or {}).get("spec"))
    metadata["ownerReferences"] = [
        owner,
        *(one for one in objects_in(metadata.get("ownerReferences")) if not _replaced(one, owner)),
    ]
    merged = _over(spec, before, SLICE_FIELDS)
    merged["pool"] = _over(spec["pool"], object_in(before.get("pool")), frozenset(spec["pool"]))
    return {
        **(stored or {}),
        "apiVersion": SLICES.api_version,
        "kind": SLICES.kind,
        "metadata": metadata,
        "spec": merged,
    }


def _over(wanted: Object, stored: Object, own: Collection[str]) -> Object:
    """What is stored, with our fields as wanted: those left out go."""
    kept = {name: value for name, value in stored.items() if name not in own}
    return kept | {name: value for name, value in wanted.items() if name in own}


def _qualified(
    wanted: Object, stored: Object, driver: str, own: Collection[str] | None
) -> dict[str, Any]:
    """Attributes or capacities: a name without a domain is ours, as are our own and Kubernetes'.

    `own`: fields of a value that are ours; None: all of it, since a value of another kind beside
    ours would be refused.
    """
    found = {name: value for name, value in stored.items() if _is_foreign(name, driver=driver)}
    for name, value in wanted.items():
        if not _is_foreign(name, driver=driver):
            found[name] = value if own is None else _over(value, object_in(stored.get(name)), own)
    return found


def _is_foreign(name: str, *, driver: str) -> bool:
    domain, slash, _ = name.partition("/")
    return bool(slash) and domain not in (driver, _KUBERNETES)


def _named(wanted: Iterable[Object], stored: Iterable[Object], key: str) -> list[Object]:
    """Each of `wanted` with what else the stored one of its name has."""
    before = {str(one.get(key)): one for one in stored}
    return [_over(one, before.get(str(one[key]), {}), frozenset(one)) for one in wanted]


def _stamped(
    wanted: Object, stored: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]]
) -> Object:
    """A taint of ours with its time, and with what else is stored in it.

    A taint sent without its time is stamped anew by the server, and every tolerationSeconds begins
    again with that. So its time stays, whatever its value says, until it begins to evict.
    """
    times = {
        str(one.get("effect")): one["timeAdded"]
        for one in earlier
        if one.get("key") == wanted["key"] and one.get("timeAdded")
    }
    effect = str(wanted.get("effect"))
    time = times.get(effect)
    if time is None and effect != _EVICTING:
        time = next(iter(times.values()), None)
    kept = {k: v for k, v in stored.items() if k not in ("key", "value", "effect", "timeAdded")}
    found = {**kept, **wanted}
    if "timeAdded" not in wanted and time is not None:
        found["timeAdded"] = time
    return found


def _replaced(one: Object, owner: Object) -> bool:
    """Whether an owner makes way for ours: a Node (of an earlier life), or another controller."""
    return one.get("kind") == owner["kind"] or bool(one.get("controller"))
