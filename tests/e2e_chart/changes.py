"""A release is changed while a tenant runs: what has rolled, and what the tenant noticed of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from fleet.kube.base import PODS, Name, uid_of
from tests.e2e import workloads
from tests.e2e.polling import eventually
from tests.e2e.workloads import NOT_ZERO, STAY, program
from tests.e2e_chart.installation import (
    DEVICES,
    MEMORY_BYTES,
    WORKER,
    Installation,
)

FIT = f"FIT: {DEVICES} devices on 1 node, all in service"
ROLL_S = 180.0
"""Time, s, plugins and head may take to be replaced: `lastSeconds` is most of it."""


def uids(installation: Installation, *parts: str) -> set[str]:
    """UIDs of the pods of these parts."""
    return {uid_of(one) for part in parts for one in installation.pods(part)}


@contextmanager
def rolling(installation: Installation, *parts: str) -> Iterator[None]:
    """The pods of these parts are replaced by what is done inside, and the old ones are gone."""
    before = uids(installation, *parts)
    yield
    eventually(
        f"{' and '.join(parts)} are new",
        lambda: not before & _there(installation) and not set(_missing(installation, parts)),
        timeout_s=ROLL_S,
        period_s=0.5,
        tell=installation.told_parts,
    )


def _there(installation: Installation) -> set[str]:
    return {uid_of(one) for one in installation.cluster.list(PODS).items}


def _missing(installation: Installation, parts: tuple[str, ...]) -> list[str]:
    return [part for part in parts if not installation.pods(part)]


@contextmanager
def held(installation: Installation, part: str, words: str) -> Iterator[None]:
    """The part's processes whose command line has these words hang; they go on at the end."""
    found = [pid for pid, line in installation.processes(part).items() if words in line]
    assert found, f"no process of {part} has {words!r}"
    for pid in found:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in found:
            os.kill(pid, signal.SIGCONT)


def replace_worker(installation: Installation) -> None:
    """Delete the worker's pod, as docs/operations.md says, and wait until all serves again."""
    with rolling(installation, WORKER):
        installation.delete_part(WORKER)


def revision(installation: Installation) -> int:
    """The revision of the release that is deployed."""
    (listed,) = json.loads(installation.helm("list", "--output", "json"))
    assert listed["status"] == "deployed", listed
    return int(listed["revision"])


@contextmanager
def tenant(installation: Installation, device: str) -> Iterator[Name]:
    """A pod that has this device all the time and is not started again; gone at the end."""
    source = installation.claim_template(uuid=installation.uuid(device))
    pod = installation.run(program(STAY), source)
    before = workloads.container(installation.in_phase(pod, "Running"))
    yield pod
    after = workloads.container(installation.in_phase(pod, "Running"))
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)
    installation.delete(pod)


def runs_one(installation: Installation, device: str) -> None:
    """A pod on this device starts, finds zeros and ends."""
    uuid = installation.uuid(device)
    source = installation.claim_template(uuid=uuid)
    pod = installation.run(program("say $FLEETSCRUB_DEVICE $N", NOT_ZERO), source)
    assert installation.ended(pod) == [uuid, str(MEMORY_BYTES), "0"]
    installation.delete(pod)


def status(installation: Installation) -> str:
    """What `fleet status` in the standby says, good or not; "" while there is nobody to say it."""
    try:
        return installation.fleet("status", good=(0, 1, 2))
    except (AssertionError, subprocess.TimeoutExpired):
        return ""
