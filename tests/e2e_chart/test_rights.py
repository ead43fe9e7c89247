"""Every right of every account of ours is taken away at the cluster, one at a time.

The server names a right that is missing by account, verb and resource; docs/looking.md promises
that whoever lacks it passes that on. What asks for a right is in `WORK`; what no work of a healthy
fleet asks for is in `UNASKED`: a tenant comes and goes without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime

import pytest

from fleet.core.model import Uuid
from fleet.devices.simulated.backend import SimulatedBackend
from fleet.kube.base import EVENTS, PODS, SLICES, Selection, name_of
from tests.e2e.polling import eventually
from tests.e2e.workloads import STAY, program
from tests.e2e_chart.changes import FIT, held, runs_one, status
from tests.e2e_chart.installation import (
    COORDINATOR,
    HEAD,
    NAMESPACE,
    PARTS,
    PLUGIN,
    Installation,
)
from tests.e2e_chart.rights import Grant, accounts, grants, kinds, ours, without
from tests.e2e_chart.tenants import AWAY_S

pytestmark = pytest.mark.timeout(900)
SHARED = {"fleet-status", "fleet-store"}
"""Roles of several accounts; every other one has the name of its account."""
ROLES = ("fleet-node-plugin", "fleet-coordinator", "fleet-uninstall", *sorted(SHARED))
UNBOUND = "fleet-claim-bind"
"""A role for operators, which no account of ours has."""
BROKEN = "gpu-3"
"""The device that goes out of service."""
NAMED_S = 60.0
"""Time, s, until a missing right is named: plugins look at the coordinator's Lease every 30 s."""


# --- what asks for a right ---


Work = Callable[[Installation, ExitStack], str]
"""Begins what asks for a right, and says what verbs said; the stack undoes it once the right is
there again."""


def a_tenant(installation: Installation, after: ExitStack) -> str:
    """A pod comes, and goes by itself."""
    pod = installation.run(program("true"), installation.claim_template())
    after.callback(installation.cluster.delete, PODS, pod)
    return ""


def a_tenant_left_to_its_node(installation: Installation, after: ExitStack) -> str:
    """A pod ends while the coordinator hangs: nobody but the plugin lets its claim go."""
    pod = installation.run(program(STAY), installation.claim_template())
    installation.in_phase(pod, "Running")
    after.enter_context(held(installation, HEAD, COORDINATOR))
    installation.cluster.delete(PODS, pod)
    return ""


def a_quarantine(installation: Installation, after: ExitStack) -> str:
    """A device goes out of service and comes back."""
    reason = ("--operator", "e2e", "--reason", f"rights, {time.time():.0f}")
    installation.plugin.command("quarantine", "add", BROKEN, *reason)
    after.callback(installation.plugin.command, "quarantine", "clear", BROKEN, *reason)
    return ""


def a_reboot_asked_for(installation: Installation, after: ExitStack) -> str:
    """A device's next wipe ends with a fault that only a reboot mends."""
    plugin = installation.plugin
    clear = ("quarantine", "clear", BROKEN, "--operator", "e2e", "--reason", "it is mended")
    after.callback(plugin.command, *clear)
    sim = SimulatedBackend(plugin.directory / "sim")
    after.callback(sim.reset, Uuid(installation.uuid(BROKEN)))
    plugin.fault("xid", BROKEN, "--set", "code=151")
    with ExitStack() as at_once:
        a_quarantine(installation, at_once)
    return ""


def a_lost_slice(installation: Installation, after: ExitStack) -> str:
    """Somebody deletes a slice."""
    installation.cluster.delete(SLICES, name_of(installation.slices()[0]))
    return ""


def another_coordinator(installation: Installation, after: ExitStack) -> str:
    """The coordinator's process is killed: Ray starts another one."""
    installation.kill(HEAD, COORDINATOR)
    return ""


def another_plugin(installation: Installation, after: ExitStack) -> str:
    """The plugin's pod is deleted, with no time to end: another one takes its place."""
    old = name_of(installation.part(PLUGIN)).name
    installation.kubectl("delete", "pod", old, "--grace-period=1", "--wait=false")
    return ""


def in_head(*words: str) -> Work:
    """An operator's command in the head's container."""

    def work(installation: Installation, after: ExitStack) -> str:
        return installation.head("fleet", *words, good=(0, 1, 2))

    return work


