"""Reading a spec somebody wrote: JSON, or YAML that could have been JSON. Pure.

Strict where a lax reader would see another device than the runtime does: a key twice, a number
that is none, anything after the end. Aliases of YAML are refused: a few lines can unfold to more
than fits in memory.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any

from fleet.node.cdi.model import Spec

SIZE_MAX_BYTES = 4 * 1024 * 1024
"""Size from which a file is not read: a spec of thousands of devices is far below."""

_SHOWN_MAX = 60


class Malformed(ValueError):
    """The text is no JSON or YAML object that a spec could be."""


def spec(found: Mapping[str, object]) -> Spec:
    """The spec an object says. Raises pydantic's ValidationError for a field or type."""
    return Spec.model_validate_json(json.dumps(found))


def tree(text: str | bytes, filename: str) -> dict[str, Any]:
    """The object in a file of this name, its fields unjudged. Raises `Malformed`."""
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Malformed(f"{filename} is not UTF-8: {error}") from error
    if not decoded.strip():
        raise Malformed(f"{filename} is empty")
    if len(decoded) > SIZE_MAX_BYTES:
        raise Malformed(f"{filename} is larger than {SIZE_MAX_BYTES} bytes")
    try:
        found = _yaml(decoded) if filename.endswith(".yaml") else _json(decoded)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{filename} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise Malformed(f"{filename} holds no object")
    return found


def _json(text: str) -> object:
    return json.loads(text, object_pairs_hook=_once, parse_constant=_refused)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = min(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise Malformed(f"key {twice[:_SHOWN_MAX]!r} twice in one object")
    return found


def _refused(constant: str) -> None:
    raise Malformed(f"{constant} is no JSON")


def _yaml(text: str) -> object:
    import yaml  # type: ignore[import-untyped]  # costs 10 ms, and our own specs are JSON

    try:
        found = yaml.load(text, Loader=_loader())  # noqa: S506 -- derived from the safe loader
        return _json(json.dumps(found, allow_nan=False))
    except yaml.YAMLError as error:
        raise Malformed(str(error)) from error
    except TypeError as error:
        raise Malformed(f"a value that JSON does not have: {error}") from error


@cache
def _loader() -> type:
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # the library has no types
        """The safe loader, without aliases, dates and repeated keys."""

        def compose_node(self, parent: object, index: object) -> object:
            if self.check_event(yaml.AliasEvent):
                raise Malformed("aliases are not allowed")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 -- the library's signature
            keys = [key.value for key, _ in node.value]
            if len(set(map(str, keys))) != len(keys):
                raise Malformed(f"a key twice in one object, line {node.start_mark.line + 1}")
            found: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
            if not all(isinstance(key, str) for key in found):
                raise Malformed(f"a key that is no text, line {node.start_mark.line + 1}")
            return found

    Loader.yaml_implicit_resolvers = {
        first: [item for item in found if item[0] != "tag:yaml.org,2002:timestamp"]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    return Loader
