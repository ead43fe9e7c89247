"""The tag authority: a directory with the keys that sign tags, and the list that says so.

    root.key        signs the list; its id is what nodes and the webhook are told. To issue tags
                    its public half, root.pub, is enough: the key can be kept elsewhere.
    issuer.key      signs tags. Another takes its place by rotation.
    tag-keys.json   the signed list: what nodes and the webhook read.

Both keys are made here and are of a kind of their own: evidence is signed with others, and no tag
counts whose key is not in the list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet.core import errors
from fleet.core.disk import make_directory, read_regular, replace
from fleet.evidence import layout
from fleet.evidence.keys import PublicKey, SigningKey
from fleet.node.journal.lock import OwnerLock
from fleet.plugin import tags, tags_list
from fleet.plugin.configuration import Deallocation
from fleet.plugin.tags import Tag, TagKeys

LIST = "tag-keys.json"
_ROOT = "root.key"
_ISSUER = "issuer.key"
_LOCK = "lock"
_RESTORE = "make an authority with `fleet tag key new`, or restore the file"


@dataclass(frozen=True, slots=True)
class Right:
    """What a tag is to say. Times are whole seconds since the epoch."""

    namespaces: Sequence[str]
    profiles: Sequence[str]
    minimum: Deallocation
    not_before: int
    not_after: int


@dataclass(frozen=True, slots=True)
class Authority:
    """The authority in a directory. Every change signs the list anew."""

    directory: Path

    @property
    def list_path(self) -> Path:
        """Where the signed list is."""
        return self.directory / LIST

    def create(self, *, now: int) -> TagKeys:
        """Make both keys and the first list. Raises `InputInvalid` where there is one already."""
        if self.list_path.exists() or (self.directory / _ROOT).exists():
            raise errors.InputInvalid(
                f"{self.directory} holds a tag authority already",
                remedy="name an empty directory, or replace its key with `fleet tag key rotate`",
            )
        for other in (layout.nodes_directory, layout.coordinator_directory):
            if other(self.directory).exists():
                raise errors.InputInvalid(
                    f"{self.directory} is a state directory, where evidence is signed",
                    remedy="give the tag authority a directory of its own",
                )
        make_directory(self.directory, mode=0o700)
        with self._alone():
            SigningKey.load_or_create(self.directory / _ROOT)
            issuer = SigningKey.load_or_create(self.directory / _ISSUER)
            return self._written(tags_list.with_key(TagKeys(), issuer.public(), now=now))

    def keys(self) -> TagKeys:
        """The list, as the present root signed it. Raises `InputInvalid`, `TagKeysUnreadable`."""
        try:
            content = read_regular(self.list_path, most_bytes=tags_list.MOST_BYTES)
        except OSError as error:
            raise errors.InputInvalid(
                f"there is no tag authority in {self.directory}: {error.strerror}",
                remedy="make one with `fleet tag key new`, or name its directory",
            ) from error
        return tags_list.read(content, [self.root])

    @property
    def root(self) -> str:
        """Id of the root key, by its public half."""
        path = (self.directory / _ROOT).with_suffix(layout.PUBLIC_SUFFIX)
        if not path.exists():
            raise errors.InputInvalid(
                f"there is no {path.name} in {self.directory}", remedy=_RESTORE
            )
        return PublicKey.load(path).key_id

    @property
    def issuer(self) -> str:
        """Id of the key that signs tags now."""
        return self._key(_ISSUER).key_id

    def rotate(self, *, now: int) -> TagKeys:
        """Give it a new key for tags; the old private key is destroyed, its tags stay good."""
        with self._alone():
            keys = self.keys()
            self._key(_ROOT)  # before the old key is gone: without the root no list names a new one
            (self.directory / _ISSUER).unlink(missing_ok=True)
            issuer = SigningKey.load_or_create(self.directory / _ISSUER)
            return self._written(tags_list.with_key(keys, issuer.public(), now=now))

    def revoke_key(self, text: str, *, reason: str, now: int) -> TagKeys:
        """Void every tag of the key whose id begins so."""
        with self._alone():
            keys = self.keys()
            key_id = tags_list.chosen(keys, text).key_id
            return self._written(tags_list.without_key(keys, key_id, reason=reason, now=now))

    def revoke_tag(self, tag_id: str, *, reason: str, now: int) -> TagKeys:
        """Void one tag."""
        with self._alone():
            keys = self.keys()
            return self._written(tags_list.without_tag(keys, tag_id, reason=reason, now=now))

    def issue(self, right: Right, *, tag_id: str, now: int) -> str:
        """Sign a tag. Raises `InputInvalid` for a right that no tag can say, or a key not good."""
        key = self._key(_ISSUER)
        known = self.keys().keys.get(key.key_id)
        if known is None or known.revoked_at is not None or known.until is not None:
            raise errors.InputInvalid(
                f"key {key.key_id[:16]} is not good for signing: the list does not name it as such",
                remedy="make a new one with `fleet tag key rotate`",
            )
        tag = Tag(
            id=tag_id,
            key_id=key.key_id,
            namespaces=tuple(sorted(set(right.namespaces))),
            profiles=tuple(sorted(set(right.profiles))),
            minimum=right.minimum,
            not_before=right.not_before,
            not_after=right.not_after,
            issued_at=now,
        )
        return tags.issue(tag, key)

    def _key(self, name: str) -> SigningKey:
        path = self.directory / name
        if not path.exists():
            raise errors.InputInvalid(f"there is no {name} in {self.directory}", remedy=_RESTORE)
        return SigningKey.load(path)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        lock = OwnerLock(self.directory / _LOCK)
        lock.acquire(owner="fleet tag")
        try:
            yield
        finally:
            lock.release()

    def _written(self, keys: TagKeys) -> TagKeys:
        root = self._key(_ROOT)
        replace(self.list_path, tags_list.sign(keys, root, root.public()))
        return keys
