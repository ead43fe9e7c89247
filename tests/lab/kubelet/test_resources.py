"""Kubelet's claims without sockets: order of steps, references, the end of a claim."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fleet.core import errors
from fleet.kube.base import Object
from fleet.plugin.requests import AskedClaim, PreparedDevice
from tests.lab.kubelet import checkpoint
from tests.lab.kubelet.connection import Answer
from tests.lab.kubelet.resources import PodIdentity, Resources

A = PodIdentity("ns", "a", "pod-a", ("c1",))
B = PodIdentity("ns", "b", "pod-b", ("c1",))


class Drivers:
    """Drivers d1 and d2 without sockets, and the claims at the API server."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.calls: list[tuple[str, str, tuple[str, ...]]] = []
        self.errors: dict[tuple[str, str], str] = {}
        self.away: set[str] = set()
        self.watch: Callable[[], None] = lambda: None
        self.claims: dict[str, Object] = {}

    def open(self, **more: Any) -> Resources:
        return Resources(self.path, read_claim=self._read, find=self._find, call_s=1.0, **more)

    def claim(
        self, name: str, uid: str, *pods: PodIdentity, drivers: Sequence[str] = ("d1",)
    ) -> None:
        results = [{"driver": driver, "request": "r"} for driver in drivers]
        self.claims[name] = {
            "metadata": {"name": name, "uid": uid},
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"uid": pod.uid} for pod in pods],
            },
        }

    def _read(self, namespace: str, name: str) -> Object:
        if name not in self.claims:
            raise errors.ApiNotFound(f"{namespace}/{name}")
        return copy.deepcopy(self.claims[name])

    def _find(self, driver: str) -> Driver:
        if driver in self.away:
            raise errors.PluginUnavailable(f"{driver} is not registered")
        return Driver(self, driver)


class Driver:
    """One of them."""

    def __init__(self, drivers: Drivers, name: str) -> None:
        self._drivers = drivers
        self._name = name

    def prepare(self, claims: Sequence[AskedClaim], *, timeout_s: float) -> dict[str, Answer]:
        return self._called("prepare", claims, timeout_s)

    def unprepare(self, claims: Sequence[AskedClaim], *, timeout_s: float) -> dict[str, Answer]:
        return self._called("unprepare", claims, timeout_s)

    def _called(
        self, call: str, claims: Sequence[AskedClaim], timeout_s: float
    ) -> dict[str, Answer]:
        assert timeout_s == 1.0
        drivers = self._drivers
        drivers.watch()
        drivers.calls.append((call, self._name, tuple(claim.uid for claim in claims)))
        device = PreparedDevice(("r",), "p", "d", (f"k={self._name}",))
        return {
            claim.uid: Answer(drivers.errors.get((self._name, claim.uid), ""), (device,))
            for claim in claims
        }


@pytest.fixture
def drivers(tmp_path: Path) -> Drivers:
    return Drivers(tmp_path / "dra_manager_state")


def pods_in_file(drivers: Drivers) -> dict[str, set[str]]:
    return {entry.uid: entry.pods for entry in checkpoint.read(drivers.path)}


def test_the_reference_is_durable_before_the_call(drivers: Drivers) -> None:
    """Reference 1.4: whoever is asked finds the pod in the checkpoint."""
    drivers.claim("c1", "u1", A)
    seen: list[dict[str, set[str]]] = []
    drivers.watch = lambda: seen.append(pods_in_file(drivers))
    drivers.open().prepare(A)
    assert seen == [{"u1": {"pod-a"}}]


def test_all_of_a_pods_claims_go_in_one_call(drivers: Drivers) -> None:
    """Reference 1.4: one call per driver, for the claims that are not prepared yet."""
    pod = PodIdentity("ns", "a", "pod-a", ("c1", "c2", "c3"))
    drivers.claim("c1", "u1", pod)
    drivers.claim("c2", "u2", pod, drivers=("d1", "d2"))
    drivers.claim("c3", "u3", pod, drivers=())
    found = drivers.open()
    assert found.prepare(pod)
    assert drivers.calls == [("prepare", "d1", ("u1", "u2")), ("prepare", "d2", ("u2",))]
    assert not found.prepare(pod)
    assert [one.cdi_ids for one in found.devices(pod)] == [("k=d1",), ("k=d1",), ("k=d2",)]


def test_one_claims_error_fails_the_pod(drivers: Drivers) -> None:
    """Reference 1.3: claims that succeeded in the failed call are prepared again."""
    pod = PodIdentity("ns", "a", "pod-a", ("c1", "c2"))
    drivers.claim("c1", "u1", pod)
    drivers.claim("c2", "u2", pod)
    drivers.errors["d1", "u2"] = "busy"
    found = drivers.open()
    with pytest.raises(errors.ClaimUnready, match="busy"):
        found.prepare(pod)
    drivers.errors.clear()
    found.prepare(pod)
    assert drivers.calls == [("prepare", "d1", ("u1", "u2"))] * 2


