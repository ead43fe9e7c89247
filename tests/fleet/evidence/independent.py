"""A second reader of exports: DSSE and the chains of certificates, sharing no code with the first.

Written from the public DSSE specification (secure-systems-lab/dsse: protocol.md, envelope.md) with
the cryptography package and the standard library alone. It is lax where the specification is (both
alphabets of base64, unknown fields are ignored), so that what it accepts is what any reader of DSSE
accepts.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key


def encoding(payload_type: str, body: bytes) -> bytes:
    """PAE of protocol.md: type and body, each behind its length in decimal, one space between."""
    kind = payload_type.encode("utf-8")
    parts = [b"DSSEv1"]
    for part in (kind, body):
        parts += [str(len(part)).encode("ascii"), part]
    return b" ".join(parts)


def decode(text: str) -> bytes:
    """Base64 in either alphabet, padded or not."""
    plain = text.replace("-", "+").replace("_", "/")
    return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)


def signed_by(envelope: dict[str, Any], key: Ed25519PublicKey) -> bool:
    """Whether one of the envelope's signatures is this key's."""
    message = encoding(envelope["payloadType"], decode(envelope["payload"]))
    for signature in envelope["signatures"]:
        try:
            key.verify(decode(signature["sig"]), message)
        except (InvalidSignature, ValueError):
            continue
        return True
    return False


def public_keys(directory: Path) -> list[Ed25519PublicKey]:
    """Every key in a directory of an export."""
    found = []
    for path in sorted(directory.glob("*.pub")):
        key = load_pem_public_key(path.read_bytes())
        if isinstance(key, Ed25519PublicKey):
            found.append(key)
    return found


def troubles(export: Path) -> Iterator[tuple[str, str]]:
    """(file, what is wrong) of every certificate: signature, type, and its place in its chains.

    Needs nothing but the certificates, in the order of their names, and the keys of each node.
    """
    for folder in sorted((export / "certificates").iterdir()):
        keys = public_keys(export / "keys" / "nodes" / folder.name)
        newest: dict[str, tuple[str, int]] = {}
        for path in sorted(folder.iterdir()):
            content = path.read_bytes()
            try:
                envelope = json.loads(content)
                genuine = any(signed_by(envelope, key) for key in keys)
                statement = json.loads(decode(envelope["payload"]))
                chain = statement["predicate"]["chain"]
            except (ValueError, KeyError, TypeError) as error:
                yield path.name, f"unreadable: {error!r}"
                continue
            if not genuine:
                yield path.name, "signature"
            if statement["_type"] != "https://in-toto.io/Statement/v1":
                yield path.name, "type"
            digest = "sha256:" + hashlib.sha256(content).hexdigest()
            for unit, link in chain.items():
                before, number = newest.get(unit, (None, 0))
                if (link["previous"], link["sequence"]) != (before, number + 1):
                    yield path.name, "chain"
                newest[unit] = (digest, number + 1)