def the_uninstallation(installation: Installation, after: ExitStack) -> str:
    """What the hook of `helm uninstall` looks at, by its account."""
    token = installation.kubectl("create", "token", "fleet-uninstall").strip()
    written = 'sed "s|tokenFile: .*|token: $1|" /etc/fleetscrub-api/kubeconfig >/tmp/by-token'
    look = "fleet uninstall --plan --kubeconfig /tmp/by-token"
    return installation.head("sh", "-c", f"{written} && {look}", "sh", token, good=(0, 1, 2))


def looks(installation: Installation, after: ExitStack) -> str:
    """`fleet status`, in the head and in the standby."""
    return installation.head("fleet", "status", good=(0, 1, 2)) + status(installation)


WORK: Mapping[str, Mapping[str, Work]] = {
    "fleet-node-plugin": {
        "patch resourceclaims": a_tenant_left_to_its_node,
        "patch resourceclaims/status": a_tenant_left_to_its_node,
        "patch resourceclaims/binding": a_tenant_left_to_its_node,
        "list resourceslices": a_quarantine,
        "watch resourceslices": another_plugin,
        "create resourceslices": a_lost_slice,
        "update resourceslices": a_quarantine,
        "get nodes": a_quarantine,
        "get namespaces": another_plugin,
    },
    "fleet-coordinator": {
        "get resourceclaims": in_head("claim", "show", "default/nobody"),
        "list resourceclaims": another_coordinator,
        "watch resourceclaims": another_coordinator,
        "list nodes": another_coordinator,
        "watch nodes": another_coordinator,
        "get nodes": a_reboot_asked_for,
        "patch nodes/status": a_reboot_asked_for,
        "get pods": in_head("claim", "show", "--pod", "default/nobody"),
        "list pods": in_head("audit"),
        "list resourceslices": in_head("audit"),
        "create events": a_quarantine,
    },
    "fleet-uninstall": {
        "list resourceclaims": the_uninstallation,
        "list resourceslices": the_uninstallation,
        "list pods": the_uninstallation,
        "list nodes": the_uninstallation,
    },
    "fleet-status": {"get leases": looks},
}
"""By role; where nothing stands, a tenant comes and goes."""

UNASKED: Mapping[str, frozenset[str]] = {
    "fleet-node-plugin": frozenset(
        {
            "list resourceclaims",  # for a record that lost its name with the journal
            "delete resourceslices",  # of an earlier version, or of devices that are gone
            "get leases",  # both: to tell claims that wait for a coordinator
            "patch leases",
            "create events",  # all three: while something is wrong
            "get events",
            "patch events",
        }
    ),
    "fleet-coordinator": frozenset(
        {
            "get resourceslices",
            "watch resourceslices",
            "update resourceslices",  # of a node that publishes no quarantine itself
            "delete resourceslices",  # of a node that is forgotten
            "get deviceclasses",  # both: `fleet claim bind`
            "list deviceclasses",
            "watch pods",
            "get events",  # both: what was told ten minutes ago is told again
            "patch events",
            "get namespaces",  # its state is not of a node: any cluster will do
        }
    ),
    "fleet-uninstall": frozenset(
        {
            "get resourceclaims",  # all of them: while a mark of ours is left
            "patch resourceclaims",
            "patch resourceclaims/status",
            "patch resourceclaims/binding",
            "arbitrary-node:patch resourceclaims/driver",
            "delete resourceslices",
            "get nodes",
            "patch nodes/status",
        }
    ),
    "fleet-store": frozenset(
        {
            "list configmaps",  # runs of campaigns, as the next two
            "create configmaps",
            "delete configmaps",
        }
    ),
}
"""By role."""

AT_TIMES = {"associated-node:patch resourceclaims/driver"}
"""Asked for only where the entry of a pod outlives the wipe after it, which takes no longer."""

SPARE = {
    ("fleet-node-plugin", "update configmaps"),  # its lease as a publisher is prolonged at times
    ("fleet-worker", "update configmaps"),  # of leases by profile strict, the coordinator does it
}
"""What an account has by a role of several and does not ask for now."""


# --- what is said ---


