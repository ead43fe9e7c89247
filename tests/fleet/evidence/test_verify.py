"""Verification: every kind of tampering is found, named and placed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.core.errors import EvidenceInvalid
from fleet.core.model import Device, NodeName, Token
from fleet.evidence import dsse, heads, layout
from fleet.evidence.certificate import PREDICATE_TYPE
from fleet.evidence.dsse import digest_of
from fleet.evidence.export import export
from fleet.evidence.findings import Demand
from fleet.evidence.heads import Countersignature, HeadsLog
from fleet.evidence.keys import KeyRing, PublicKey, SigningKey
from fleet.evidence.ledger import LedgerHead
from fleet.evidence.segments import GENESIS, Damage, Sequence, next_chain, spell_line
from fleet.evidence.sources import Trust, collect, heads_log, take_heads
from fleet.evidence.verify import verify
from tests.fleet.evidence.samples import Site, codes, device_named, rewrite

Change = Callable[[list[bytes]], list[bytes]]


@pytest.fixture(name="site", scope="module")
def site_fixture(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Two nodes of two devices, six certificates each, countersigned after four. Never changed."""
    site = Site(tmp_path_factory.mktemp("site") / "state")
    for node in ("node-1", "node-2"):
        site.certify(node)
    site.countersign()
    site.certify("node-1", rounds=1)
    return site


@pytest.fixture(name="copy")
def copy_fixture(site: Site, tmp_path: Path) -> Path:
    """A copy of the site's state to tamper with."""
    shutil.copytree(site.state, tmp_path / "copy")
    return tmp_path / "copy"


def first_segment(state: Path, node: str = "node-1") -> Path:
    """The only segment of a node's ledger."""
    return layout.ledger_directory(state, node) / "000000000001.jsonl"


def envelope_of(line: bytes) -> bytes:
    """The envelope in a line."""
    return line[line.index(b'"entry":') + 8 : line.rindex(b',"number":')]


def renumbered(lines: list[bytes]) -> list[bytes]:
    """Lines with numbers and chain values made consistent again, as a careful forger would."""
    chain, result = GENESIS, []
    for number, line in enumerate(lines, start=1):
        envelope = envelope_of(line)
        chain = next_chain(chain, digest_of(envelope))
        result.append(spell_line(envelope, number=number, chain=chain))
    return result


