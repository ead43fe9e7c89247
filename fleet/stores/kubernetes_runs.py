"""Campaign runs as ConfigMaps: one for each run, and more for the results of a large one.

Results of up to `INLINE_TARGETS` devices are in the run's own object; a larger run spreads them
over objects of their own, so that one more result rewrites a few hundred and not all. A call that
stores results of several objects may store some and then fail: repeating it stores the rest.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from fleet.core import errors
from fleet.core.clock import Clock
from fleet.core.messages import DeviceResult
from fleet.core.model import RunId
from fleet.kube.base import Object
from fleet.stores import decisions
from fleet.stores.base import RUNS_KEPT, RunRecord, RunState
from fleet.stores.kubernetes_maps import ConfigMaps, parts_of, with_parts

INLINE_TARGETS = 256
"""Devices whose results are kept in one object: about half of what it takes."""
TIME_MAX_S = 1e15
"""No time, s since the epoch, is as far away."""
SHARDS_MAX = 100_000
"""Objects a run may say it has: 25 million devices."""
STORE, RUN, STATE = "fleetscrub.dev/store", "fleetscrub.dev/run", "fleetscrub.dev/run-state"
"""Labels: what an object is (run, results), which run it is of, and where that run stands."""
RECORD, STANDING, RESULTS = "record.json", "run.json", "results.json"

_Kept = dict[str, dict[str, Any]]
"""By device UUID: the newest result, and the keys of all that were ever stored."""


class KubernetesRunStore:
    """Runs in ConfigMaps; see `fleet.stores.base.RunStore`."""

    def __init__(self, maps: ConfigMaps, clock: Clock) -> None:
        """`clock` dates the end of a run."""
        self._maps = maps
        self._clock = clock

    def create(self, record: RunRecord) -> RunRecord:
        """Store a new run."""
        decisions.check_fresh(record)

        def change(found: Object | None) -> tuple[Object | None, bool]:
            if found is None:
                return _made(record), True
            if not decisions.is_same_run(_record(found, {}), record):
                raise decisions.taken(record.id)
            return None, False

        made = self._maps.swap(_name(record.id), change).value
        self._trim()
        return record if made else self.get(RunId(record.id))

    def append(self, run: RunId, results: Sequence[DeviceResult]) -> int:
        """Store results; returns how many were new."""
        head = self._head(run)
        shards: defaultdict[str, list[DeviceResult]] = defaultdict(list)
        for result in results:
            shards[_home(head, result.uuid)].append(result)
        return sum(self._append(head, name, part) for name, part in sorted(shards.items()))

    def _append(self, head: Object, name: str, results: Sequence[DeviceResult]) -> int:
        run = _standing(head)["id"]
        apart = name != head["metadata"]["name"]

        def change(found: Object | None) -> tuple[Object | None, int]:
            if found is None and not apart:
                raise decisions.unknown(run)
            kept, added = _with(_kept(found), results)
            if not added:
                return None, 0
            decisions.check_open(run, _state(head if apart or found is None else found))
            body = found or {"metadata": {"labels": {STORE: "results", RUN: _key(run)}}}
            return with_parts(body, {RESULTS: [_told(kept)]}), added

        return self._maps.swap(name, change).value

    def finish(self, run: RunId, state: RunState, exit_reason: str) -> RunRecord:
        """End a run as STOPPED or FINISHED."""

        def change(found: Object | None) -> tuple[Object | None, None]:
            if found is None:
                raise decisions.unknown(run)
            decisions.check_finish(run, _state(found), state)
            if _state(found) is state:
                return None, None
            end = {"finished_at": self._clock.now(), "exit_reason": exit_reason}
            return _moved(found, state, end), None

        self._maps.swap(_name(run), change)
        return self.get(run)

    def resume(self, run: RunId) -> RunRecord:
        """Set an unfinished run RUNNING again."""

        def change(found: Object | None) -> tuple[Object | None, None]:
            if found is None:
                raise decisions.unknown(run)
            decisions.check_open(run, _state(found))
            if _state(found) is RunState.RUNNING:
                return None, None
            return _moved(found, RunState.RUNNING, {"finished_at": None, "exit_reason": ""}), None

        self._maps.swap(_name(run), change)
        return self.get(run)

    def state(self, run: RunId) -> RunState:
        """The state alone: one read."""
        return _state(self._head(run))

    def get(self, run: RunId) -> RunRecord:
        """The run with all its results."""
        return self._whole(self._head(run))

    def runs(self, limit: int) -> list[RunRecord]:
        """The newest runs first."""
        heads = sorted(self._maps.list(f"{STORE}=run"), key=_order, reverse=True)
        return [self._whole(head) for head in heads[:limit]]

    def open_runs(self) -> list[RunId]:
        """Ids of all runs that are RUNNING or STOPPED, oldest first."""
        return [RunId(_standing(head)["id"]) for head in self._unfinished()]

    def unfinished(self) -> list[RunRecord]:
        """All runs that are RUNNING or STOPPED, oldest first."""
        return [self._whole(head) for head in self._unfinished()]

    def _unfinished(self) -> list[Object]:
        heads = self._maps.list(f"{STORE}=run,{STATE}!={RunState.FINISHED}")
        return sorted(heads, key=_order)

    def _head(self, run: RunId) -> Object:
        found = self._maps.get(_name(run))
        if found is None:
            raise decisions.unknown(run)
        return found

    def _whole(self, head: Object) -> RunRecord:
        kept = _kept(head)
        if _standing(head)["shards"]:
            labels = f"{STORE}=results,{RUN}={_key(_standing(head)['id'])}"
            for part in self._maps.list(labels):
                kept |= _kept(part)
        return _record(head, kept)

    def _trim(self) -> None:
        """Forget old finished runs, results first: what is left of one is found again."""
        finished = self._maps.list(f"{STORE}=run,{STATE}={RunState.FINISHED}")
        for head in sorted(finished, key=_order)[:-RUNS_KEPT]:
            if _standing(head)["shards"]:
                for part in self._maps.list(f"{STORE}=results,{RUN}={_key(_standing(head)['id'])}"):
                    self._maps.delete(part)
            self._maps.delete(head)


def _name(run: str) -> str:
    """The object's name: readable, and different for every id."""
    slug = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")[:60].strip("-")
    return f"fleetscrub-run-{slug or 'x'}-{_key(run)}"


