"""The kernel log as the driver and the kernel write it, in every form it is handed on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.core import errors
from fleet.devices.health import kernel_log
from fleet.devices.health.kernel_log import Fact, Kind, records

B39 = """\
6,1201,100000001,-;NVRM: Xid (PCI:0000:df:00): 79, GPU has fallen off the bus.
6,1202,100000002,-;NVRM: Xid (PCI:0000:1b:00): 13, pid='<unknown>', name=<unknown>, \
Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0)
6,1203,100000003,-;NVRM: The NVIDIA GPU 0000:9d:00.0
 NVRM: (PCI ID: 10de:2330) installed in this system has
 NVRM: fallen off the bus and is not responding to commands.
6,1204,100000004,-;NVRM: Xid (PCI:0000:C3:00): 94, pid=4242, name=python, Contained: SM (0x1). \
RST: No, D-RST: No
6,1205,100000005,-;NVRM: Xid (PCI:0001:00:00): 48, pid=77, name=a b,c, DBE (double bit error)
12,1206,100000006,-;myapp[99]: user text mentioning Xid (PCI:0000:43:00): 79, nothing to see
6,1207,100000007,-;NVRM: Xid (PCI:0000:52:00): 777, pid=1, name=x, something new
"""
"""The case's log."""
DEVICES = {
    "0000:1b:00": "a0", "0000:43:00": "a1", "0000:52:00": "a2", "0000:61:00": "a3",
    "0000:9d:00": "a4", "0000:c3:00": "a5", "0000:d1:00": "a6", "0000:df:00": "a7",
}  # fmt: skip
"""The case's inventory: slots, and the last digits of the UUIDs; a7 answers nothing any more."""
GPU, OTHER = "0000:3b:00.0", "0000:43:00.0"


def facts(text: str) -> tuple[Fact, ...]:
    return kernel_log.facts(records(text))


def one(text: str) -> Fact:
    (fact,) = facts(text)
    return fact


def xid(code: int, at: float = 1.0, address: str = GPU, rest: str = "") -> str:
    """A raw record of a fault code."""
    place = address.rpartition(".")[0]
    return f"4,1,{int(at * 1e6)},-;NVRM: Xid (PCI:{place}): {code}, pid=1, name=x, {rest}\n"


@pytest.mark.parametrize(
    ("sequence", "device", "kind", "code"),
    [
        (1201, "a7", Kind.XID, 79),
        (1202, "a0", Kind.XID, 13),
        (1203, "a4", Kind.FALLEN, 79),
        (1204, "a5", Kind.XID, 94),
        (1205, None, Kind.XID, 48),
        (1207, "a2", Kind.XID, 777),
    ],
)
def test_b39_each_line_is_of_the_right_device(
    sequence: int, device: str | None, kind: Kind, code: int
) -> None:
    """B39, gpus-8.42: what every line of the case's log says, and of whom, without a driver."""
    (fact,) = [fact for fact in facts(B39) if fact.sequence == sequence]
    assert (DEVICES.get(fact.slot), fact.kind, fact.code) == (device, kind, code)
    assert fact.at_s == pytest.approx(100 + (sequence - 1200) / 1e6)


def test_b39_the_rest_of_its_lines() -> None:
    """B39: another program's text says nothing; an unknown slot is the node's matter; a quoted pid
    is none; the message goes on after a process name with a comma.
    """
    assert 1206 not in {fact.sequence for fact in facts(B39)}
    (stray,) = kernel_log.strays(records(B39), [f"{slot}.0" for slot in DEVICES])
    assert (stray.sequence, stray.slot) == (1205, "0001:00:00")
    found = {fact.sequence: fact for fact in facts(B39)}
    assert (found[1202].pid, found[1204].pid) == (None, 4242)
    assert found[1202].text.startswith("Graphics SM Warp Exception")
    assert found[1205].text == "DBE (double bit error)"


