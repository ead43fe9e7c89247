"""Logs of others, byte for byte: forms of a line, faults of switches, of firmware, of no code."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.devices.health import kernel_log
from fleet.devices.health.kernel_log import Fact, Kind, Record, records

CORPUS = Path(__file__).parents[3] / "corpus"


def log(case: str) -> tuple[Record, ...]:
    """A case's log."""
    return records((CORPUS / case / "dmesg.txt").read_text())


F07 = {
    "0000:9b:00": 79, "0000:9c:00": 48, "0000:9d:00": 95, "0000:9e:00": 64, "0000:9f:00": 62,
    "0000:a0:00": 61, "0000:a1:00": 140, "0000:a2:00": 46, "0000:a3:00": 119, "0000:a4:00": 79,
    "0000:a5:00": 95,
}  # fmt: skip


def test_f07_every_form_of_a_line_is_read() -> None:
    """F07: eleven forms of dmesg and the journal, with their code, slot and clock; none is lost."""
    found = {fact.slot: fact for fact in kernel_log.facts(log("F07-dmesg-iso-decode"))}
    assert {slot: fact.code for slot, fact in found.items()} == F07
    times = {slot: fact.at_s for slot, fact in found.items() if fact.at_s is not None}
    assert times == {
        "0000:9f:00": 17159596.699613, "0000:a0:00": 17159596.699613, "0000:a2:00": 1105056.784211,
        "0000:a3:00": 1105056.784211, "0000:a4:00": 123.456789,
    }  # fmt: skip
    assert all(kernel_log.relevant(record) for record in log("F07-dmesg-iso-decode"))


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('{"MESSAGE":"NVRM: Xid (PCI:0000:3b:00): 79, gone"}', 79),
        ("2026/01/25 10:34:54 gpu-07 NVRM: Xid (PCI:0000:3b:00): 48, x", 48),
        ("Jan 25 10:34:54 gpu-07 NVRM: Xid (PCI:0000:3b:00): 48, x", 48),
        ("|| nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 20034, Fatal, Link 30 LTSSM", 20034),
        ("something NVRM: Xid (nothing readable", None),
    ],
)
def test_f07_a_form_nobody_knows_is_kept_as_doubtful(line: str, code: int | None) -> None:
    """F07: a fault in a line whose beginning cannot be read is told, and held against none."""
    (fact,) = kernel_log.facts(records(line))
    assert (fact.doubtful, fact.slot, fact.code) == (True, "", code)
    assert kernel_log.strays(records(line), ["0000:3b:00.0"]) == (fact,)
    (told,) = kernel_log.told((fact,))
    assert "no slot" in told or "switch" in told


@pytest.mark.parametrize(
    "line",
    [
        "[ 1.5] usb 1-1: Product: NVRM: Xid (PCI:0000:3b:00): 79",
        "Oct 01 12:00:00 host kernel: usb 1-1: NVRM: Xid (PCI:0000:3b:00): 79",
        "Oct 01 12:00:00 host app[9]: NVRM: Xid (PCI:0000:3b:00): 79, said by a program",
        "<12>NVRM: Xid (PCI:0000:3b:00): 79",
        "kern  :err   : usb 1-1: NVRM: Xid (PCI:0000:3b:00): 79",
    ],
)
def test_f07_a_form_that_is_known_is_no_doubt(line: str) -> None:
    """F07, B39: where who wrote the line can be told, another's text states nothing."""
    assert kernel_log.facts(records(line)) == ()


def switches(found: tuple[Fact, ...]) -> list[tuple[str, int | None, str]]:
    return [(f.slot, f.code, f.severity) for f in found if f.kind is Kind.SWITCH]


def test_f04_faults_of_a_switch_are_told() -> None:
    """F04: each fault of a switch once, with its slot and how grave it is, as the node's matter and
    before every device that may hang on it; a driver load ends it.
    """
    found = log("F04-nvswitch-sxid")
    faults = [
        ("0000:84:00", 20034, "fatal"), ("0000:86:00", 12028, "nonfatal"),
        ("0000:84:00", 10003, "fatal"),
    ]  # fmt: skip
    assert switches(kernel_log.others(found, "0000:1b:00.0")) == faults
    assert kernel_log.told(kernel_log.strays(found, ["0000:1b:00.0"])) == (
        "the kernel log has a fatal fault 20034 of a switch in slot 0000:84:00",
        "the kernel log has a nonfatal fault 12028 of a switch in slot 0000:86:00",
        "the kernel log has a fatal fault 10003 of a switch in slot 0000:84:00",
    )
    assert kernel_log.codes(found, "0000:84:00.0") == ()
    again = (*found, *records("[9999.0] NVRM: loading NVIDIA UNIX Open Kernel Module"))
    assert kernel_log.others(again, "0000:1b:00.0") == ()


def test_f06_what_the_driver_says_without_a_code() -> None:
    """F06: an adapter that cannot be started is its slot's matter; "reset required", "os reboot"
    and "lost" of no slot are the node's; nothing of them is dropped.
    """
    found = log("F06-reset-required-without-xid")
    needs = kernel_log.others(found, "0008:01:00.0")
    assert [fact.kind for fact in needs] == [Kind.NEEDS, Kind.NEEDS]
    assert "RmInitAdapter failed! (0x62:0x40:2142)" in needs[0].text
    assert kernel_log.others(found, "0018:01:00.0") == ()
    assert kernel_log.codes(found, "0018:01:00.0") == (119,)
    told = kernel_log.told(kernel_log.strays(found, ["0008:01:00.0", "0018:01:00.0"]))
    assert [line.partition(": ")[2] for line in told] == [
        "Reset required", "requiring os reboot", "GPU lost from the bus",
    ]  # fmt: skip
    marked = (*found, *records("[374002.0] fleetscrub: reset of 0008:01:00.0"))
    assert kernel_log.others(marked, "0008:01:00.0") == ()
    assert len(kernel_log.strays(marked, ["0008:01:00.0", "0018:01:00.0"])) == 3