def replaced(line: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """A line whose envelope was changed, everything else left."""
    envelope = envelope_of(line)
    return line.replace(envelope, change(envelope))


def flip(content: bytes, marker: bytes, offset: int) -> bytes:
    """One character after `marker` replaced by another of the same alphabet."""
    place = content.index(marker) + len(marker) + offset
    other = b"b" if content[place : place + 1] == b"a" else b"a"
    return content[:place] + other + content[place + 1 :]


def test_untouched_evidence_is_whole(site: Site) -> None:
    """E3: genuine evidence verifies, with counts, and says which tail is not proven."""
    report = verify(collect(site.state))
    assert report.defects == []
    assert (report.ledgers, report.certificates, report.units) == (2, 10, 4)
    assert (report.countersignatures, report.countersigned, report.simulated) == (1, 8, 10)
    assert any("node-1: tail not proven beyond entry 4 of 6" in note for note in report.notes)
    assert not any("node-2: tail" in note for note in report.notes)


def test_f49_the_verdict_says_until_when(site: Site, copy: Path) -> None:
    """F49: evidence is never called whole without the time until which that is known."""
    newest = max(found.issued_at for found in _countersignatures(site.state))
    report = verify(collect(site.state))
    assert f"whole as of {dsse.stamp(newest)}" in report.verdict
    assert report.as_json()["verdict"] == report.verdict
    shutil.rmtree(layout.coordinator_directory(copy))
    assert "nothing is countersigned" in verify(collect(copy)).verdict


def test_f49_evidence_rolled_back_is_less_than_what_is_known_of_it(tmp_path: Path) -> None:
    """F49: what its reader knows from elsewhere finds evidence that was set back as a whole."""
    site = Site(tmp_path / "state")
    site.certify("node-1")
    site.countersign()
    shutil.copytree(site.state, tmp_path / "back")
    site.certify("node-1")
    site.countersign()
    export(collect(site.state), tmp_path / "copy")
    now = collect(site.state)
    newest = verify(now).countersigned_at
    assert verify(collect(tmp_path / "back")).ok
    for demand, code in (
        (Demand(not_before=newest), "too-old"),
        (Demand(at_least=8), "too-few"),
    ):
        assert verify(now, demand).ok
        report = verify(collect(tmp_path / "back"), demand)
        assert [one.code for one in report.defects] == [code]
    for known in (tmp_path / "copy", site.state, layout.heads_directory(site.state)):
        back = collect(tmp_path / "back")
        take_heads(back, known, None)
        assert "tail-cut" in {one.code for one in verify(back).defects}


def test_f49_a_countersignature_cannot_be_asked_of_evidence_without_any(copy: Path) -> None:
    """F49: where nothing is countersigned, nothing is recent."""
    shutil.rmtree(layout.coordinator_directory(copy))
    report = verify(collect(copy), Demand(not_before=0.0))
    assert [one.code for one in report.defects] == ["too-old"]


def test_f49_a_date_far_in_the_future_is_found(site: Site) -> None:
    """F49: what is dated more than a day ahead is a defect, and makes nothing look recent."""
    dates = [found.issued_at for found in _countersignatures(site.state)]
    assert verify(collect(site.state), Demand(now=max(dates))).ok
    early = min(dates) - 2 * 24 * 3600
    report = verify(collect(site.state), Demand(now=early))
    assert {one.code for one in report.defects} == {"future-date"}
    assert report.countersigned_at is None


def _countersignatures(state: Path) -> list[Countersignature]:
    log = heads_log(layout.heads_directory(state))
    found = [one for one in log.scan(Sequence()) if not isinstance(one, Damage)]
    return [heads.read(one.envelope) for one in found if one.envelope is not None]


def test_without_coordinator_the_tail_is_not_proven(copy: Path) -> None:
    """Where no coordinator works, verification passes and says that a cut tail would not show."""
    shutil.rmtree(layout.coordinator_directory(copy))
    rewrite(first_segment(copy), lambda lines: lines[:3])
    report = verify(collect(copy))
    assert report.ok
    assert any("tail not proven beyond entry 0 of 3" in note for note in report.notes)


LINES: dict[str, tuple[Change, str]] = {
    "flipped byte in payload": (
        lambda ls: [*ls[:2], replaced(ls[2], lambda e: flip(e, b'"payload":"', 400)), *ls[3:]],
        "altered-entry",
    ),
    "flipped byte in signature": (
        lambda ls: [*ls[:2], replaced(ls[2], lambda e: flip(e, b'"sig":"', 10)), *ls[3:]],
        "forged",
    ),
    "flipped byte in key id": (
        lambda ls: [*ls[:2], replaced(ls[2], lambda e: flip(e, b'"keyid":"', 3)), *ls[3:]],
        "unknown-key",
    ),
    "flipped byte in chain value": (
        lambda ls: [*ls[:2], flip(ls[2], b'{"chain":"', 3), *ls[3:]],
        "altered-entry",
    ),
    "garbled line": (lambda ls: [*ls[:2], b"X" + ls[2][1:], *ls[3:]], "unreadable-entry"),
    "two lines made one": (
        lambda ls: [ls[0], ls[1][:-1] + b" " + ls[2], *ls[3:]],
        "missing-entries",
    ),
    "removed entry": (lambda ls: [*ls[:2], *ls[3:]], "missing-entries"),
    "removed first entry": (lambda ls: ls[1:], "missing-entries"),
    "removed entry, renumbered": (lambda ls: renumbered([*ls[:2], *ls[3:]]), "missing-link"),
    "removed tail": (lambda ls: ls[:3], "tail-cut"),
    "removed tail, entry of another device left": (
        lambda ls: renumbered([ls[0], ls[2], ls[4]]),
        "tail-cut",
    ),
    "swapped entries": (lambda ls: [ls[0], ls[2], ls[1], *ls[3:]], "out-of-order"),
    "swapped entries of one unit, renumbered": (
        lambda ls: renumbered([ls[2], ls[1], ls[0], *ls[3:]]),
        "missing-link",
    ),
    "swapped entries of two units, renumbered": (
        lambda ls: renumbered([ls[1], ls[0], *ls[2:]]),
        "rewritten",
    ),
    "duplicated entry": (lambda ls: [*ls, ls[-1]], "duplicate-entry"),
    "duplicated entry, renumbered": (lambda ls: renumbered([*ls, ls[0]]), "duplicate-entry"),
    "cut in the middle of a line": (lambda ls: [*ls[:5], ls[5][:900]], "truncated"),
    "without its last newline": (lambda ls: [*ls[:5], ls[5][:-1]], "truncated"),
    "emptied": (lambda _: [], "empty-file"),
}


@pytest.mark.parametrize("kind", LINES)
def test_tampering_with_a_ledger_is_found(copy: Path, kind: str) -> None:
    """E3: each way to change a ledger is found with the kind that fits it, and placed in it."""
    change, code = LINES[kind]
    path = first_segment(copy)
    rewrite(path, change)
    defects = verify(collect(copy)).defects
    assert code in {damage.code for damage in defects}
    assert all(damage.place.file.startswith(str(path.parent)) for damage in defects)


def test_place_is_exact(copy: Path) -> None:
    """A changed byte is reported with file, byte offset of its line and entry number."""
    path = first_segment(copy)
    lines = path.read_bytes().splitlines(keepends=True)
    rewrite(path, LINES["flipped byte in signature"][0])
    found = {damage.code: damage.place for damage in verify(collect(copy)).defects}
    place = found["forged"]
    assert place.file == str(path)
    assert place.offset == len(lines[0]) + len(lines[1])
    assert place.entry == 3


def test_missing_link_names_the_unit(copy: Path) -> None:
    """A missing certificate is reported with the unit whose chain it breaks."""
    rewrite(first_segment(copy), lambda ls: renumbered([*ls[:2], *ls[3:]]))
    units = {d.place.unit for d in verify(collect(copy)).defects if d.code == "missing-link"}
    assert units == {"SIM-node-1-a/0"}


def test_entry_of_another_node_is_found(copy: Path) -> None:
    """A certificate moved from another node's ledger is foreign, by its key and by its node."""
    stranger = first_segment(copy, "node-2").read_bytes().splitlines(keepends=True)[0]
    rewrite(first_segment(copy), lambda ls: renumbered([*ls, stranger]))
    assert {"foreign-certificate", "foreign-key"} <= codes(copy)


def _append(state: Path, key: SigningKey, change: Callable[[dict[str, object]], object]) -> None:
    """Replace the third certificate of node-1 by a changed one that `key` signs."""
    path = first_segment(state)
    lines = path.read_bytes().splitlines(keepends=True)
    statement = dsse.parse(dsse.open_envelope(envelope_of(lines[2])).payload)
    change(statement["predicate"])
    envelope = dsse.seal(PREDICATE_TYPE, statement["subject"], statement["predicate"], key=key)
    lines[2] = spell_line(envelope, number=3, chain="0" * 64)
    path.write_bytes(b"".join(renumbered(lines)))


def test_certificate_signed_by_a_foreign_key_is_found(copy: Path, tmp_path: Path) -> None:
    """B48: a forged newest certificate is not believed for its place: its key is not ours."""
    stranger = SigningKey.load_or_create(tmp_path / "other" / "stranger.key")
    _append(copy, stranger, lambda p: p.update(signer={"key_id": stranger.key_id}))
    assert "unknown-key" in codes(copy)


def test_certificate_rewritten_by_its_own_node_breaks_the_chain(copy: Path) -> None:
    """Even the key's owner cannot rewrite history: successors and countersignature disagree."""
    key = SigningKey.load(layout.node_key(copy, "node-1"))
    _append(copy, key, lambda p: p.update(previous_holder="nobody"))
    found = codes(copy)
    assert {"missing-link", "rewritten", "missing-certificate"} <= found
    assert "forged" not in found


def test_whole_history_rewritten_by_its_node_is_found(
    site: Site, copy: Path, tmp_path: Path
) -> None:
    """A node that signs a whole new consistent ledger contradicts the countersignature."""
    other = Site(tmp_path / "new")
    other.at += 1
    other.keys["node-1"] = SigningKey.load(layout.node_key(copy, "node-1"))
    other.certify("node-1", rounds=3)
    shutil.copy(first_segment(other.state), first_segment(copy))
    assert codes(copy) == {"rewritten", "missing-certificate"}


def test_fork_and_token_and_sequence_are_judged_per_unit(tmp_path: Path) -> None:
    """Two successors of a certificate, a falling token and a number left out are each found."""
    site = Site(tmp_path / "state")
    device = device_named("a")
    with site.ledger() as ledger:
        first = site.issue(ledger, device)
        ledger.append(first.envelope)
        second = site.issue(ledger, device, token=Token(1, 9))
        other = site.issue(ledger, device, token=Token(1, 8))
        jumped = site.issue(ledger, device, sequences={device.units[0]: 5})
        ledger.append(second.envelope)
    path = first_segment(site.state)
    whole = path.read_bytes()
    rewrite(path, lambda ls: renumbered([*ls, spell_line(other.envelope, number=3, chain="")]))
    assert codes(site.state) == {"fork", "sequence-gap", "token-backwards"}
    path.write_bytes(whole)
    rewrite(path, lambda ls: renumbered([ls[0], spell_line(jumped.envelope, number=2, chain="")]))
    assert codes(site.state) == {"sequence-gap"}


def test_contradiction_inside_a_signed_certificate_is_found(copy: Path) -> None:
    """A certificate that says what `issue` never says is reported although its signature holds."""
    key = SigningKey.load(layout.node_key(copy, "node-1"))
    _append(copy, key, lambda p: p["verification"].update(mismatched_bytes=1))  # type: ignore[attr-defined]
    assert "contradiction" in codes(copy)


def test_statement_that_is_no_certificate_is_found(copy: Path) -> None:
    """A countersignature put into a ledger is not taken for a certificate."""
    heads = layout.heads_directory(copy) / "000000000001.jsonl"
    rewrite(first_segment(copy), lambda ls: renumbered([*ls, *heads.read_bytes().splitlines(True)]))
    assert "unreadable-certificate" in codes(copy)


def test_unit_that_changes_accelerator_is_found(tmp_path: Path) -> None:
    """A unit belongs to one accelerator for ever."""
    site = Site(tmp_path / "state")
    device = device_named("a")
    moved = Device(device.uuid, "a", device_named("b").uuid, device.units, device.memory_bytes)
    with site.ledger() as ledger:
        ledger.append(site.issue(ledger, device).envelope)
        ledger.append(site.issue(ledger, moved).envelope)
    assert codes(site.state) == {"contradiction"}


def test_missing_ledger_and_missing_key_are_found(copy: Path) -> None:
    """A ledger that was countersigned and is gone is found; so is a node without public key."""
    shutil.rmtree(layout.ledger_directory(copy, "node-2"))
    layout.node_key(copy, "node-1").with_suffix(".pub").unlink()
    assert codes(copy) == {"missing-ledger", "unknown-key"}


def test_damaged_key_file_is_found(copy: Path) -> None:
    """A damaged public key file is a finding with its name, not a crash."""
    path = layout.node_key(copy, "node-1").with_suffix(".pub")
    path.write_bytes(path.read_bytes()[:-9])
    places = {d.code: d.place.file for d in verify(collect(copy)).defects}
    assert places["key-unusable"] == str(path)


def test_renamed_segment_is_found(copy: Path) -> None:
    """A segment under another name is found."""
    path = first_segment(copy)
    path.rename(path.with_name("000000000007.jsonl"))
    assert "renamed-file" in codes(copy)


def test_segments_removed_in_the_middle_and_in_front_are_found(tmp_path: Path) -> None:
    """Each missing segment shows as missing entries."""
    site = Site(tmp_path / "state")
    site.certify(rounds=6, segment_bytes=20_000)
    paths = sorted(layout.ledger_directory(site.state, "node-1").glob("*.jsonl"))
    for path in paths[:-1]:
        content = path.read_bytes()
        path.unlink()
        assert "missing-entries" in codes(site.state)
        path.write_bytes(content)
    assert codes(site.state) == set()


def test_segment_cut_in_the_middle_of_the_log_is_found(tmp_path: Path) -> None:
    """A truncated segment that is not the last is found with its place."""
    site = Site(tmp_path / "state")
    site.certify(rounds=6, segment_bytes=20_000)
    path = sorted(layout.ledger_directory(site.state, "node-1").glob("*.jsonl"))[1]
    path.write_bytes(path.read_bytes()[:-20])
    found = {d.code: d.place for d in verify(collect(site.state)).defects}
    assert found["truncated"].file == str(path)


def test_set_aside_tail_is_a_note(copy: Path) -> None:
    """What a crash left unfinished and was set aside is told, and is no defect."""
    path = first_segment(copy)
    path.write_bytes(path.read_bytes() + b'{"chain":"12')
    assert codes(copy) == {"truncated"}
    again = Site(copy)
    again.at += 10_000
    again.counter = 100
    again.certify("node-1", rounds=1)
    report = verify(collect(copy))
    assert report.ok
    assert any(".torn" in note and "12 bytes" in note for note in report.notes)


def test_clock_set_back_is_a_note(tmp_path: Path) -> None:
    """A certificate older than its predecessor is told and is no defect: clocks are corrected."""
    site = Site(tmp_path / "state")
    site.certify(rounds=1)
    site.at -= 1000
    site.certify(rounds=1)
    report = verify(collect(site.state))
    assert report.ok
    assert any("clock was set back" in note for note in report.notes)


# --- the coordinator's side -----------------------------------------------------------------------


def test_heads_signed_by_a_node_prove_nothing(copy: Path) -> None:
    """A node that countersigns itself is found: nobody else vouches for its ledger."""
    shutil.rmtree(layout.heads_directory(copy))
    key = SigningKey.load(layout.node_key(copy, "node-1"))
    name = f"coordinator-{key.key_id[:16]}.pub"
    key.public().save(layout.coordinator_keys_directory(copy) / name)
    with HeadsLog(layout.heads_directory(copy)) as log:
        log.record({NodeName("node-1"): Site(copy).ledger().head()}, key=key, now=2e9)
    report = verify(collect(copy))
    assert {d.code for d in report.defects} == {"self-countersigned"}
    assert report.countersigned == 0


def test_forged_heads_convict_nobody(copy: Path, tmp_path: Path) -> None:
    """A stranger's countersignature is reported as such, and the ledgers are not blamed for it."""
    shutil.rmtree(layout.heads_directory(copy))
    key = SigningKey.load_or_create(tmp_path / "x" / "stranger.key")
    with HeadsLog(layout.heads_directory(copy)) as log:
        log.record({NodeName("node-1"): LedgerHead(99, "f" * 64, {})}, key=key, now=2e9)
    assert codes(copy) == {"unknown-key"}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda ls: ls[1:], "missing-entries"),
        (lambda ls: renumbered(ls[1:]), "missing-link"),
        (lambda ls: renumbered(ls[1:]), "sequence-gap"),
        (lambda ls: [ls[1], ls[0]], "out-of-order"),
        (lambda ls: [replaced(ls[0], lambda e: flip(e, b'"sig":"', 10)), ls[1]], "forged"),
        (lambda ls: [ls[0][:-30]], "truncated"),
    ],
)
def test_tampering_with_heads_is_found(
    site: Site, tmp_path: Path, change: Change, code: str
) -> None:
    """The countersignatures are numbered and chained too: what is taken from them shows."""
    again = Site(tmp_path / "state")
    for _ in range(2):
        again.certify(rounds=1)
        again.countersign()
    rewrite(layout.heads_directory(again.state) / "000000000001.jsonl", change)
    assert code in codes(again.state)


