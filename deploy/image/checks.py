"""What is tried in every image before it is packed: without network, read-only, as its own user."""

from __future__ import annotations

from pathlib import Path

from deploy.image.errors import BuildError
from deploy.image.recipe import Configuration
from deploy.image.sandbox import Sandbox

COMMANDS = (
    "fleet --version",
    "fleet-node-plugin --help",
    "fleet scrub --simulate 1x2 --memory 16MiB --state /tmp/state",
    "fleet evidence verify --state /tmp/state",
)
"""Of the programs; they share /tmp."""
PACKAGES = ("fleet", "actors", "node_plugin", "jobs")


def check(root: Path, configuration: Configuration) -> None:
    """Start everything. Raises `BuildError` with what was printed."""
    place = Sandbox(root, configuration.environment)
    place.run(["sh", "-ec", "\n".join(COMMANDS)])
    place.run(["python", "-P", "-c", _every_module()])
    _libraries(place)


def _every_module() -> str:
    return (
        "import importlib, pkgutil\n"
        f"for package in {PACKAGES!r}:\n"
        "    found = importlib.import_module(package)\n"
        "    for one in pkgutil.walk_packages(found.__path__, package + '.'):\n"
        "        if not one.name.endswith('__main__'):\n"
        "            importlib.import_module(one.name)\n"
    )


def _libraries(place: Sandbox) -> None:
    """Every library that a wheel brings finds those that it needs."""
    found = place.run(
        ["sh", "-c", "find /opt -name '*.so*' -type f -exec ldd {} + 2>&1 | grep -E '^/|not found'"]
    )
    missing, owner = [], ""
    for line in found.splitlines():
        if line.startswith("/"):
            owner = line
        else:
            missing.append(f"{owner} {line.strip()}")
    if missing:
        raise BuildError("libraries are missing in the image: " + "; ".join(missing))
