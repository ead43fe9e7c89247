"""The shapes of the kinds served: which lists merge by key, which are owned whole. Pure.

Only what the rules need: ownership under server-side apply depends on whether a list is a map in
disguise (status.devices), a set (finalizers) or atomic (a slice's devices). Kinds that matter less
are `Free`: their shape is deduced from each body, lists are atomic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Leaf:
    """A scalar: string, boolean, int32, int64, time, microtime or quantity."""

    type: str


@dataclass(frozen=True, slots=True)
class Raw:
    """Any JSON, owned as a whole (opaque parameters, status data)."""


@dataclass(frozen=True, slots=True)
class Free:
    """Any JSON, shape deduced: maps are granular, lists atomic, nothing is unknown."""


@dataclass(frozen=True, slots=True)
class Struct:
    """Named fields; others do not exist. `required` ones appear in every stored object."""

    fields: Mapping[str, Shape]
    atomic: bool = False
    required: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Table:
    """A map with free keys."""

    element: Shape


@dataclass(frozen=True, slots=True)
class Series:
    """A list: by `keys` a map in disguise, by `unique` a set of scalars, otherwise atomic."""

    element: Shape
    keys: tuple[str, ...] = ()
    unique: bool = False

    @property
    def atomic(self) -> bool:
        """Whether the list has one owner only."""
        return not self.keys and not self.unique


Shape = Leaf | Raw | Free | Struct | Table | Series

STRING = Leaf("string")
BOOLEAN = Leaf("boolean")
INT32 = Leaf("int32")
INT64 = Leaf("int64")
TIME = Leaf("time")
MICROTIME = Leaf("microtime")
QUANTITY = Leaf("quantity")
RAW = Raw()
FREE = Free()
STRINGS = Series(STRING)


def strings(*names: str) -> dict[str, Shape]:
    """Fields that are strings."""
    return dict.fromkeys(names, STRING)


METADATA = Struct(
    {
        **strings("name", "generateName", "namespace", "selfLink", "uid", "resourceVersion"),
        "generation": INT64,
        "creationTimestamp": TIME,
        "deletionTimestamp": TIME,
        "deletionGracePeriodSeconds": INT64,
        "labels": Table(STRING),
        "annotations": Table(STRING),
        "finalizers": Series(STRING, unique=True),
        "ownerReferences": Series(
            Struct(
                {
                    **strings("apiVersion", "kind", "name", "uid"),
                    "controller": BOOLEAN,
                    "blockOwnerDeletion": BOOLEAN,
                }
            ),
            keys=("uid",),
        ),
        "managedFields": Series(FREE),
    }
)


def top(**parts: Shape) -> Struct:
    """The root of a kind: its own parts beside apiVersion, kind and metadata."""
    return Struct({"apiVersion": STRING, "kind": STRING, "metadata": METADATA, **parts})


CONDITION = Struct(
    {
        **strings("type", "status", "reason", "message"),
        "lastTransitionTime": TIME,
        "observedGeneration": INT64,
    },
    required={"message": "", "reason": ""},
)

NODE_SELECTOR = Struct(
    {
        "nodeSelectorTerms": Series(FREE),
    },
    atomic=True,
)

RESULT = Struct(
    {
        **strings("request", "driver", "pool", "device", "shareID"),
        "adminAccess": BOOLEAN,
        "tolerations": Series(FREE),
        "bindingConditions": STRINGS,
        "bindingFailureConditions": STRINGS,
        "consumedCapacity": Table(QUANTITY),
    }
)

OPAQUE_CONFIG: dict[str, Shape] = {
    "requests": STRINGS,
    "opaque": Struct({"driver": STRING, "parameters": RAW}),
}

ALLOCATION = Struct(
    {
        "devices": Struct(
            {
                "results": Series(RESULT),
                "config": Series(Struct({"source": STRING, **OPAQUE_CONFIG})),
            }
        ),
        "nodeSelector": NODE_SELECTOR,
        "allocationTimestamp": TIME,
    },
    required={"devices": {}},
)

ALLOCATED_DEVICE = Struct(
    {
        **strings("driver", "pool", "device", "shareID"),
        "conditions": Series(CONDITION, keys=("type",)),
        "data": RAW,
        "networkData": Struct(
            {"interfaceName": STRING, "ips": STRINGS, "hardwareAddress": STRING},
        ),
    },
    required={"conditions": None},
)

CLAIM_STATUS = Struct(
    {
        "allocation": ALLOCATION,
        "reservedFor": Series(
            Struct(strings("apiGroup", "resource", "name", "uid")), keys=("uid",)
        ),
        "devices": Series(ALLOCATED_DEVICE, keys=("device", "driver", "pool", "shareID")),
    }
)

DEVICE_SELECTORS = Series(Struct({"cel": Struct(strings("expression"))}))
SUBREQUEST: dict[str, Shape] = {
    **strings("deviceClassName", "allocationMode"),
    "count": INT64,
    "selectors": DEVICE_SELECTORS,
    "tolerations": Series(FREE),
    "capacity": Struct({"requests": Table(QUANTITY)}),
}
REQUEST = Struct(
    {
        "name": STRING,
        "exactly": Struct({**SUBREQUEST, "adminAccess": BOOLEAN}),
        "firstAvailable": Series(Struct({"name": STRING, **SUBREQUEST})),
    }
)
CLAIM_SPEC = Struct(
    {
        "devices": Struct(
            {
                "requests": Series(REQUEST),
                "constraints": Series(FREE),
                "config": Series(Struct(OPAQUE_CONFIG)),
            }
        )
    },
    required={"devices": {}},
)

TAINT = Struct({**strings("key", "value", "effect"), "timeAdded": TIME})
COUNTERS = Table(Struct({"value": QUANTITY}))
DEVICE = Struct(
    {
        **strings("name", "nodeName"),
        "attributes": Table(
            Struct({"int": INT64, "bool": BOOLEAN, "string": STRING, "version": STRING})
        ),
        "capacity": Table(Struct({"value": QUANTITY, "requestPolicy": FREE})),
        "consumesCounters": Series(Struct({"counterSet": STRING, "counters": COUNTERS})),
        "nodeSelector": NODE_SELECTOR,
        "allNodes": BOOLEAN,
        "taints": Series(TAINT),
        "bindsToNode": BOOLEAN,
        "bindingConditions": STRINGS,
        "bindingFailureConditions": STRINGS,
        "allowMultipleAllocations": BOOLEAN,
    }
)
SLICE_SPEC = Struct(
    {
        **strings("driver", "nodeName"),
        "pool": Struct({"name": STRING, "generation": INT64, "resourceSliceCount": INT64}),
        "nodeSelector": NODE_SELECTOR,
        "allNodes": BOOLEAN,
        "perDeviceNodeSelection": BOOLEAN,
        "devices": Series(DEVICE),
        "sharedCounters": Series(Struct({"name": STRING, "counters": COUNTERS})),
    }
)
LEASE_SPEC = Struct(
    {
        **strings("holderIdentity", "strategy", "preferredHolder"),
        "leaseDurationSeconds": INT32,
        "leaseTransitions": INT32,
        "acquireTime": MICROTIME,
        "renewTime": MICROTIME,
    }
)

CLAIM = top(spec=CLAIM_SPEC, status=CLAIM_STATUS)
CLAIM_TEMPLATE = top(spec=Struct({"metadata": METADATA, "spec": CLAIM_SPEC}))
SLICE = top(spec=SLICE_SPEC)
LEASE = top(spec=LEASE_SPEC)
CONFIG_MAP = top(data=Table(STRING), binaryData=Table(STRING), immutable=BOOLEAN)


def open_kind() -> Struct:
    """Known metadata, everything else free: pods, nodes, events, classes."""
    parts = ("spec", "status", "involvedObject", "source", "series", "related")
    times = {"eventTime": STRING, "firstTimestamp": STRING, "lastTimestamp": STRING}
    named = strings("reason", "message", "type", "action", "reportingComponent")
    return top(
        **dict.fromkeys(parts, FREE), **times, **named, reportingInstance=STRING, count=INT32
    )


def node() -> Struct:
    """A node: as open, but its conditions are merged by type, so that each has its own writer."""
    condition = Struct(
        {
            **strings("type", "status", "reason", "message"),
            "lastHeartbeatTime": TIME,
            "lastTransitionTime": TIME,
        }
    )
    others = ("addresses", "allocatable", "capacity", "daemonEndpoints", "images", "nodeInfo")
    status: dict[str, Shape] = {"conditions": Series(condition, keys=("type",))}
    return top(spec=FREE, status=Struct(status | dict.fromkeys(others, FREE)))


OPEN = open_kind()
NODE = node()


def extended(shape: Shape, path: tuple[str, ...]) -> Shape:
    """`shape` with one more field, of any JSON: a server newer than this model knows (B19).

    ``*`` in the path stands for every entry of a list or map.
    """
    if path[:1] == ("*",) and isinstance(shape, Series | Table):
        return replace(shape, element=extended(shape.element, path[1:]))
    if not isinstance(shape, Struct) or not path:
        return RAW
    inner = shape.fields.get(path[0], RAW if len(path) == 1 else Struct({}))
    return Struct(
        {**shape.fields, path[0]: extended(inner, path[1:])}, shape.atomic, shape.required
    )
