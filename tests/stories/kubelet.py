"""A kubelet for the stand-in: pods of the API become real processes with a device's memory.

Calls, checkpoint and cgroups are those of `tests.lab.kubelet`. A container is the pod's own
command, without a mount namespace: it finds its termination log and the device's memory at paths of
the host. For pods of one container that is not restarted, with one device at most.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

from fleet.core import errors
from fleet.kube.base import (
    CLAIMS,
    PODS,
    Cluster,
    Name,
    Object,
    PatchKind,
    Resource,
    name_of,
    uid_of,
)
from tests.lab.kubelet import checkpoint
from tests.lab.kubelet.connection import Connection
from tests.lab.kubelet.registration import PluginRegistry
from tests.lab.kubelet.resources import PodIdentity, Resources
from tests.lab.kubelet.runtime import Edits, Runtime
from tests.lab.kubelet.timings import Timings
from tests.twin import objects

TERMINATION_LOG = "/dev/termination-log"
LOOK_S = 0.03
RETRY_S = 0.5
"""Until a call that failed is made again; the real one takes 10 to 90 s."""
FORCED_GRACE_S = 2.0
MESSAGE_MAX = 4096


class PodKubelet:
    """Kubelet of one node. `seen` is called by whoever watches pods."""

    def __init__(self, root: Path, cluster: Cluster, node: str, runtime: Runtime) -> None:
        """`root` is kubelet's root directory, made with what is expected in it."""
        for name in ("plugins", "plugins_registry"):
            (root / name).mkdir(parents=True)
        self.cluster = cluster
        self.node = node
        self.runtime = runtime
        self.logs = root / "logs"
        self.logs.mkdir()
        timings = Timings()
        self.registry = PluginRegistry(root / "plugins_registry", timings, lambda *_: None)
        self.resources = Resources(
            root / checkpoint.NAME,
            read_claim=lambda namespace, name: cluster.get(CLAIMS, Name(name, namespace)),
            find=self._find,
            call_s=timings.call_s,
        )
        self._lives: dict[str, Life] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="kubelet", daemon=True)

    def start(self) -> None:
        """Begin to look for plugins."""
        self._thread.start()

    def close(self) -> None:
        """End every pod's process, and hang up."""
        for life in tuple(self._lives.values()):
            life.cut_off()
        self._over.set()
        self._thread.join(10)
        self.registry.close()

    def seen(
        self, resource: Resource, _name: Name, before: Object | None, after: Object | None
    ) -> None:
        """A change of an object."""
        if resource != PODS:
            return
        if before is not None and (after is None or uid_of(after) != uid_of(before)):
            life = self._lives.get(uid_of(before))
            if life is not None:
                life.end(FORCED_GRACE_S)
        if after is None or objects.node_name(after) != self.node:
            return
        life = self._lives.get(uid_of(after))
        if life is None and not objects.ended(after):
            life = self._lives[uid_of(after)] = Life(self, after)
            life.start()
        if life is not None and objects.deleting(after):
            life.end(float(after["metadata"].get("deletionGracePeriodSeconds", 30)))

    def _find(self, driver: str) -> Connection:
        return self.registry.find(driver)

    def _look(self) -> None:
        while not self._over.wait(0.1):
            self.registry.tick(time.monotonic())