@pytest.mark.parametrize(
    ("prefix", "at"),
    [
        ("4,7,12345678,-;", 12.345678),
        ("4,7,12345678,c,caller=T99;", 12.345678),
        ("[   12.345678] ", 12.345678),
        ("<4>[   12.345678] ", 12.345678),
        ("kern  :warn  : [   12.345678] ", 12.345678),
        ("[   12.345678] host-1 kernel: ", 12.345678),
        ("Oct 01 12:00:00 host-1 kernel: [   12.345678] ", 12.345678),
        ("2025-10-01T12:00:00.123+0000 host-1 kernel: ", None),
        ("Oct  1 12:00:00 host-1 kernel: ", None),
        ("[Wed Oct  1 12:00:00 2025] ", None),
        ("", None),
    ],
)
@pytest.mark.parametrize(
    "place", ["PCI:0000:3B:00", "PCI:0000:3b:00", "0000:3b:00", "0000:3b:00.0", "00000000:3B:00.0"]
)
def test_every_form_of_log_and_address_says_the_same(
    prefix: str, at: float | None, place: str
) -> None:
    """gpus-8.42, gpus-8.2: raw, dmesg and journal; with and without PCI:, in any case."""
    fact = one(f"{prefix}NVRM: Xid ({place}): 79, GPU has fallen off the bus.")
    assert (fact.slot, fact.code, fact.text) == ("0000:3b:00", 79, "GPU has fallen off the bus.")
    assert fact.at_s == at


@pytest.mark.parametrize(
    "line",
    [
        "12,7,1,-;NVRM: Xid (PCI:0000:3b:00): 79, written by a program",
        "<12>[ 1.5] NVRM: Xid (PCI:0000:3b:00): 79, written by a program",
        "user  :warn  : [ 1.5] NVRM: Xid (PCI:0000:3b:00): 79, written by a program",
        "Oct 01 12:00:00 host app[9]: kernel: NVRM: Xid (PCI:0000:3b:00): 79, a",
        "4,7,1,-;usb 1-1: Product: NVRM: Xid (PCI:0000:3b:00): 79",
        "4,7,1,-;NVRM: GPU 0000:3b:00.0: some other news",
    ],
)
def test_what_the_driver_did_not_say_is_no_fault(line: str) -> None:
    """B39: only the kernel's own records, and only where the text begins with the driver's name."""
    assert facts(line) == ()


def test_a_process_may_have_any_name() -> None:
    """B39: a line break in a name makes no second message, and no word in it a milder one."""
    fact = one(xid(13).replace("name=x", "name=x\\x0aNVRM: Xid (PCI:0000:43:00): 79, "))
    assert (fact.slot, fact.code) == ("0000:3b:00", 13)
    named = xid(145, rest="RLW_CTRL Fatal XC0 i0 Link 03 (0x1)").replace("name=x", "name=Nonfatal")
    assert one(named).severity == "fatal"


@pytest.mark.parametrize(
    "text",
    [
        (
            "[1.0] NVRM: The NVIDIA GPU 0000:3B:00.0\n"
            "[1.0] NVRM: (PCI ID: 10de:2330) installed in this system has\n"
            "[1.0] NVRM: fallen off the bus and is not responding to commands."
        ),
        (
            "[1.0] NVRM: GPU at PCI:0000:3b:00: GPU-0\n"
            "[1.0] NVRM: GPU has fallen\n"
            "[1.0] NVRM: off the bus"
        ),
        "4,1,1,-;NVRM: The NVIDIA GPU 0000:3b:00.0\\x0aNVRM: has fallen off the bus",
        "4,1,1,-;NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
        "4,1,1,-;NVRM: rm_init failed, 0000:3b:00.0 has fallen off the bus",
    ],
)  # fmt: skip
def test_a_device_that_left_the_bus_without_a_number(text: str) -> None:
    """B39, gpus-8.42: the phrase counts as code 79, on one line or several."""
    assert kernel_log.codes(records(text), GPU) == (79,)
    assert one(text).kind is Kind.FALLEN


def test_a_lost_device_that_is_not_named_is_nobodys() -> None:
    """B39: the phrase alone is a fault of the node, not of the device named long before it."""
    text = "".join(
        f"[1.{n}] NVRM: {line}\n"
        for n, line in enumerate(["GPU 0000:3b:00.0: Rm", *"abcde", "GPU has fallen off the bus"])
    )
    assert kernel_log.codes(records(text), GPU) == ()
    (stray,) = kernel_log.strays(records(text), [GPU])
    assert (stray.slot, stray.code) == ("", 79)


def test_one_loss_told_twice_is_one() -> None:
    """The driver logs the number and then the phrase: one code; another number stays its own."""
    text = xid(79) + "4,2,1,-;NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.\n" + xid(79)
    assert kernel_log.codes(records(text), GPU) == (79, 79)


