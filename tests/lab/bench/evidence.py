"""Evidence at fleet size: ``python -m tests.lab.bench.evidence --certificates 10000``.

Certificates are issued, signed and stored durably (one fsync each), countersigned, verified,
exported, and the export verified by `fleet evidence verify` and by a second reader of DSSE that
shares no code with it. Then one certificate in the middle is changed and must be found there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fleet.evidence.export import export
from fleet.evidence.sources import collect
from fleet.evidence.verify import verify
from tests.fleet.evidence.independent import troubles
from tests.fleet.evidence.samples import Site, device_named

NODES = 4
DEVICES = 8
"""Of each node."""


@dataclass
class Measured:
    """Seconds each act took, and what was counted."""

    certificates: int
    seconds: dict[str, float] = field(default_factory=dict)
    bytes: int = 0
    """Size of the export's certificates."""

    @contextmanager
    def act(self, name: str) -> Iterator[None]:
        """Measure what is done inside."""
        begin = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - begin

    def lines(self) -> Iterator[str]:
        """A table."""
        for name, seconds in self.seconds.items():
            yield f"{name:<34}{seconds:9.2f} s {self.certificates / seconds:11.0f} a second"


def measure(root: Path, count: int) -> Measured:
    """Do it all below `root`. Raises `AssertionError` when anything is not found as it must be."""
    found = Measured(count)
    site = Site(root / "state")
    with found.act("issue, sign and store"):
        _certify(site, count)
    with found.act("countersign"):
        site.countersign()
    with found.act("verify the ledgers"):
        report = verify(collect(site.state))
    _must((report.ok, report.certificates, report.countersigned) == (True, count, count))
    with found.act("export"):
        done = export(collect(site.state), root / "export")
    _must(done.certificates == count)
    with found.act("verify the export"):
        report = verify(collect(root / "export"))
    _must((report.ok, report.certificates) == (True, count))
    with found.act("verify it with the second reader"):
        _must(not list(troubles(root / "export")))
    files = sorted((root / "export" / "certificates").glob("*/*.json"))
    found.bytes = sum(path.stat().st_size for path in files)
    _tamper(root / "export", files[count // 2])
    return found


def _certify(site: Site, count: int) -> None:
    with ExitStack() as stack:
        nodes = [f"node-{number}" for number in range(1, NODES + 1)]
        ledgers = {node: stack.enter_context(site.ledger(node)) for node in nodes}
        for number in range(count):
            node = nodes[number % NODES]
            device = device_named(f"{node}-{number // NODES % DEVICES}")
            ledgers[node].append(site.issue(ledgers[node], device, node=node).envelope)


def _tamper(copy: Path, path: Path) -> None:
    content = path.read_bytes()
    at = len(content) // 2
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    places = {damage.place.file for damage in verify(collect(copy)).defects}
    _must(str(path) in places)
    _must(path.name in {name for name, _ in troubles(copy)})


def _must(holds: bool) -> None:
    if not holds:
        raise AssertionError("the evidence is not as it was written")


def main() -> int:
    """Measure and print; 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--certificates", type=int, default=10_000, metavar="N")
    count = parser.parse_args().certificates
    with tempfile.TemporaryDirectory() as root:
        found = measure(Path(root), count)
    sys.stdout.write(
        f"{count} certificates of {NODES * DEVICES} devices, {found.bytes / 1e6:.1f} MB;"
        " all verified, the one changed was found\n"
    )
    sys.stdout.writelines(f"{line}\n" for line in found.lines())
    return 0


if __name__ == "__main__":
    sys.exit(main())
