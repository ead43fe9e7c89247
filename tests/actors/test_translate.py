"""Ray's errors into ours."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import ray.exceptions

from actors.translate import StartRefused, kinds, translate, translated
from fleet.core import errors
from fleet.core.model import Token

FIELDS = {"floor": Token(3, 7), "unit": "GPU-1/0", "problems": ("a", "b")}


KINDS = sorted(kinds().values(), key=str)


MAKE: Any = ray.exceptions.RayTaskError


def raw_task_error(name: str, text: str, cause: Exception) -> Any:
    """What Ray stores when a method raised `cause`."""
    return MAKE(name, text, cause, proctitle="ray::X", pid=1, ip="::1")


def task_error(cause: Exception) -> BaseException:
    """What `ray.get` raises when a method raised `cause`."""
    dual: BaseException = raw_task_error("scrub", "Traceback ...", cause).as_instanceof_cause()
    return dual


@pytest.mark.parametrize("kind", KINDS)
def test_own_class_survives_pickling(kind: type[errors.FleetError]) -> None:
    """B60: every class of the tree comes back from pickle as itself, with its fields."""
    error = pickle.loads(pickle.dumps(kind("what happened", remedy="do this", **FIELDS)))  # noqa: S301
    assert type(error) is kind
    assert (error.detail, error.remedy, error.fields) == ("what happened", "do this", FIELDS)


@pytest.mark.parametrize("kind", KINDS)
def test_own_error_of_a_method_arrives_as_itself(kind: type[errors.FleetError]) -> None:
    """B60: the dual exception Ray makes of our error is unwrapped to ours."""
    sent = kind("what happened", remedy="do this", **FIELDS)
    got = translate(task_error(sent), call="node-0: scrub")
    assert type(got) is kind
    assert (got.detail, got.remedy, got.fields) == ("what happened", "do this", FIELDS)


@pytest.mark.parametrize("kind", KINDS)
def test_own_error_of_a_constructor_arrives_as_itself(kind: type[errors.FleetError]) -> None:
    """B60: Ray keeps only text of a constructor's error; the kind survives in it."""
    refused = StartRefused.of(kind('say "no"\n}:end', remedy="do {this}"))
    died = ray.exceptions.ActorDiedError(raw_task_error("__init__", f"tb\n{refused}", refused))
    got = translate(died, call="node-0: view")
    assert type(got) is kind
    assert (got.detail, got.remedy) == ('say "no"\n}:end', "do {this}")


@pytest.mark.parametrize(
    "error",
    [
        ray.exceptions.ActorDiedError(),
        ray.exceptions.ActorUnavailableError("restarting", None),
        ray.exceptions.ActorUnschedulableError("no such node"),
        ray.exceptions.GetTimeoutError("slow"),
        ray.exceptions.TaskCancelledError(),
        ray.exceptions.AuthenticationError("no token"),
        ray.exceptions.LocalRayletDiedError(),
        ConnectionError("Failed to connect to Ray cluster"),
    ],
    ids=repr,
)
def test_a_call_that_may_have_run_is_unavailable(error: BaseException) -> None:
    """B60: whatever leaves open whether the call ran becomes RayUnavailable, which is retryable."""
    got = translate(error, call="node-0: scrub")
    assert type(got) is errors.RayUnavailable
    assert "node-0: scrub" in got.detail
    assert isinstance(got, errors.Retryable)


def test_a_library_error_of_a_method_is_unforeseen() -> None:
    """B60: an error of a library never crosses as itself: it is ours, names the call, permanent."""
    got = translate(task_error(KeyError("gpu-7")), call="node-0: view")
    assert type(got) is errors.Unforeseen
    assert "node-0: view" in got.detail
    assert "KeyError" in got.detail


def test_the_block_form_translates() -> None:
    """B60: an except clause for our class matches around a block that waits for Ray."""
    sent = errors.TokenStale("old token", floor=Token(1, 9))
    with pytest.raises(errors.TokenStale) as caught, translated("node-0: scrub"):
        raise task_error(sent)
    assert type(caught.value) is errors.TokenStale
    assert caught.value.floor == Token(1, 9)
