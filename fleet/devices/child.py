"""A back end in a process of its own: ``python -m fleet.devices.child <kind> <settings>``.

Reads calls and writes answers, one JSON object a line (`fleet.rpc.wire`), until its input ends.
The node kills it when an answer takes too long: a call into a sick driver cannot be stopped from
within. It dies with the thread that started it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import IO, Any

from fleet.core import errors
from fleet.core.model import Uuid
from fleet.core.processes import rename, tie
from fleet.devices import codec, registry
from fleet.devices.base import (
    Backend,
    CanDivide,
    CanPartition,
    CanReset,
    FindsOne,
    TellsFitness,
    TellsHolders,
    TellsLog,
    TellsOpeners,
    TellsStrays,
)
from fleet.rpc import wire

_MISMATCH = 18
"""NVML's code for a library and a kernel module that differ."""
NAME = "fleet-driver"
"""Name of the process: infrastructure like other daemons that keep a device open."""


def main(calls: IO[bytes], answers: IO[bytes], kind: str, settings: str, parent: str) -> int:
    """Serve until the input ends; returns the exit code."""
    rename(NAME)
    if not tie(int(parent)):
        return 0
    serve(registry.build(kind, json.loads(settings)), calls, answers)
    return 0


def serve(backend: Backend, calls: IO[bytes], answers: IO[bytes]) -> None:
    """Answer every call until there is none any more; a call that fails is an answer too.

    After an upgrade of the driver in place it ends: the library that is loaded stays the old one.
    """
    while line := calls.readline():
        answer, upgraded = _answered(backend, line)
        answers.write(answer)
        answers.flush()
        if upgraded:
            return


def _answered(backend: Backend, line: bytes) -> tuple[bytes, bool]:
    """The answer, and whether the driver's library is another one than its kernel module."""
    try:
        name, given = wire.parse_call(line)
        return wire.answer(CALLS[name](backend, given)), False
    except errors.FleetError as error:
        return wire.refusal(error), error.fields.get("code") == _MISMATCH
    except Exception as error:  # noqa: BLE001 - a binding may raise anything; the node is told
        failed = errors.BackendFailed(f"{type(error).__name__}: {error}")
        return wire.refusal(failed), False


def _reset(backend: Backend, given: Mapping[str, Any]) -> Any:
    if not isinstance(backend, CanReset):
        return None
    return codec.reset(backend.reset(Uuid(given["accelerator"])))


def _partitioning(backend: Backend) -> CanPartition:
    if not isinstance(backend, CanPartition):
        raise errors.BackendFailed(f"the {backend.kind} back end has no partitions")
    return backend


def _partitioned(backend: Backend, given: Mapping[str, Any]) -> bool:
    if not isinstance(backend, CanPartition):
        return False
    return backend.partitioned(codec.device_from(given["device"]))


def _instances(backend: Backend, given: Mapping[str, Any]) -> Any:
    if not isinstance(backend, CanPartition):
        return []
    return [codec.instance(one) for one in backend.instances(Uuid(given["accelerator"]))]


def _finding(backend: Backend) -> FindsOne | None:
    return backend if isinstance(backend, FindsOne) else None


def _roll(backend: Backend) -> list[Uuid]:
    finding = _finding(backend)
    return list(finding.roll()) if finding else []


def _one(backend: Backend, given: Mapping[str, Any]) -> Any:
    """One accelerator, from the driver or, ``silent``, from what is remembered."""
    finding, uuid = _finding(backend), Uuid(given["accelerator"])
    if finding is None:
        raise errors.BackendFailed(f"the {backend.kind} back end lists all its devices or none")
    found = finding.silent(uuid) if given["silent"] else finding.accelerator(uuid)
    return codec.accelerators([found])


def _holders(backend: Backend, given: Mapping[str, Any]) -> Any:
    uuid = Uuid(given["accelerator"])
    if isinstance(backend, TellsHolders):
        found = backend.holders(uuid)
    else:
        mine = [one for one in backend.inventory() if one.uuid == uuid]
        named = {uuid, *(device.uuid for one in mine for device in one.devices)}
        found = {name: backend.processes(name) for name in sorted(named)}
    return {name: codec.processes(listed) for name, listed in found.items()}


def _openers(backend: Backend, given: Mapping[str, Any]) -> Any:
    device = codec.device_from(given["device"])
    if isinstance(backend, TellsOpeners):
        return codec.processes(backend.openers(device, given["ids"]))
    return codec.processes(backend.processes(device.uuid))


def _strays(backend: Backend) -> list[str]:
    return list(backend.strays()) if isinstance(backend, TellsStrays) else []


def _unfit(backend: Backend) -> Any:
    return codec.unfit(backend.unfit() if isinstance(backend, TellsFitness) else ())


def _log_state(backend: Backend) -> Any:
    found = backend.log_state() if isinstance(backend, TellsLog) else None
    return None if found is None else asdict(found)


def _divide(backend: Backend, given: Mapping[str, Any]) -> None:
    if not isinstance(backend, CanDivide):
        raise errors.BackendFailed(f"the {backend.kind} back end has no partitioning to switch")
    backend.divide(Uuid(given["accelerator"]), on=bool(given["on"]))


def _open(backend: Backend, given: Mapping[str, Any]) -> None:
    """Look at the accelerator once: a driver that nothing keeps loaded starts up now."""
    if finding := _finding(backend):
        finding.accelerator(Uuid(given["accelerator"]))


def _unmake(backend: Backend, given: Mapping[str, Any]) -> None:
    _partitioning(backend).unmake(codec.instance_from(given["instance"]))


CALLS: Mapping[str, Callable[[Backend, Mapping[str, Any]], Any]] = {
    "open": _open,
    "roll": lambda backend, _given: _roll(backend),
    "one": _one,
    "inventory": lambda backend, _given: codec.accelerators(backend.inventory()),
    "readings": lambda backend, given: backend.readings(Uuid(given["accelerator"])).as_json(),
    "processes": lambda backend, given: codec.processes(
        backend.processes(Uuid(given["accelerator"]))
    ),
    "grant": lambda backend, given: codec.grant(backend.grant(codec.device_from(given["device"]))),
    "agent_grant": lambda backend, _given: codec.grant(backend.agent_grant()),
    "reset": _reset,
    "partitioned": _partitioned,
    "instances": _instances,
    "make": lambda backend, given: codec.instance(
        _partitioning(backend).make(codec.device_from(given["device"]))
    ),
    "unmake": _unmake,
    "divide": _divide,
    "holders": _holders,
    "unfit": lambda backend, _given: _unfit(backend),
    "log_state": lambda backend, _given: _log_state(backend),
    "openers": _openers,
    "strays": lambda backend, _given: _strays(backend),
}
"""What the node may ask, by name."""

if __name__ == "__main__":
    sys.exit(main(sys.stdin.buffer, sys.stdout.buffer, *sys.argv[1:4]))
