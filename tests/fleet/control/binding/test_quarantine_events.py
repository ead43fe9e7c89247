"""Whoever has to know of a quarantine is told, and nobody else."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped] # ships no types

from fleet.control.binding.quarantine_events import SURVEY_MAX, QuarantineNotices
from fleet.core import errors
from fleet.core.messages import ClaimBrief, DeviceView, NodeView, ReasonView
from fleet.core.model import State
from fleet.kube.base import Object
from fleet.kube.events import Kind, Regarding
from fleet.kube.marks import Marks

DRIVER = "gpu.fleetscrub.dev"


@dataclass
class Heard:
    """What was told: kind and name of the object, and the words."""

    said: list[tuple[str, str, str, str]] = field(default_factory=list)

    def record(
        self, about: Regarding, reason: str, message: str, *, kind: Kind = Kind.NORMAL
    ) -> None:
        """Remembered."""
        assert kind is Kind.WARNING
        self.said.append((about.resource.kind, about.name.name, reason, message))

    def about(self, reason: str) -> list[tuple[str, str]]:
        """Who was told so."""
        return [(kind, name) for kind, name, told, _ in self.said if told == reason]


def claim(**status: object) -> Object:
    """The claim ``c1`` of a tenant."""
    pods = [{"resource": "pods", "name": "pod-1", "uid": "p1"}]
    head = {"name": "work", "namespace": "tenant", "uid": "c1", "resourceVersion": "1"}
    return {"metadata": head, "status": {"reservedFor": pods, **status}}


def told(
    *codes: str,
    state: State = State.QUARANTINED,
    of: str = "UNPREPARING",
    found: Object | None = None,
    kept_by: str = "",
) -> Heard:
    """What one step says about a device of the claim in this state."""
    device = DeviceView(
        uuid="g", name="gpu-0", accelerator="g", units=("g/all",), memory_bytes=1, state=state,
        claim="c1" if of else "", kept_by=kept_by,
        reasons=tuple(ReasonView(code=code, source="wipe", liftable=True) for code in codes),
    )  # fmt: skip
    view = NodeView(
        node="n1", incarnation="i", boot_id="b", at=1.0, simulated=True, backend="simulated",
        devices=(device,), claims=(ClaimBrief(uid="c1", state=of),) if of else (),
    )  # fmt: skip
    heard = Heard()
    claims = {"c1": found} if found is not None else {}
    follower = QuarantineNotices(heard, claims, Marks(DRIVER))
    follower.step({"n1": view, "n2": None, "n3": errors.NotOwner("away")}, 1.0)
    return heard


def test_the_node_the_claim_and_its_pods_are_told() -> None:
    """D3, D4: people of the node, and those whose data may not be proven wiped."""
    heard = told("timed-out", found=claim())
    assert heard.about("DeviceQuarantined") == [
        ("Node", "n1"),
        ("ResourceClaim", "work"),
        ("Pod", "pod-1"),
    ]
    node, owner, _ = (message for *_, message in heard.said)
    assert "fleet quarantine list" in node
    assert "not proven wiped" in owner
    assert "tenant" not in node


def test_a_tenant_that_lingers_is_named_with_the_command() -> None:
    """D3: what the teardown waits for, and what to do."""
    heard = told("tenant-not-gone", found=claim())
    assert heard.about("TeardownWaits") == [("ResourceClaim", "work")]
    assert "kubectl delete pod" in heard.said[-1][3]


@pytest.mark.parametrize(
    ("state", "of"),
    [(State.IN_USE, "PREPARED"), (State.QUARANTINED, "PREPARING"), (State.QUARANTINED, "")],
)
def test_who_uses_or_never_had_the_device_is_not_told_here(state: State, of: str) -> None:
    """No duplicates: kubelet shows health to a running pod, and the binder tells one that waits."""
    heard = told("xid", state=state, of=of, found=claim())
    assert heard.about("DeviceQuarantined") == [("Node", "n1")]


@pytest.mark.parametrize(
    "found", [None, {"metadata": {}}, {"metadata": {"uid": "c1"}, "status": 3}]
)
def test_a_claim_that_is_gone_or_unreadable_harms_nobody(found: Object | None) -> None:
    """B19: the node is told all the same."""
    assert told("xid", found=found).about("DeviceQuarantined") == [("Node", "n1")]


def test_what_is_told_in_one_survey_is_bounded_and_nobody_is_left_out() -> None:
    """Followers are paced: of many notices each survey tells some, in turn, and comes round."""
    reason = ReasonView(code="xid", source="health", liftable=True)
    views: dict[str, NodeView | errors.FleetError | None] = {}
    for number in range(2 * SURVEY_MAX + 5):
        device = DeviceView(
            uuid="g", name="gpu-0", accelerator="g", units=("g/all",), memory_bytes=1,
            state=State.QUARANTINED, reasons=(reason,),
        )  # fmt: skip
        name = f"n{number}"
        views[name] = NodeView(
            node=name, incarnation="i", boot_id="b", at=1.0, simulated=True, backend="simulated",
            devices=(device,),
        )  # fmt: skip
    heard = Heard()
    follower = QuarantineNotices(heard, {}, Marks(DRIVER))
    follower.step(views, 1.0)
    assert len(heard.said) == SURVEY_MAX
    follower.step(views, 3.0)
    follower.step(views, 5.0)
    assert {name for _, name, *_ in heard.said} == views.keys()


def test_a_device_in_order_is_no_news() -> None:
    """Nothing is said of what is in service."""
    assert told(state=State.CLEAN, of="").said == []


CASE = Path(__file__).parents[3] / "corpus/B36-extended-resource-gap/api"


def extended() -> Object:
    """The case's claim as the scheduler makes it, under the name of our test's."""
    found: Object = yaml.safe_load((CASE / "claim.yaml").read_text())
    marks = {"resource.kubernetes.io/extended-resource-claim": "true"}
    return {**found, "metadata": {**found["metadata"], "annotations": marks}}


def test_b36_a_pod_that_no_taint_evicts_is_told_by_name() -> None:
    """B36: claim and pod are told that the device is still in use, by which pod and why nobody ends
    it; the words name nothing of the node's processes.
    """
    keeper = "claim x/y (z): pod 77"
    heard = told("timed-out", state=State.IN_USE, of="PREPARED", found=extended(), kept_by=keeper)
    assert heard.about("DeviceStillInUse") == [
        ("ResourceClaim", "ext-pod-claim"),
        ("Pod", "ext-pod-claim-pod"),
    ]
    (message,) = {message for _, _, reason, message in heard.said if reason == "DeviceStillInUse"}
    assert "still in use by pod ext-pod-claim-pod via an extended resource" in message
    assert keeper not in message
    assert not told("timed-out", state=State.IN_USE, of="PREPARED", found=extended()).about(
        "DeviceStillInUse"
    )
    plain = told("timed-out", state=State.IN_USE, of="PREPARED", found=claim(), kept_by=keeper)
    (message,) = {message for _, _, reason, message in plain.said if reason == "DeviceStillInUse"}
    assert "by pod pod-1: delete the pod" in message


def test_b33_a_claim_whose_device_cannot_be_wiped_is_told() -> None:
    """B33: the claim and its pods learn that the wipe waits, never for whom; without a claim that
    can be read nobody else is told.
    """
    keeper = "python3 (pid 7)"
    heard = told(state=State.DIRTY, found=claim(), kept_by=keeper)
    assert heard.about("WipeWaits") == [("ResourceClaim", "work"), ("Pod", "pod-1")]
    assert not any(keeper in message for *_, message in heard.said)
    assert told(state=State.DIRTY, of="", kept_by=keeper).said == []
    assert told(state=State.DIRTY, kept_by=keeper).said == []
