"""V1 to V13: the thirteen ways the protocol broke before each had its rule.

Each story is told by the search itself: without the rule it finds the story (the named steps, in
this order), with the rule the same scenario is searched completely and nothing breaks.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fleet.core.claim_states import ClaimEvent, ClaimState
from fleet.core.model import State
from fleet.core.unit_states import Event, Fact
from tests.simulation import checker
from tests.simulation.mutation import (
    ONE,
    TWO,
    at,
    claims_redirected,
    flow,
    redirected,
    starting,
    unjoined,
)
from tests.simulation.rules import Rules
from tests.simulation.search import search
from tests.simulation.world import Scenario

WITNESSES = frozenset({checker.LEASE_ELSEWHERE, checker.STALE_ACT})


@dataclass(frozen=True)
class Story:
    """A scenario, the protocol without the rule, what breaks, and the steps that show it."""

    scenario: Scenario
    rules: Rules
    breaks: str
    steps: tuple[str, ...]
    ignored: frozenset[str] = frozenset()


def _named(profile: str, faults: str = "", budget: int = 0) -> Scenario:
    base = at(ONE, profile, faults, budget)
    return Scenario("named", ONE, profile=profile, faults=base.faults, budget=budget, spare=True)


def _coordinators(faults: str, budget: int) -> Scenario:
    base = at(ONE, "strict", faults, budget)
    return Scenario("two", ONE, coordinators=2, faults=base.faults, budget=budget)


def _campaign(profile: str, faults: str = "", budget: int = 0) -> Scenario:
    base = at(ONE, profile, faults, budget)
    return Scenario(
        "campaign", ONE, profile=profile, campaign=True, faults=base.faults, budget=budget
    )


def _tell(story: Story) -> None:
    found = search(story.scenario, story.rules, ignored=story.ignored)
    assert story.breaks in found.broken, found.text()
    told = iter(found.story)
    for step in story.steps:
        assert any(step in text for text in told), found.text()
    kept = search(story.scenario)
    assert not kept.broken, kept.text()
    assert kept.exhausted, kept.text()


@pytest.mark.parametrize(
    ("devices", "breaks", "ignored"),
    [
        (ONE, checker.SPEC_WITHOUT_RECORD, frozenset()),
        (TWO, checker.TWO_EXPOSED, frozenset({checker.SPEC_WITHOUT_RECORD})),
    ],
    ids=["one claim", "two claims"],
)
def test_v1_slow_prepare_outlives_its_unprepare(
    devices: tuple[tuple[int, ...], ...], breaks: str, ignored: frozenset[str]
) -> None:
    """V1, promises 2 and 3: a prepare nobody joined writes its spec after the teardown."""
    _tell(
        Story(
            at(devices, "lab"),
            Rules(claims=unjoined(), dropped=frozenset({"serial"})),
            breaks,
            ("prepare c0 commits IN_USE", "unprepare c0: UNPREPARING", "old thread of c0 writes"),
            ignored,
        )
    )


@pytest.mark.parametrize(
    "rules",
    [
        Rules(units=redirected(Rules().units, Event.NEW_BOOT, State.IN_USE, State.IN_USE)),
        Rules(
            claims=claims_redirected(ClaimEvent.NEW_BOOT, ClaimState.PREPARED, ClaimState.PREPARED)
        ),
    ],
    ids=["unit stays IN_USE", "claim stays PREPARED"],
)
def test_v2_reboot_under_a_prepared_claim(rules: Rules) -> None:
    """V2, promise 1: a claim of the earlier boot is wiped for again before it is exposed."""
    _tell(
        Story(
            at(ONE, "fast", "reboot", 1),
            rules,
            checker.FOREIGN_MEMORY,
            ("node reboots", "node starts on a new boot", "tenant of c0 starts"),
        )
    )


def test_v3_late_rollback_releases_an_exposed_claim() -> None:
    """V3, promise 2: a coordinator that timed out never releases a lease by itself."""
    _tell(
        Story(
            _coordinators("timeout", 1),
            flow("abandon"),
            checker.LEASE_ELSEWHERE,
            ("coordinator fails c0", "prepare c0 commits IN_USE", "coordinator releases"),
        )
    )


def test_v4_asking_first_is_not_enough() -> None:
    """V4, promise 2: "no record" is closed durably before the release, or it is outdated."""
    _tell(
        Story(
            _coordinators("timeout", 1),
            flow("closing"),
            checker.LEASE_ELSEWHERE,
            ("node abandons c0", "prepare c0 commits IN_USE", "coordinator releases"),
        )
    )


def test_v5_a_refused_act_blocks_the_teardown() -> None:
    """V5, promise 7: refused acts leave the floor alone, and teardown is never fenced."""
    early = "lease kept until the tombstone"
    scenario = _campaign("fast", "reboot", 1)
    _tell(
        Story(
            scenario,
            flow(early, "floor rises with acts only", "teardown unfenced"),
            checker.TRAP,
            ("tenant proven gone", "campaign is refused, the floor rises all the same"),
        )
    )
    for rule in ("floor rises with acts only", "teardown unfenced"):
        assert not search(scenario, flow(early, rule)).broken


def test_v6_pod_gone_before_prepare() -> None:
    """V6, promise 7: without any fault a claim nobody prepared is let go by reconcile."""
    _tell(
        Story(
            at(ONE, "strict"),
            flow("reconcile"),
            checker.TRAP,
            ("coordinator leases c0", "the pod of c0 is deleted"),
        )
    )


def test_v7_kubelet_forgets_the_claim() -> None:
    """V7, promise 7: our own hold does not keep an orphan from being found."""
    _tell(
        Story(
            at(ONE, "fast", "force delete", 1),
            flow("orphan by consumer"),
            checker.TRAP,
            ("prepare c0 commits PREPARING", "force deleted, and kubelet forgets it"),
        )
    )


def test_v8_created_container_starts_after_the_wipe() -> None:
    """V8, promises 1 and 4: a container that is created counts as a tenant before it starts."""
    _tell(
        Story(
            at(ONE, "lab", "force delete", 1),
            Rules(units=starting(Fact.NO_CONTAINER), dropped=frozenset({"tenant proven gone"})),
            checker.WIPE_UNDER_TENANT,
            ("container of c0 created", "force deleted", "found orphaned", "tenant of c0 starts"),
        )
    )


def test_v9_wipe_of_a_device_without_a_record() -> None:
    """V9, promise 4: the same look for containers precedes every wipe, records or not."""
    _tell(
        Story(
            at(ONE, "lab", "journal lost", 1),
            Rules(units=starting(Fact.NO_CONTAINER), dropped=frozenset({"held after loss"})),
            checker.WIPE_UNDER_TENANT,
            ("container of c0 created", "journal lost", "idle cleaner", "tenant of c0 starts"),
        )
    )


def test_v10_lost_journal_forgets_the_floor() -> None:
    """V10, promise 2: a new journal counts all issued tokens as closed."""
    _tell(
        Story(
            _campaign("fast", "journal lost", 1),
            flow("floors adopted"),
            checker.STALE_ACT,
            ("lease runs out", "commits PREPARING", "journal lost", "campaign has the node wipe"),
        )
    )


def test_v11_older_slice_write_hides_a_quarantine() -> None:
    """V11, promise 6: an older write of the slice is refused by its resourceVersion."""
    _tell(
        Story(
            at(ONE, "lab", "older write, fault", 2),
            flow("resourceVersion on slices"),
            checker.QUARANTINE_LOST,
            ("slice write for unit 0 is under way", "written and read back", "older slice write"),
        )
    )


@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        ("closing", ("finds c0 without a pod", "a second pod names c0", "commits IN_USE")),
        ("teardown closes its token", ("tombstone", "a second pod names c0", "drains the outbox")),
    ],
)
def test_v12_second_pod_under_an_old_release(rule: str, steps: tuple[str, ...]) -> None:
    """V12, promise 2: what was decided on the first pod's claim cannot land under the second."""
    _tell(Story(_named("strict"), flow(rule), checker.LEASE_ELSEWHERE, steps))


def test_v13_record_of_a_dead_pod() -> None:
    """V13, promise 7: a named claim kept by a dead pod's record is torn down for the next one."""
    _tell(
        Story(
            _named("lab", "force delete", 1),
            flow("orphan sweep"),
            checker.TRAP,
            ("prepare c0 commits PREPARING", "force deleted, and kubelet forgets it"),
        )
    )


def test_nothing_of_the_fence_guards_memory() -> None:
    """The fence guards attribution: without it, S6, S7 and S7b aside, memory stays safe."""
    ignored = WITNESSES | {checker.OTHER_CERTIFICATE}
    found = search(_campaign("fast", "duplicate", 1), flow("fence"), ignored=ignored)
    assert not found.broken, found.text()
    assert found.exhausted
