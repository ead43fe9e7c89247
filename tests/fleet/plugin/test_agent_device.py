"""The device through which our own node service reaches the accelerators."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from fleet.core import errors
from fleet.core.model import ClaimUid
from fleet.devices.base import Grant, Mount
from fleet.kube.base import PODS
from fleet.node.cdi.directory import SpecDirectory
from fleet.plugin.agent_device import ENDED_MAX, Agents
from fleet.plugin.requests import AskedClaim, PreparedClaim
from tests.fleet.plugin.benches import SPACE, Bench, bench, result


@pytest.fixture
def own() -> Iterator[Bench]:
    """A node whose agent device is for claims of the namespace `tenant`."""
    with bench(agent_namespace=SPACE) as made:
        yield made


def agents(site: Bench) -> Agents:
    found = site.serving.agents
    assert found is not None
    return found


def agent_claim(site: Bench, name: str = "agent") -> AskedClaim:
    asked = site.create(name)
    site.allocate(asked, result("agent"))
    return site.reserve(asked, site.pod(f"pod-of-{asked.uid}"))


def spec_names(site: Bench) -> list[str]:
    return [name for name in site.specs if "agent" in name]


def test_a_claim_of_our_namespace_gets_every_accelerator(own: Bench) -> None:
    """DESIGN 7: prepared by the plugin alone, repeatable, with the grant of the back end."""
    asked = agent_claim(own)
    own.node.close()
    first = own.serving.prepare(asked)
    assert own.serving.prepare(asked) == first
    (device,) = first.devices
    assert (device.device, device.pool, device.requests) == ("agent", "n1", ("gpu",))
    (name,) = spec_names(own)
    found = json.loads((own.cdi / name).read_text())
    assert f"{found['kind']}={found['devices'][0]['name']}" == device.cdi_ids[0]
    assert str(own.directory / "sim") in json.dumps(found)
    own.open()
    assert own.node.claims() == []


@pytest.mark.parametrize("space", ["elsewhere", "tenant-2", ""])
def test_nobody_else_gets_it(own: Bench, space: str) -> None:
    """DESIGN 7: whoever has it reaches every accelerator, so other namespaces never do."""
    foreign = AskedClaim(space, "u-1", "a")
    with pytest.raises(errors.ClaimConfigInvalid, match="every accelerator"):
        agents(own).prepare(foreign)
    closed = replace(agents(own), namespace="")
    with pytest.raises(errors.ClaimConfigInvalid):
        closed.prepare(replace(foreign, namespace=""))
    assert (spec_names(own), agents(own).records()) == ([], [])


def test_without_the_setting_there_is_no_such_device(site: Bench) -> None:
    """The plugin offers what it was told to, and a claim of the old setting is an error."""
    with pytest.raises(errors.DeviceUnknown, match="agent"):
        site.serving.prepare(agent_claim(site))


def test_it_is_claimed_alone(own: Bench) -> None:
    """A claim of accelerators has a record on the node, one of the agent device has not."""
    asked = own.create("a", "one", "two")
    own.allocate(asked, result("agent", request="one"), result("gpu-0", request="two"))
    own.reserve(asked, own.pod())
    with pytest.raises(errors.ClaimConfigInvalid, match="a claim of its own"):
        own.serving.prepare(asked)
    assert own.specs == []


def test_a_late_prepare_does_not_revive_it(own: Bench) -> None:
    """B12: without a live pod nobody gets it."""
    asked = own.create("a")
    own.allocate(asked, result("agent"))
    with pytest.raises(errors.ClaimUnready, match="no live pod"):
        own.serving.prepare(asked)
    assert own.cluster.calls[-1].resource is not PODS


class Unwritable:
    """Specs whose directory is full, after the record was asked for."""

    def __init__(self, agents: Agents) -> None:
        self.known_first = False
        self.agents = agents

    def agent_ids(self, uid: ClaimUid) -> tuple[str, ...]:
        return (f"v/c={uid}",)

    def write_agent(self, uid: ClaimUid, grant: Grant) -> None:
        self.known_first = self.agents.knows(uid)
        raise errors.SpecUnavailable(f"the disk is full, nothing of {grant} was written")

    def remove_agent(self, uid: ClaimUid) -> None:
        raise errors.SpecUnavailable(f"the disk fails, {uid} has its spec")

    def listed_agents(self) -> tuple[ClaimUid, ...]:
        return ()


def test_the_record_comes_before_the_spec_and_goes_after_it(own: Bench) -> None:
    """Promise 3: a spec never exists without the record that removes it."""
    specs = Unwritable(agents(own))
    broken = replace(agents(own), specs=specs)
    asked = AskedClaim(SPACE, "u-1", "a")
    with pytest.raises(errors.SpecUnavailable):
        broken.prepare(asked)
    assert specs.known_first
    with pytest.raises(errors.SpecUnavailable):
        broken.unprepare("u-1")
    assert broken.knows("u-1")
    assert agents(own).unprepare("u-1")
    assert not broken.knows("u-1")


def test_a_start_settles_specs_and_records(own: Bench) -> None:
    """Promise 3, invariant 9: specs without a record go, those of records are written again."""
    asked = agent_claim(own)
    own.serving.prepare(asked)
    (name,) = spec_names(own)
    (own.cdi / name).unlink()
    orphan = ClaimUid("00000000-0000-4000-8000-000000000001")
    specs = agents(own).specs
    specs.write_agent(orphan, Grant(mounts=(Mount(str(own.state), str(own.state)),)))
    agents(own).settle()
    assert spec_names(own) == [name]
    assert agents(own).records() == [asked]


def test_the_agents_pod_can_leave_while_nobody_owns_the_node(own: Bench) -> None:
    """Promise 7: the owner sits in the pod that is leaving; its teardown must not wait for one."""
    asked = agent_claim(own)
    own.serving.prepare(asked)
    never = agent_claim(own, "never")
    own.node.close()
    own.serving.unprepare(asked)
    assert spec_names(own) == []
    own.cluster.faults.offline = True
    own.serving.unprepare(asked)
    own.cluster.faults.offline = False
    own.serving.unprepare(never)
    assert own.clock.monotonic() == 0.0
    own.open()


def test_a_second_claim_has_its_own_spec(own: Bench) -> None:
    """During an update of the agent's pod both have the device; one's end is not the other's."""
    old, new = agent_claim(own, "old"), agent_claim(own, "new")
    first, second = own.serving.prepare(old), own.serving.prepare(new)
    assert isinstance(first, PreparedClaim)
    assert first.devices[0].cdi_ids != second.devices[0].cdi_ids
    own.serving.unprepare(old)
    assert own.serving.prepare(new) == second
    assert len(spec_names(own)) == 1
    assert agents(own).records() == [new]