def now() -> str:
    """This moment, as `kubectl logs` has it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def logs(installation: Installation, since: str) -> str:
    """What all containers have logged."""
    chosen = f"--selector=app.kubernetes.io/component in ({','.join(PARTS)})"
    more = ("--all-containers", "--tail=-1", f"--since-time={since}")
    return installation.kubectl("logs", chosen, *more, good=(0, 1))


def named(told: str, grant: Grant, account: str) -> bool:
    """Whether it is said that the account lacks the right."""
    text = " ".join(told.split())
    return any(words in text for words in grant.told(account))


def well(installation: Installation) -> None:
    """All is well again by itself."""
    eventually(
        "the fleet is fit",
        lambda: FIT in status(installation) and not installation.unready(),
        timeout_s=AWAY_S,
        period_s=1.0,
        tell=lambda: status(installation),
    )


def silent(installation: Installation, grant: Grant, owed: list[str], work: Work) -> list[str]:
    """Accounts that do not name the right while it is away."""
    since = now()
    with ExitStack() as after, without(installation, [grant]):
        said = work(installation, after)

        def unnamed() -> list[str]:
            told = said + logs(installation, since)
            return [one for one in owed if not named(told, grant, one)]

        with suppress(AssertionError):
            eventually(grant.words, lambda: not unnamed(), timeout_s=NAMED_S, period_s=0.5)
        return unnamed()


@pytest.mark.parametrize("role", ROLES)
def test_a_missing_right_is_named(installation: Installation, role: str) -> None:
    """F71: each right that work of a healthy fleet asks for is named, by verb, resource and
    account, once it is taken away; given back, all is well without another hand."""
    bound, missed = accounts(installation, role), {}
    assert bound if role in SHARED else bound == [role]
    for grant in grants(installation, role):
        if grant.words not in {*UNASKED.get(role, ()), *AT_TIMES}:
            owed = [one for one in bound if (one, grant.words) not in SPARE]
            work = WORK.get(role, {}).get(grant.words, a_tenant)
            eventually("all is at rest", lambda: not installation.left(), timeout_s=AWAY_S)
            if left := silent(installation, grant, owed, work):
                missed[grant.words] = left
    assert not missed
    well(installation)


def test_what_no_work_asks_for(installation: Installation) -> None:
    """Without all rights that only a repair, a restart or an uninstallation asks for, a tenant
    comes and goes on a wiped device, and nobody misses one."""
    taken = [
        grant
        for role, words in UNASKED.items()
        for grant in grants(installation, role)
        if grant.words in words
    ]
    assert {grant.words for grant in taken} == frozenset().union(*UNASKED.values())
    since = now()
    with without(installation, taken):
        runs_one(installation, "gpu-1")
        assert FIT in status(installation)
        assert "a right is missing" not in logs(installation, since)


def test_accounts_without_a_right(installation: Installation) -> None:
    """Campaign and webhook have no right at all, no account of ours has one besides these roles,
    and the role for operators is bound to nobody."""
    bound = {one["roleRef"]["name"] for _, one in ours(installation, "RoleBinding")}
    assert bound == set(ROLES)
    assert {name_of(one).name for _, one in ours(installation, "Role")} == {*ROLES, UNBOUND}
    given = set()
    for kind in kinds("RoleBinding"):
        for one in installation.cluster.list(kind, Selection()).items:
            given |= {
                (one["roleRef"]["name"], subject["name"])
                for subject in one.get("subjects") or []
                if subject.get("namespace") == NAMESPACE
            }
    assert {role for role, _ in given} == set(ROLES)
    assert {account for _, account in given} == {
        "fleet-node-plugin",
        "fleet-coordinator",
        "fleet-worker",
        "fleet-uninstall",
    }


def test_a_right_that_stays_away(installation: Installation) -> None:
    """docs/looking.md: a right missing to the plugin is an event of its pod, which is not Ready,
    and stands in `fleet status`, until it is given back."""
    (grant,) = [
        one
        for one in grants(installation, "fleet-node-plugin")
        if one.words == "update resourceslices"
    ]
    text = grant.told("fleet-node-plugin")[0]
    pod = name_of(installation.part(PLUGIN))

    def told() -> list[str]:
        chosen = Selection(namespace=NAMESPACE, fields=f"involvedObject.name={pod.name}")
        listed = installation.cluster.list(EVENTS, chosen).items
        return [str(one["message"]) for one in listed if one["reason"] == "RightMissing"]

    with ExitStack() as after, without(installation, [grant]):
        a_quarantine(installation, after)
        eventually(
            "an event says so", lambda: any(text in one for one in told()), timeout_s=NAMED_S
        )
        eventually(
            "its pod is not Ready",
            lambda: any(pod.name in one for one in installation.unready()),
            timeout_s=NAMED_S,
        )
        assert text in " ".join(status(installation).split())
    well(installation)
