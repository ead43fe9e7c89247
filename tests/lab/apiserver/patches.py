"""The three other patches: merge (RFC 7386), JSON (RFC 6902) and strategic merge. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.lab.apiserver.ownership import inner_shape, key_of
from tests.lab.apiserver.refusal import bad_request, unprocessable
from tests.lab.apiserver.schema import Free, Series, Shape


def merge_patch(target: Any, patch: Any) -> Any:
    """A merge patch: null removes, lists are replaced whole."""
    if not isinstance(patch, Mapping):
        return patch
    found = dict(target) if isinstance(target, Mapping) else {}
    for key, item in patch.items():
        if item is None:
            found.pop(key, None)
        else:
            found[key] = merge_patch(found.get(key), item)
    return found


def strategic_patch(target: Any, patch: Any, shape: Shape) -> Any:
    """A strategic merge patch: lists with one key merge by it, all others are replaced.

    Leaving an entry out therefore removes nothing; ``$patch: delete`` does (case B76).
    """
    if isinstance(patch, Mapping):
        found = dict(target) if isinstance(target, Mapping) else {}
        for key, item in patch.items():
            if item is None:
                found.pop(key, None)
            else:
                inner = inner_shape(shape, key) or Free()
                found[key] = strategic_patch(found.get(key), item, inner)
        return found
    if isinstance(shape, Series) and len(shape.keys) == 1 and isinstance(patch, list):
        live = list(target) if isinstance(target, list) else []
        added = []
        for item in patch:
            key = key_of(item, shape.keys)
            places = [n for n, other in enumerate(live) if key_of(other, shape.keys) == key]
            if isinstance(item, Mapping) and item.get("$patch") == "delete":
                live = [other for n, other in enumerate(live) if n not in places]
            elif places:
                live[places[0]] = strategic_patch(live[places[0]], item, shape.element)
            else:
                added.append(item)
        return [*added, *live]
    return patch


def json_patch(target: Any, operations: Any) -> Any:
    """A JSON patch. Raises `Refusal` 422 without causes when an operation or test fails.

    As the server's library does, and against the standard, ``replace`` adds a missing field.
    """
    if not isinstance(operations, Sequence) or isinstance(operations, str):
        raise bad_request("error decoding patch: a JSON patch is a list of operations")
    found = json.loads(json.dumps(target))
    for operation in operations:
        if not isinstance(operation, Mapping) or not isinstance(operation.get("path"), str):
            raise bad_request("error decoding patch: an operation needs op and path")
        found = _operated(found, operation)
    return found


def _operated(root: Any, operation: Mapping[str, Any]) -> Any:
    kind, path = operation.get("op"), _pointer(operation["path"])
    if kind == "test":
        if _found(root, path) != operation.get("value"):
            raise unprocessable()
        return root
    if kind == "add":
        return _put(root, path, operation.get("value"), replace=False)
    if kind == "replace":
        return _put(root, path, operation.get("value"), replace=True)
    if kind == "remove":
        return _removed(root, path)
    source = _pointer(str(operation.get("from", "")))
    if kind == "copy":
        return _put(root, path, json.loads(json.dumps(_found(root, source))), replace=False)
    if kind == "move":
        value = _found(root, source)
        return _put(_removed(root, source), path, value, replace=False)
    raise unprocessable()


def _pointer(text: str) -> list[str]:
    if text and not text.startswith("/"):
        raise bad_request(f"error decoding patch: {text!r} is no pointer")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _index(part: str, length: int) -> int:
    if not part.isdigit() or int(part) >= length:
        raise unprocessable()
    return int(part)


def _found(root: Any, path: list[str]) -> Any:
    for part in path:
        if isinstance(root, list):
            root = root[_index(part, len(root))]
        elif isinstance(root, dict) and part in root:
            root = root[part]
        else:
            raise unprocessable()
    return root


def _put(root: Any, path: list[str], value: Any, *, replace: bool) -> Any:
    if not path:
        return value
    place = _found(root, path[:-1])
    if isinstance(place, list):
        if replace:
            place[_index(path[-1], len(place))] = value
        else:
            at = len(place) if path[-1] == "-" else _index(path[-1], len(place) + 1)
            place.insert(at, value)
    elif isinstance(place, dict):
        place[path[-1]] = value
    else:
        raise unprocessable()
    return root


def _removed(root: Any, path: list[str]) -> Any:
    if not path:
        raise unprocessable()
    place = _found(root, path[:-1])
    _found(place, path[-1:])
    if isinstance(place, list):
        del place[_index(path[-1], len(place))]
    else:
        del place[path[-1]]
    return root
