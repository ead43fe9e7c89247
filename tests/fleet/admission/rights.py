"""A tag authority without files, and claims that show its tags."""

from __future__ import annotations

from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fleet.evidence.keys import SigningKey
from fleet.plugin import tags, tags_list
from fleet.plugin.configuration import API_VERSION, KIND, Deallocation
from fleet.plugin.tags import ANY, Tag, TagKeys

NOW = 1_800_000_000
"""2027-01-15T08:00:00Z."""
DAY_S = 86400
DRIVER = "gpu.fleetscrub.dev"
SPACE = "tenant-a"


def signing_key(seed: int) -> SigningKey:
    """The same key for the same seed."""
    return SigningKey(Ed25519PrivateKey.from_private_bytes(bytes([seed] * 32)))


ROOT, ISSUER, STRANGER = signing_key(1), signing_key(2), signing_key(3)
KEYS = tags_list.with_key(TagKeys(), ISSUER.public(), now=NOW - 10 * DAY_S)
LIST = tags_list.sign(KEYS, ROOT, ROOT.public())


def tag(key: SigningKey = ISSUER, **fields: Any) -> Tag:
    """A tag for `SPACE`, good for a day before and after now."""
    said: dict[str, Any] = {
        "id": "0" * 31 + "1",
        "key_id": key.key_id,
        "namespaces": (SPACE,),
        "profiles": (ANY,),
        "minimum": Deallocation.ZERO_FILL,
        "not_before": NOW - DAY_S,
        "not_after": NOW + DAY_S,
        "issued_at": NOW - DAY_S,
    }
    return Tag(**{**said, **fields})


def issued(key: SigningKey = ISSUER, **fields: Any) -> str:
    """The text of such a tag."""
    return tags.issue(tag(key, **fields), key)


def parameters(
    text: str = "", deallocation: str = "ZeroFillMemoryOnRelease", **more: Any
) -> dict[str, Any]:
    """Opaque parameters with a tag, a good one unless one is given.

    Sorted, as kubectl sends them: a patch sorts them, and the API server compares bytes.
    """
    found = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "deallocation": deallocation,
        "isolationTag": text or issued(),
    }
    return dict(sorted({**found, **more}.items()))


def config(
    *requests: str, driver: str = DRIVER, given: dict[str, Any] | None = None
) -> dict[str, Any]:
    """An entry of configuration."""
    opaque = {"driver": driver, "parameters": parameters() if given is None else given}
    return {"requests": list(requests), "opaque": opaque}
