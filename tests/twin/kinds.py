"""Every kind of trouble in the twin, by name, with what it does; the list issue 8 asks for.

A kind that many stories never met fails the run (`tests.twin.coverage`).
"""

from __future__ import annotations

from collections.abc import Mapping

NONE = "none"
"""No trouble in force."""

MESSAGES: Mapping[str, str] = {
    "read-lost": "a read from the API server is not answered",
    "write-conflict": "a write meets a newer resourceVersion",
    "write-lost": "a write does not arrive",
    "write-failed": "a write is answered by 500 and not done",
    "write-invalid": "a write is answered by 422 and not done",
    "write-late": "a write is given up, and done up to 8 s later if its guard still holds",
    "write-unanswered": "a write is done, and the answer lost",
    "call-lost": "a call to a node does not arrive",
    "call-late": "a call to a node is given up, and arrives up to 20 s later",
    "call-doubled": "a call to a node arrives twice",
    "answer-lost": "a node has done what it was asked, and the answer is lost",
    "store-away": "the lease store does not answer",
    "store-unanswered": "the lease store has done it, and the answer is lost",
    "watch-broken": "the coordinator's watch breaks: it lists again",
    "watch-late": "half of what a watch brings comes with the next",
    "watch-reordered": "two events of a watch change places",
    "watch-doubled": "an event of a watch comes twice",
    "kubelet-doubled": "kubelet's call to the plugin arrives twice",
    "kubelet-late": "kubelet's prepare arrives once more, up to 30 s later",
}
RATES: Mapping[str, float] = {
    "read-lost": 0.01,
    "write-conflict": 0.04,
    "write-lost": 0.02,
    "write-failed": 0.005,
    "write-invalid": 0.005,
    "write-late": 0.02,
    "write-unanswered": 0.03,
    "call-lost": 0.02,
    "call-late": 0.02,
    "call-doubled": 0.02,
    "answer-lost": 0.02,
    "store-away": 0.01,
    "store-unanswered": 0.01,
    "watch-broken": 0.02,
    "watch-late": 0.05,
    "watch-reordered": 0.1,
    "watch-doubled": 0.1,
    "kubelet-doubled": 0.03,
    "kubelet-late": 0.03,
    "kill-before-commit": 0.003,
    "kill-after-commit": 0.003,
}
"""A bad day: about one write in eight goes wrong in some way."""
WIPES: Mapping[str, tuple[str, float]] = {
    "worker-died": ("interrupted", 0.35),
    "worker-died-checking": ("interrupted-check", 0.1),
    "worker-hangs": ("hang", 0.1),
    "worker-hangs-checking": ("hang-check", 0.05),
    "worker-wedged": ("wedged", 0.1),
    "wipe-mismatch": ("memory-mismatch", 0.15),
    "check-failed": ("ecc-uncorrectable", 0.15),
}
"""The fate of a wipe, and its share among wipes that go wrong."""
SLOW = "wipe-slow"
NODES: Mapping[str, str] = {
    "kill-before-commit": "the node service dies before a commit is durable",
    "kill-after-commit": "the node service dies right after a commit is durable",
    "service-killed": "the node service dies between two events",
    "service-frozen": "the node service stands still (SIGSTOP) for up to 60 s, or is killed then",
    "node-reboots": "the node is off for a while; nothing is trusted after it",
    "disk-full": "the journal cannot be written for a while",
    "specs-unwritable": "the CDI directory cannot be written for a while",
    "spec-removed": "somebody removes a CDI spec",
    "journal-lost": "the service is killed and its journal is gone, or corrupt and set aside",
    "journal-restored": "the service is killed and finds an older copy of its journal",
    "node-clock-steps": "the node's clock jumps by seconds to ten minutes, and back at peace",
    "node-silent": "the coordinator does not reach the node",
    "node-cut": "the node reaches neither API server nor store",
    "card-swapped": "the node boots with another card in a slot",
    "device-fails": "a sweep finds a fault",
    "foreign-process": "a foreign process was on a device that nobody has",
    "driver-reloaded": "the driver of a device was loaded anew",
    "tenant-lingers": "a force-deleted tenant runs on for minutes",
    "plugin-restarts": "a new plugin process",
    "two-plugins": "the old plugin goes on for a while beside the new one",
    "kubelet-restarts": "kubelet forgets what is prepared",
}
CONTROL: Mapping[str, str] = {
    "coordinator-killed": "kill -9 of a coordinator",
    "two-coordinators": "a second coordinator starts beside the first",
    "coordinator-deaf": "a coordinator's watch brings nothing for a while",
    "coordinator-clock-steps": "a coordinator's clock jumps, and back at peace",
    "store-restored": "the store is restored from a backup, and adopted by an operator later",
    "api-outage": "nothing of ours reaches the API server",
    "scheduler-restarts": "a new scheduler that knows nothing",
    "slices-deleted": "all slices of a node are deleted",
    "taints-stripped": "somebody takes the taints out of our slices",
    "node-deleted": "a Node object is deleted and made again",
    "force-delete": "a pod is deleted by force",
    "claim-deleted": "somebody deletes a claim in use",
    "allocation-cleared": "an administrator ends an allocation by hand",
    "device-stolen": "another allocator gives a device away twice",
    "namespace-deleted": "a namespace is deleted with all that is in it",
}


def _wipes() -> Mapping[str, str]:
    told = {kind: f"a wipe ends with {code}" for kind, (code, _) in WIPES.items()}
    return {**told, SLOW: "a wipe takes up to a minute"}


KINDS: Mapping[str, str] = {**MESSAGES, **NODES, **CONTROL, **_wipes()}
"""All kinds that may strike."""
