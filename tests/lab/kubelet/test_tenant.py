"""The process inside a pod, by its functions and as it is started."""

from __future__ import annotations

import json
import mmap
import signal
import subprocess
import sys

import pytest

from tests.lab.kubelet import tenant


@pytest.mark.parametrize(("size", "length"), [(64, 64), (4096, 64), (1 << 20, 64), (1000, 10)])
def test_a_secret_lies_inside_the_memory(size: int, length: int) -> None:
    """Begin, middle and end; never past it."""
    found = tenant.places(size, length)
    assert found[0] == 0
    assert found[-1] == size - length
    assert all(0 <= place <= size - length for place in found)


def test_any_piece_of_a_secret_is_found() -> None:
    """A wipe that leaves sixteen bytes of a secret anywhere has left the secret."""
    secret = bytes(range(64))
    with mmap.mmap(-1, 1 << 16) as memory:
        assert tenant.search([memory], secret) == {"found": 0, "nonzero": 0, "searched": 1 << 16}
        memory[777 : 777 + tenant.PIECE] = secret[16:32]
        assert tenant.search([memory], secret)["found"] == 1
        tenant.write([memory], secret)
        assert tenant.search([memory], secret)["found"] == 4


def start(*, stubborn: bool = False) -> subprocess.Popen[str]:
    plan = json.dumps({"memories": [], "stubborn": stubborn})
    process = subprocess.Popen(
        [sys.executable, "-I", str(tenant.__file__), plan],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == {"ready": process.pid}
    return process


def test_it_ends_with_its_standard_input() -> None:
    """No tenant outlives whoever started it, not even a stubborn one."""
    process = start(stubborn=True)
    process.send_signal(signal.SIGTERM)
    process.communicate("", timeout=20)
    assert process.returncode == 0


def test_it_ends_by_sigterm_unless_stubborn() -> None:
    """A normal tenant goes when it is told to."""
    process = start()
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGTERM
