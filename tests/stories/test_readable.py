"""What whoever has kubectl alone sees of a device, a node and a claim: docs/looking.md."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from fleet.core.clock import SystemClock
from fleet.core.leases import AcquireRequest
from fleet.core.model import Holder, HolderKind, Lease, UnitId
from fleet.core.settings import Settings
from fleet.devices.health.reasons import CATALOGUE
from fleet.kube.base import EVENTS, NODES, Name, Selection, uid_of
from fleet.stores.base import Release
from fleet.stores.factory import StorePlace
from fleet.stores.late import LateStore
from tests.e2e.plugin_process import DRIVER
from tests.e2e.polling import eventually
from tests.e2e.workloads import STAY, program
from tests.stories.stage import WAIT_S, Stage

PROFILE = "strict"
COORDINATED = True
FAULT = "counter-unread"
"""Lasts until it is taken back."""


def shown(stage: Stage, device: str) -> dict[str, str]:
    """Values of a published device's taints by their keys, without the driver's name."""
    found = stage.published()[device].get("taints") or []
    return {str(one["key"]).removeprefix(f"{DRIVER}/"): one.get("value", "") for one in found}


def events(stage: Stage, uid: str, reason: str, *, namespace: str = "") -> list[str]:
    """Messages of events of one reason about the object with this UID."""
    chosen = Selection(namespace=namespace or stage.namespace, fields=f"involvedObject.uid={uid}")
    found = stage.cluster.list(EVENTS, chosen).items
    return [str(one["message"]) for one in found if one["reason"] == reason]


def test_a_device_out_of_service_is_read_from_slice_and_node(stage: Stage) -> None:
    """The taint has the reason's code; an event of the Node says what it means and what to do."""
    stage.break_device("gpu-1", FAULT)
    eventually("it is tainted", lambda: shown(stage, "gpu-1").get("quarantined"), timeout_s=WAIT_S)
    codes = shown(stage, "gpu-1")["quarantined"].split(".")
    node = stage.plugin.node
    assert stage.cluster.get(NODES, Name(node))

    def told() -> list[str]:
        found = events(stage, node, "DeviceQuarantined", namespace="default")
        return [one for one in found if one.startswith("gpu-1 ")]

    wanted = {said for code in codes for said in (CATALOGUE[code].text, CATALOGUE[code].remedy)}
    eventually(
        f"events of the Node say {wanted}",  # one that comes later is told anew
        lambda: all(any(text in one for one in told()) for text in wanted),
        timeout_s=WAIT_S,
        tell=lambda: "\n".join(told()),
    )
    assert shown(stage, "gpu-2") == {}


def test_a_node_that_can_prepare_nothing_is_read_from_slices_and_probe(stage: Stage) -> None:
    """The lease store is away: every device says in one word that it is the node's trouble."""
    directory = stage.plugin.state / "coordinator"
    aside = directory.with_name("coordinator-aside")
    directory.rename(aside)
    try:
        eventually(
            "every device says so",
            lambda: all(
                shown(stage, name) == {"not-clean": "node-blocked"} for name in stage.published()
            ),
            timeout_s=WAIT_S,
        )
        assert stage.plugin.page("readyz") == ""  # 503
    finally:
        aside.rename(directory)
    eventually(
        "nothing is left of it",
        lambda: not any(shown(stage, name) for name in stage.published()),
        timeout_s=WAIT_S,
    )


@contextmanager
def leased_by_an_operator(stage: Stage, device: str) -> Iterator[None]:
    """Somebody else has the device by the store, and nobody on its node."""
    view = stage.plugin.device(device)
    assert view is not None
    store = LateStore(
        StorePlace(Settings(), stage.plugin.state).opener(SystemClock(), expected=lambda: False)
    )
    units = frozenset(map(UnitId, view.units))
    holder = Holder(HolderKind.OPERATOR, "tests")
    try:
        (lease,) = store.acquire([AcquireRequest(units, holder, ttl_s=2 * WAIT_S)])
        assert isinstance(lease, Lease), lease
        yield
        store.release([Release(holder, lease.token)])
    finally:
        store.close()


def test_a_claim_that_waits_says_for_what(stage: Stage) -> None:
    """While somebody else has its device, claim and pod have an event that says so and names
    nobody; once that is over the pod runs."""
    with leased_by_an_operator(stage, "gpu-1"):
        pod = stage.run(program(STAY), stage.claim_template(uuid=stage.uuid("gpu-1")))
        claim = stage.in_prebind(pod)
        for uid in (uid_of(claim), uid_of(stage.pod(pod))):
            told = eventually(
                "it is told",
                partial(events, stage, uid, "WaitForDevice"),
                timeout_s=WAIT_S,
                tell=stage.coordinator.told,
            )
            assert "a device is held by somebody else" in told[0]
            assert "tests" not in told[0].partition("`")[0]
    stage.in_phase(pod, "Running")
    stage.delete(pod)
    stage.undone(claim)
