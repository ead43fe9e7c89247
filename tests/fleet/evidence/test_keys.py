"""Keys: made once, kept private, recognised when unusable."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import fleet
from fleet.core.errors import KeyUnusable
from fleet.evidence.keys import KeyRing, PublicKey, SigningKey

_MAKE = """
import sys
from pathlib import Path
from fleet.evidence.keys import SigningKey
sys.stdin.readline()
sys.stdout.write(SigningKey.load_or_create(Path(sys.argv[1])).key_id)
"""


def test_first_use_makes_a_private_key(tmp_path: Path) -> None:
    """A key is made on first use: file 0600, directory 0700, public half 0644 beside it."""
    path = tmp_path / "keys" / "node.key"
    key = SigningKey.load_or_create(path)
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (path.parent, path, path.with_suffix(".pub"))]
    assert modes == [0o700, 0o600, 0o644]
    assert SigningKey.load_or_create(path).key_id == key.key_id
    assert PublicKey.load(path.with_suffix(".pub")) == key.public()


def test_signature_verifies_only_what_was_signed(tmp_path: Path) -> None:
    """A signature holds for its own message and key, and for nothing else."""
    one = SigningKey.load_or_create(tmp_path / "k" / "one.key")
    two = SigningKey.load_or_create(tmp_path / "k" / "two.key")
    signature = one.sign(b"message")
    assert one.public().verify(signature, b"message")
    assert not one.public().verify(signature, b"messagf")
    assert not two.public().verify(signature, b"message")
    assert not one.public().verify(signature[:-1], b"message")


def test_f70_what_kubelet_opened_for_the_pods_own_group_is_closed_again(tmp_path: Path) -> None:
    """F70: a volume that honours fsGroup is mounted again and again, and the key stays in use."""
    path = tmp_path / "keys" / "coordinator.key"
    key = SigningKey.load_or_create(path)
    path.chmod(0o660)
    path.parent.chmod(0o2770)
    assert SigningKey.load(path).key_id == key.key_id
    assert [stat.S_IMODE(p.stat().st_mode) for p in (path.parent, path)] == [0o700, 0o600]


@pytest.mark.parametrize(("folder", "mode"), [(0o2777, 0o660), (0o2770, 0o666), (0o770, 0o660)])
def test_f70_only_that_pattern_is_closed(tmp_path: Path, folder: int, mode: int) -> None:
    """F70: what is open in any other way may have been read or swapped, and stays refused."""
    path = tmp_path / "keys" / "coordinator.key"
    SigningKey.load_or_create(path)
    path.chmod(mode)
    path.parent.chmod(folder)
    with pytest.raises(KeyUnusable, match="has mode"):
        SigningKey.load(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("link", ["hard", "symbolic"])
def test_f70_no_other_file_is_changed_in_its_place(tmp_path: Path, link: str) -> None:
    """F70: who may write to the directory gets no other file of ours changed by a link in it."""
    path, other = tmp_path / "keys" / "coordinator.key", tmp_path / "other"
    SigningKey.load_or_create(path)
    path.rename(other)
    path.hardlink_to(other) if link == "hard" else path.symlink_to(other)
    other.chmod(0o660)
    path.parent.chmod(0o2770)
    with pytest.raises(KeyUnusable, match="has mode"):
        SigningKey.load(path)
    assert stat.S_IMODE(other.stat().st_mode) == 0o660


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o601])
def test_key_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    """A key that group or others can touch is refused with the remedy."""
    path = tmp_path / "keys" / "node.key"
    SigningKey.load_or_create(path)
    path.chmod(mode)
    with pytest.raises(KeyUnusable, match=f"{mode:04o}") as caught:
        SigningKey.load_or_create(path)
    assert "chmod 0600" in caught.value.remedy


def test_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    """Whoever can write the directory can swap the key, so it is refused."""
    path = tmp_path / "keys" / "node.key"
    SigningKey.load_or_create(path)
    path.parent.chmod(0o777)
    with pytest.raises(KeyUnusable, match="replace the key"):
        SigningKey.load_or_create(path)


@pytest.mark.parametrize("content", [b"", b"not a key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n"])
def test_unreadable_key_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    """A damaged key is refused, never replaced in silence: it may be restorable."""
    path = tmp_path / "node.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyUnusable, match="does not hold a readable private key"):
        SigningKey.load_or_create(path)
    assert path.read_bytes() == content


def test_dangling_link_and_directory_are_refused(tmp_path: Path) -> None:
    """A name that leads nowhere or to a directory is an unusable key, not a reason to make one."""
    (tmp_path / "a.key").symlink_to(tmp_path / "gone")
    (tmp_path / "b.key").mkdir()
    for name in ("a.key", "b.key"):
        with pytest.raises(KeyUnusable):
            SigningKey.load_or_create(tmp_path / name)


def test_two_processes_make_one_key(tmp_path: Path) -> None:
    """Several processes that need the key at the same moment end up with the same one."""
    path = tmp_path / "keys" / "node.key"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _MAKE, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    found = {process.communicate(timeout=60)[0] for process in started}
    assert found == {SigningKey.load(path).key_id}
    assert sorted(p.name for p in path.parent.iterdir()) == ["node.key", "node.pub"]


def test_replaced_key_keeps_the_older_public_half(tmp_path: Path) -> None:
    """Moving a key away has a new one made; the old certificates stay verifiable."""
    path = tmp_path / "keys" / "node.key"
    old = SigningKey.load_or_create(path)
    path.rename(tmp_path / "moved.key")
    new = SigningKey.load_or_create(path)
    ring = KeyRing.load(path.parent)
    assert len(ring) == 2
    assert ring.get(old.key_id) == old.public()
    assert ring.get(new.key_id) == new.public()


def test_public_key_file_is_read_byte_for_byte(tmp_path: Path) -> None:
    """Any changed byte in a public key file is noticed: as unusable or as another key."""
    key = SigningKey.load_or_create(tmp_path / "keys" / "node.key").public()
    path = tmp_path / "copy.pub"
    key.save(path)
    good = path.read_bytes()
    for position in range(len(good)):
        path.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        ring = KeyRing.load(path)
        assert ring.unreadable or ring.get(key.key_id) is None
    path.unlink()
    with pytest.raises(KeyUnusable, match="cannot be read"):
        PublicKey.load(path)


def test_only_this_module_knows_the_cryptography_library() -> None:
    """The wipe worker never loads the cryptography library: only keys.py imports it."""
    root = Path(fleet.__file__).parent
    users = [
        p.name
        for p in root.rglob("*.py")
        if re.search(r"^\s*(from|import) cryptography", p.read_text(), re.MULTILINE)
    ]
    assert users == ["keys.py"]
    code = (
        "import sys, fleet.devices.wipe.result, fleet.evidence.certificate\n"
        "sys.exit('cryptography' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
