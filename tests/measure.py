"""The shape of the product in figures: ``python -m tests.measure``, part of ``make lint``.

A room is what lies directly below `fleet`, and each of the other roots. An arrow is one room that
imports another. Rooms stand on floors so that as few arrows as possible run up. `LIMITS` holds the
most that a figure may be; whoever makes one smaller writes the smaller limit, and whoever has to
make one larger says why in the commit. Figures without a limit are for reading.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOTS = ("fleet", "actors", "node_plugin", "jobs")
LIMITS = Path(__file__).parent / "measure.toml"
NODE_VERB = "quarantine_add"
"""Any verb of a node: each way to ask for it defines it once more."""
GERUND = re.compile(r"^[a-z]+ing(_|$)|_[a-z]+ing$")
NOUNS = frozenset({"binding", "mapping", "tracking", "string", "wiring"})
"""What ends like a gerund and is a noun of the field."""


def sources() -> Iterator[tuple[str, ast.Module, int]]:
    """Each module of the product by its dotted name, with its number of lines."""
    for root in ROOTS:
        for path in sorted((ROOT / root).rglob("*.py")):
            if re.search(r"_pb2(_grpc)?$", path.stem):
                continue  # generated
            content = path.read_text()
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield name, ast.parse(content), content.count("\n")


def room(module: str) -> str:
    """The room of a module; "" for what only names the rooms."""
    root, *rest = module.split(".")
    if root not in ROOTS:
        return ""
    return root if root != "fleet" else ".".join([root, *rest[:1]]) if rest else ""


def imported(tree: ast.Module) -> Iterator[str]:
    """Dotted names a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{one.name}" for one in node.names)


def floors(arrows: Mapping[str, set[str]]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The floor of each room, the ground being 0, and the arrows that run up."""
    order = _order(arrows)
    place = {name: index for index, name in enumerate(order)}
    up = [(a, b) for a in order for b in arrows[a] if place[b] > place[a]]
    level: dict[str, int] = {}
    for name in order:
        below = [level[one] for one in arrows[name] if place[one] < place[name]]
        level[name] = 1 + max(below, default=-1)
    return level, up


def _order(arrows: Mapping[str, set[str]]) -> list[str]:
    """Rooms from the ground up: always what imports least of what is left, by imports back."""
    left = set(arrows)
    ground: list[str] = []
    roof: list[str] = []
    while left:
        out = {name: len(arrows[name] & left - {name}) for name in left}
        into = Counter(one for name in left for one in arrows[name] & left - {name})
        if sinks := sorted(name for name in left if not out[name]):
            ground += sinks
            left -= set(sinks)
        elif tops := sorted(name for name in left if not into[name]):
            roof += tops
            left -= set(tops)
        else:
            chosen = max(sorted(left), key=lambda name: into[name] - out[name])
            ground.append(chosen)
            left.remove(chosen)
    return ground + roof[::-1]


def measured() -> dict[str, int]:
    """Every figure by its name."""
    arrows: dict[str, set[str]] = defaultdict(set)
    lines = files = verbs = 0
    classes: Counter[str] = Counter()
    modules: set[str] = set()
    found = list(sources())
    names = {name for name, _, _ in found}
    for name, tree, length in found:
        lines, files = lines + length, files + 1
        modules.add(name)
        here = room(name)
        if here:
            arrows[here] |= {room(one) for one in imported(tree)} - {"", here}
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name] += 1
            verbs += isinstance(node, ast.FunctionDef) and node.name == NODE_VERB
    rooms = {room(name) for name in names} - {""}
    known = {name: {one for one in arrows[name] if one in rooms} for name in rooms}
    level, up = floors(known)
    return {
        "product lines": lines,
        "product files": files,
        "rooms": len(rooms),
        "floors": max(level.values()) + 1,
        "arrows": sum(map(len, known.values())),
        "arrows up": len(up),
        "rooms that import each other": sum(
            a in known[b] for a in known for b in known[a] if a < b
        ),
        f"definitions of {NODE_VERB}": verbs,
        "class names used twice": sum(count > 1 for count in classes.values()),
        "gerund modules": sum(
            bool(GERUND.search(stem := name.rsplit(".", 1)[-1])) and stem not in NOUNS
            for name in modules
        ),
        "test lines": sum(path.read_text().count("\n") for path in (ROOT / "tests").rglob("*.py")),
        "documentation words": sum(
            len(path.read_text().split())
            for path in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
        ),
    }


def main() -> int:
    """Print each figure beside its limit; 1 when one is above it."""
    limits = tomllib.loads(LIMITS.read_text())
    found = measured()
    grown = [name for name, figure in found.items() if figure > limits.get(name, figure)]
    for name, figure in found.items():
        limit = f"at most {limits[name]:,}" if name in limits else ""
        sys.stdout.write(f"{name:32} {figure:8,}  {limit}{'  GROWN' if name in grown else ''}\n")
    if grown:
        sys.stderr.write(
            f"more than {LIMITS.relative_to(ROOT)} allows: make it smaller, or raise the limit"
            " there and say why in the commit\n"
        )
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
