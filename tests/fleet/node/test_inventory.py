"""A node opens, tears down and answers with no driver at all; cards are remembered (B14, B72)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped] # ships no types

from fleet.core import errors
from fleet.core.messages import ClaimOrder, NodeView
from fleet.core.profiles import Profile
from fleet.core.settings import (
    MIB,
    HardwareSettings,
    HealthPolicy,
    KubernetesSettings,
    NodeSettings,
    Settings,
)
from fleet.evidence import layout
from fleet.node.service import NodeService
from fleet.rpc.client import DoorNode
from fleet.wiring import adapters, plans
from fleet.wiring.adapters import NodePlan
from tests.drivers.host import Host
from tests.fleet.node.conftest import wait_for
from tests.fleet.node.trees import POD, Tree

CORPUS = Path(__file__).parents[2] / "corpus" / "B14-nvml-init-fails"
PROFILES = {one["id"]: one for one in yaml.safe_load((CORPUS / "profiles.yaml").read_text())}
CARDS = json.loads((CORPUS / "remembered-inventory.json").read_text())
STARTS = sorted(name for name in PROFILES if name.startswith("start-"))
UNPREPARE_S = 5.0


@dataclass
class Ground:
    """A served node of eight stand-in GPUs, whose driver can be taken away."""

    host: Host
    root: Path
    tree: Tree = field(init=False)
    plan: NodePlan = field(init=False)
    node: NodeService | None = None
    pods: dict[int, list[Path]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tree = Tree(self.root / "cgroup", "v2-systemd")
        (self.root / "kubelet").mkdir()
        for card in CARDS:
            self.host.add_gpu(
                uuid=card["uuid"],
                bus_id=card["pci"],
                total=32 * MIB,
                reserved=64 * 1024,
                context_bytes=64 * 1024,
                bus_width=8,
                clock_max_memory=100,
            )
        settings = Settings(
            profile=Profile.FAST,
            node=NodeSettings(idle_delay_s=3600.0),
            health=HealthPolicy(sweep_period_s=5.0),
            hardware=HardwareSettings(
                root=str(self.host.hardware_root),
                kernel_log=str(self.host.tree.put("dev/kmsg", "")),
                run_directory=str(self.root / "run"),
            ),
            kubernetes=KubernetesSettings(
                kubelet_root=str(self.root / "kubelet"),
                cdi_directory=str(self.root / "cdi"),
                cgroup_root=str(self.tree.root),
            ),
        )
        state = self.root / "state"
        (self.plan,) = plans.plan_fleet(state, settings=settings, serve="n1").nodes
        adapters.begin(adapters.CoordinatorPlan(state=str(state), settings=settings))

    def open(self) -> DoorNode:
        """The node opened anew, and its door."""
        self.node = adapters.open_node(self.plan)
        return adapters.open_door(self.plan)

    def close(self) -> None:
        """Nobody owns the node."""
        if self.node is not None:
            self.node.close()
            self.node = None

    def tick(self) -> NodeView:
        """One step; the view after it."""
        assert self.node is not None
        self.node.tick(time.time())
        return self.node.view()

    def order(self, uid: str, card: int) -> ClaimOrder:
        """A claim on one card, without a token: the node sees to the lease."""
        pod = f"{POD[:-2]}{card:02d}"
        return ClaimOrder(uid=uid, node="n1", devices=(CARDS[card]["uuid"],), consumers=(pod,))

    def prepare(self, cards: Iterable[int]) -> None:
        """A pod runs with each of these cards; then the node is closed."""
        door = self.open()
        wait_for(lambda: not self.tick().blocked)  # a busy host starts the driver's process late
        door.adopt(operator="ada")
        with ThreadPoolExecutor(4) as pool:
            orders = [self.order(f"claim-{card}", card) for card in cards]
            assert {one.state for one in pool.map(door.prepare, orders)} == {"PREPARED"}
        for card in cards:
            self.pods[card] = self.tree.pod(f"{POD[:-2]}{card:02d}")
            self.tree.enter(self.pods[card])
        door.close()
        self.close()

    @property
    def specs(self) -> list[str]:
        """CDI specs there are."""
        return sorted(path.name for path in (self.root / "cdi").glob("*.json"))


@pytest.fixture
def ground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ground]:
    """The node, closed."""
    host = Host(tmp_path / "machine")
    for name, text in host.environment().items():
        monkeypatch.setenv(name, text)
    made = Ground(host, tmp_path)
    try:
        yield made
    finally:
        for name in ("nvmlInit", "nvml*"):
            host.heal(name)
        made.close()


def test_b14_claims_are_torn_down_with_no_driver_and_the_driver_comes_back(ground: Ground) -> None:
    """B14, B72, F22: a node without a driver opens on its journal and the cards it remembers; a pod
    that left is let go within 5 s with its device dirty and kept, nothing is prepared, and the
    driver's return is noticed without a restart."""
    outages = {name: f"return {PROFILES[name]['nvmlInit_rc']}" for name in STARTS}
    outages["hang"] = "hang"
    ground.prepare(range(len(outages)))
    for number, (name, rule) in enumerate(outages.items()):
        ground.host.fault("nvmlInit", rule)
        began = time.monotonic()
        door = ground.open()
        assert time.monotonic() - began < UNPREPARE_S, name
        view = door.view()
        assert {device.uuid for device in view.devices} == {card["uuid"] for card in CARDS}
        assert {device.checked_at for device in view.devices} == {0.0}
        assert any("driver" in why for why in view.blocked)
        with pytest.raises((errors.DriverAbsent, errors.DriverBusy)) as refused:
            door.prepare(ground.order("claim-new", 7), budget_s=1.0)
        assert "driver" in refused.value.detail
        assert refused.value.remedy
        assert isinstance(refused.value, errors.DriverBusy) == (name == "hang")

        with pytest.raises(errors.DeviceBusy, match="still runs"):
            door.unprepare(f"claim-{number}", budget_s=1.0)
        ground.tree.leave(ground.pods[number])
        began = time.monotonic()
        assert door.unprepare(f"claim-{number}", budget_s=UNPREPARE_S).state == "UNPREPARING"
        assert time.monotonic() - began < UNPREPARE_S, name
        assert not any(f"claim-{number}." in spec for spec in ground.specs)
        assert door.unprepare("never-seen").state == "ABSENT"
        view = ground.tick()
        device = next(one for one in view.devices if one.uuid == CARDS[number]["uuid"])
        assert (device.state, device.claim) == ("DIRTY", f"claim-{number}")
        assert not any(one.reasons for one in view.devices)
        door.close()
        if name != "hang":
            ground.close()
            ground.host.heal("nvmlInit")

    ground.host.heal("nvmlInit")
    wait_for(lambda: not ground.tick().claims, timeout_s=90.0)
    view = ground.tick()
    assert not any("driver" in why for why in view.blocked)
    states = {device.uuid: device.state for device in view.devices}
    assert {states[CARDS[number]["uuid"]] for number in range(len(outages))} == {"CLEAN"}


