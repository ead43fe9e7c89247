"""Kill -9 at seeded moments: what CI runs of `tests.chaos.run`; `make chaos` runs more.

Stories with a real Ray are told by `make chaos` alone: in CI the storm of `test_storm.py` kills the
same processes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.core.model import State, Token
from fleet.core.processes import MARKER as WORKER
from fleet.evidence import layout
from fleet.evidence.segments import segment_paths
from tests.chaos import checks
from tests.chaos.story import OF_PLUGIN, Point, Side, Victim, draw

ROOT = Path(__file__).parent.parent.parent
QUIET_SEED = 1
"""A story without faults on one node of two devices."""


def chaos(*arguments: str) -> str:
    """Run the program in a process of its own: it forks, and this one has threads."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.run", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def kills(told: str) -> int:
    found = re.search(r"(\d+) kills, 0 failed", told)
    assert found, told
    return int(found[1])


def test_lives_struck_at_seeded_moments_converge() -> None:
    """Promises 5, 7, 8 (B02, B44): kill -9 anywhere, start again, and everything holds."""
    assert kills(chaos("--plain", "6")) >= 6


@pytest.mark.timeout(900)
def test_stories_around_kubelets_calls_converge() -> None:
    """Promises 1 to 4, 7, 8, DESIGN 5; plugin, owner, workers die; kubelet's retries converge."""
    assert kills(chaos("--kubelet", "5")) >= 5


def test_a_seed_tells_the_same_story_again() -> None:
    """A failing seed can be told again: nothing but the seed decides a story."""
    assert [draw(seed) for seed in range(50)] == [draw(seed) for seed in range(50)]
    assert draw(1) != draw(2)


def test_sixty_seeds_strike_everybody_everywhere() -> None:
    """The stories CI runs reach every kind of moment, both victims, both ways to go on."""
    stories = [draw(seed) for seed in range(1, 61)]
    strikes = [s for story in stories for life in story.lives for s in life.strikes]
    assert {strike.point for strike in strikes} == set(Point) - OF_PLUGIN
    assert {strike.side for strike in strikes} == set(Side)
    assert {strike.victim for strike in strikes} == set(Victim)
    assert {story.lives[-1].resume for story in stories} == {True, False}
    assert any(life.reboot for story in stories for life in story.lives)
    named = {fault.name for story in stories for fault in story.faults}
    assert {"wedge", "worker-crash", "dirty-word"} <= named


# --- the judge is judged: each check finds what it is there for -----------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory that a story left."""
    kept = tmp_path_factory.mktemp("kept")
    chaos("--plain", "1", "--seed", str(QUIET_SEED), "--keep", str(kept))
    (state,) = kept.iterdir()
    return state


def test_a_finished_story_leaves_nothing_to_find(finished: Path) -> None:
    """What follows changes one thing each; unchanged, nothing is found."""
    now = checks.sample(finished)
    run = max(now.runs.values(), key=lambda record: record.started_at).id
    assert checks.after_a_kill(finished, now, now) == []
    assert checks.at_rest(finished, now, run) == []
    assert {u.state for n in now.nodes.values() for u in n.units.values()} == {State.CLEAN}


def test_one_byte_in_clean_memory_is_found(finished: Path) -> None:
    """Promise 1: CLEAN memory is zero, every byte of it."""
    now = checks.sample(finished)
    memory = next((layout.node_directory(finished, "node-01") / "sim" / "memory").glob("*.bin"))
    with memory.open("r+b") as file:
        file.seek(4321)
        file.write(b"x")
    found = checks.after_a_kill(finished, now, now)
    with memory.open("r+b") as file:
        file.seek(4321)
        file.write(b"\0")
    assert [line for line in found if "is CLEAN, 1 bytes are not" in line] == found != []


def test_a_floor_or_token_that_fell_is_found(finished: Path) -> None:
    """B44: neither a node's floor nor the store's counter is ever lower than it was."""
    now = checks.sample(finished)
    (node,) = now.nodes.values()
    before = {
        unit_id: replace(unit, floor=Token(unit.floor.epoch, unit.floor.counter + 1))
        for unit_id, unit in node.units.items()
    }
    earlier = replace(now, nodes={node.name: replace(node, units=before)})
    assert len([line for line in checks.backwards(earlier, now) if "floor" in line]) == len(before)
    newer = replace(now, newest=Token(now.newest.epoch, now.newest.counter + 1))
    assert any("the store issued up to" in line for line in checks.backwards(newer, now))


def test_a_clean_unit_without_its_certificate_is_found(finished: Path) -> None:
    """Promise 8: evidence precedes CLEAN."""
    now = checks.sample(finished)
    ledger = layout.ledger_directory(finished, "node-01")
    (segment,) = segment_paths(ledger)
    content = segment.read_bytes()
    segment.write_bytes(content[: content.rindex(b"\n", 0, -1) + 1])
    found = checks.after_a_kill(finished, now, checks.sample(finished))
    segment.write_bytes(content)
    assert any("is not in the ledger" in line for line in found)
    assert any("is gone from the ledger" in line for line in found)
    assert any("tail-cut" in line for line in found)


def test_a_run_that_is_not_over_is_found(finished: Path) -> None:
    """E2: a campaign that was interrupted ends, with one outcome for each device."""
    now = checks.sample(finished)
    run = max(now.runs.values(), key=lambda record: record.started_at)
    some = dict(list(run.results.items())[1:])
    stopped = run.model_copy(update={"state": "stopped", "results": some})
    found = checks.at_rest(finished, replace(now, runs={run.id: stopped}), run.id)
    assert any("is stopped" in line for line in found)
    assert any("has outcomes of" in line for line in found)


def test_a_process_left_over_is_found() -> None:
    """Promise 7: no process leaks; they are found by what they inherited."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        env={WORKER: "left-over"},
    ) as process:
        seen = checks.living(WORKER, "left-over")
        process.kill()
    assert seen == [process.pid]
    assert checks.living(WORKER, "left-over") == []
