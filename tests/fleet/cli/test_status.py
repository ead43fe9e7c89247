"""`fleet status`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.main import main
from fleet.cli.status import judge
from fleet.control.binding.liveness import Heartbeat
from fleet.control.binding.loop import BindingView
from fleet.core.clock import ManualClock
from fleet.core.messages import DeviceView, NodeView, Right
from fleet.node import kubelet_checkpoint
from fleet.wiring import adapters
from tests.fleet.cli.fleets import certify
from tests.fleet.cli.test_cluster import served_state
from tests.fleet.node.trees import Tree, checkpoint_text
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.server import StandIn


def test_status_of_an_unfit_fleet_is_exit_1(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A quarantined device makes `fleet status` exit 1, with reason and remedy on the screen."""
    add = ["quarantine", "add", "gpu-1", "--node", "node-02", "--reason", "smells of smoke"]
    assert main([*add, "--operator", "night shift", "--state", str(state)]) == 0
    capsys.readouterr()
    assert main(["status", "--state", str(state)]) == 1
    text = capsys.readouterr().out
    assert "node-02/gpu-1: operator" in text
    assert "smells of smoke" in text


def test_f57_the_first_line_is_the_verdict(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """F57: fit or unfit, why and since when, before anything else; the exit code says the same."""
    asked = ["status", "--state", str(state)]
    certify(state)
    assert main(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "FIT: 4 devices on 2 nodes, all in service"
    add = ["quarantine", "add", "gpu-1", "--node", "node-02", "--reason", "smells of smoke"]
    assert main([*add, "--state", str(state)]) == 0
    capsys.readouterr()
    assert main(asked) == 1
    line = capsys.readouterr().out.splitlines()[1]
    assert re.match(r"UNFIT since 20\d\d-\S+Z: 1 of 4 devices on 2 nodes: 1 QUARANTINED", line)
    assert "(operator x1)" in line
    assert main([*asked, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["fit"], found["verdict"]) == (False, line)
    assert found["unfit_since"].endswith("Z")


@dataclass
class Served:
    """A node that kubelet serves, its API server, and a coordinator of whom a test says how it
    stands."""

    state: Path
    cluster: MemoryCluster
    kubeconfig: Path

    def says(self, **told: Any) -> None:
        """The coordinator reports now."""
        now = time.time()
        view = BindingView(**{"stepped_at": now, "open_claims": 2, **told})
        clock = ManualClock(now)
        heart = Heartbeat(
            lambda: view, state=self.state, cluster=self.cluster, namespace="fleetscrub",
            clock=clock,
        )  # fmt: skip
        heart.beat()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """All its devices are fit."""
    with StandIn() as standin:
        kubeconfig = standin.kubeconfig(tmp_path / "kubeconfig")
        state = served_state(tmp_path / "served", kubeconfig)
        Tree(state / "cgroup", "v2-cgroupfs")
        (state / "kubelet").mkdir()
        (state / "kubelet" / kubelet_checkpoint.NAME).write_text(checkpoint_text({}))
        certify(state)
        yield Served(state, MemoryCluster(standin.engine), kubeconfig)


def asked(
    capsys: pytest.CaptureFixture[str], *more: str, state: Path | None = None
) -> tuple[int, str]:
    """Exit code, and what is on the screen in one line."""
    capsys.readouterr()
    code = main(["status", *(["--state", str(state)] if state else []), *more])
    found = capsys.readouterr()
    return code, " ".join((found.out + found.err).split())


def test_f71_status_says_since_when_the_coordinator_steps(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """F71: on the node, and with a kubeconfig from where no node is; FIT is said of a fleet whose
    coordinator steps."""
    served.says()
    code, told = asked(capsys, state=served.state)
    assert code == 0, told
    assert "FIT: 2 devices on 1 node, all in service" in told
    assert re.search(r"coordinator: steps, last step 20\d\d-\S+Z \(\d s ago\); 2 open claims", told)
    elsewhere = ["--kubeconfig", str(served.kubeconfig)]
    code, told = asked(capsys, *elsewhere, state=served.state / "nothing-here")
    assert code == 0, told
    assert told.startswith("the coordinator steps; no node was asked: with --address, or on a node")
    assert main(["status", *elsewhere, "--state", str(served.state), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["coordinator"]["binding"]["stepped_at"].endswith("Z")
    assert found["coordinator"]["binding"]["missing"] == []


def test_f71_status_is_unfit_without_a_coordinator_that_steps(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """F71, F57: none ever reported, its steps stand, or a right is missing: the verdict says which,
    with exit code 1, whatever the devices are; from elsewhere as well."""
    code, told = asked(capsys, state=served.state)
    assert (code, "UNFIT: no coordinator has ever reported in this cluster" in told) == (1, True)
    served.says(stepped_at=time.time() - 90.0, trouble="HTTP 503: the store")
    code, told = asked(capsys, state=served.state)
    assert code == 1
    assert re.search(
        r"UNFIT: the coordinator has not stepped since 20\S+Z \(9\d s ago\): HTTP", told
    )
    account = "system:serviceaccount:fleetscrub:fleet-coordinator"
    right = Right(verb="watch", resource="resourceclaims", group="resource.k8s.io", account=account)
    served.says(missing=(right,))
    for where in (served.state, served.state / "nothing-here"):
        code, told = asked(capsys, "--kubeconfig", str(served.kubeconfig), state=where)
        assert code == 1
        assert (
            "UNFIT: the coordinator lacks a right: watch resourceclaims.resource.k8s.io"
            f" (account {account})"
        ) in told
    assert main(["status", "--state", str(served.state), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["coordinator"]["binding"]["missing"]
    assert [(one["verb"], one["resource"], one["account"]) for one in found] == [
        ("watch", "resourceclaims", account)
    ]


def test_f71_a_signal_that_cannot_be_read_is_never_good(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """F71: where pods wait for a coordinator, not to know is unfit, and why it is not known is
    said."""
    served.says()
    wrong = served.state / "wrong"
    wrong.write_text(served.kubeconfig.read_text().replace("127.0.0.1", "127.0.0.2"))
    code, told = asked(capsys, "--kubeconfig", str(wrong), state=served.state)
    assert code == 1
    assert "UNFIT: whether the coordinator steps is unknown" in told


@pytest.mark.parametrize(
    ("states", "line"),
    [
        ((), "UNFIT: there is no device"),
        (("CLEAN", "IN_USE"), "FIT: 2 devices on 1 node, all in service"),
        (("CLEAN", "DIRTY"), "UNFIT: 1 of 2 devices on 1 node: 1 DIRTY"),
        (("HELD", "HELD", "DIRTY"), "UNFIT: 3 of 3 devices on 1 node: 2 HELD, 1 DIRTY"),
    ],
)
def test_f57_some_but_not_all(states: tuple[str, ...], line: str) -> None:
    """F57: whatever is out of service counts, by state, and no device at all is no fit fleet."""
    devices = tuple(
        DeviceView(
            uuid=f"u{number}", name=f"gpu-{number}", accelerator="a", units=("u",),
            memory_bytes=1, state=state,
        )
        for number, state in enumerate(states)
    )  # fmt: skip
    view = NodeView(
        node="n", incarnation="i", boot_id="b", at=1.0, simulated=True, backend="simulated",
        devices=devices,
    )  # fmt: skip
    assert judge([view], ()).line() == line


def test_b39_status_shows_what_concerns_no_device(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B39, B70: a fault in a slot without a device is on the screen, named by its node."""
    plan = adapters.plan_fleet(state).nodes[0]
    with closing(adapters.open_node(plan)) as node:
        node._parts.sweep.strays = ("the kernel log has fault 79 of slot 0000:99:00",)
        main(["status", "--state", str(state)])
    assert "node-01: the kernel log has fault 79" in capsys.readouterr().out