def test_b72_a_key_that_cannot_be_used_keeps_no_pod(ground: Ground) -> None:
    """B72: with a signing key that others can use nothing is wiped or prepared, and a pod that left
    is let go all the same; once the key is right again the rest is done, without a restart."""
    ground.prepare([0])
    ground.tree.leave(ground.pods[0])
    key = layout.node_key(Path(ground.plan.state), "n1")
    key.chmod(0o644)
    door = ground.open()
    assert any("signing key" in why for why in door.view().blocked)
    with pytest.raises(errors.KeyUnusable):
        door.prepare(ground.order("claim-new", 7), budget_s=1.0)
    assert door.unprepare("claim-0", budget_s=UNPREPARE_S).state == "UNPREPARING"
    assert ground.specs == []
    assert not any(device.reasons for device in ground.tick().devices)
    key.chmod(0o600)
    wait_for(lambda: not ground.tick().claims, timeout_s=60.0)
    assert not ground.tick().blocked
    door.close()


@pytest.mark.parametrize("profile", sorted(name for name in PROFILES if name.startswith("mid-")))
def test_b14_a_driver_that_goes_away_in_mid_operation_blames_no_device(
    ground: Ground, profile: str
) -> None:
    """B14: a driver that goes away while the node serves is one trouble of the node: no device is
    quarantined for it, nothing is prepared, and a pod is let go; health is read anew when it is
    back."""
    ground.prepare([0])
    door = ground.open()
    wait_for(lambda: not ground.tick().blocked)
    door.sweep()
    ground.host.fault("nvml*", f"return {PROFILES[profile]['every_call_rc']}")
    assert all("driver" in one.error for one in door.sweep())
    view = door.view()
    assert not any(device.reasons for device in view.devices)
    assert {device.checked_at for device in view.devices} == {0.0}
    with pytest.raises(errors.DriverAbsent):
        door.prepare(ground.order("claim-new", 7), budget_s=1.0)
    ground.tree.leave(ground.pods[0])
    assert door.unprepare("claim-0", budget_s=UNPREPARE_S).state == "UNPREPARING"
    ground.host.heal("nvml*")
    wait_for(lambda: not ground.tick().blocked, timeout_s=60.0)
    assert {device.uuid for device in ground.tick().devices} == {card["uuid"] for card in CARDS}
    wait_for(lambda: not ground.tick().claims, timeout_s=60.0)
    door.sweep()
    assert all(device.checked_at for device in door.view().devices)
    door.close()
