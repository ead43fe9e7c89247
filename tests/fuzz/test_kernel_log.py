"""Kernel log lines: of any spelling, length or bytes, none hides a fault that stands beside it."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fleet.devices.health import kernel_log, xids
from fleet.devices.kmsg import KernelLog
from tests.fuzz.mutations import damaged
from tests.fuzz.running import bounded, fuzzed

GPU = "0000:3b:00.0"
FAULT = "4,7,9000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
LINES = (
    FAULT,
    (
        "4,1,1000000,-;NVRM: Xid (PCI:0000:3b:00 GPU-I:02 GPU-CI:01): 145, pid=77, name=a, b,"
        " NVLINK_RLW Fatal error on Link 07 (0x1)\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"
    ),
    (
        "4,2,1000001,-;NVRM: Xid (PCI:0000:3b:00): 154, pid='<unknown>', name=<unknown>, GPU"
        " recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)\n"
    ),
    (
        "3,3,1000002,-;pcieport 0000:3a:00.0: AER: Uncorrectable (Fatal) error message received"
        " from 0000:3b:00.0\n"
    ),
    "[   12.500000] nvidia 0000:3b:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer\n",
    "<6>[   13.500000] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.1\n",
    "Nov 30 08:00:00 node kernel: [ 14.5] NVRM: GPU at PCI:0000:3b:00: GPU-aaaa\n",
    "kern  :warn  : [   15.500000] NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.\n",
    "12,5,1000003,-;fleetscrub: reset of 0000:3b:00.0\n",
)
NUMBERS = ("9" * 5000, "٣", "²", "1" * 400, "-1", "", "0x", "1e9", "99999999")


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Lines of the log in any order, each as it is, damaged, with odd numbers, or noise."""
    parts: list[bytes] = []
    for _ in range(draw(st.integers(1, 6))):
        line = draw(st.sampled_from(LINES))
        kind = draw(st.integers(0, 4))
        if kind == 0:
            parts.append(draw(damaged(line.encode())))
        elif kind == 1:
            digits = draw(st.sampled_from(_digits(line)))
            parts.append(line.replace(digits, draw(st.sampled_from(NUMBERS)), 1).encode())
        elif kind == 2:
            parts.append(draw(st.binary(max_size=40)) + b"\n")
        elif kind == 3:
            word = draw(st.sampled_from(line.split()))
            parts.append(line.replace(word, word * draw(st.sampled_from([0, 2, 3000])), 1).encode())
        else:
            parts.append(line.encode())
    return b"".join(parts)


def _digits(line: str) -> list[str]:
    found = "".join(c if c.isdecimal() else " " for c in line).split()
    return found or ["x"]


@fuzzed(120)
@given(log=logs())
def test_no_line_hides_the_fault_after_it(log: bytes) -> None:
    """B39, B20: whatever stands before it, a fault of our device is read, and read in time."""
    with bounded():
        text = log.decode("utf-8", "replace")
        found = kernel_log.records(f"{text}\n{FAULT}")
        codes = kernel_log.codes(found, GPU)
        severities = kernel_log.severities(found, GPU)
        kernel_log.recovery(found, GPU)
        kernel_log.aer(found, GPU)
        told = kernel_log.told(kernel_log.strays(found, [GPU]))
    assert codes[-1] == 79
    assert all(line.strip() for line in told)
    worst = xids.classify(codes, severities=severities)
    assert worst[0].severity.serious


@fuzzed(40)
@given(log=logs(), cut=st.integers(0, 200))
def test_a_file_of_the_log_is_read_or_said_to_be_unknown(
    tmp_path_factory: object, log: bytes, cut: int
) -> None:
    """B39: a log in a file, whatever is in it and wherever it ends, is records or a reason."""
    place = _place(tmp_path_factory) / "kmsg"
    place.write_bytes(log + b"\n" + FAULT.encode() + log[:cut])
    with bounded():
        reader = KernelLog(place)
        found = reader.records()
    assert found is not None
    assert reader.why == ""
    assert 79 in [fact.code for fact in kernel_log.facts(found)]


def test_what_is_no_log_is_unknown_and_says_why(tmp_path: Path) -> None:
    """B39: a directory, a link to itself and a place that is not there are never an empty log."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for place in (tmp_path, loop, tmp_path / "none", tmp_path / "file" / "below"):
        reader = KernelLog(place)
        assert reader.records() is None
        assert str(place) in reader.why


def _place(factory: object) -> Path:
    assert hasattr(factory, "getbasetemp")
    found: Path = factory.getbasetemp()
    return found
