"""The real system of a storm: what is started, and started again when it has ended.

Supervised as its users have it supervised: a plugin that ended comes back after a second, one whose
``/healthz`` fails is killed first (kubelet's liveness probe); Ray's parts come back when their
``ray start`` has ended; addresses come back when the fault that closed them is over. Standby and
bridge are the plugin's own affair.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from fleet.core.profiles import Profile
from fleet.kube.base import NODES
from fleet.stores.dynamodb import DynamodbStores
from fleet.stores.s3 import S3Archive
from fleet.wiring.plans import NodePlan
from tests.actors.trees import Rays
from tests.chaos.checks import living
from tests.chaos.life import MARKER
from tests.chaos.storm import hosts
from tests.chaos.storm.fronts import Front, free_port
from tests.chaos.storm.log import Story
from tests.chaos.storm.rays import Cluster
from tests.chaos.storm.site import DEVICES, TABLE, Place
from tests.cloud.buckets import make_bucket, opened
from tests.cloud.server import REGION, CloudServer
from tests.lab.apiserver.cluster import MemoryCluster
from tests.lab.apiserver.server import StandIn

RESTART_S = 1.0
PROBE_S = 2.0
PROBES_FAILED = 6
"""Failed looks in a row at a plugin's /healthz after which it is killed."""
PLUGIN_START_S = 60.0
"""Time, s, a new plugin has before its /healthz counts."""