@pytest.mark.parametrize(
    ("address", "fatal", "nonfatal", "corrected"),
    [
        ("0000:3b:00.0", 1, 1, 0),
        ("0000:5b:00.0", 0, 0, 1),
        ("0000:5c:00.0", 0, 1, 0),
        ("0000:5d:00.0", 0, 0, 0),
    ],
)
def test_f20_firmware_tells_the_kernel_of_errors_of_the_bus(
    address: str, fatal: int, nonfatal: int, corrected: int
) -> None:
    """F20: what firmware took first, what a port contained, and bare registers name a slot, too;
    one error told in several ways is one, and no reset and no driver load takes it back.
    """
    found = log("F20-firmware-first-pcie-errors")
    counts = {"fatal": fatal, "nonfatal": nonfatal, "corrected": corrected}
    assert kernel_log.aer(found, address) == counts
    after = (*found, *records(f"NVRM: loading NVIDIA x\nfleetscrub: reset of {address}"))
    assert kernel_log.aer(after, address) == counts
    assert all(kernel_log.relevant(record) for record in found if "pciehp" not in record.text)


FIRMWARE = "[1.0] {{{0}}}[Hardware Error]: "


@pytest.mark.parametrize(
    ("lines", "severity"),
    [
        (["event severity: corrected", " Error 0, type: corrected"], "corrected"),
        (["event severity: recoverable", " Error 0, type: recoverable"], "nonfatal"),
        (["event severity: fatal", " Error 0, type: corrected"], "corrected"),
        (["event severity: fatal"], "fatal"),
        ([], "nonfatal"),
        (["event severity: unheard"], "nonfatal"),
        (["event severity: info", " Error 0, type: info"], ""),
    ],
)
def test_f20_how_grave_firmware_says_it_is(lines: list[str], severity: str) -> None:
    """F20: the section's own word before the event's; a word nobody knows is no corrected error;
    events that are told at the same time are kept apart by their number.
    """
    head = FIRMWARE.format(3)
    other = FIRMWARE.format(4) + "event severity: fatal"
    text = "\n".join(
        [*(f"{head}{line}" for line in lines), other, f"{head}  device_id: 0000:3b:00.0"]
    )
    (fact,) = kernel_log.facts(records(text))
    assert (fact.kind, fact.slot, fact.severity) == (Kind.FIRMWARE, "0000:3b:00", severity)


STATUS = "[1.0] nvidia 0000:3b:00.0: AER: aer_status: 0x00004000, aer_mask: 0x00000000\n"
GRAVE = "[1.1] nvidia 0000:{}:00.0: AER: aer_uncor_severity: 0x0000{}000\n"


@pytest.mark.parametrize(
    ("text", "severities"),
    [
        (STATUS, ["corrected"]),
        (STATUS + GRAVE.format("3b", "4"), ["fatal"]),
        (STATUS + GRAVE.format("3b", "8"), ["nonfatal"]),
        (STATUS + GRAVE.format("3c", "4"), ["corrected"]),
        (GRAVE.format("3b", "4"), []),
        (STATUS + STATUS + GRAVE.format("3b", "4"), ["corrected", "fatal"]),
    ],
)
def test_f20_registers_of_an_error(text: str, severities: list[str]) -> None:
    """F20: the kernel prints severities only of what was not corrected, of the same slot."""
    assert [fact.severity for fact in kernel_log.facts(records(text))] == severities


@pytest.mark.parametrize(
    ("rest", "slot", "severity"),
    [
        ("status:0x1f01 source:0x3b00", "0003:3b:00", "fatal"),
        ("status:0x1f03 source:0x3b08", "0003:3b:01", "nonfatal"),
        ("status:0x1f05, source:0x3b00", "0003:3b:00", "fatal"),
        ("status:0x1f05 source:0000:3b:00.0", "0000:3b:00", "fatal"),
    ],
)
def test_f20_a_port_that_cut_its_link_off_names_who_it_was(
    rest: str, slot: str, severity: str
) -> None:
    """F20: containment names the device by number in the port's domain, and why."""
    (fact,) = kernel_log.facts(
        records(f"[1.0] pcieport 0003:3a:01.0: DPC: containment event, {rest}")
    )
    assert (fact.kind, fact.slot, fact.severity) == (Kind.CONTAINED, slot, severity)


def test_f06_a_log_full_of_strays_fills_no_page() -> None:
    """F06: what is told of no device has an end, and what is left out is counted."""
    text = "".join(f"NVRM: Xid (PCI:0000:{bus:02x}:00): 79, x\n" for bus in range(0x20, 0x60))
    told = kernel_log.told(kernel_log.strays(records(text), []))
    assert len(told) == 33
    assert told[-1] == "the kernel log has 32 more faults of no device of this node"


def test_f07_what_a_log_says_is_shown_in_one_plain_line() -> None:
    """F07: nothing of a log moves a terminal's cursor, and no line is longer than one reads."""
    assert kernel_log.plain("a\x1b[2Jb\nc") == "a?[2Jb?c"
    assert kernel_log.plain("x" * 200) == "x" * 160 + "..."