def test_ledger_that_went_back_stays_convicted(site: Site, copy: Path) -> None:
    """A later countersignature of a shortened ledger does not excuse it."""
    rewrite(first_segment(copy), lambda lines: lines[:2])
    with HeadsLog(layout.heads_directory(copy)) as log:
        log.record({NodeName("node-1"): Site(copy).ledger().head()}, key=site.coordinator, now=2e9)
    assert "tail-cut" in codes(copy)


@pytest.mark.parametrize("emptied", [True, False])
def test_missing_heads_are_a_defect_where_a_coordinator_works(copy: Path, *, emptied: bool) -> None:
    """Promise 8: removing the countersignatures does not make a cut ledger whole."""
    heads = layout.heads_directory(copy)
    shutil.rmtree(heads)
    if emptied:
        heads.mkdir()
        (heads / "000000000001.jsonl").write_bytes(b"")
    rewrite(first_segment(copy), lambda lines: lines[:3])
    found = {damage.code: damage.place.file for damage in verify(collect(copy)).defects}
    assert found["missing-heads"] == str(heads)
    shutil.rmtree(layout.coordinator_keys_directory(copy))
    layout.coordinator_directory(copy).joinpath("store.db").write_bytes(b"")
    assert "missing-heads" in codes(copy)


def test_key_of_another_node_verifies_nothing(copy: Path) -> None:
    """Promise 8: a certificate of one node signed with another's key is a defect."""
    stranger = SigningKey.load(layout.node_key(copy, "node-2"))
    _append(copy, stranger, lambda p: p.update(signer={"key_id": stranger.key_id}))
    assert "foreign-key" in codes(copy)
    name = f"node-{stranger.key_id[:16]}.pub"
    for dropped in ("stray.pub", name):
        stranger.public().save(layout.node_keys_directory(copy, "node-1") / dropped)
        assert "foreign-key" in codes(copy)