@pytest.mark.parametrize(
    ("rest", "severity", "unit", "link"),
    [
        ("RLW_REMAP     Nonfatal XC0 i0 Link 00 (0x00000004 0x1)", "nonfatal", "RLW_REMAP", 0),
        ("NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x004505c6 0x0)", "fatal", "NETIR_LINK_EVT", 9),
        ("RLW_CTRL Non-fatal XC1 i0 Link 17", "nonfatal", "RLW_CTRL", 17),
        ("something without a word", "", "", None),
    ],
)
def test_a_link_unit_says_how_severe_it_is(
    rest: str, severity: str, unit: str, link: int | None
) -> None:
    """gpus-8.42: unit, severity and link of codes 144 to 150; other codes say none."""
    fact = one(xid(145, rest=rest))
    assert (fact.severity, fact.unit, fact.link) == (severity, unit, link)
    assert kernel_log.severities(records(xid(145, rest=rest)), GPU) == (severity,)
    assert one(xid(31, rest="Fatal")).severity == ""


@pytest.mark.parametrize(
    ("says", "word"),
    [
        ("0x0 (None)", "NONE"),
        ("0x1 (GPU Reset Required)", "GPU_RESET"),
        ("0x2 (Node Reboot Required)", "NODE_REBOOT"),
        ("0x2 (OS Reboot)", "NODE_REBOOT"),
        ("0x3 (Drain P2P)", "DRAIN_P2P"),
        ("0x4 (Drain and Reset)", "DRAIN_AND_RESET"),
        ("0x5 (Recover IMEX)", "RECOVER_IMEX_DOMAIN"),
        ("0x1 (PF FLR)", "GPU_RESET"),
        ("0x63 (Replace Fuse)", "REPLACE_FUSE"),
        ("nothing readable", "UNREADABLE"),
    ],
)
def test_code_154_names_the_recovery_action(says: str, word: str) -> None:
    """B40, gpus-8.42: words first, then the number; what no table knows stays a word that fails."""
    text = xid(154, rest=f"GPU recovery action changed from 0x4 (Drain and Reset) to {says}")
    assert kernel_log.recovery(records(text), GPU) == word
    assert kernel_log.recovery(records(text), OTHER) is None


def test_a_code_that_is_no_number_is_not_dropped() -> None:
    """B39, B70: an unreadable code is reported as unknown, an unreadable slot as the node's matter:
    neither ignored nor a fault of all devices.
    """
    assert one("[1.0] NVRM: Xid (PCI:0000:3b:00): abc, pid=1").code == kernel_log.UNKNOWN_CODE
    (stray,) = kernel_log.strays(records("[1.0] NVRM: Xid (0007:00): 13, text"), [GPU])
    assert (stray.slot, stray.code) == ("", 13)


def test_a_partitions_fault_names_its_instance() -> None:
    """B70: the instance stands beside the address."""
    fact = one("[1.0] NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:01): 94, pid=7, Contained: CE")
    assert (fact.slot, fact.code, fact.instance, fact.compute_instance) == ("0000:3b:00", 94, 5, 1)


LOADED = "4,1,5000000,-;NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  595.45.04\n"
MARK = "14,1,5000000,-;fleetscrub: reset of 0000:3b:00.0\n"


@pytest.mark.parametrize(
    ("text", "mine", "others"),
    [
        (xid(48) + xid(31), (48, 31), ()),
        (xid(48) + LOADED, (), ()),
        (xid(48) + xid(79, address=OTHER) + LOADED + xid(31, 6.0), (31,), ()),
        (xid(48) + xid(79, address=OTHER) + MARK, (), (79,)),
        (xid(48) + MARK + xid(94, 6.0), (94,), ()),
        (xid(48) + MARK.replace("14,", "6,").replace("0000:3b:00.0", "?"), (48,), ()),
    ],
)
def test_what_is_open_is_what_came_since_the_load_or_the_reset(
    text: str, mine: tuple[int, ...], others: tuple[int, ...]
) -> None:
    """gpus-8.21: a reset answers what came before it, on its device only; a load on all."""
    found = records(text)
    assert (kernel_log.codes(found, GPU), kernel_log.codes(found, OTHER)) == (mine, others)


def test_only_what_is_younger_counts_when_asked() -> None:
    """`since_s` is the log's clock; a record without a time is never left out."""
    text = (
        xid(48, 1.0) + xid(94, 3.0) + "Oct  1 12:00:00 h kernel: NVRM: Xid (PCI:0000:3b:00): 95, x"
    )
    assert kernel_log.codes(records(text), GPU, 2.0) == (94, 95)


@pytest.mark.parametrize(
    ("words", "severity"),
    [
        ("Uncorrected (Fatal)", "fatal"),
        ("Uncorrectable (Non-Fatal)", "nonfatal"),
        ("Corrected", "corrected"),
    ],
)
def test_errors_of_the_bus_by_severity(words: str, severity: str) -> None:
    """gpus-8.24: where there are no counters the log has them; announced and described is one."""
    text = (
        f"3,1,1,-;pcieport 0000:00:01.0: AER: {words} error message received from {GPU}\n"
        f"3,2,1,-;nvidia {GPU}: PCIe Bus Error: severity={words}, type=Transaction Layer\n"
        " SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n"
        f"3,3,1,-;pcieport 0000:00:02.0: AER: Multiple {words} error received: {OTHER}\n"
    )
    nothing = {"fatal": 0, "nonfatal": 0, "corrected": 0}
    assert kernel_log.aer(records(text), GPU) == nothing | {severity: 1}
    assert kernel_log.aer(records(text), OTHER) == nothing | {severity: 1}
    assert kernel_log.aer(records(text), "0000:61:00.0") == nothing
    assert kernel_log.aer(records(text), GPU, 1.0) == nothing


def test_an_address_that_is_none_is_an_error_of_ours() -> None:
    """B57: no faults of "no device": the question is refused."""
    with pytest.raises(errors.InputInvalid):
        kernel_log.codes((), "3b")


@given(
    st.text(st.characters(codec="utf-8"), max_size=60), st.sampled_from(["", xid(79), "4,1,1,-;"])
)
def test_any_text_is_read(text: str, before: str) -> None:
    """B39: whatever programs and firmware write there, the reader goes on."""
    found = records(before + text)
    kernel_log.facts(found)
    if before.startswith("4,1,1000000"):
        assert kernel_log.codes(found, GPU)[0] == 79


def test_only_records_that_may_matter_are_kept() -> None:
    """A log is mostly about other things."""
    assert [kernel_log.relevant(r) for r in records(xid(13) + MARK + "[1.0] eth0: up\n")] == [
        True, True, False,
    ]  # fmt: skip


def test_b39_faults_of_no_device_are_told_once_with_how_often() -> None:
    """B39: an operator reads where, what and how often; a place that is not named is said so."""
    place = "NVRM: Xid (PCI:0000:99:00): 79, pid=1, name=x, said"
    log = kernel_log.records(f"{place}\n{place}\nNVRM: Xid (nowhere): 31, pid=1, name=x, said\n")
    assert kernel_log.told(kernel_log.strays(log, ["0000:3b:00.0"])) == (
        "the kernel log has fault 79 of slot 0000:99:00, where no device of this node is (2 times)",
        "the kernel log has fault 31 of no slot",
    )


@pytest.mark.parametrize("digits", ["9" * 400, "9" * 5000])
@pytest.mark.parametrize("before", ["{},1,2,-;x", "4,{},2,-;x", "4,1,{},-;x", "<{}>x", "[{}.5] x"])
def test_b39_numbers_no_kernel_prints_hide_no_fault(before: str, digits: str) -> None:
    """B39: a number of any length is no time and no priority; the lines beside it are read."""
    found = records(before.format(digits) + "\n" + xid(79))
    assert kernel_log.codes(found, GPU) == (79,)


def test_b39_a_fault_with_a_number_too_long_is_a_fault() -> None:
    """B39: process, instance and link that no kernel has are unknown; the fault counts."""
    long = "9" * 5000
    line = f"NVRM: Xid (PCI:0000:3b:00 GPU-I:{long}): 145, pid={long}, RLW Fatal x Link {long}"
    (fact,) = kernel_log.faults(records(line), GPU)
    assert (fact.code, fact.pid, fact.instance, fact.link) == (145, None, None, None)


@pytest.mark.parametrize(
    "line",
    [
        "4,1,2,-;NVRM: x[71]: segfault at 0 ip 0 in 0000:3b:00.0 has fallen off the bus[0]",
        "4,1,2,-;NVRM:\\x0a[71]: segfault at 0 error 6 in 0000:3b:00 has fallen off the bus[0+1]",
        "4,1,2,-;NVRM: a[71]: segfault at 0 error 6 in 0000:3b:00.0 reset required[0+1]",
        "4,1,2,-;NVRM: Xid (PCI:[71]: segfault at 0 error 6 in x): 79, GPU fell[0+1]",
        "[    1.0] NVRM: a[71]: segfault at 0 in 0000:3b:00.0 has fallen off the bus[0+1]",
    ],
)
def test_b58_the_crash_of_a_process_says_nothing_of_a_device(line: str) -> None:
    """B58: the kernel logs a crash with the process's own name first and the name of its file after
    it: a tenant who chooses both takes no device of others out of service.
    """
    found = records(line)
    assert kernel_log.faults(found, GPU) == ()
    assert kernel_log.others(found, GPU) == ()
    assert kernel_log.strays(found, [GPU]) == ()
