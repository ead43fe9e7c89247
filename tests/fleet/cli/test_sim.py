"""`fleet sim`: a tenant, or a fault, from the command line."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.main import main
from fleet.devices.simulated.backend import SimulatedBackend, create
from tests.fleet.devices.wipe.orders import MIB, order_for, run, whole

Run = Callable[..., tuple[int, Any]]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory with two simulated nodes."""
    for name in ("n0", "n1"):
        create(
            tmp_path / "nodes" / name / "sim",
            node=name,
            accelerators=2,
            memory_bytes=4 * MIB,
            partitionable=1,
        )
    return tmp_path


@pytest.fixture
def sim(state: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `fleet sim ... --json`; exit code and document, or the error's."""

    def call(*arguments: str) -> tuple[int, Any]:
        code = main(["sim", *arguments, "--state", str(state), "--json"])
        seen = capsys.readouterr()
        return code, json.loads(seen.out)

    return call


def backend(state: Path, name: str = "n0") -> SimulatedBackend:
    """A node's back end."""
    return SimulatedBackend(state / "nodes" / name / "sim")


def test_what_a_tenant_writes_is_found_until_it_is_wiped(state: Path, sim: Run) -> None:
    """Exit 1 while the secret is in memory, 0 once a verified wipe is through."""
    code, _ = sim("write", "--node", "n0", "--device", "gpu-0", "--text", "s3cret", "--offset", "9")
    assert code == 0
    code, found = sim("search", "--text", "s3cret")
    assert (code, found["found"]) == (1, 1)
    assert [one["offsets"] for one in found["devices"] if one["found"]] == [[9]]
    one = backend(state)
    assert run(one, order_for(one, whole(one))).verified
    assert sim("search", "--text", "s3cret")[0] == 0


def test_a_file_is_found_block_by_block(tmp_path: Path, sim: Run) -> None:
    """A file written at an odd offset of a partition is found whole, and only there."""
    file = tmp_path / "weights"
    file.write_bytes(random.Random(1).randbytes(100 * 64 + 5))
    place = ("--node", "n1", "--device", "gpu-1-1g-2")
    assert sim("write", *place, "--file", str(file), "--offset", "1001")[0] == 0
    code, found = sim("search", "--file", str(file))
    assert (code, found["found"], found["searched_blocks"]) == (1, 100, 100)
    assert sim("search", "--file", str(file), "--device", "gpu-1-1g-2")[1]["found"] == 100
    assert sim("search", "--file", str(file), "--device", "gpu-1-1g-3")[0] == 0


def test_a_tenant_reads_its_partition_from_zero(sim: Run) -> None:
    """Offsets are the device's own: nobody reaches a neighbour's memory by them."""
    place = ("--node", "n0", "--device", "gpu-1-2g-2")
    sim("write", *place, "--text", "mine", "--offset", "4KiB")
    code, found = sim("read", *place, "--offset", "4096", "--length", "4")
    assert (code, bytes.fromhex(found["hex"])) == (0, b"mine")
    assert sim("read", *place, "--offset", "900KiB", "--length", "1MiB")[0] == 2
    assert sim("write", *place, "--text", "mine", "--offset", "1GiB")[0] == 2


def test_a_fault_is_set_and_taken_back(state: Path, sim: Run) -> None:
    """The fault is on the device afterwards, with its parameters, and gone after --clear."""
    place = ("--node", "n0", "--device", "gpu-0")
    code, found = sim("fault", "hang", *place, "--set", "at=0.25", "--times", "2")
    assert (code, found["parameters"]["at"], found["times"]) == (0, 0.25, 2)
    one = backend(state)
    assert one.registers(whole(one).uuid).read().faults["hang"].remaining == 2
    assert sim("fault", "hang", *place, "--clear")[1]["cleared"] is True
    assert one.registers(whole(one).uuid).read().faults == {}


def test_all_faults_are_listed_with_their_outcome(sim: Run) -> None:
    """`--list` is documentation: what it does, its parameters, what must follow."""
    code, found = sim("fault", "--list")
    assert code == 0
    assert all(one["text"] and one["outcome"] for one in found["faults"].values())


def test_a_holder_is_a_real_process_and_a_reboot_ends_it(state: Path, sim: Run) -> None:
    """A tenant holds the device until it is ended or the node reboots."""
    place = ("--node", "n0", "--device", "gpu-0")
    one = backend(state)
    for end in (("holder", *place, "--end"), ("reboot", "--node", "n0")):
        code, found = sim("holder", *place, "--name", "tenant", "--seconds", "60")
        assert code == 0
        assert [process.pid for process in one.processes(whole(one).uuid)] == [found["pid"]]
        before = one.boot_id()
        assert sim(*end)[0] == 0
        assert (one.boot_id() != before) is (end[0] == "reboot")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("fault", "dirtyword", "--node", "n0", "--device", "gpu-0"), "dirty-word"),
        (("fault",), "--device"),
        (("search",), "either --text or --file"),
        (("write", "--device", "gpu-0", "--text", "x"), "several nodes: n0, n1"),
        (("write", "--device", "gpu-9", "--text", "x"), "no simulated device"),
        (("write", "--node", "n0", "--device", "gpu-0", "--text", ""), "empty"),
        (("search", "--node", "n9", "--text", "x"), "no simulated node"),
        (("fault", "hang", "--node", "n0", "--device", "gpu-0", "--set", "at"), "NAME=VALUE"),
    ],
)
def test_what_cannot_run_is_exit_2_with_a_remedy(
    sim: Run, arguments: tuple[str, ...], words: str
) -> None:
    """Errors go to stderr, name the fact, and say what to do."""
    code, error = sim(*arguments)
    assert code == 2
    assert words in error["detail"]
    assert error["remedy"]


def test_people_read_lines(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json every verb prints plain lines."""
    place = ["--state", str(state), "--node", "n0", "--device", "gpu-0"]
    assert main(["sim", "write", *place, "--text", "secret"]) == 0
    assert main(["sim", "read", *place, "--length", "16"]) == 0
    assert main(["sim", "search", *place, "--text", "secret"]) == 1
    assert main(["sim", "fault", "hang", *place]) == 0
    assert main(["sim", "fault", "--list"]) == 0
    assert main(["sim", "reboot", "--state", str(state)]) == 0
    out = capsys.readouterr().out
    for words in ("written at offset 0", "secret..........", "found 1", "hang set", "new boot"):
        assert words in out
