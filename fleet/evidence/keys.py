"""Ed25519 keys on disk. The only module that knows the cryptography library.

Private keys are made on first use, once, also when several processes ask at the same moment. A
replaced key keeps its public half beside the new one, so that old certificates stay verifiable.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fleet.core.disk import make_directory, read_regular, replace, shown, write_new
from fleet.core.errors import KeyUnusable
from fleet.evidence.layout import PUBLIC_SUFFIX

SHORT_ID = 16
_MOST_KEY_BYTES = 64 * 1024


class PublicKey:
    """The half that verifies. `key_id` is the SHA-256 of the raw 32 bytes, as hex."""

    def __init__(self, raw: bytes) -> None:
        self._key = Ed25519PublicKey.from_public_bytes(raw)
        self.raw = raw
        self.key_id = hashlib.sha256(raw).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicKey) and other.raw == self.raw

    def __hash__(self) -> int:
        return hash(self.raw)

    def __repr__(self) -> str:
        return f"PublicKey({self.key_id[:SHORT_ID]})"

    def verify(self, signature: bytes, message: bytes) -> bool:
        """Whether `signature` over `message` was made with this key."""
        try:
            self._key.verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def pem(self) -> bytes:
        """The key as a PEM file holds it."""
        return self._key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )

    @classmethod
    def load(cls, path: Path) -> PublicKey:
        """Read a PEM file. Raises `KeyUnusable` unless it is exactly what `save` writes."""
        try:
            content = read_regular(path, most_bytes=_MOST_KEY_BYTES, follow_links=True)
        except OSError as error:
            raise KeyUnusable(
                f"public key {shown(path)} cannot be read: {error.strerror}",
                remedy="name a readable PEM file with an Ed25519 public key",
            ) from error
        return cls.parse(content, shown(path))

    @classmethod
    def parse(cls, content: bytes, name: str) -> PublicKey:
        """The key in a PEM text, `name` in errors. Raises `KeyUnusable` as `load` does."""
        try:
            key = serialization.load_pem_public_key(content)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if isinstance(key, Ed25519PublicKey):
            found = cls(key.public_bytes_raw())
            # PEM readers skip junk and stray bits; a changed byte must not go unnoticed.
            if found.pem() == content:
                return found
        raise KeyUnusable(
            f"{name} is not an Ed25519 public key as fleet writes it",
            remedy="get the file again from the node that signed",
        )

    def save(self, path: Path) -> None:
        """Write the PEM file, 0644, replacing what is there."""
        make_directory(path.parent)
        replace(path, self.pem(), mode=0o644)


class SigningKey:
    """The half that signs. Make one with `load_or_create` or `load`."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self._public = PublicKey(key.public_key().public_bytes_raw())

    @property
    def key_id(self) -> str:
        return self._public.key_id

    def __repr__(self) -> str:
        return f"SigningKey({self.key_id[:SHORT_ID]})"

    def public(self) -> PublicKey:
        """The public half."""
        return self._public

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature over `message`."""
        return self._key.sign(message)

    @classmethod
    def load(cls, path: Path) -> SigningKey:
        """Read the key at `path`. Raises `KeyUnusable` with the reason and what to do."""
        try:
            content = _read_private(path)
            key = serialization.load_pem_private_key(content, password=None)
        except OSError as error:
            raise KeyUnusable(f"signing key {path} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise KeyUnusable(
                f"{path} does not hold a readable private key",
                remedy="restore the file from a copy, or move it away to have a new key made;"
                " certificates of the old key verify with its .pub file",
            ) from error
        if not isinstance(key, Ed25519PrivateKey):
            raise KeyUnusable(
                f"{path} holds a key that is not Ed25519",
                remedy="move the file away to have an Ed25519 key made",
            )
        return cls(key)

    @classmethod
    def load_or_create(cls, path: Path) -> SigningKey:
        """The key at `path` (0600), made first if there is none. Raises `KeyUnusable`.

        The public half is kept beside it (suffix ``.pub``, 0644); an older public half found there
        is kept under its key id.
        """
        try:
            make_directory(path.parent, mode=0o700)
            if not os.path.lexists(path):
                fresh = Ed25519PrivateKey.generate()
                write_new(path, _private_pem(fresh), mode=0o600)
            found = cls.load(path)
            _keep_public(path, found.public())
        except OSError as error:
            raise KeyUnusable(
                f"signing key {path} cannot be made: {error.strerror}",
                remedy="make the directory writable for the service, or configure another path",
            ) from error
        return found

    @classmethod
    def placed(cls, elsewhere: str, usual: Path) -> SigningKey:
        """The key at `usual`, or `elsewhere` ("": none), which leaves its public half at `usual`.

        So a state directory can always be verified with the keys in it. Raises `KeyUnusable`.
        """
        if not elsewhere:
            return cls.load_or_create(usual)
        key = cls.load_or_create(Path(elsewhere))
        usual.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        key.public().save(usual.with_suffix(PUBLIC_SUFFIX))
        return key


def _private_pem(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _tighten(path: Path) -> None:
    """Take back what kubelet gave the pod's own group on a volume that honours fsGroup.

    At each mount it makes directories 2770 and files 0660 for that group, which is ours alone. Only
    that very pattern is taken back, on what is our own: whatever else is open stays refused.
    """
    with ExitStack() as opened:

        def known(name: str, folder: int | None = None) -> tuple[int, os.stat_result]:
            # What is judged is what is changed: whoever may write there could swap a name.
            kind = os.O_NONBLOCK | (os.O_DIRECTORY if folder is None else 0)
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | kind
            found = os.open(name, flags, dir_fd=folder)
            opened.callback(os.close, found)
            return found, os.fstat(found)

        try:
            place, folder = known(str(path.parent))
            key, file = known(path.name, place)
        except OSError:
            return  # whoever reads it next says why it cannot be read
        modes = (stat.S_IMODE(folder.st_mode), stat.S_IMODE(file.st_mode)) == (0o2770, 0o660)
        ours = {folder.st_uid, file.st_uid} == {os.geteuid()} and stat.S_ISREG(file.st_mode)
        same = folder.st_gid == file.st_gid and file.st_gid in {os.getegid(), *os.getgroups()}
        if modes and ours and same and file.st_nlink == 1:
            os.fchmod(key, 0o600)
            os.fchmod(place, 0o700)


def _read_private(path: Path) -> bytes:
    """Content of the file, after its mode was judged on the very file opened."""
    _tighten(path)
    directory_mode = stat.S_IMODE(path.parent.stat().st_mode)
    if directory_mode & 0o022:
        raise KeyUnusable(
            f"directory {path.parent} of the signing key has mode {directory_mode:04o}: others can"
            " replace the key",
            remedy=f"chmod 0700 {path.parent}, and replace the key if it may have been swapped",
        )
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISREG(found.st_mode):
            raise KeyUnusable(f"signing key {path} is not a regular file")
        if mode & 0o077:
            raise KeyUnusable(
                f"signing key {path} has mode {mode:04o}: others on this host can use it",
                remedy="move it away to have a new one made; if nobody else can have read it,"
                f" chmod 0600 {path}",
            )
        return file.read()


def _keep_public(private: Path, key: PublicKey) -> None:
    path = private.with_suffix(PUBLIC_SUFFIX)
    if path.exists():
        try:
            older = PublicKey.load(path)
        except KeyUnusable:
            older = key  # unreadable, hence no key at all: written anew from the private one
        if older != key:
            kept = f"{path.stem}-{older.key_id[:SHORT_ID]}{PUBLIC_SUFFIX}"
            older.save(path.with_name(kept))
        elif path.read_bytes() == key.pem():
            return
    key.save(path)


class KeyRing:
    """Public keys by key id, and the key files that could not be read."""

    def __init__(
        self,
        keys: Iterable[PublicKey] = (),
        *,
        unreadable: Iterable[tuple[Path, KeyUnusable]] = (),
        current: str = "",
        strays: Iterable[Path] = (),
    ) -> None:
        self._keys = {key.key_id: key for key in keys}
        self.unreadable = tuple(unreadable)
        self.current = current
        """Key id of the owner's present key, where that is known."""
        self.strays = tuple(strays)
        """Files beside the owner's keys that are none of them; their keys are not in the ring."""

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[PublicKey]:
        return iter(self._keys[key_id] for key_id in sorted(self._keys))

    def get(self, key_id: str) -> PublicKey | None:
        """The key of this id, or None."""
        return self._keys.get(key_id)

    def only(self, key_ids: Iterable[str]) -> KeyRing:
        """This ring with no keys but these."""
        keys = [self._keys[key_id] for key_id in key_ids if key_id in self._keys]
        return KeyRing(keys, unreadable=self.unreadable, current=self.current, strays=self.strays)

    @classmethod
    def owned(cls, directory: Path, stem: str) -> Self:
        """Public halves that `SigningKey.load_or_create` keeps for ``<stem>.key``, old and present.

        Any other ``*.pub`` file there is a stray: whoever can drop a file must not become a signer.
        """
        keys, unreadable, strays, current = [], [], [], ""
        for path in sorted(directory.glob(f"*{PUBLIC_SUFFIX}")):
            if path.stem != stem and not path.stem.startswith(f"{stem}-"):
                strays.append(path)
                continue
            try:
                key = PublicKey.load(path)
            except KeyUnusable as error:
                unreadable.append((path, error))
                continue
            if path.stem == stem:
                current = key.key_id
            elif path.stem != f"{stem}-{key.key_id[:SHORT_ID]}":
                strays.append(path)
                continue
            keys.append(key)
        return cls(keys, unreadable=unreadable, current=current, strays=strays)

    @classmethod
    def load(cls, *paths: Path) -> Self:
        """Keys of all files named and of all ``*.pub`` files in the directories named."""
        keys, unreadable = [], []
        for path in paths:
            files = sorted(path.glob(f"*{PUBLIC_SUFFIX}")) if path.is_dir() else [path]
            for file in files:
                try:
                    keys.append(PublicKey.load(file))
                except KeyUnusable as error:
                    unreadable.append((file, error))
        return cls(keys, unreadable=unreadable)