def test_stray_key_is_a_note_and_signs_for_nobody(copy: Path, tmp_path: Path) -> None:
    """A key dropped beside a node's is told, and what it signed stays unproven."""
    stranger = SigningKey.load_or_create(tmp_path / "other" / "stranger.key")
    for name in ("stray.pub", "node-0123456789abcdef.pub"):
        stranger.public().save(layout.node_keys_directory(copy, "node-1") / name)
    report = verify(collect(copy))
    assert report.defects == []
    assert len([note for note in report.notes if "it was not used" in note]) == 2
    _append(copy, stranger, lambda p: p.update(signer={"key_id": stranger.key_id}))
    assert "unknown-key" in codes(copy)


def test_key_that_two_nodes_have_proves_neither(tmp_path: Path) -> None:
    """Nodes of one cloned disk image sign alike: nobody can tell whose a certificate is."""
    site = Site(tmp_path / "state")
    for node in ("node-1", "node-2"):
        site.keys[node] = site.key("node-1")
        site.keys[node].public().save(layout.node_key(site.state, node).with_suffix(".pub"))
        site.certify(node, rounds=1)
    assert codes(site.state) == {"shared-key", "foreign-key"}


# --- keys and reports -----------------------------------------------------------------------------


def test_keys_given_replace_those_found(site: Site, tmp_path: Path) -> None:
    """With the caller's keys only they count; without, the report says that it proves less."""
    mine = [site.key(node).public() for node in ("node-1", "node-2")]
    assert any("who signed" in note for note in verify(collect(site.state)).notes)
    assert any("--coordinator-key" in n for n in verify(collect(site.state, KeyRing(mine))).notes)
    coordinator = KeyRing([site.coordinator.public()])
    trusted = verify(collect(site.state, KeyRing(mine), coordinator_keys=coordinator))
    assert trusted.ok
    assert not any("come from the place" in note for note in trusted.notes)
    only = verify(collect(site.state, KeyRing(mine[:1])))
    assert {d.code for d in only.defects} == {"unknown-key"}
    stranger = SigningKey.load_or_create(tmp_path / "x" / "s.key").public()
    heads = verify(collect(site.state, coordinator_keys=KeyRing([stranger])))
    assert {d.code for d in heads.defects} == {"unknown-key"}


