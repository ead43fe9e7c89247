"""What owners are told names the device, the reasons and what to do, and nobody else."""

from __future__ import annotations

import pytest

from fleet.control.binding import notices
from fleet.control.binding.notices import Notice
from fleet.core.clock import ManualClock
from fleet.devices.health.reasons import CATALOGUE
from fleet.kube.base import EVENTS, PODS, Name, Selection
from fleet.kube.events import MESSAGE_MAX, Events, Kind, Regarding
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.engine import Engine

CODES = ("xid", "memory-mismatch")
ALL = (
    notices.quarantined("gpu-0", CODES),
    notices.not_proven_wiped("gpu-0", CODES),
    notices.tenant_lingers("gpu-0"),
)
OF_KUBELET = {"FailedPrepareDynamicResources", "FailedScheduling", "FailedMount", "Failed"}


@pytest.mark.parametrize("notice", ALL, ids=[notice.reason for notice in ALL])
def test_a_notice_can_be_recorded_and_duplicates_none_of_kubelets(notice: Notice) -> None:
    """Each is a warning the API takes, under a reason that kubelet and scheduler do not use."""
    cluster = MemoryCluster(Engine(clock=ManualClock(1_700_000_000.0)))
    events = Events(cluster, "fleetscrub", ManualClock(1_700_000_000.0))
    about = Regarding(PODS, Name("pod", "tenant"), "u1")
    events.record(about, notice.reason, notice.message, kind=notice.kind)
    (event,) = cluster.list(EVENTS, Selection()).items
    assert (event["reason"], event["type"]) == (notice.reason, Kind.WARNING)
    assert "gpu-0" in event["message"]
    assert notice.reason not in OF_KUBELET


def test_reasons_are_named_each_once() -> None:
    """The codes of all units of a device, sorted; a device without one is out of service too."""
    assert "memory-mismatch, xid" in notices.not_proven_wiped("gpu-0", (*CODES, *CODES)).message
    assert "unknown" in notices.not_proven_wiped("gpu-0", ()).message


def test_who_runs_the_node_reads_meaning_and_remedy_of_each_reason() -> None:
    """Without our command line a code alone says nothing; one of a newer node is shown bare."""
    told = notices.quarantined("gpu-0", ("device-lost", "of-tomorrow", "device-lost")).message
    known = CATALOGUE["device-lost"]
    assert told == (
        f"gpu-0 is out of service: device-lost ({known.text}): {known.remedy}. of-tomorrow."
        " `fleet quarantine list` shows more"
    )


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_every_reason_fits_into_an_event(code: str) -> None:
    """What is cut off at 1,024 bytes would be the remedy."""
    assert len(notices.quarantined("gpu-0", (code,)).message.encode()) <= MESSAGE_MAX
