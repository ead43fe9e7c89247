"""The scenarios that are searched completely.

One joint model of everything is too large; each scenario joins what can disturb each other and
bounds how many faults strike (the last figure of its name). `SCENARIOS` run in CI, `DEEP` by
``python -m tests.simulation.search --deep``.
"""

from __future__ import annotations

from dataclasses import replace

from tests.simulation import world
from tests.simulation.world import Scenario

ONE = ((0,),)
TWO = ((0,), (0,))
PARENT = ((0, 1),)
PARENT_CHILD = ((0, 1), (0,))
PARENT_CHILDREN = ((0, 1), (0,), (1,))
NEIGHBOURS = ((0,), (1,))
HOLDER_AND_LOOKER = ((0,), ())
LOOKS = ((), (0,))

FAULTS = world.FAULTS - {"store restored"}
"""A restored store has scenarios of its own."""
STORE = frozenset({"store restored", "crash", "duplicate", "force delete"})
LOSS = frozenset({"journal lost", "duplicate", "adopt", "force delete"})
TALK = frozenset({"timeout", "duplicate", "coordinator crash", "force delete"})
PARTS = frozenset({"force delete", "crash", "fault"})
BAD = frozenset({"fault", "clear", "wipe"})
CALLS = frozenset({"early unprepare", "crash", "force delete", "lost answer"})
ALONE = FAULTS - {"early unprepare", "timeout", "coordinator crash"}
"""Without a coordinator: the node alone lets go of what it took."""
LOOKING = FAULTS - {"adopt", "journal restored", "timeout", "coordinator crash"}
"""An operator who adopts says that nobody is there. With two faults no force delete either: nobody
knows of who is attached when both the journal was lost and kubelet forgot the pod."""
LOSSES = frozenset({"crash", "force delete", "journal lost", "kubelet restart", "reboot"})
"""What may make a node forget that somebody is attached."""


JOINT = FAULTS - {"duplicate", "older write", "early unprepare"}
"""A paused coordinator is as late as any duplicate of its message."""
DAILY = frozenset(
    {
        "binding timeout",
        "coordinator crash",
        "crash",
        "fault",
        "force delete",
        "journal lost",
        "kubelet restart",
        "reboot",
        "stale allocation",
        "timeout",
        "wipe",
    }
)
"""Of these the ones in which scheduler, coordinators and node have most to do with each other."""
PACE = frozenset(
    {"binding timeout", "timeout", "coordinator crash", "force delete", "kubelet restart"}
)


def _joint(number: int, coordinators: int, faults: frozenset[str], budget: int) -> Scenario:
    """Scheduler, `coordinators` that decide as the product does, a node, and as many claims."""
    people = f"{number} claims {coordinators} coordinators"
    return Scenario(
        f"joint {people} F{budget}",
        ((0,),) * number,
        coordinators=coordinators,
        faults=faults,
        budget=budget,
        seats=((0,),),
        clean=True,
        coarse=True,
    )


def _lab(name: str, devices: tuple[tuple[int, ...], ...], faults: frozenset[str]) -> Scenario:
    """Devices of several units or claims, one fault, in coarse steps, without a coordinator."""
    return Scenario(
        name,
        devices,
        profile="lab",
        coordinators=0,
        faults=faults,
        budget=1 if faults else 0,
        clean=True,
        coarse=True,
    )


SCHEDULED: tuple[Scenario, ...] = (
    _joint(2, 1, DAILY, 1),
    _joint(2, 2, frozenset(), 0),
    replace(_joint(2, 1, frozenset({"store restored"}), 1), name="joint 2 claims restored F1"),
)
"""Everything at once: scheduler, coordinators, store, claims and node."""

CAMPAIGNS: tuple[Scenario, ...] = (
    Scenario("strict campaign F1", ONE, campaign=True, faults=FAULTS, budget=1),
    Scenario(
        "fast restored F1",
        ONE,
        profile="fast",
        campaign=True,
        faults=frozenset({"store restored"}),
        budget=1,
    ),
    Scenario("strict restored F1", ONE, campaign=True, faults=STORE, budget=1),
)
"""Coordinators and a campaign beside the node."""

