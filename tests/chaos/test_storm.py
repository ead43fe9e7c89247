"""The storm on the real stack: what CI runs of it, and whether its judges find anything."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.core.claim_states import Claim
from fleet.core.clock import SystemClock
from fleet.core.messages import ClaimOrder
from fleet.core.model import ClaimUid, Token
from fleet.stores.sqlite import open_stores, store_path
from fleet.wiring import adapters
from tests.chaos.storm import hosts, plan
from tests.chaos.storm.exposure import Exposures
from tests.chaos.storm.fronts import Front
from tests.chaos.storm.log import Story
from tests.chaos.storm.plan import DECK, Kind, Target
from tests.chaos.storm.reading import NodeDisk
from tests.chaos.storm.site import Place
from tests.chaos.storm.watch import Watch, agreement
from tests.chaos.test_chaos import ROOT

SEED, MINUTES, GAP_S = 1, 1.6, 3.0
"""What CI runs: with its start and its calm it is over in little more than two minutes."""
WAIT_S = 10.0


@pytest.mark.ray
@pytest.mark.timeout(900)
def test_two_minutes_of_storm_break_no_promise_and_settle(tmp_path: Path) -> None:
    """Promises 1 to 8, E5: kill -9, SIGSTOP, cut sockets and full disks, and everything settles."""
    log = tmp_path / "storm.jsonl"
    command = [sys.executable, "-m", "tests.chaos.storm", "--nodes", "2", "--log", str(log)]
    command += ["--minutes", str(MINUTES), "--seed", str(SEED), "--gap", str(GAP_S)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken promises, settled" in done.stdout
    found = re.search(r"(\d+) exposures, (\d+) certificates", done.stdout)
    assert found, done.stdout
    assert min(int(found[1]), int(found[2])) >= 2, done.stdout
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    faults = Counter(line["kind"] for line in lines if line["event"] == "fault")
    assert faults.total() >= 15, done.stdout
    assert set(faults) == set(Kind) - {Kind.FREEZE}, done.stdout


# --- the plan -------------------------------------------------------------------------------------


def test_a_seed_has_the_same_faults_again() -> None:
    """A storm can be had again: nothing but the seed decides what falls when and on whom."""
    first, second = (
        [plan.draw(seed, seconds=600, nodes=3, gap_s=4) for seed in range(20)] for _ in range(2)
    )
    assert first == second
    assert first[0] != first[1]


def test_half_an_hour_has_every_card_several_times() -> None:
    """Every kind of fault meets everybody it can meet, on every node; Ray's head goes as well."""
    blows = plan.draw(1, seconds=1800, nodes=3, gap_s=4)
    counts = Counter((blow.kind, blow.target) for blow in blows)
    cards = {(kind, target) for kind, target, _ in DECK}
    assert cards <= counts.keys()
    assert min(counts[card] for card in cards) >= 8
    assert counts[Kind.KILL, Target.HEAD] >= 3
    assert counts[Kind.FREEZE, Target.ACTOR] >= 8
    assert {blow.node for blow in blows} == {0, 1, 2}


def test_what_ci_runs_has_every_kind_and_the_end_of_rays_head() -> None:
    """The seed of CI is one whose two minutes miss nothing that matters."""
    blows = plan.draw(SEED, seconds=60 * MINUTES, nodes=2, gap_s=GAP_S)
    struck = {(blow.kind, blow.target) for blow in blows}
    assert {kind for kind, _ in struck} == set(Kind) - {Kind.FREEZE}
    assert (Kind.KILL, Target.HEAD) in struck
    assert len({(kind, target) for kind, target, _ in DECK} - struck) <= 5


# --- its tools ------------------------------------------------------------------------------------


def until(ask: Callable[[], object]) -> bool:
    deadline, pause = time.monotonic() + WAIT_S, threading.Event()
    while not ask():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.02)
    return True