class Life:
    """One pod from its binding to its end, in a thread of its own."""

    def __init__(self, kubelet: PodKubelet, pod: Object) -> None:
        self._kubelet = kubelet
        self._pod = pod
        self.name, self.uid = name_of(pod), uid_of(pod)
        self._log = kubelet.logs / self.uid
        self._ending = threading.Event()
        self._cut = threading.Event()
        self._kill_at = float("inf")
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name=f"pod {self.name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self, grace_s: float) -> None:
        """The pod is to end within this time; the shortest of several counts."""
        self._kill_at = min(self._kill_at, time.monotonic() + grace_s)
        self._ending.set()

    def cut_off(self) -> None:
        """The node is switched off."""
        self._cut.set()
        self.end(0.0)
        self._thread.join(10)

    def _run(self) -> None:
        identity = self._prepared()
        code = None
        if identity is not None:
            code = self._lived(identity)
        self._kubelet.runtime.remove_sandbox(self.uid)
        if identity is not None:
            self._unprepared(identity)
        self._told_end(code)

    def _prepared(self) -> PodIdentity | None:
        """The pod with its claims once they are prepared; None: it ended before any call."""
        asked: PodIdentity | None = None
        while not self._ending.is_set():
            with suppress(errors.FleetError):
                pod = self._kubelet.cluster.get(PODS, self.name)
                names = [one.name for one in objects.claim_names(pod).values() if one is not None]
                asked = PodIdentity(self.name.namespace, self.name.name, self.uid, tuple(names))
                self._kubelet.resources.prepare(asked)
                return asked
            self._ending.wait(RETRY_S)
        return asked

    def _lived(self, identity: PodIdentity) -> int | None:
        """The exit code of the pod's container; None without one."""
        runtime = self._kubelet.runtime
        runtime.cgroups.make_pod(self.uid)
        ids = [
            one for device in self._kubelet.resources.devices(identity) for one in device.cdi_ids
        ]
        while not self._ending.is_set():
            with suppress(errors.SpecUnavailable):
                self._process = self._created(runtime.resolve(ids))
                break
            self._ending.wait(RETRY_S)
        if self._process is None:
            return None
        self._tell("Running", {"running": {}}, ready=True)
        code = self._ended(self._process)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return code

    def _created(self, edits: Edits) -> subprocess.Popen[bytes]:
        cgroups = self._kubelet.runtime.cgroups
        cgroup = cgroups.make_container(self.uid, uuid.uuid4().hex)
        command = self._pod["spec"]["containers"][0]["command"]
        self._log.touch()
        process = subprocess.Popen(
            # Nothing of the pod runs before the process is in its cgroup.
            ["sh", "-c", 'read -r go; exec "$@"', "sh"]
            + [word.replace(TERMINATION_LOG, str(self._log)) for word in command],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env={
                "PATH": os.environ["PATH"],
                **edits.environment,
                "FLEETSIM_MEMORY": ":".join(edits.memories),
            },
        )
        cgroups.enter(cgroup, process.pid)
        assert process.stdin is not None
        process.stdin.write(b"go\n")
        process.stdin.close()
        return process

    def _ended(self, process: subprocess.Popen[bytes]) -> int:
        asked = False
        while process.poll() is None:
            if self._ending.is_set() and not asked:
                process.terminate()
                asked = True
            if time.monotonic() >= self._kill_at:
                process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_S)
        return int(process.returncode)

    def _unprepared(self, identity: PodIdentity) -> None:
        while not self._cut.is_set():
            with suppress(errors.FleetError):
                self._kubelet.resources.unprepare(identity)
                return
            self._cut.wait(RETRY_S)

    def _told_end(self, code: int | None) -> None:
        message = self._log.read_text()[:MESSAGE_MAX] if self._log.exists() else ""
        phase = "Succeeded" if code == 0 else "Failed"
        ended = {"terminated": {"exitCode": code, "message": message}}
        self._tell(phase, {"waiting": {}} if code is None else ended, ready=False)
        self._ending.wait()
        if not self._cut.is_set():
            with suppress(errors.ApiConflict):  # another pod of that name
                self._kubelet.cluster.delete(PODS, self.name, uid=self.uid)

    def _tell(self, phase: str, state: Object, *, ready: bool) -> None:
        """The pod's status, unless it is gone."""
        container = self._pod["spec"]["containers"][0]
        told = {"name": container["name"], "image": container["image"], "imageID": ""}
        told |= {"restartCount": 0, "ready": ready, "state": state}
        status = {"phase": phase, "containerStatuses": [told]}
        body = {"metadata": {"uid": self.uid}, "status": status}
        while not self._cut.is_set():
            try:
                self._kubelet.cluster.patch(
                    PODS, self.name, body, kind=PatchKind.MERGE, subresource="status"
                )
            except (errors.ApiNotFound, errors.ApiConflict, errors.ApiInvalid):
                return
            except errors.FleetError:
                self._cut.wait(RETRY_S)
            else:
                return