KUBELET: tuple[Scenario, ...] = (
    Scenario("strict named F0", ONE, spare=True),
    Scenario("strict ordered F1", ONE, ordered=True, faults=FAULTS, budget=1),
    Scenario("fast F1", ONE, profile="fast", faults=FAULTS, budget=1),
    Scenario("fast alone F2", ONE, profile="fast", coordinators=0, faults=ALONE, budget=2),
    Scenario(
        "fast elsewhere F1",
        ONE,
        profile="fast",
        spare=True,
        elsewhere=True,
        faults=FAULTS,
        budget=1,
    ),
    Scenario("fast interrupted F3", ONE, profile="fast", faults=frozenset({"wipe"}), budget=3),
    Scenario("lab F2", ONE, profile="lab", faults=FAULTS, budget=2),
    Scenario("lab quarantined F3", ONE, profile="lab", coordinators=0, faults=BAD, budget=3),
    Scenario("lab early F2", ONE, profile="lab", coordinators=0, faults=CALLS, budget=2),
    replace(_lab("lab attached F1", HOLDER_AND_LOOKER, LOSSES), attached=LOOKS),
    _lab("lab parent F1", PARENT, BAD | {"crash"}),
    _lab("lab parent child F1", PARENT_CHILD, PARTS),
    _lab("lab parent children F0", PARENT_CHILDREN, frozenset()),
    _lab("lab neighbours F0", NEIGHBOURS, frozenset()),
)
"""Claims as kubelet brings them: no token, shared, named, attached, on one device or several."""

SCENARIOS: tuple[Scenario, ...] = (*SCHEDULED, *CAMPAIGNS, *KUBELET)
"""Small enough for CI: half a minute on one core altogether."""

DEEP: tuple[Scenario, ...] = (
    replace(_joint(2, 1, JOINT, 1), name="joint 2 claims all F1"),
    _joint(1, 1, JOINT, 2),
    _joint(1, 2, JOINT, 2),
    _joint(2, 1, JOINT, 2),
    _joint(2, 2, PACE | {"stale allocation", "crash"}, 1),
    _joint(3, 1, frozenset({"stale allocation", "binding timeout"}), 1),
    replace(_joint(2, 1, PACE, 1), name="joint 2 claims 2 devices F1", seats=((0,), (1,))),
    replace(_joint(2, 1, PACE | {"crash"}, 1), name="joint 2 claims campaign F1", campaign=True),
    replace(_joint(1, 1, JOINT, 1), name="joint fine F1", coarse=False, clean=False),
    Scenario("fast lost F2", ONE, profile="fast", campaign=True, faults=LOSS, budget=2),
    Scenario("strict 2 coordinators F1", ONE, coordinators=2, faults=FAULTS, budget=1),
    Scenario(
        "strict 2 coordinators campaign F1",
        ONE,
        coordinators=2,
        campaign=True,
        faults=TALK,
        budget=1,
    ),
    Scenario("strict 2 claims F1", TWO, faults=frozenset({"force delete", "crash"}), budget=1),
    Scenario("strict F2", ONE, faults=FAULTS, budget=2),
    Scenario("strict 2 claims all F1", TWO, faults=FAULTS, budget=1),
    Scenario("strict named F1", ONE, spare=True, faults=FAULTS, budget=1),
    Scenario("strict ordered F2", ONE, ordered=True, faults=FAULTS, budget=2),
    Scenario("fast named F1", ONE, profile="fast", spare=True, faults=FAULTS, budget=1),
    Scenario("fast 2 claims F2", TWO, profile="fast", faults=FAULTS, budget=2),
    Scenario("fast F3", ONE, profile="fast", faults=FAULTS, budget=3),
    Scenario("fast restored F2", ONE, profile="fast", campaign=True, faults=STORE, budget=2),
    Scenario("fast elsewhere F2", ONE, "fast", spare=True, elsewhere=True, faults=FAULTS, budget=2),
    Scenario(
        "fast named ordered F1", ONE, "fast", spare=True, ordered=True, faults=FAULTS, budget=1
    ),
    Scenario("lab named alone F2", ONE, "lab", coordinators=0, spare=True, faults=ALONE, budget=2),
    Scenario("lab quarantined F4", ONE, "lab", coordinators=0, faults=BAD | {"crash"}, budget=4),
    Scenario(
        "lab attached all F1",
        HOLDER_AND_LOOKER,
        profile="lab",
        coordinators=0,
        faults=LOOKING,
        budget=1,
        attached=LOOKS,
    ),
    replace(
        _lab("lab attached F2", HOLDER_AND_LOOKER, LOOKING - {"force delete"}),
        attached=LOOKS,
        budget=2,
    ),
    replace(_lab("lab parent F2", PARENT, BAD | {"crash", "reboot"}), budget=2),
    replace(_lab("lab parent child more F1", PARENT_CHILD, PARTS), coordinators=1),
    Scenario("fast parent children F0", PARENT_CHILDREN, profile="fast", clean=True, coarse=True),
    _lab("lab parent children F1", PARENT_CHILDREN, frozenset({"force delete"})),
    _lab("lab neighbours F1", NEIGHBOURS, frozenset({"fault"})),
    _lab("lab neighbours more F1", NEIGHBOURS, PARTS | {"wipe"}),
)
"""Minutes each, up to a few gigabytes of memory."""
