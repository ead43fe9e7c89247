"""CDI names: legal for every claim and device, different for different ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.core import errors
from fleet.core.model import ClaimUid
from fleet.node.cdi.names import (
    FILE_LENGTH_MAX,
    NAME_LENGTH_MAX,
    SCANNED,
    Kind,
    claim_of,
    device_name,
    device_problems,
    is_uid,
    kind_problems,
)

KIND = Kind("accelerator.acme.corp", "gpu")
UIDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}", fullmatch=True).map(ClaimUid)
UUIDS = st.one_of(
    st.sampled_from(["GPU-1", "MIG-GPU-1/2/0", "0000:1b:00.0", "a_b", "-", "é", "x.", "a\n"]),
    st.text(min_size=1, max_size=20),
)


@given(UIDS, UUIDS)
def test_every_device_of_every_claim_has_a_legal_name(uid: ClaimUid, device: str) -> None:
    """Invariant 26: first and last alphanumeric, inside also _ . - and :, whatever the UUID."""
    name = device_name(uid, device)
    assert list(device_problems(name)) == []
    assert claim_of(name) == uid


@given(UIDS, UUIDS, UIDS, UUIDS)
def test_two_devices_never_share_a_name(
    uid: ClaimUid, device: str, other_uid: ClaimUid, other: str
) -> None:
    """Invariants 22 and 26: the first id of each device is unique, in a claim and among claims."""
    same = (uid, device) == (other_uid, other)
    assert (device_name(uid, device) == device_name(other_uid, other)) is same


def test_names_that_hyphens_would_confuse_differ() -> None:
    """Invariant 26: no pair of claim and device borrows from the other."""
    one = device_name(ClaimUid("a"), "MIG-GPU-1")
    assert one != device_name(ClaimUid("a-MIG"), "GPU-1")
    assert device_name(ClaimUid("a"), "x_2f") != device_name(ClaimUid("a"), "x/")


def test_uuids_of_drivers_stay_readable() -> None:
    """A2: <vendor>/<class>=<claim uid>_<uuid>, without escapes for what drivers print today."""
    uid = ClaimUid("c1")
    assert KIND.id(uid, "GPU-0-a") == "accelerator.acme.corp/gpu=c1_GPU-0-a"
    assert KIND.id(uid, "0000:1b:00.0") == "accelerator.acme.corp/gpu=c1_0000:1b:00.0"
    assert device_name(uid, "MIG-GPU-1/2") == "c1_MIG-GPU-1_2f2"


@pytest.mark.parametrize("uid", ["", "../evil", "a/b", "-x", "x" * 64, "a\n", "a b", "a_b"])
def test_a_uid_that_is_no_name_is_refused(uid: str) -> None:
    """A2: a claim uid cannot lead out of the directory or into another claim's names."""
    assert not is_uid(uid)
    for named in (KIND.file, KIND.temporary, lambda u: device_name(u, "d")):
        with pytest.raises(errors.InputInvalid):
            named(ClaimUid(uid))


def test_a_device_without_a_name_is_refused() -> None:
    """Invariant 26: an empty UUID gives no id instead of an illegal one."""
    with pytest.raises(errors.InputInvalid):
        device_name(ClaimUid("c"), "")


@given(UIDS)
def test_a_file_belongs_to_one_claim_and_its_unfinished_form_is_never_scanned(
    uid: ClaimUid,
) -> None:
    """B56, B68: <vendor>-<class>_<uid>.json; the temporary name ends in no scanned suffix."""
    file, temporary = KIND.file(uid), KIND.temporary(uid)
    assert file == f"accelerator.acme.corp-gpu_{uid}.json"
    assert KIND.claim(file) == uid
    assert KIND.owns(file)
    assert not temporary.endswith(SCANNED)
    assert KIND.is_temporary(temporary)
    assert not KIND.is_temporary(file)
    assert KIND.claim(KIND.agent.file(uid)) is None
    assert not KIND.owns(KIND.agent.file(uid))


@pytest.mark.parametrize(
    ("file", "owned"),
    [
        ("accelerator.acme.corp-gpu.json", True),
        ("accelerator.acme.corp-gpu_x.yaml", True),
        ("accelerator.acme.corp-gpu_.json", True),
        ("accelerator.acme.corp-gpu2_x.json", False),
        ("accelerator.acme.corp.json", False),
        (".scrub-tmp-123", False),
    ],
)
def test_a_name_says_whether_a_file_is_ours(file: str, owned: bool) -> None:
    """B68: our prefix ends with the class, so that a second class of our vendor is not ours."""
    assert KIND.owns(file) is owned
    assert KIND.claim(file.replace("_x.", "_.")) is None
    assert not KIND.is_temporary(file)


@pytest.mark.parametrize(
    ("vendor", "name"),
    [
        ("", "gpu"), ("a", "gpu"), ("4scrub.dev", "gpu"), ("scrub.dev.", "gpu"), ("a/b", "gpu"),
        ("scrub.dev", ""), ("scrub.dev", "g"), ("scrub.dev", "g u"), ("scrub.dev", "-gpu"),
        ("scrub.dev", "g" * 58), ("v" * 200, "gpu"), ("scrub.dév", "gpu"),
    ],
)  # fmt: skip
def test_a_kind_no_runtime_accepts_is_refused_before_anything_is_written(
    vendor: str, name: str
) -> None:
    """Invariant 26: grammar, lengths, the one-character crash, and names too long for a file."""
    with pytest.raises(errors.SettingsInvalid) as refused:
        _ = Kind(vendor, name).agent
    assert refused.value.problems


@given(
    st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,100}[A-Za-z0-9]", fullmatch=True),
    st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,50}[A-Za-z0-9]", fullmatch=True),
    UIDS,
)
def test_every_kind_accepted_gives_legal_names(vendor: str, name: str, uid: ClaimUid) -> None:
    """Invariant 26: what the settings allow, files and runtimes allow, the agent's class too."""
    for kind in (Kind(vendor, name), Kind(vendor, name).agent):
        assert list(kind_problems(str(kind))) == []
        assert len(kind.temporary(uid).encode()) <= FILE_LENGTH_MAX
        assert kind.claim(kind.file(uid)) == uid


def test_a_kind_without_a_class_is_no_kind() -> None:
    """Reference 7.3: kind is <vendor>/<class>."""
    assert list(kind_problems("scrub.dev")) == ["kind 'scrub.dev' is not <vendor>/<class>"]


def test_b69_a_name_has_a_length() -> None:
    """B69: a device of any length has a legal name of bounded length, unlike every other's, and the
    claim can still be read from it; what is short enough stays as it is.
    """
    uid = ClaimUid("u" * 63)
    long = "MIG-" + "a" * 300
    names = [device_name(uid, text) for text in (long, long + "a", "b" + long, "\n" * 300)]
    names.append(device_name(uid, names[0].partition("_")[2]))
    assert len(set(names)) == len(names)
    for name in names:
        assert list(device_problems(name)) == []
        assert len(name) <= NAME_LENGTH_MAX
        assert claim_of(name) == uid
    assert device_name(uid, "G" * 160) == f"{uid}_{'G' * 160}"
    assert device_name(uid, "G" * 161) != f"{uid}_{'G' * 161}"
