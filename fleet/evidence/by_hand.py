"""How to verify an exported certificate without this software: with openssl and a shell. Pure.

Proof that only its maker's program can check proves little. The commands do what DSSE says: the
signature is over its pre-authentication encoding of the payload type and the decoded payload.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from fleet.core.errors import InputInvalid
from fleet.core.model import Digest
from fleet.evidence import dsse
from fleet.evidence.copies import node_keys
from fleet.evidence.keys import SHORT_ID


def commands(node: str, number: int, digest: Digest, *, key_id: str) -> str:
    """Lines for a shell in an export: they print digest, key id, and whether the signature holds.

    `number` is the certificate's in the node's ledger. Nothing is written into the export.
    """
    short = digest.removeprefix("sha256:")[:SHORT_ID]
    file = f"certificates/{node}/{number:08d}-{short}.json"
    try:
        keys = node_keys(Path(), node)
    except InputInvalid:
        keys = Path("keys/nodes/NODE")  # one ledger alone may name a node no export can be of
    kind = dsse.PAYLOAD_TYPE
    return "\n".join(
        (
            f"f={shlex.quote(file)}; k={shlex.quote(f'{keys}/{key_id[:SHORT_ID]}.pub')}",
            'w=$(mktemp -d); sha256sum < "$f"',
            'openssl pkey -pubin -in "$k" -outform DER | tail -c 32 | sha256sum',
            _decoded("payload"),
            _decoded("sig"),
            f'printf "DSSEv1 {len(kind)} {kind} %d " "$(wc -c < "$w/payload")" > "$w/message"',
            'cat "$w/payload" >> "$w/message"',
            'openssl pkeyutl -verify -pubin -inkey "$k" -rawin -in "$w/message" \\',
            '  -sigfile "$w/sig"',
        )
    )


def _decoded(field: str) -> str:
    return f"""sed 's/.*"{field}":"\\([^"]*\\)".*/\\1/' "$f" | base64 -d > "$w/{field}\""""
