"""The check of real GPUs: not collected at all unless it is asked for.

make gpu-check        # or: python -m pytest -c tests/gpu/pytest.ini tests/gpu

With the settings of the whole project it is asked for by FLEET_GPU_CHECK=1. FLEET_GPU_REPORT is the
file that is written (./gpu-check.json), FLEET_GPU_SETTINGS the section [hardware] as JSON.
FLEET_GPU_ONLY names the GPUs to check (UUIDs or slots, with commas between). FLEET_GPU_RESET=1
resets each, FLEET_GPU_MIG=1 switches partitioning on and off again: neither is done unasked.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.core.model import Accelerator
from tests.gpu import place
from tests.gpu.place import Machine
from tests.gpu.report import LIMIT_S, REPORT, table

ASKED = "FLEET_GPU_CHECK"
FILE = "FLEET_GPU_REPORT"
ORDER = (
    *(
        "inventory",
        "health",
        "verifier",
        "wipe",
        "speed",
        "partitions",
        "secret",
        "reset",
        "divide",
    ),
    "contract",
)
"""What decides comes first, and of all GPUs before anything that takes long. The contract opens
devices in this very process, after which nothing else can be wiped."""
UNASKED = {"reset": "FLEET_GPU_RESET", "divide": "FLEET_GPU_MIG"}
"""What changes a GPU's state beyond its memory, by what asks for it."""
OUT_OF_TIME = 5
"""Exit code when the time limit of all was reached."""


def wanted(config: pytest.Config) -> bool:
    """Whether this run is a GPU check."""
    own = config.inipath is not None and config.inipath.parent == Path(__file__).parent
    return own or bool(os.environ.get(ASKED))


def file() -> Path:
    """Where the report goes."""
    return Path(os.environ.get(FILE) or "gpu-check.json").absolute()


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Nothing of this is part of the ordinary suite."""
    return None if wanted(config) else True


def pytest_configure(config: pytest.Config) -> None:
    """Keep a record, in a check."""
    if wanted(config) and not config.pluginmanager.has_plugin("gpu-check"):
        config.pluginmanager.register(Checking(), "gpu-check")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each GPU; partitions are looked at on those that have partitioning on."""
    if "gpu" in metafunc.fixturenames:
        machine = place.found()
        parted = metafunc.module.__name__.endswith("partitions")
        every = metafunc.module.__name__.endswith(("inventory", "health"))
        of = machine.accelerators if every else machine.parted if parted else machine.whole
        names = [one.device.name for one in of]
        metafunc.parametrize("gpu", [one.uuid for one in of], indirect=True, ids=names)


class Checking:
    """Order, time limit, record and table of a check."""

    def __init__(self) -> None:
        self._now = "nothing yet"
        self._failed = True
        self._began = time.monotonic()
        self._watch = self._limit(LIMIT_S)

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """In a fixed order, whatever the files are called, without what this machine has not."""
        ours = [item for item in items if item.path.parent == Path(__file__).parent]
        if not ours:
            return
        kept = [item for item in ours if not _has_no_gpu(item)]
        kept = [item for item in kept if _is_asked(item)]
        if not place.found().whole:
            REPORT.note("every GPU is partitioned: whole GPUs were not wiped and not measured")
            kept = [item for item in kept if _topic(item) != "contract"]
        dropped = [item for item in ours if item not in kept]
        config.hook.pytest_deselected(items=dropped)
        others = [item for item in items if item not in ours]
        items[:] = [*others, *sorted(kept, key=lambda item: ORDER.index(_topic(item)))]
        for item in kept:
            item.add_marker("gpu")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Look at the machine first, and end where nothing can be checked. The time limit holds for
        a driver that hangs in this process, too."""
        self._watch.start()
        count = len(place.found().accelerators)
        self._watch.cancel()
        self._watch = self._limit(LIMIT_S * (count + 1) - (time.monotonic() - self._began))
        self._watch.start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """For the record of a run that hangs."""
        self._now = nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Each phase of each test."""
        name = report.nodeid.rpartition("/")[2]
        REPORT.step(name, report.duration, report.outcome, report.longreprtext[-4000:])

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the report, whatever came of it."""
        self._watch.cancel()
        self._failed = exitstatus != 0
        REPORT.write(file(), passed=not self._failed)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show what was measured."""
        terminalreporter.section("GPU check")
        for line in table(REPORT.as_json(passed=not self._failed)):
            terminalreporter.write_line(line)
        terminalreporter.write_line(f"written to {file()}")

    def _limit(self, seconds: float) -> threading.Timer:
        made = threading.Timer(seconds + 15, self._out_of_time)
        made.daemon = True
        return made

    def _out_of_time(self) -> None:
        REPORT.note(f"ended at the time limit of {LIMIT_S:.0f} s a GPU, in {self._now}")
        REPORT.write(file(), passed=False)
        os._exit(OUT_OF_TIME)


def _topic(item: pytest.Item) -> str:
    return item.path.stem.removeprefix("test_gpu_")


def _is_asked(item: pytest.Item) -> bool:
    """Whether it may be run: nothing that resets a GPU or changes its mode is, unless asked for."""
    wish = UNASKED.get(_topic(item))
    return wish is None or os.environ.get(wish) == "1"


def _has_no_gpu(item: pytest.Item) -> bool:
    """Whether a test of each GPU was made for a machine that has no such GPU."""
    made = getattr(item, "callspec", None)
    return made is not None and not isinstance(made.params.get("gpu"), str)


@pytest.fixture(scope="session")
def machine() -> Machine:
    """The machine, with nobody on its GPUs."""
    return place.found()


@pytest.fixture
def gpu(request: pytest.FixtureRequest, machine: Machine) -> Iterator[Accelerator]:
    """One GPU; whoever a test put there is gone from it afterwards."""
    found = machine.accelerator(request.param)
    REPORT.turn(found.uuid)
    yield found
    REPORT.turn("")
    place.until(lambda: not machine.strangers(found), within_s=place.LEAVING_S)


@pytest.fixture
def left_s() -> Callable[[float], float]:
    """Time, s, for the next piece of work: what it may take at most, or what is left of all."""
    return REPORT.left_s