def _key(run: str) -> str:
    return hashlib.sha256(run.encode()).hexdigest()[:16]


def _home(head: Object, device: str) -> str:
    """The name of the object that keeps the results of a device."""
    name, shards = str(head["metadata"]["name"]), _standing(head)["shards"]
    return f"{name}-{zlib.crc32(device.encode()) % shards}" if shards else name


def _made(record: RunRecord) -> Object:
    targets = len(record.targets)
    shards = 0 if targets <= INLINE_TARGETS else -(-targets // INLINE_TARGETS)
    standing = {
        "id": record.id,
        "state": record.state,
        "started_at": record.started_at,
        "finished_at": None,
        "exit_reason": "",
        "shards": shards,
    }
    labels = {STORE: "run", RUN: _key(record.id), STATE: str(record.state)}
    texts = {
        STANDING: [json.dumps(standing, indent=1)],
        RECORD: [record.model_dump_json()],
        RESULTS: [_told({})],
    }
    return with_parts({"metadata": {"labels": labels}}, texts)


def _moved(found: Object, state: RunState, update: Mapping[str, Any]) -> Object:
    standing = {**_standing(found), **update, "state": state}
    metadata = found["metadata"]
    labels = {**metadata.get("labels", {}), STATE: str(state)}
    body = {**found, "metadata": {**metadata, "labels": labels}}
    # Not through `with_parts`: it decides anew what is packed, by the texts it is given.
    return {**body, "data": {**body["data"], STANDING: json.dumps(standing, indent=1)}}


def _record(head: Object, kept: _Kept) -> RunRecord:
    try:
        return _joined(head, kept)
    except errors.MALFORMED as error:
        raise _unreadable(head, repr(error)) from error


def _joined(head: Object, kept: _Kept) -> RunRecord:
    standing = _standing(head)
    return RunRecord.model_validate_json(_text(head, RECORD)).model_copy(
        update={
            "state": RunState(standing["state"]),
            "finished_at": standing["finished_at"],
            "exit_reason": standing["exit_reason"],
            "results": {
                device: DeviceResult.model_validate(one["result"]) for device, one in kept.items()
            },
        }
    )


def _standing(head: Object) -> dict[str, Any]:
    try:
        found = json.loads(head["data"][STANDING])  # never packed: it is small
        _check(found)
    except errors.MALFORMED as error:
        raise _unreadable(
            head, f"{STANDING} does not say where the run stands: {error!r}"
        ) from error
    return dict(found)


def _check(found: Mapping[str, Any]) -> None:
    """Raises KeyError, TypeError or ValueError for what does not say where a run stands."""
    RunState(found["state"])
    when = (found["started_at"], found["finished_at"] or 0)
    if not all(isinstance(at, int | float) and abs(at) < TIME_MAX_S for at in when):
        raise TypeError("times are numbers")
    if not isinstance(found["id"], str) or not isinstance(found["exit_reason"], str):
        raise TypeError("id and exit_reason are texts")
    if not isinstance(found["shards"], int) or not 0 <= found["shards"] <= SHARDS_MAX:
        raise ValueError(f"{found['shards']!r:.60} is no number of shards")


def _state(head: Object) -> RunState:
    return RunState(_standing(head)["state"])


def _order(head: Object) -> tuple[float, str]:
    standing = _standing(head)
    return (float(standing["started_at"]), str(standing["id"]))


def _kept(found: Object | None) -> _Kept:
    if found is None:
        return {}
    try:
        listed = json.loads(_text(found, RESULTS))
        return {str(one["result"]["uuid"]): _with_keys(one) for one in listed}
    except errors.MALFORMED as error:
        raise _unreadable(found, repr(error)) from error


def _with_keys(one: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(one["keys"], list):
        raise TypeError("keys are a list")
    return one


def _with(kept: _Kept, results: Sequence[DeviceResult]) -> tuple[_Kept, int]:
    """What is kept with these results, and how many of them were new."""
    found, added = dict(kept), 0
    for result in results:
        key = decisions.result_key(result).removeprefix("sha256:")[:32]
        keys = found.get(result.uuid, {"keys": []})["keys"]
        if key not in keys:
            told = result.model_dump(mode="json")
            found[result.uuid] = {"keys": [*keys, key], "result": told}
            added += 1
    return found, added


def _told(kept: _Kept) -> str:
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in kept.values())
    return f"[\n{lines}\n]" if lines else "[]"


def _text(found: Object, part: str) -> str:
    try:
        return parts_of(found)[part]
    except (KeyError, ValueError) as error:
        raise _unreadable(found, repr(error)) from error


def _unreadable(found: Object, why: str) -> errors.SettingsInvalid:
    metadata = found["metadata"]
    return errors.SettingsInvalid(
        f"configmap {metadata['namespace']}/{metadata['name']} is no campaign run: {why}",
        remedy="put its last good content back, or delete it: the certificates are kept elsewhere",
    )
