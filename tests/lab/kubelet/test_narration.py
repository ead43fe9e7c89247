"""How the story is told: steps, events, what held."""

from __future__ import annotations

from tests.lab.kubelet.narration import Telling
from tests.lab.kubelet.pods import PodEvent


def test_everything_held_is_exit_code_0() -> None:
    """The summary counts expectations."""
    lines: list[str] = []
    telling = Telling(lines.append)
    telling.step("One")
    assert telling.expect("a", holds=True)
    telling.step("Two")
    assert telling.expect("b", holds=True)
    assert telling.end() == 0
    assert [line for line in lines if line[:1].isdigit()][:2] == ["1. One", "2. Two"]
    assert any(line.startswith("2 of 2 expectations held") for line in lines)


def test_one_broken_promise_is_exit_code_1_and_is_named() -> None:
    """What did not hold is said at its place and again in the summary."""
    lines: list[str] = []
    telling = Telling(lines.append)
    telling.expect("a", holds=True)
    assert not telling.expect("b", holds=False)
    assert telling.end() == 1
    assert lines.count("   BROKEN: b") == 2
    assert "   BROKEN: a" not in lines


def test_what_kubelet_did_is_told_with_its_time() -> None:
    """An event shows pod, what was done, how long it took, and the details."""
    lines: list[str] = []
    telling = Telling(lines.append)
    telling.heard(PodEvent("alice", "Stopped", "process 7", took_s=0.25))
    telling.heard(PodEvent("", "registered"))
    assert lines[0].endswith("kubelet: alice: Stopped in 250 ms (process 7)")
    assert lines[1].endswith("kubelet: registered")