@pytest.fixture
def upstream() -> Iterator[int]:
    """A server that answers everything with its path."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Echo(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(self.path)))
            self.end_headers()
            self.wfile.write(self.path.encode())

        def log_message(self, *_: object) -> None:
            return

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            return  # its connections are reset on purpose

    with Server(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()


def test_an_address_passes_on_is_reset_stopped_killed_and_comes_back(upstream: int) -> None:
    """Cut sockets are real ones: a reset, a silence and a refusal, each of which ends."""
    front = Front(upstream)
    front.start()
    try:
        call = http.client.HTTPConnection("127.0.0.1", front.port, timeout=0.5)
        call.request("GET", "/one")
        assert call.getresponse().read() == b"/one"
        os.kill(front.pid, signal.SIGUSR1)
        with pytest.raises(ConnectionResetError):
            call.sock.recv(1)
        call.close()
        os.kill(front.pid, signal.SIGSTOP)
        call.request("GET", "/three")
        with pytest.raises(TimeoutError):
            call.getresponse()
        os.kill(front.pid, signal.SIGCONT)
        call.close()
        os.kill(front.pid, signal.SIGKILL)
        assert until(lambda: not front.pid)
        with pytest.raises(ConnectionRefusedError):
            call.request("GET", "/four")
        call.close()
        front.start()
        call.request("GET", "/five")
        assert call.getresponse().read() == b"/five"
        call.close()
    finally:
        front.end()


def test_a_full_disk_refuses_writes_until_it_is_emptied(tmp_path: Path) -> None:
    """Without a disk of its own a process is limited instead, and can write again afterwards."""
    program = (
        "import sys\n"
        "for line in sys.stdin:\n"
        "    try:\n"
        "        open(sys.argv[1], 'ab', 0).write(b'x')\n"
        "        print('written', flush=True)\n"
        "    except OSError as error:\n"
        "        print(type(error).__name__, flush=True)\n"
    )
    disk = hosts.Disk(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "file")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        answers = []
        for act in (lambda _: None, disk.fill, disk.empty):
            act([process.pid])
            process.stdin.write("again\n")
            process.stdin.flush()
            answers.append(process.stdout.readline().strip())
        process.stdin.close()
    assert answers == ["written", "OSError", "written"]


# --- the judge is judged --------------------------------------------------------------------------

NODE = "node-1"
UID = ClaimUid("4f1d6c52-0000-4000-8000-000000000001")


class Held:
    """One prepared claim on one node, and what judges it."""

    def __init__(self, root: Path) -> None:
        self.place = Place(root, NODE)
        fleet = adapters.plan_fleet(
            self.place.state, simulate="1x1", memory_bytes=1 << 20, serve=NODE
        )
        adapters.open_coordinator(fleet.coordinator)  # begins store and log of heads
        plan_ = fleet.nodes[0].model_copy(update={"kubernetes": False})
        self.service = adapters.open_node(plan_)
        self.service.tick(1.0)
        (device,) = self.service.view().devices
        self.service.prepare(ClaimOrder(uid=UID, node=NODE, devices=(device.uuid,)))
        self.disk = NodeDisk(self.place)
        self.memory = next((self.place.directory / "sim" / "memory").glob("*.bin"))
        self.story = Story(root / "log.jsonl", seed=1)
        self.stores: Any = open_stores(store_path(self.place.state), clock=SystemClock())
        self.exposures = Exposures(self.story, {NODE: self.disk}, lambda: self.stores)

    def judged(self) -> str:
        """What is broken about the exposure of the claim."""
        self.story.broken.clear()
        self.exposures.judge_proof(self.place, self.memory, "pod", UID)
        return " ".join(self.story.broken)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    """What is changed below is changed in nothing but one thing."""
    found = Held(tmp_path)
    yield found
    found.story.close()
    found.service.close()
    found.stores.close()


def test_an_exposure_with_its_proof_is_as_it_should_be(held: Held) -> None:
    """What follows changes one thing each; unchanged, nothing is found."""
    held.exposures.judge_memory(held.memory, "pod")
    assert held.judged() == ""
    assert held.exposures.certified == 1


def test_the_bytes_of_another_tenant_are_found(held: Held) -> None:
    """Promise 1: the pod is told whose bytes it was given, and any other byte is told as well."""
    held.exposures.plant(held.memory, "pod before", b"s" * 64)
    content = bytearray(held.memory.read_bytes())
    content[1000:1016] = b"s" * 16
    held.memory.write_bytes(content)
    held.exposures.judge_memory(held.memory, "pod")
    assert "bytes of pod before" in held.story.broken[0]
    assert "16 bytes that are not zero" in held.story.broken[1]


def test_two_pods_on_one_device_are_found(held: Held) -> None:
    """Promise 2: at most one holder per device."""
    assert held.exposures.begin(held.memory, "pod")
    assert not held.exposures.begin(held.memory, "other")
    assert "pod have one device" in held.story.broken[0]
    held.exposures.end(held.memory)
    assert held.exposures.begin(held.memory, "other")


def test_a_certificate_older_than_the_last_tenant_is_found(held: Held) -> None:
    """Promise 1: the wipe was made after the last tenant had ended, not before."""
    assert held.exposures.begin(held.memory, "pod before")
    held.exposures.end(held.memory)
    assert "the last tenant ended at" in held.judged()


def test_a_token_that_does_not_rise_is_found(held: Held) -> None:
    """B44: two exposures of a unit are never under one token, nor under an older one."""
    assert held.judged() == ""
    assert ", after " in held.judged()


def test_a_missing_or_foreign_certificate_is_found(held: Held) -> None:
    """Promise 8: the certificate is in the ledger, and the node's own key has signed it."""
    keys = held.place.directory / "keys"
    for path in keys.glob("*.pub"):
        path.rename(path.with_suffix(".away"))
    assert "no key of the node" in held.judged()
    for path in keys.glob("*.away"):
        path.rename(path.with_suffix(".pub"))
    segment = next((held.place.directory / "ledger").glob("*.jsonl"))
    segment.write_bytes(b"")
    assert "cannot be read" in held.judged()


