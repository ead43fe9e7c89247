"""What every run store must do, whatever it is made of."""

from __future__ import annotations

import pytest

from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.core.messages import DeviceResult, Outcome
from fleet.core.model import RunId
from fleet.stores.base import RUNS_KEPT, RunRecord, RunState, RunStore, Target

START = 1_700_000_000.0
RUN = RunId("run-1")


def record(run: str = RUN, started_at: float = START) -> RunRecord:
    """A fresh run about two devices."""
    return RunRecord(
        id=run,
        started_at=started_at,
        policy={"max_parallel": 4},
        plan={"waves": [["gpu-0"], ["gpu-1"]]},
        targets=(
            Target(node="node-1", uuid="gpu-0", name="0"),
            Target(node="node-1", uuid="gpu-1", name="1"),
        ),
        simulated=True,
    )


def result(device: str, outcome: Outcome = Outcome.CERTIFIED, attempt: int = 1) -> DeviceResult:
    """A result as a node sends it."""
    return DeviceResult(
        operation=f"{RUN}/{device}/{attempt}",
        node="node-1",
        device=device[-1],
        uuid=device,
        outcome=outcome,
        state="CLEAN",
    )


class RunStoreContract:
    """Subclasses give the fixtures `clock` (a `ManualClock`) and `runs`, empty."""

    kept = RUNS_KEPT
    """How many finished runs the store of the fixture keeps."""

    def test_a_run_comes_back_as_it_was_stored(self, runs: RunStore) -> None:
        """E5: policy, plan and targets are there to resume from."""
        assert runs.create(record()) == record()
        assert runs.get(RUN) == record()
        assert runs.state(RUN) is RunState.RUNNING

    def test_creating_a_run_twice_is_harmless(self, runs: RunStore) -> None:
        """B43: a repeated create returns the run as it is by now."""
        runs.create(record())
        runs.append(RUN, [result("gpu-0")])
        assert runs.create(record()).results == {"gpu-0": result("gpu-0")}

    def test_an_id_belongs_to_one_run(self, runs: RunStore) -> None:
        """E2: another run under the same id is refused and changes nothing."""
        runs.create(record())
        with pytest.raises(errors.InputInvalid):
            runs.create(record(started_at=START + 1))
        assert runs.get(RUN) == record()

    def test_a_run_begins_without_results(self, runs: RunStore) -> None:
        """E2: a record with results or an end is not a new run."""
        for update in ({"results": {"gpu-0": result("gpu-0")}}, {"state": RunState.FINISHED}):
            with pytest.raises(errors.InputInvalid):
                runs.create(record().model_copy(update=update))
        assert runs.runs(10) == []

    def test_an_unknown_run_is_an_error_everywhere(self, runs: RunStore) -> None:
        """E2: no method invents a run."""
        for act in (
            lambda: runs.get(RUN),
            lambda: runs.state(RUN),
            lambda: runs.append(RUN, [result("gpu-0")]),
            lambda: runs.finish(RUN, RunState.FINISHED, "complete"),
            lambda: runs.resume(RUN),
        ):
            with pytest.raises(errors.RunUnknown):
                act()

    def test_a_repeated_result_counts_once(self, runs: RunStore) -> None:
        """B43: results are idempotent, within one call and over several."""
        runs.create(record())
        one, two = result("gpu-0"), result("gpu-1")
        assert runs.append(RUN, [one, one]) == 1
        assert runs.append(RUN, [one, two]) == 1
        assert runs.append(RUN, []) == 0
        assert runs.get(RUN).results == {"gpu-0": one, "gpu-1": two}

    def test_the_newest_result_of_a_device_counts(self, runs: RunStore) -> None:
        """B43: an old result sent again after a newer one never displaces it."""
        runs.create(record())
        old, new = result("gpu-0", Outcome.UNREACHABLE), result("gpu-0", attempt=2)
        runs.append(RUN, [old])
        runs.append(RUN, [new])
        assert runs.append(RUN, [old]) == 0
        assert runs.get(RUN).results == {"gpu-0": new}

    def test_the_truth_replaces_a_guess_of_the_same_operation(self, runs: RunStore) -> None:
        """B43: what was given up as unreachable may turn out certified under the same operation."""
        runs.create(record())
        runs.append(RUN, [result("gpu-0", Outcome.UNREACHABLE)])
        assert runs.append(RUN, [result("gpu-0")]) == 1
        assert runs.get(RUN).results["gpu-0"].outcome is Outcome.CERTIFIED

    def test_a_run_ends_once(self, runs: RunStore, clock: ManualClock) -> None:
        """E2: the first end counts; a finished run never goes back."""
        runs.create(record())
        clock.advance(5)
        ended = runs.finish(RUN, RunState.FINISHED, "complete")
        assert (ended.state, ended.finished_at) == (RunState.FINISHED, START + 5)
        clock.advance(5)
        assert runs.finish(RUN, RunState.FINISHED, "again") == ended
        for state in (RunState.STOPPED, RunState.RUNNING):
            with pytest.raises(errors.InputInvalid):
                runs.finish(RUN, state, "no")
        with pytest.raises(errors.InputInvalid):
            runs.resume(RUN)
        assert runs.get(RUN) == ended

    def test_a_finished_run_takes_only_repetitions(self, runs: RunStore) -> None:
        """B43: a late duplicate is harmless, a late new result is an error."""
        runs.create(record())
        runs.append(RUN, [result("gpu-0")])
        runs.finish(RUN, RunState.FINISHED, "complete")
        assert runs.append(RUN, [result("gpu-0")]) == 0
        with pytest.raises(errors.InputInvalid):
            runs.append(RUN, [result("gpu-1")])
        assert set(runs.get(RUN).results) == {"gpu-0"}

    def test_a_stopped_run_goes_on(self, runs: RunStore) -> None:
        """E2: a stopped run takes late results, and is as before when resumed."""
        runs.create(record())
        runs.finish(RUN, RunState.STOPPED, "interrupted")
        runs.append(RUN, [result("gpu-0")])
        resumed = runs.resume(RUN)
        assert resumed == record().model_copy(update={"results": {"gpu-0": result("gpu-0")}})
        assert runs.resume(RUN) == resumed

    def test_runs_are_listed_newest_first(self, runs: RunStore) -> None:
        """E2: lists are bounded and ordered by start."""
        for number in (2, 1, 3):
            runs.create(record(f"run-{number}", START + number))
        runs.finish(RunId("run-2"), RunState.FINISHED, "complete")
        runs.finish(RunId("run-3"), RunState.STOPPED, "interrupted")
        assert [run.id for run in runs.runs(2)] == ["run-3", "run-2"]
        assert [run.id for run in runs.unfinished()] == ["run-1", "run-3"]
        assert runs.open_runs() == ["run-1", "run-3"]

    def test_old_finished_runs_are_forgotten(self, runs: RunStore) -> None:
        """E5: the number of finished runs is bounded; an unfinished one is never dropped."""
        runs.create(record("first", START - 1))
        for number in range(self.kept + 2):
            run = RunId(f"run-{number}")
            runs.create(record(run, START + number))
            runs.append(run, [result("gpu-0")])
            runs.finish(run, RunState.FINISHED, "complete")
        runs.create(record("last", START + 10**6))
        kept = [run.id for run in runs.runs(10**6)]
        assert len(kept) == self.kept + 2
        assert kept[0] == "last"
        assert kept[-2:] == ["run-2", "first"]
