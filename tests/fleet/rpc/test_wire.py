"""Calls and answers as lines: nothing is lost on the way, and nothing else is taken for one."""

from __future__ import annotations

import inspect
import json

import pytest

from fleet.core import errors, sqlite
from fleet.core.model import Token
from fleet.rpc import wire

KINDS = sorted(
    (
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.FleetError)
    ),
    key=lambda kind: kind.__name__,
)


def crossed(error: errors.FleetError) -> errors.FleetError:
    """The error as it is raised on the other side."""
    with pytest.raises(errors.FleetError) as raised:
        wire.parse_answer(wire.refusal(error))
    return raised.value


def test_a_call_arrives_with_its_name_and_arguments() -> None:
    """One line each, whatever the arguments contain."""
    arguments = {"order": {"note": "two\nlines — and more \u2028"}, "budget_s": 1.5, "none": None}
    line = wire.call("prepare", arguments)
    assert line.count(b"\n") == 1
    assert wire.parse_call(line) == ("prepare", arguments)


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}, {"answer": {"error": 1}}])
def test_every_value_arrives_as_it_was_answered(value: object) -> None:
    """An empty answer is an answer."""
    assert wire.parse_answer(wire.answer(value)) == value


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_crosses_with_class_detail_remedy_and_fields(
    kind: type[errors.FleetError],
) -> None:
    """B60: an except clause written for a local call matches the same error from elsewhere."""
    sent = kind("gpu-0 is held", remedy="wait for it", holder="claim:a", units=["u1"], at=1.5)
    found = crossed(sent)
    assert type(found) is kind
    assert (found.detail, found.remedy, found.fields) == (sent.detail, sent.remedy, sent.fields)


def test_fields_that_are_no_json_cross_as_text() -> None:
    """A token in a field is read as it is shown; the error is not lost for it."""
    found = crossed(errors.TokenStale("too old", floor=Token(1, 7), raw=b"\xff", set={1}))
    assert found.fields == {"floor": "1.7", "raw": repr(b"\xff"), "set": "{1}"}
    endless: list[object] = []
    endless.append(endless)
    assert crossed(errors.DeviceBusy("x", holder=endless)).fields == {"holder": "[[...]]"}


def test_an_error_of_a_module_of_its_own_crosses_as_what_it_derives_from() -> None:
    """Whether a call may be repeated is in the class: a locked database stays retryable."""
    found = crossed(sqlite.Locked("another process has it", remedy="retry"))
    assert type(found) is errors.StoreUnavailable
    assert isinstance(found, errors.Retryable)
    assert type(crossed(sqlite.Corrupt("torn"))) is errors.Permanent


@pytest.mark.parametrize("name", ["NoSuchError", "annotations", "Any", "", None, 7])
def test_an_error_of_an_unknown_class_is_told_as_unforeseen(name: object) -> None:
    """An owner of another version: never an AttributeError, never success."""
    line = json.dumps({"error": {"kind": name, "detail": "d", "remedy": "r"}}).encode() + b"\n"
    with pytest.raises(errors.Unforeseen, match="d — r"):
        wire.parse_answer(line)


@pytest.mark.parametrize("line", [b"\n", b"{\n", b"[1]\n", b'"x"\n', b"\xff\xfe\n", b"null\n"])
def test_what_is_no_json_object_is_refused(line: bytes) -> None:
    """Neither side takes garbage for a call or an answer."""
    with pytest.raises(errors.InputInvalid):
        wire.parse_call(line)
    with pytest.raises(errors.InputInvalid):
        wire.parse_answer(line)


@pytest.mark.parametrize("found", [{}, {"call": 1}, {"call": "view", "with": [1]}])
def test_a_call_without_name_or_arguments_is_refused(found: object) -> None:
    """A call names itself, and its arguments are an object."""
    with pytest.raises(errors.InputInvalid, match="no name or no arguments"):
        wire.parse_call(json.dumps(found).encode() + b"\n")


def test_a_line_cut_short_is_neither_a_call_nor_an_answer() -> None:
    """Who dies in mid-sentence has said nothing: the call is not performed, the answer is none."""
    whole = wire.call("unprepare", {"order": {"uid": "claim-a"}})
    with pytest.raises(errors.InputInvalid, match="cut short"):
        wire.parse_call(whole[:-1])
    answered = wire.answer({"uid": "claim-a"})
    for end in range(len(answered)):
        with pytest.raises(errors.NotOwner, match="mid-answer"):
            wire.parse_answer(answered[:end])


def test_a_call_too_long_to_be_read_is_refused_before_it_is_sent() -> None:
    """The other side would cut it: the caller learns why."""
    with pytest.raises(errors.InputInvalid, match="too long"):
        wire.call("prepare", {"note": "x" * wire.LINE_MAX})


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        "x",
        {},
        {"kind": 5, "fields": [1]},
        {"kind": "LeaseHeld", "fields": {"detail": 1, "remedy": 2, "self": 3, "unit": "u"}},
    ],
)
def test_b60_an_error_of_any_form_is_raised_as_one_of_ours(told: object) -> None:
    """B60: what another version, or a broken owner, says is never a crash of who asked."""
    with pytest.raises(errors.FleetError) as caught:
        wire.parse_answer(json.dumps({"error": told}).encode() + b"\n")
    assert caught.value.detail


def test_b20_depth_is_no_call_and_what_is_neither_is_no_yes() -> None:
    """B20: a line too deep to be read is refused; an answer without one is not an agreement."""
    with pytest.raises(errors.InputInvalid):
        wire.parse_call(b"[" * 100_000 + b"\n")
    with pytest.raises(errors.InputInvalid, match="neither"):
        wire.parse_answer(b"{}\n")