def test_single_ledger_verifies_with_one_public_key(site: Site, tmp_path: Path) -> None:
    """E3: anyone with a ledger's files and the public key can verify them offline."""
    shutil.copytree(layout.ledger_directory(site.state, "node-1"), tmp_path / "ledger")
    key = PublicKey.load(layout.node_key(site.state, "node-1").with_suffix(".pub"))
    report = verify(collect(tmp_path / "ledger", KeyRing([key])))
    assert (report.ok, report.certificates) == (True, 6)


def test_report_raises_with_places(copy: Path) -> None:
    """A report with defects can be raised as the error that lists each place."""
    verify(collect(copy)).raise_for_defects()
    rewrite(first_segment(copy), lambda lines: lines[1:])
    with pytest.raises(EvidenceInvalid) as caught:
        verify(collect(copy)).raise_for_defects()
    assert any("missing-entries" in finding for finding in caught.value.fields["findings"])


def test_keys_given_for_a_node_count_for_it_alone(site: Site) -> None:
    """A key trusted for one node does not verify another's certificates."""
    one, two = (KeyRing([site.key(node).public()]) for node in ("node-1", "node-2"))
    assert verify(collect(site.state, Trust(nodes={"node-1": one, "node-2": two}))).ok
    assert verify(collect(site.state, Trust(one, {"node-2": two}))).ok
    swapped = verify(collect(site.state, Trust(nodes={"node-1": two, "node-2": one})))
    assert {d.code for d in swapped.defects} == {"foreign-key"}


