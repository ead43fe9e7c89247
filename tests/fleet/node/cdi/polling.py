"""A reader that polls a directory of specs as a runtime would, in a process of its own.

Independent of our own code on purpose: it knows JSON and the rules that matter to a container.
Prints one JSON object when its input ends: rounds made, files read and whatever was wrong.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections import Counter
from pathlib import Path


def poll(directory: Path, broken: list[str]) -> int:
    """Look at every file once; the number of files read. What is wrong is added to `broken`."""
    defined: Counter[str] = Counter()
    read = 0
    for name in os.listdir(directory):  # noqa: PTH208 -- one listing, names only
        if not name.endswith((".json", ".yaml")):
            continue
        try:
            text = (directory / name).read_bytes()
        except FileNotFoundError:
            continue
        read += 1
        try:
            spec = json.loads(text)
            devices = spec["devices"]
            ids = [f"{spec['kind']}={device['name']}" for device in devices]
            promised = [device["containerEdits"]["env"] for device in devices]
        except (ValueError, KeyError) as error:
            broken.append(f"{name}: {len(text)} bytes: {error!r}")
            continue
        count = {variable for env in promised for variable in env if variable.startswith("COUNT=")}
        if not ids or count != {f"COUNT={len(ids)}"} or not text.endswith(b"}\n"):
            broken.append(f"{name}: {len(ids)} devices, {sorted(count)}")
        if (directory / name).stat(follow_symlinks=False).st_mode & 0o7777 != 0o644:
            broken.append(f"{name}: mode")
        defined.update(ids)
    broken.extend(
        f"{name} is defined {times} times" for name, times in defined.items() if times > 1
    )
    return read


def main(directory: Path) -> None:
    """Poll until the input is closed."""
    rounds = read = 0
    broken: list[str] = []
    while not select.select([sys.stdin], [], [], 0)[0]:
        try:
            read += poll(directory, broken)
        except FileNotFoundError:
            continue  # between the listing and the look at the mode
        rounds += 1
    sys.stdout.write(json.dumps({"rounds": rounds, "read": read, "broken": broken[:20]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
