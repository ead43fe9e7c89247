"""Campaign runs in the same DynamoDB table as the leases.

Items (partition key ``pk``, sort key ``sk``):

    run          <id>                      where the run stands; all runs are one partition
    run <id>     body <digest> <part>      what it was created from, compressed, in parts
    run <id>     result <device>           the newest result, and the keys of all that were stored

A run's heads are few (`RUNS_KEPT`) and small, so they are listed by one query. Its parts are
written before the head that names them, under their own digest: of two runs of one id each has its
own. A call with results of more devices than one transaction takes may store some and then fail:
repeating it stores the rest. Each such transaction has the time of a call, and so has each run of
those that are listed: how many there are is no matter of how well the store answers.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from fleet.core import errors
from fleet.core.clock import Clock
from fleet.core.messages import DeviceResult
from fleet.core.model import RunId
from fleet.stores import decisions
from fleet.stores.base import RUNS_KEPT, RunRecord, RunState
from fleet.stores.dynamodb_sheet import Item, key_of, unreadable
from fleet.stores.dynamodb_table import Attempts, Table, by_key, new_write

RUN = "run"
PART_BYTES = 300_000
"""Bytes of one part: an item takes 400 KB, names included."""
DEVICES_AT_ONCE = 50
"""Devices whose results are one transaction: it takes 100 items and 4 MB."""


class DynamodbRunStore:
    """Runs in a DynamoDB table; see `fleet.stores.base.RunStore`."""

    def __init__(self, table: Table, clock: Clock, *, kept: int = RUNS_KEPT) -> None:
        """`clock` dates the end of a run; `kept` finished runs are not forgotten."""
        self.table = table
        self._clock = clock
        self._kept = kept

    def create(self, record: RunRecord) -> RunRecord:
        """Store a new run."""
        decisions.check_fresh(record)
        body = gzip.compress(record.model_dump_json().encode(), mtime=0)
        digest = hashlib.sha256(body).hexdigest()
        count = -(-len(body) // PART_BYTES)
        attempts = self.table.attempts()
        while True:
            found = self.table.get(key_of(RUN, record.id), attempts)
            if found is not None:
                stored = self._whole(found, attempts)
                if decisions.is_same_run(stored, record):
                    return stored
                raise decisions.taken(record.id)
            for number in range(count):
                part = body[number * PART_BYTES : (number + 1) * PART_BYTES]
                self._put(_part_key(record.id, digest, number), {"body": {"B": part}}, attempts)
            head = {
                "state": {"S": str(record.state)},
                "started_at": {"N": repr(record.started_at)},
                "digest": {"S": digest},
                "parts": {"N": str(count)},
                "exit_reason": {"S": ""},
            }
            if self._swap(key_of(RUN, record.id), None, head, attempts):
                with suppress(errors.StoreUnavailable):  # the run is there; the next one trims
                    self._trim(attempts)
                return record

    def append(self, run: RunId, results: Sequence[DeviceResult]) -> int:
        """Store results; returns how many were new."""
        self._head(run, self.table.attempts())
        by_device: dict[str, list[DeviceResult]] = {}
        for result in results:
            by_device.setdefault(result.uuid, []).append(result)
        devices, added = sorted(by_device), 0
        for start in range(0, len(devices), DEVICES_AT_ONCE):
            some = devices[start : start + DEVICES_AT_ONCE]
            added += self._append(run, {device: by_device[device] for device in some})
        return added

    def _append(self, run: RunId, results: Mapping[str, Sequence[DeviceResult]]) -> int:
        attempts = self.table.attempts()
        writes: set[str] = set()
        while True:
            head = self._head(run, attempts)
            asked = (_result_key(run, device) for device in results)
            items = by_key(self.table.read(asked, attempts))
            write, actions, added = new_write(), [], 0
            for device, some in results.items():
                key = _result_key(run, device)
                before = items.get((key["pk"]["S"], key["sk"]["S"]))
                keys = _keys(before)
                added += sum(written in writes for written in keys.values())
                fresh = [one for one in some if _short(one) not in keys]
                if not fresh:
                    continue
                keys |= {_short(one): write for one in fresh}
                added += len({_short(one) for one in fresh})
                item = {
                    **key,
                    "body": {"S": fresh[-1].model_dump_json()},
                    "keys": {"M": {name: {"S": written} for name, written in keys.items()}},
                    "write": {"S": write},
                }
                actions.append({"Put": {"Item": item, **_guard(before)}})
            if not actions:
                return added
            decisions.check_open(run, _state(head))
            # A run that is finished meanwhile takes nothing, as if it had been before.
            actions.append({"ConditionCheck": {"Key": key_of(RUN, run), **_guard(head)}})
            writes.add(write)
            if self._carry_out(actions, attempts, write, None):
                return added
            attempts.go_on("another writer was faster")

    def finish(self, run: RunId, state: RunState, exit_reason: str) -> RunRecord:
        """End a run as STOPPED or FINISHED."""

        def change(head: Item) -> Item | None:
            decisions.check_finish(run, _state(head), state)
            if _state(head) is state:
                return None
            return {
                **head,
                "state": {"S": str(state)},
                "finished_at": {"N": repr(self._clock.now())},
                "exit_reason": {"S": exit_reason},
            }

        return self._move(run, change)

    def resume(self, run: RunId) -> RunRecord:
        """Set an unfinished run RUNNING again."""

        def change(head: Item) -> Item | None:
            decisions.check_open(run, _state(head))
            if _state(head) is RunState.RUNNING:
                return None
            left = {name: one for name, one in head.items() if name != "finished_at"}
            return {**left, "state": {"S": str(RunState.RUNNING)}, "exit_reason": {"S": ""}}

        return self._move(run, change)

    def state(self, run: RunId) -> RunState:
        """The state alone: one read."""
        return _state(self._head(run, self.table.attempts()))

    def get(self, run: RunId) -> RunRecord:
        """The run with all its results."""
        attempts = self.table.attempts()
        return self._whole(self._head(run, attempts), attempts)

    def runs(self, limit: int) -> list[RunRecord]:
        """The newest runs first."""
        heads = sorted(self._heads(self.table.attempts()), key=_order, reverse=True)
        return [self._whole(head, self.table.attempts()) for head in heads[:limit]]

    def open_runs(self) -> list[RunId]:
        """Ids of all runs that are RUNNING or STOPPED, oldest first."""
        return [RunId(head["sk"]["S"]) for head in self._unfinished()]

    def unfinished(self) -> list[RunRecord]:
        """All runs that are RUNNING or STOPPED, oldest first."""
        return [self._whole(head, self.table.attempts()) for head in self._unfinished()]

    def _unfinished(self) -> list[Item]:
        found = self._heads(self.table.attempts())
        return sorted((o for o in found if _state(o) is not RunState.FINISHED), key=_order)

    def _heads(self, attempts: Attempts) -> list[Item]:
        return list(self.table.query(RUN, attempts))

    def _head(self, run: RunId, attempts: Attempts) -> Item:
        found = self.table.get(key_of(RUN, run), attempts) if run else None
        if found is None:
            raise decisions.unknown(run)
        return found

    def _whole(self, head: Item, attempts: Attempts) -> RunRecord:
        run = head["sk"]["S"]
        items = list(self.table.query(f"{RUN} {run}", attempts))
        try:
            return _joined(head, items)
        except (*errors.MALFORMED, OSError, EOFError, zlib.error) as error:
            raise unreadable(f"run {run}", repr(error)) from error

    def _move(self, run: RunId, change: Callable[[Item], Item | None]) -> RunRecord:
        attempts = self.table.attempts()
        while True:
            head = self._head(run, attempts)
            after = change(head)
            if after is None or self._swap(key_of(RUN, run), head, after, attempts):
                return self._whole(after or head, attempts)

    def _swap(self, key: Item, before: Item | None, after: Item, attempts: Attempts) -> bool:
        write = new_write()
        item = {**after, **key, "write": {"S": write}}
        if self._carry_out([{"Put": {"Item": item, **_guard(before)}}], attempts, write, key):
            return True
        attempts.go_on("another writer was faster")
        return False

    def _put(self, key: Item, after: Item, attempts: Attempts) -> None:
        """Write an item whose content its key decides: whoever did it, it is the same."""
        write = new_write()
        while not self._carry_out([{"Put": {"Item": {**after, **key}}}], attempts, write, None):
            attempts.go_on("another writer was faster")

    def _carry_out(
        self, actions: Sequence[Item], attempts: Attempts, write: str, mark: Item | None
    ) -> bool:
        for action in actions:
            next(iter(action.values()))["TableName"] = self.table.name
        return self.table.write(actions, attempts, write=write, mark=mark)

    def _trim(self, attempts: Attempts) -> None:
        """Forget old finished runs, head last: what is left of one is found again."""
        heads = [one for one in self._heads(attempts) if _state(one) is RunState.FINISHED]
        for head in sorted(heads, key=_order)[: -self._kept or None]:
            parts = list(self.table.query(f"{RUN} {head['sk']['S']}", attempts))
            self.table.delete((key_of(one["pk"]["S"], one["sk"]["S"]) for one in parts), attempts)
            self.table.delete([key_of(RUN, head["sk"]["S"])], attempts)


def _part_key(run: str, digest: str, number: int) -> Item:
    return key_of(f"{RUN} {run}", f"body {digest} {number:04d}")


def _result_key(run: str, device: str) -> Item:
    return key_of(f"{RUN} {run}", f"result {device}")


def _guard(before: Mapping[str, Any] | None) -> Item:
    if before is None:
        return {"ConditionExpression": "attribute_not_exists(pk)"}
    return {
        "ConditionExpression": "#w = :w",
        "ExpressionAttributeNames": {"#w": "write"},
        "ExpressionAttributeValues": {":w": before["write"]},
    }


def _joined(head: Item, items: Sequence[Item]) -> RunRecord:
    wanted = f"body {head['digest']['S']} "
    parts = [one["body"]["B"] for one in items if one["sk"]["S"].startswith(wanted)]
    body = b"".join(parts)
    if hashlib.sha256(body).hexdigest() != head["digest"]["S"]:
        raise ValueError(f"{len(parts)} of {head['parts']['N']} parts of its body are there")
    results = {}
    for one in items:
        if one["sk"]["S"].startswith("result "):
            result = DeviceResult.model_validate_json(one["body"]["S"])
            results[result.uuid] = result
    finished = head.get("finished_at")
    return RunRecord.model_validate_json(gzip.decompress(body)).model_copy(
        update={
            "state": _state(head),
            "finished_at": None if finished is None else float(finished["N"]),
            "exit_reason": head["exit_reason"]["S"],
            "results": results,
        }
    )


def _state(head: Mapping[str, Any]) -> RunState:
    try:
        return RunState(head["state"]["S"])
    except errors.MALFORMED as error:
        raise unreadable(f"run {head.get('sk')}", repr(error)) from error


def _order(head: Mapping[str, Any]) -> tuple[float, str]:
    return float(head["started_at"]["N"]), head["sk"]["S"]


def _keys(item: Mapping[str, Any] | None) -> dict[str, str]:
    """The keys of all results of a device, with the writes that stored them."""
    return {} if item is None else {name: one["S"] for name, one in item["keys"]["M"].items()}


def _short(result: DeviceResult) -> str:
    return decisions.result_key(result).removeprefix("sha256:")[:32]