def test_drivers_after_a_failing_one_are_not_called(drivers: Drivers) -> None:
    """Reference 1.3: and the earlier ones are not rolled back, but told of the end."""
    drivers.claim("c1", "u1", A, drivers=("d1", "d2"))
    drivers.errors["d1", "u1"] = "busy"
    found = drivers.open()
    with pytest.raises(errors.ClaimUnready):
        found.prepare(A)
    assert drivers.calls == [("prepare", "d1", ("u1",))]
    drivers.errors.clear()
    found.unprepare(A)
    assert drivers.calls[1:] == [("unprepare", "d1", ("u1",)), ("unprepare", "d2", ("u1",))]


@pytest.mark.parametrize("trouble", ["unreserved", "unallocated", "missing", "unregistered"])
def test_failed_checks_leave_no_trace(drivers: Drivers, trouble: str) -> None:
    """Reference 1.4: nothing in the checkpoint, so that no unprepare follows."""
    drivers.claim("c1", "u1", *(() if trouble == "unreserved" else (A,)))
    if trouble == "unallocated":
        del drivers.claims["c1"]["status"]["allocation"]
    if trouble == "missing":
        drivers.claims.clear()
    if trouble == "unregistered":
        drivers.away.add("d1")
    found = drivers.open()
    with pytest.raises(errors.FleetError):
        found.prepare(A)
    assert found.entries() == ()
    assert not found.unprepare(A)
    assert drivers.calls == []


def test_a_registered_plugin_is_needed_even_when_prepared(drivers: Drivers) -> None:
    """Reference 1.4: the check comes before the question whether there is anything to do."""
    drivers.claim("c1", "u1", A)
    found = drivers.open()
    found.prepare(A)
    drivers.away.add("d1")
    with pytest.raises(errors.PluginUnavailable):
        found.prepare(A)


def test_the_last_pod_ends_the_claim(drivers: Drivers) -> None:
    """Reference 1.5: unprepare once, for the last of the pods."""
    drivers.claim("c1", "u1", A, B)
    found = drivers.open()
    found.prepare(A)
    assert not found.prepare(B)
    assert not found.unprepare(A)
    assert pods_in_file(drivers) == {"u1": {"pod-b"}}
    assert found.unprepare(B)
    assert drivers.calls == [("prepare", "d1", ("u1",)), ("unprepare", "d1", ("u1",))]
    assert pods_in_file(drivers) == {}


def test_a_failed_unprepare_keeps_the_claim(drivers: Drivers) -> None:
    """Reference 1.5: the checkpoint is rewritten only after success."""
    drivers.claim("c1", "u1", A)
    found = drivers.open()
    found.prepare(A)
    drivers.errors["d1", "u1"] = "wiping"
    with pytest.raises(errors.ClaimUnready, match="wiping"):
        found.unprepare(A)
    assert pods_in_file(drivers) == {"u1": {"pod-a"}}


def test_a_restart_keeps_references_and_devices(drivers: Drivers) -> None:
    """Reference 1.6: only `prepared` is lost; the ids are known, and an unprepare follows."""
    drivers.claim("c1", "u1", A)
    drivers.open().prepare(A)
    again = drivers.open()
    assert [one.cdi_ids for one in again.devices(A)] == [("k=d1",)]
    again.prepare(A)
    assert len(again.devices(A)) == 2
    assert again.unprepare(A)


def test_another_uid_under_a_known_name_is_refused(drivers: Drivers) -> None:
    """Reference 1.4: the old claim of a force-deleted pod blocks the new one of its name."""
    drivers.claim("c1", "u1", A)
    found = drivers.open()
    found.prepare(A)
    drivers.claim("c1", "u2", B)
    with pytest.raises(errors.ClaimUnready, match="u1"):
        found.prepare(B)


def test_claims_of_pods_that_are_gone_are_unprepared(drivers: Drivers) -> None:
    """Reference 1.5: the reconcile frees what no active pod uses."""
    drivers.claim("c1", "u1", A, B)
    found = drivers.open()
    found.prepare(A)
    found.prepare(B)
    assert found.unprepare_absent(["pod-b"]) == ("pod-a",)
    assert [call for call, _, _ in drivers.calls] == ["prepare"]
    assert found.unprepare_absent([]) == ("pod-b",)
    assert drivers.calls[-1] == ("unprepare", "d1", ("u1",))


def test_a_count_is_not_a_name(drivers: Drivers) -> None:
    """Reference 1.5 (a): by count, a stranger that names the claim takes it from its pod."""
    for by_count, unprepared in ((False, False), (True, True)):
        drivers.claim("c1", "u1", A)
        found = drivers.open(by_count=by_count)
        found.prepare(A)
        assert found.unprepare(B) is unprepared
