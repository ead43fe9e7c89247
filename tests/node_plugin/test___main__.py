"""The plugin as a process: started, killed, ended, and refused with a message."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleet.kube import client, identity
from fleet.kube.base import Cluster
from fleet.wiring.plans import plan_fleet
from node_plugin import __main__ as program
from tests.lab.apiserver.server import StandIn
from tests.node_plugin.sites import NODE, Place, kubelet
from tests.node_plugin.standins import told
from tests.node_plugin.test_children import alive, eventually

END_S = 30.0
"""Time, s, a process has to end before a test fails."""


@dataclass
class Process:
    """One plugin process after another, on one place."""

    site: Place
    kubeconfig: Path
    port: int
    found: subprocess.Popen[str] | None = field(default=None)

    @property
    def command(self) -> list[str]:
        policy = self.site.root / "policy.toml"
        kubernetes = self.site.settings.kubernetes
        policy.write_text(
            'profile = "fast"\n[node]\nidle_delay_s = 0.1\n[kubernetes]\n'
            f'cdi_directory = "{kubernetes.cdi_directory}"\n'
            f'kubelet_root = "{kubernetes.kubelet_root}"\n'
            f'cgroup_root = "{kubernetes.cgroup_root}"\n'
            "publish_period_s = 0.1\n"
        )
        arguments = {
            "--node": NODE,
            "--state": str(self.site.root / "state"),
            "--policy": str(policy),
            "--simulate": "2",
            "--memory": "2MiB",
            "--kubeconfig": str(self.kubeconfig),
            "--http": f"127.0.0.1:{self.port}",
        }
        options = [part for pair in arguments.items() for part in pair]
        return [sys.executable, "-m", "node_plugin", *options]

    def start(self) -> subprocess.Popen[str]:
        """Start it; returns once kubelet could find it."""
        self.found = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True)
        assert self.found.stderr is not None
        for line in self.found.stderr:
            if "serving" in line:
                assert "SIMULATED" in line
                break
        return self.found

    def page(self, path: str) -> tuple[int, str]:
        """Status and text of a page."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as found:
                return found.status, found.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def end(self, number: signal.Signals) -> int:
        """Send the signal and wait for the end."""
        assert self.found is not None
        assert self.found.stderr is not None
        self.found.send_signal(number)
        self.found.stderr.read()
        code = self.found.wait(END_S)
        self.found.stderr.close()
        self.found = None
        return code


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture
def api() -> Iterator[StandIn]:
    """An API server."""
    with StandIn() as server:
        yield server


@pytest.fixture
def process(place: Path, api: StandIn) -> Iterator[Process]:
    """A plugin that is not started yet; it does not outlive its test."""
    config = api.kubeconfig(place / "kubeconfig")
    cluster: Cluster = client.connect(str(config), qps=1000.0, timeout_s=5.0)
    made = Process(Place(place, cluster), config, free_port())
    yield made
    if made.found is not None:
        made.end(signal.SIGKILL)


def standby_of(pid: int) -> int:
    """The standby among the children of a plugin."""
    found = set()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # a thread that ended meanwhile
            found |= {int(child) for child in (thread / "children").read_text().split()}
    (standby,) = [one for one in found if b"standby" in Path(f"/proc/{one}/cmdline").read_bytes()]
    return standby


def test_the_life_of_a_plugin(process: Process) -> None:
    """Invariants 3, 4, 9 and 20 with real processes: ready once registered and owned; kill -9 with
    a prepared claim leaves sockets and spec; the next start serves the claim, rebuilds a lost spec
    and tears it down; SIGTERM takes the registration away and leaves nothing running."""
    site = process.site
    first = process.start()
    assert site.registry == ["gpu.fleetscrub.dev-reg.sock"]
    assert plan_fleet(site.root / "state").nodes[0].kubeconfig == str(process.kubeconfig)
    status, text = process.page("/readyz")
    assert status == 503
    assert "kubelet has not registered the plugin yet" in text
    assert "no owner of the node's journal answers" in text
    assert process.page("/healthz") == (200, "ok\n")
    registration = site.root / "kubelet" / "plugins_registry" / site.registry[0]
    info = asyncio.run(told(registration, registered=True))
    assert info.endpoint == str(site.dra)
    eventually(lambda: site.allocatable(2))
    eventually(lambda: process.page("/readyz") == (200, "ok\n"))
    asked = site.claim()
    with kubelet(site) as calls:
        answer = calls.prepare(asked)
        assert answer[asked.uid].error == ""
        assert calls.prepare(asked) == answer
    ids = set(answer[asked.uid].devices[0].cdi_device_ids)
    assert site.ids() == ids

    owner = standby_of(first.pid)
    assert process.end(signal.SIGKILL) == -signal.SIGKILL
    assert site.registry
    assert site.dra.exists()
    assert site.ids() == ids
    eventually(lambda: not alive(owner))
    for path in site.specs:
        path.unlink()
    second = process.start()
    asyncio.run(told(registration, registered=True))
    eventually(lambda: site.ids() == ids)
    with kubelet(site) as calls:
        assert calls.prepare(asked) == answer
        assert calls.unprepare(asked) == {asked.uid: ""}
        assert calls.unprepare(asked) == {asked.uid: ""}
    assert site.specs == []
    assert 'fleet_plugin_journal_owner{owner="standby"} 1' in process.page("/metrics")[1]

    owner = standby_of(second.pid)
    assert process.end(signal.SIGTERM) == 0
    assert (site.registry, site.dra.exists()) == ([], False)
    assert not alive(owner)
    assert set(site.taints()) == {"gpu-0", "gpu-1"}


