"""Ray's errors into ours, once, at the border (case B60).

1. An error of ours raised in an actor arrives as itself, with its fields.
2. Whatever says "the call may or may not have run" becomes `RayUnavailable`: callers read back.
3. Everything else becomes `Unforeseen` with the name of the call: nothing of Ray leaks out.

A constructor that raises kills its actor, and Ray keeps only the text of the error; `StartRefused`
carries ours through that text.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import ray.exceptions

from fleet.core import errors

_MARK = re.compile(r"\[fleet-start-refused:([A-Za-z0-9+/=]+)\]")


class StartRefused(Exception):
    """Raised in a constructor in place of one of our errors, so that its kind survives as text."""

    def __init__(self, text: str) -> None:
        super().__init__(text)

    @classmethod
    def of(cls, error: errors.FleetError) -> StartRefused:
        """Wrap `error`; `translate` unwraps it on the caller's side."""
        document = {
            "kind": type(error).__name__,
            "detail": error.detail,
            "remedy": error.remedy,
        }
        packed = base64.b64encode(json.dumps(document).encode()).decode()
        return cls(f"{error} [fleet-start-refused:{packed}]")


def unforeseen(place: str, call: str, error: BaseException) -> errors.Unforeseen:
    """An error nobody planned for, as one of ours."""
    return errors.Unforeseen(f"{place}: {call}: {type(error).__name__}: {_first_line(error)}")


def kinds() -> dict[str, type[errors.FleetError]]:
    """Every class of the tree by name."""
    found: dict[str, type[errors.FleetError]] = {}
    todo = [errors.FleetError]
    while todo:
        kind = todo.pop()
        found[kind.__name__] = kind
        todo.extend(kind.__subclasses__())
    return found


def translate(error: BaseException, *, call: str) -> errors.FleetError:
    """The error of ours that `error`, seen while waiting for `call`, stands for."""
    if isinstance(error, ray.exceptions.RayTaskError):
        return _of_cause(error, call)
    if isinstance(error, errors.FleetError):
        return error
    if isinstance(error, ray.exceptions.RayActorError):
        if refused := _refused(str(error)):
            return refused
        if error.actor_init_failed:
            return errors.Unforeseen(f"{call}: the actor cannot start: {_last_line(error)}")
    if isinstance(error, ray.exceptions.AuthenticationError):
        return errors.RayUnavailable(
            f"{call}: Ray refused the token",
            remedy="set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to the cluster's token file",
        )
    if isinstance(error, ray.exceptions.GetTimeoutError):
        return errors.RayUnavailable(f"{call}: no answer in time; it may or may not have run")
    if isinstance(error, ray.exceptions.RayError):
        return errors.RayUnavailable(
            f"{call}: {type(error).__name__}: {_first_line(error)}; it may or may not have run"
        )
    if isinstance(error, ConnectionError):
        return errors.RayUnavailable(
            f"{call}: {_first_line(error)}",
            remedy="check the address and the token (RAY_AUTH_MODE, RAY_AUTH_TOKEN_PATH): Ray"
            " reports a wrong token as a failed connection",
        )
    return unforeseen(call, "Ray", error)


@contextmanager
def translated(call: str) -> Iterator[None]:
    """Run a block that waits for Ray; whatever it raises comes out as an error of ours."""
    try:
        yield
    except errors.FleetError as error:
        # Ray's dual exceptions are instances of our class too, with Ray's text: unwrap those.
        raise translate(error, call=call) from None
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
        raise translate(error, call=call) from error


@contextmanager
def given_up(ref: object) -> Iterator[None]:
    """Run a block that waits for `ref`; if it waits in vain, the call is not begun any more.

    Calls that nobody waits for would keep an overloaded actor from those that somebody does. Ray
    takes back what waits in a concurrency group; what runs goes on to its end, as does what waits
    for an actor's main thread, so that it stays unknown to the caller whether it did.
    """
    try:
        yield
    except ray.exceptions.GetTimeoutError:
        with suppress(Exception):  # a head that is away cancels nothing; the time-out counts
            ray.cancel(ref)
        raise


def _of_cause(error: ray.exceptions.RayTaskError, call: str) -> errors.FleetError:
    cause = error.cause
    if isinstance(cause, ray.exceptions.RayTaskError):
        return _of_cause(cause, call)
    if isinstance(cause, errors.FleetError):
        return cause
    if isinstance(cause, ray.exceptions.RayError):
        return translate(cause, call=call)
    return errors.Unforeseen(
        f"{call}: {type(cause).__name__}: {_first_line(cause)}",
        remedy="see the log of the actor; this is a fault of the product, report it",
    )


def _refused(text: str) -> errors.FleetError | None:
    found = _MARK.search(text)
    if found is None:
        return None
    document = json.loads(base64.b64decode(found.group(1)))
    kind = kinds().get(document["kind"], errors.Unforeseen)
    return kind(document["detail"], remedy=document["remedy"])


def _last_line(error: object) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _first_line(error: object) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else ""
