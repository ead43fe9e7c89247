"""Resets that are refused, that fail and that succeed: what follows from each."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleet.control.binding.conditions import needs_reboot
from fleet.core import errors
from fleet.core.messages import Outcome
from fleet.core.model import Digest, State, Uuid
from fleet.core.settings import ResetPolicy, WipePolicy
from fleet.devices.base import ResetOutcome
from fleet.devices.simulated.backend import SimulatedBackend
from tests.fleet.node.conftest import Lab, quick_settings, wait_for

SAYS = "the tool did not say that GPU 0 was reset: mode is in pending state"
SECRET = b"what a tenant left behind"


@dataclass
class Tried:
    """Resets of one bench."""

    backend: Balking
    count: int = 0


class Balking(SimulatedBackend):
    """A back end whose reset does as it is told."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.tried = Tried(self)
        self.says = SAYS
        self.raises: list[errors.FleetError] = []
        self.brings_back = False

    def reset(self, accelerator: Uuid) -> ResetOutcome:
        """Refused in the words of `says`; where there are none, done as the simulated one does."""
        self.tried.count += 1
        if self.raises:
            raise self.raises.pop()
        if self.says:
            return ResetOutcome(done=False, method="", detail=self.says)
        outcome = super().reset(accelerator)
        if self.brings_back:
            for path in self.memory(accelerator).paths:
                with path.open("r+b") as file:
                    file.write(SECRET)
        return outcome


@dataclass
class Bench:
    """A lab whose node resets through a back end that balks."""

    lab: Lab
    backend: Balking = field(init=False)

    def __post_init__(self) -> None:
        self.backend = Balking(self.lab.directory / "sim")
        self.lab.node._registry.backend = self.backend

    def codes(self) -> set[str]:
        return {reason.code for unit in self.lab.units() for reason in unit.reasons}

    def reason(self, code: str) -> str:
        (found,) = {r.detail for unit in self.lab.units() for r in unit.reasons if r.code == code}
        return found

    def retest(self, now: float) -> bool:
        """Whether the node tries the device again by itself at this time."""
        before = self.backend.tried.count
        self.lab.node.tick(now)
        wait_for(lambda: not self.lab.node._registry.works())
        return self.backend.tried.count > before


@pytest.fixture
def bench(lab: Lab) -> Bench:
    return Bench(lab)


def test_b41_a_refused_reset_is_one_step_up_and_then_a_persons_matter(bench: Bench) -> None:
    """B41: a reset that was not done is a reason with what the tool said; it asks for a reboot and
    is not tried again before that, and after it a second failure waits for a person."""
    bench.lab.fault("remap-pending")
    assert bench.lab.scrub().outcome is Outcome.QUARANTINED
    assert bench.codes() == {"remap-pending", "reset-failed"}
    assert bench.reason("reset-failed") == SAYS
    (shown,) = [r for r in bench.lab.device().reasons if r.code == "reset-failed"]
    assert needs_reboot(shown)
    assert not any(bench.retest(now) for now in (4e9, 5e9, 6e9))
    bench.lab.backend.reboot()
    bench.lab.restart()
    bench.lab.fault("remap-pending")
    bench = Bench(bench.lab)
    bench.lab.free()
    assert bench.retest(7e9)
    assert "reset-exhausted" in bench.codes()
    assert bench.reason("reset-exhausted") == SAYS
    assert not any(bench.retest(now) for now in (8e9, 9e9))


def test_b41_a_reset_that_failed_is_told_in_its_own_words(bench: Bench) -> None:
    """B41: a tool that fails or hangs gives the same reason, with its text, not a broken driver."""
    bench.backend.raises = [errors.BackendFailed("Unable to reset GPU: Unknown Error")]
    bench.lab.fault("remap-pending")
    bench.lab.scrub()
    assert bench.reason("reset-failed") == "Unable to reset GPU: Unknown Error"
    assert "backend-failed" not in bench.codes()


def test_b41_what_outlived_its_kill_is_wedged(bench: Bench) -> None:
    """B41: a reset that cannot be ended leaves the device wedged, and its retests go on."""
    bench.backend.raises = [errors.Wedged("nvidia-smi still lives (pid 7)")]
    bench.lab.fault("remap-pending")
    bench.lab.scrub()
    assert "still lives (pid 7)" in bench.reason("wedged")


def test_b41_after_the_reboot_a_reset_that_works_ends_it(bench: Bench) -> None:
    """B41: the step up is enough where the reset works after it."""
    bench.lab.fault("remap-pending")
    bench.lab.scrub()
    bench.lab.backend.reboot()
    bench.lab.restart()
    bench.lab.fault("remap-pending")
    bench = Bench(bench.lab)
    bench.backend.says = ""
    bench.lab.free()
    assert bench.retest(7e9)
    assert {unit.state for unit in bench.lab.units()} == {State.CLEAN}


def test_b41_a_reset_is_followed_by_another_wipe(bench: Bench) -> None:
    """B41: what memory holds after a reset nobody has read: it is wiped again before it counts."""
    bench.backend.says, bench.backend.brings_back = "", True
    bench.lab.fault("reset-required")
    result = bench.lab.scrub()
    assert result.outcome is Outcome.CERTIFIED
    assert bench.backend.tried.count == 1
    found = bench.lab.ledger.certificate(Digest(result.certificate)).envelope.predicate
    assert found["reset"]["performed"] is True
    left = b"".join(path.read_bytes() for path in bench.lab.memory().paths)
    assert SECRET not in left


def test_b41_a_reset_that_policy_orders_and_nobody_does_certifies_nothing(bench: Bench) -> None:
    """B41: where every wipe ends with a reset, one without it is no wipe."""
    bench.lab.node.close()
    bench.lab.open(settings=quick_settings(reset=ResetPolicy.ALWAYS))
    bench = Bench(bench.lab)
    assert bench.lab.scrub().outcome is Outcome.QUARANTINED
    assert bench.codes() == {"reset-failed"}


def test_b41_a_claim_does_not_get_a_device_without_the_reset_it_demands(bench: Bench) -> None:
    """B41: a demanded reset that was refused refuses the claim, and is no fault of the device."""
    order = bench.lab.bare("claim-a", "gpu-0", wipe=WipePolicy(reset=ResetPolicy.ALWAYS))
    with pytest.raises(errors.FleetError, match="mode is in pending state"):
        bench.lab.node.prepare(order)
    assert bench.codes() == set()