@pytest.fixture
def handlers() -> Iterator[None]:
    """Signal handlers that a start in this process sets are taken back."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, found in kept.items():
        signal.signal(number, found)


def replaced(process: Process, option: str, value: str) -> list[str]:
    """The arguments of a good start, one of them changed."""
    arguments = process.command[3:]
    arguments[arguments.index(option) + 1] = value
    return arguments


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("option", "value", "told_as"),
    [
        ("--node", "", r"name of the Node is not known — .*--node or \$NODE_NAME"),
        ("--state", "/proc/version/state", "/proc/version"),
        ("--state", "/proc/nothing", "/proc/nothing"),
        ("--policy", "/nonexistent.toml", "/nonexistent.toml"),
        ("--kubeconfig", "/nonexistent", "/nonexistent"),
        ("--http", "8086", "HOST:PORT"),
        ("--simulate", "0", "--simulate"),
    ],
)
def test_a_wrong_option_is_named(
    process: Process, capsys: pytest.CaptureFixture[str], option: str, value: str, told_as: str
) -> None:
    """Exit 2 and one message with what to do; nothing keeps running."""
    assert program.main(replaced(process, option, value)) == 2
    text = capsys.readouterr().err
    assert re.search(told_as, text), text
    assert " — " in text
    assert process.site.registry == []


@pytest.mark.parametrize("value", ["lots", ""])
def test_a_size_that_is_none(
    process: Process, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    """Exit 2 in the words of the parser."""
    with pytest.raises(SystemExit) as ended:
        program.main(replaced(process, "--memory", value))
    assert ended.value.code == 2
    assert "--memory" in capsys.readouterr().err


@pytest.mark.usefixtures("handlers")
def test_without_simulation_an_absent_driver_is_an_error(
    process: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise 10: nobody gets simulated devices who did not ask for them."""
    arguments = process.command[3:]
    at = arguments.index("--simulate")
    assert program.main([*arguments[:at], *arguments[at + 2 :]]) == 2
    assert "no accelerator" in capsys.readouterr().err


def test_a_port_that_is_taken(process: Process) -> None:
    """The whole process ends with a message, and kubelet does not find half a plugin."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", process.port))
        taken.listen()
        done = subprocess.run(
            process.command, capture_output=True, text=True, timeout=END_S, check=False
        )
    assert done.returncode == 2
    assert f"127.0.0.1:{process.port}" in done.stderr
    assert "Traceback" not in done.stderr
    assert process.site.registry == []


def test_addresses_and_names_come_from_the_pod() -> None:
    """The names a DaemonSet gives: $NODE_NAME and $POD_UID; the address may be IPv6."""
    assert program._address("[::1]:80") == ("::1", 80)
    assert program._address(program.HTTP_DEFAULT) == ("127.0.0.1", 8086)
    asked = program._parser().parse_args(["--memory", "1MiB"])
    assert (asked.memory, str(asked.state)) == (1024 * 1024, "/var/lib/fleetscrub")


@pytest.mark.usefixtures("handlers")
def test_a_plugin_of_another_cluster_is_refused(
    process: Process, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise 7: nothing is published, and verbs keep asking the cluster they asked before."""
    state = process.site.root / "state"
    state.mkdir()
    (state / identity.FILE).write_text(f'{{"Node {NODE}": "of-another-cluster"}}')
    assert program.main(process.command[3:]) == 2
    told = capsys.readouterr().err
    assert "this is another cluster" in told
    assert identity.FILE in told
    assert process.site.registry == []
    assert [path.name for path in state.iterdir()] == [identity.FILE]