class PluginProcess:
    """The node plugin of one node, with standby and bridge below it."""

    def __init__(self, place: Place, *, kubeconfig: Path, rays: Rays, story: Story) -> None:
        self.place, self._story = place, story
        self._port = free_port()
        command = [sys.executable, "-P", "-m", "node_plugin", "--node", place.node]
        command += ["--state", str(place.state), "--policy", str(place.policy)]
        command += ["--simulate", str(DEVICES), "--memory", "1MiB"]
        command += ["--kubeconfig", str(kubeconfig), "--ray-address", rays.address]
        command += ["--http", f"127.0.0.1:{self._port}", "--verbose"]
        self._command = hosts.named(place.node, command)
        self._rays = rays
        self._process: subprocess.Popen[bytes] | None = None
        self._began = self._ended = self._probed = time.monotonic()
        self._failed = 0
        self.starts = 0

    @property
    def pid(self) -> int:
        """Its process id, 0 while there is none."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else 0

    def start(self) -> None:
        """Start it."""
        with self.place.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=self._rays.environment(),
            )
        self._began, self._failed = time.monotonic(), 0
        self.starts += 1

    def supervise(self) -> None:
        """What is due now."""
        now = time.monotonic()
        if self.pid:
            self._ended = now
            if now - self._probed >= PROBE_S:
                self._probed = now
                self._probe(now)
        elif now - self._ended >= RESTART_S:
            self.start()

    def _probe(self, now: float) -> None:
        self._failed = 0 if self._healthy() else self._failed + 1
        if self._failed >= PROBES_FAILED and now - self._began > PLUGIN_START_S:
            self._story.tell("liveness", node=self.place.node, pid=self.pid)
            self._failed = 0
            if self._process is not None:
                self._process.kill()

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/healthz", timeout=2) as got:
                return bool(got.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def end(self) -> None:
        """SIGTERM, and SIGKILL for one that stays."""
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(40)
            process.kill()
            process.wait()


class System:
    """Everything, on `count` nodes below `root`."""

    def __init__(self, root: Path, story: Story, *, count: int) -> None:
        self.root, self.story = root, story
        # Strict pods wait for the coordinator, fast ones go on without any Ray: both are struck.
        profiles = (Profile.STRICT, Profile.FAST)
        self.places = [
            Place(root, f"node-{number + 1}", profiles[number % 2]) for number in range(count)
        ]
        self.plans: dict[str, NodePlan] = {}
        self.cloud = CloudServer()
        self.standin = StandIn().start()
        self.cluster = MemoryCluster(self.standin.engine)
        self.rays = Cluster(place.node for place in self.places)
        self.plugins: dict[str, PluginProcess] = {}
        self.held: set[str] = set()
        """Names of fronts that a fault keeps closed now."""
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start everything; returns when all was started, which is not when all serve."""
        self.cloud.start()
        self.bucket = make_bucket(self.cloud.endpoint)
        self.cloud_front = Front(self.cloud.port)
        self.api_front = Front(self.standin.port)
        for front in (self.cloud_front, self.api_front):
            front.start()
        kubeconfig = self.standin.kubeconfig(self.root / "kubeconfig")
        kubeconfig.write_text(kubeconfig.read_text().replace(self.standin.url, self.api_front.url))
        self.stores().leases.init()
        for place in self.places:
            self.plans[place.node] = place.make(cloud=self.cloud_front.url, bucket=self.bucket)
            body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": place.node}}
            self.cluster.create(NODES, body)
            plugin = PluginProcess(
                place,
                kubeconfig=kubeconfig,
                rays=self.rays.rays,
                story=self.story,
            )
            self.plugins[place.node] = plugin
            plugin.start()
        self.rays.start()
        self.loop("supervise", self._supervise, 0.3)
        self.loop("supervise Ray", self.rays.supervise, 1.0)
        self.loop("forget requests", self._forget, 10.0)

    def loop(self, name: str, step: Callable[[], object], period_s: float) -> None:
        """Run a step again and again, until `stop`; an error of a step is a broken storm."""

        def run() -> None:
            while not self._stop.is_set():
                try:
                    step()
                except Exception as error:  # noqa: BLE001 - told, and a finding of its own
                    self.story.breaks(f"the storm itself failed in {name}: {error!r}")
                    return
                self._stop.wait(period_s)

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _forget(self) -> None:
        """The stand-in remembers every request for tests that ask; half an hour has too many."""
        with self.standin._lock:
            self.standin._requests.clear()

    def _supervise(self) -> None:
        for plugin in self.plugins.values():
            plugin.supervise()
        for name, front in (("cloud", self.cloud_front), ("api", self.api_front)):
            if not front.pid and name not in self.held:
                front.start()

    # --- reaching the services past their fronts -------------------------------------------------

    def stores(self) -> DynamodbStores:
        """The stores as moto has them, whatever becomes of its address.

        The same ones for the whole storm: a lease that nobody renews is over for whoever has seen
        it unchanged for its whole length, and for one who opens the store anew it begins again.
        """
        return self._stores

    @cached_property
    def _stores(self) -> DynamodbStores:
        from fleet.core.clock import SystemClock
        from fleet.stores import aws
        from fleet.stores.dynamodb import open_dynamodb_stores
        from fleet.stores.dynamodb_table import Patience

        place = aws.Place(REGION, self.cloud.endpoint)
        return open_dynamodb_stores(place, TABLE, clock=SystemClock(), patience=Patience(30.0))

    def archive(self) -> S3Archive:
        """The evidence in moto's bucket."""
        return opened(self.cloud.endpoint, self.bucket)

    @property
    def cloud_pid(self) -> int:
        """Pid of moto's server."""
        process = self.cloud._process
        return process.pid if process is not None else 0

    # --- the end ---------------------------------------------------------------------------------

    def quiet(self) -> None:
        """Stop supervising and starting; what runs goes on."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def end_services(self) -> None:
        """End plugins and Ray in order: nobody writes any more."""
        for plugin in self.plugins.values():
            plugin.end()
        self.rays.end()

    def end(self) -> None:
        """Kill whatever is left of the storm."""
        self.quiet()
        for plugin in self.plugins.values():
            if plugin.pid:
                os.kill(plugin.pid, signal.SIGKILL)
        self.rays.end()
        self.cloud.stop()
        for front in (getattr(self, "cloud_front", None), getattr(self, "api_front", None)):
            if front is not None:
                front.end()
        for pid in living(MARKER, str(self.root)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.standin.close()
        for place in self.places:
            place.disk.end()