def test_a_lease_that_is_gone_is_found(held: Held) -> None:
    """Promise 2: the lease of an exposed device is that claim's, with that token."""
    held.stores.close()
    held.stores = SimpleNamespace(leases=SimpleNamespace(holder=lambda _: None), close=lambda: None)
    assert "its lease is None" in held.judged()


def test_what_does_not_agree_is_found_while_it_happens(held: Held) -> None:
    """Promises 2 and 3: two records of a unit, a spec of nobody, a memory in two specs."""
    records = held.disk.records()
    assert records is not None
    mine: Claim = records.claims[UID]
    spec = {f"fleet-{UID}.json": ("/memory",)}
    assert list(agreement(records, spec)) == []
    other = replace(mine, uid=ClaimUid("other"))
    twice = replace(records, claims={UID: mine, other.uid: other})
    assert any("is held by" in line for line in agreement(twice, spec))
    assert any("has no record" in line for line in agreement(records, {"x.json": ("/memory",)}))
    both = {**spec, f"again-{UID}.json": ("/memory",)}
    assert any("/memory is in" in line for line in agreement(records, both))


def test_a_floor_that_falls_is_found(held: Held) -> None:
    """B44: neither floors nor the store's counter ever go back."""
    system: Any = SimpleNamespace(story=held.story, stores=lambda: held.stores)
    watch = Watch(system, {NODE: held.disk})
    watch.step()
    assert (watch.looks, held.story.broken) == (1, [])
    watch.floors = {unit: Token(f.epoch, f.counter + 1) for unit, f in watch.floors.items()}
    watch.newest = Token(watch.newest.epoch, watch.newest.counter + 1)
    watch.step()
    assert any("the floor of" in line for line in held.story.broken)
    assert any("the store issued up to" in line for line in held.story.broken)