def test_prepares_at_once_write_one_whole_spec(own: Bench) -> None:
    """Invariant 7: also for the device that only the plugin knows."""
    asked = agent_claim(own)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: own.serving.prepare(asked), range(24)))
    assert all(answer == answers[0] for answer in answers)
    assert len(spec_names(own)) == 1
    assert [path.name for path in agents(own).directory.iterdir()] == [f"{asked.uid}.json"]


def test_without_the_api_it_is_answered_from_its_record(own: Bench) -> None:
    """A node that starts while the API is away gets its service back."""
    asked = agent_claim(own)
    first = own.serving.prepare(asked)
    own.cluster.faults.offline = True
    again = own.serving.prepare(asked)
    assert again.devices[0].cdi_ids == first.devices[0].cdi_ids


def test_ended_records_are_bounded(own: Bench) -> None:
    """Promise 7: nothing grows for ever; the newest stay known."""
    found = agents(own)
    for number in range(ENDED_MAX + 8):
        found.prepare(AskedClaim(SPACE, f"u-{number}", "a"))
        ended = found.directory / f"u-{number}.ended"
        assert found.unprepare(f"u-{number}")
        os.utime(ended, (number, number))
    assert len(list(found.directory.iterdir())) <= ENDED_MAX + 1
    assert found.unprepare(f"u-{ENDED_MAX + 7}")
    assert not found.unprepare("u-0")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"namespace": 1, "name": "a"}', "\udcff", "null"]
)
def test_a_record_that_cannot_be_read_stops_no_other(
    own: Bench, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """B15: skipped and logged once; its spec stays, for its pod may live; kubelet can end both."""
    kept, broken = agent_claim(own, "kept"), agent_claim(own, "broken")
    own.serving.prepare(kept)
    own.serving.prepare(broken)
    path = agents(own).directory / f"{broken.uid}.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    for _ in range(3):
        assert agents(own).records() == [kept]
    assert caplog.text.count(str(path)) == 1
    agents(own).settle()
    assert len(spec_names(own)) == 2
    own.serving.unprepare(broken)
    assert len(spec_names(own)) == 1
    assert not agents(own).knows(broken.uid)


def test_a_record_that_cannot_be_read_is_mended_by_a_prepare(own: Bench) -> None:
    """Invariant 9: kubelet asks again and names the claim; the record says so from then on."""
    asked = agent_claim(own)
    first = own.serving.prepare(asked)
    (agents(own).directory / f"{asked.uid}.json").write_text("")
    assert agents(own).records() == []
    own.cluster.faults.offline = True
    assert own.serving.prepare(asked).devices[0].cdi_ids == first.devices[0].cdi_ids
    assert agents(own).records() == [asked]


def test_the_specs_of_the_product_are_agent_specs(own: Bench) -> None:
    """The port is what the directory of specs offers."""
    assert isinstance(agents(own).specs, SpecDirectory)