def _statement(state: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Replace the third certificate of node-1 by one with another statement, signed by it."""
    path = first_segment(state)
    lines = path.read_bytes().splitlines(keepends=True)
    statement = dsse.parse(dsse.open_envelope(envelope_of(lines[2])).payload)
    change(statement)
    key = SigningKey.load(layout.node_key(state, "node-1"))
    envelope = dsse.seal(PREDICATE_TYPE, statement["subject"], statement["predicate"], key=key)
    lines[2] = spell_line(envelope, number=3, chain="0" * 64)
    path.write_bytes(b"".join(renumbered(lines)))


def _beside(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda state: make(first_segment(state).with_name(name))


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 42)


STRANGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no subject": (
        lambda state: _statement(state, lambda s: s.update(subject=[])),
        "contradiction",
    ),
    "two subjects": (
        lambda state: _statement(state, lambda s: s.update(subject=[s["subject"]] * 2)),
        "contradiction",
    ),
    "dangling torn link": (
        _beside("000000000001-1-x.torn", lambda p: p.symlink_to("gone")),
        "unreadable-file",
    ),
    "torn FIFO": (_beside("000000000001-1-x.torn", os.mkfifo), "unreadable-file"),
    "directory as segment": (_beside("000000000002.jsonl", Path.mkdir), "unreadable-file"),
    "FIFO as segment": (_beside("000000000002.jsonl", os.mkfifo), "unreadable-file"),
    "device as segment": (
        _beside("000000000002.jsonl", lambda p: p.symlink_to("/dev/zero")),
        "unreadable-file",
    ),
    "endless segment": (_beside("000000000002.jsonl", _sparse), "unreadable-file"),
    "FIFO as key": (
        lambda state: os.mkfifo(layout.node_keys_directory(state, "node-1") / "node-0.pub"),
        "key-unusable",
    ),
    "FIFO as countersignatures": (
        lambda state: os.mkfifo(layout.heads_directory(state) / "000000000002.jsonl"),
        "unreadable-file",
    ),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_strange_evidence_is_a_defect_and_hides_nothing(copy: Path, kind: str) -> None:
    """Promise 8: verification neither raises nor waits; everything else is judged as before."""
    change, code = STRANGE[kind]
    change(copy)
    rewrite(first_segment(copy, "node-2"), LINES["flipped byte in signature"][0])
    report = verify(collect(copy))
    found = {damage.code for damage in report.defects}
    assert {code, "forged"} <= found
    assert report.certificates == 10
    assert all(damage.place.file for damage in report.defects)


# --- any byte -------------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), exported=st.booleans())
def test_any_flipped_bit_is_found(where: float, bit: int, *, exported: bool) -> None:
    """E3, gpus-8.41: a flipped bit anywhere in ledger, heads, public keys or export is found."""
    root = _KEPT.export if exported else _KEPT.state
    files = _KEPT.files[root]
    position = int(where * sum(path.stat().st_size for path in files))
    while position >= (size := files[0].stat().st_size):
        position, files = position - size, files[1:]
    path = files[0]
    good = path.read_bytes()
    flipped = bytes([good[position] ^ (1 << bit)])
    path.write_bytes(good[:position] + flipped + good[position + 1 :])
    try:
        assert codes(root)
    finally:
        path.write_bytes(good)
    assert path.read_bytes() == good


class _Kept:
    """One small site and its export, shared by all examples, each of which puts it back."""

    def __init__(self) -> None:
        self.files: dict[Path, list[Path]] = {}
        self.state = self.export = Path()

    def make(self, root: Path) -> None:
        """Build both and list the files a verifier reads."""
        site = Site(root / "state")
        site.certify(rounds=2)
        site.countersign()
        self.state, self.export = site.state, root / "export"
        export(collect(site.state), self.export)
        for top in (self.state, self.export):
            self.files[top] = [
                path
                for path in sorted(top.rglob("*"))
                if path.is_file() and path.suffix not in {".key", ".lock"} and path.stat().st_size
            ]


_KEPT = _Kept()


@pytest.fixture(autouse=True, scope="module")
def kept_fixture(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Build what the flipped bits are flipped in."""
    _KEPT.make(tmp_path_factory.mktemp("kept"))
    assert codes(_KEPT.state) == codes(_KEPT.export) == set()
