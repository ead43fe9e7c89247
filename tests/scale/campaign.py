"""Campaigns over ever more nodes: ``python -m tests.scale.campaign --nodes 125 1250 12500``.

Three processes: this one, the nodes (`tests.scale.hosting`) and the driver that is measured
(`tests.scale.driving`). A tenth of all devices is wiped at once, so that a campaign takes the same
number of steps whatever the fleet's size; ``--parallel`` fixes their number instead. With
``--crash`` a driver of the last fleet is killed half way and another one resumes its run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.control.campaign.report import ExitReason
from fleet.core.settings import CampaignPolicy
from fleet.stores.sqlite import open_stores
from tests.scale.driving import Bill, Clock, Line, Order
from tests.scale.nodes import START

DEVICES = 8
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Site:
    """A fleet that serves, and the directory of its store."""

    socket: Path
    state: Path
    devices: int

    def ask(self, verb: str, nodes: dict[str, list[str]] | None = None) -> Any:
        """One question to the nodes between two drivers; time stands still meanwhile."""
        with closing(Line(str(self.socket))) as line:
            return line.ask({"at": START, "verb": verb, "nodes": nodes})


@contextmanager
def site(nodes: int, *, devices: int = DEVICES, faulty: float = 0.0) -> Iterator[Site]:
    """Start `nodes` nodes in a process; ends it afterwards."""
    with tempfile.TemporaryDirectory(prefix="fleet-scale-") as folder:
        state = Path(folder) / "state"
        state.mkdir()
        with closing(open_stores(state / "store.db", clock=Clock(START))) as stores:
            epoch = stores.leases.init().epoch
        path = Path(folder) / "nodes"
        arguments = [str(path), str(nodes), str(devices), str(epoch), str(faulty)]
        command = [sys.executable, "-m", "tests.scale.hosting", *arguments]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                if process.stdout.readline() != "ready\n":
                    raise RuntimeError("the nodes did not start")
                yield Site(path, state, nodes * devices)
            finally:
                process.kill()


def drive(order: Order) -> Bill | None:
    """Run one driver in a process of its own; None where it killed itself as told."""
    command = [sys.executable, "-m", "tests.scale.driving", order.model_dump_json()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == -9 and order.die_after:
        return None
    if done.returncode:
        raise RuntimeError(f"the driver ended with {done.returncode}")
    return Bill.model_validate_json(done.stdout)


def order_for(place: Site, parallel: int, **changed: object) -> Order:
    """`parallel` devices at once; 0: a tenth of them all."""
    policy = CampaignPolicy(
        max_parallel=parallel or max(place.devices // 10, 1), out_of_service_max=0.25
    )
    base = {"socket": str(place.socket), "state": str(place.state), "policy": policy}
    return Order.model_validate(base | changed)


def measure(nodes: int, parallel: int = 0) -> Bill:
    """One campaign over a new fleet. Raises `AssertionError` unless each device was wiped once."""
    with site(nodes) as place:
        bill = drive(order_for(place, parallel))
        assert bill is not None
        return _checked(place, bill)


def crash(nodes: int, parallel: int = 0) -> Bill:
    """A campaign whose driver is killed half way; what the one that resumes it costs."""
    with site(nodes) as place:
        if drive(order_for(place, parallel, die_after=place.devices // 2)) is not None:
            raise AssertionError("the driver was to be killed and was not")
        bill = drive(order_for(place, parallel, resume=True))
        assert bill is not None
        return _checked(place, bill)


def breaking(nodes: int, parallel: int = 0, *, faulty: float = 0.6) -> Bill:
    """A campaign over a fleet that fails in numbers: the breaker is to stop it."""
    with site(nodes, faulty=faulty) as place:
        bill = drive(order_for(place, parallel))
        assert bill is not None
        _must(bill.exit_reason == ExitReason.BREAKER, f"it ended {bill.exit_reason}")
        return bill


def _checked(place: Site, bill: Bill) -> Bill:
    _must(bill.exit_code == 0, f"exit code {bill.exit_code}: {bill.exit_reason} {bill.outcomes}")
    _must(bill.devices == place.devices, f"{bill.devices} of {place.devices} devices")
    bill = _wiped(place, bill)
    _must(bill.wiped_most == 1, f"a device was wiped {bill.wiped_most} times")
    return bill


def _wiped(place: Site, bill: Bill) -> Bill:
    wipes: dict[str, int] = place.ask("wipes")
    forgotten = sum(not count for count in wipes.values())
    _must(forgotten == 0, f"{forgotten} devices were forgotten")
    return bill.model_copy(update={"wiped_most": max(wipes.values())})


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


HEAD = (
    f"{'nodes':>6} {'devices':>8} {'at once':>8} {'steps':>6} {'CPU s':>8} {'ms/device':>10}"
    f" {'of it store':>11} {'telling':>8} {'looks':>6} {'calls':>6} {'wall s':>8} {'RSS MiB':>8}"
    f" {'store MiB':>9}\n"
)


def line(nodes: int, parallel: int, bill: Bill) -> str:
    """One row of the table."""
    each = 1000.0 / bill.devices
    return (
        f"{nodes:>6} {bill.devices:>8} {parallel or bill.devices // 10:>8} {bill.ticks:>6}"
        f" {bill.cpu_s:>8.1f} {bill.cpu_s * each:>10.3f} {bill.coordinator_s * each:>11.3f}"
        f" {bill.telling_s * each:>8.3f} {bill.looks / bill.devices:>6.1f} {bill.calls:>6}"
        f" {bill.wall_s:>8.1f} {bill.rss_peak / MIB:>8.0f} {bill.store_bytes / MIB:>9.1f}\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[125, 1250, 12500])
    parser.add_argument("--parallel", type=int, default=0, help="devices at once; 0: a tenth")
    parser.add_argument("--crash", action="store_true", help="kill the driver of the last half way")
    parser.add_argument("--breaker", action="store_true", help="let most devices of the last fail")
    chosen = parser.parse_args(arguments)
    sys.stdout.write(HEAD)
    for nodes in chosen.nodes:
        _tell(nodes, chosen.parallel, measure(nodes, chosen.parallel))
    last = chosen.nodes[-1]
    if chosen.crash:
        bill = crash(last, chosen.parallel)
        _tell(last, chosen.parallel, bill)
        sys.stdout.write(f"  resumed after kill -9 half way: {bill.outcomes}, each wiped once\n")
    if chosen.breaker:
        bill = breaking(last, chosen.parallel)
        _tell(last, chosen.parallel, bill)
        sys.stdout.write(f"  stopped by the breaker: {bill.outcomes}\n")
    return 0


def _tell(nodes: int, parallel: int, bill: Bill) -> None:
    sys.stdout.write(line(nodes, parallel, bill))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
