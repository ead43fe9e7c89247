"""Under which names an archive keeps evidence, so that listing alone answers most questions. Pure.

    certificates/<digest>.json                            the certificate, once
    ledgers/<node>/<ledger>/<number>/<digest>.<chain>.<version>  its place in the node's ledger
    by-time/<year>/<month>/<day>/<issued>.<node>.<number>.<digest>
    by-device/<uuid>/<issued>.<node>.<number>.<digest>    likewise by-claim/ and by-run/
    losses/<node>/<number>/<digest>.json                  a data-loss record
    heads/<number>/<digest>.json                          a countersignature of the coordinator
    runs/<started>.<run>/<digest>.json                    a campaign run as it ended
    keys/nodes/<node>/<key id>.pub, keys/coordinator/<key id>.pub, keys/lists/<number>/<digest>.json

Decisions:

1. Every name follows from the content (and the version of the certificate it points to): an upload
   repeated after a crash makes the same names again, and what is there is compared.
2. Rows of ledgers and indexes are empty objects that say everything in their names: one listing of
   a thousand rows instead of a thousand reads, and one that was changed is not empty any more.
3. A row names the version of the certificate: a newer one laid over it is not read in its place.
   The row of the ledger is written last: what it names is complete.
4. A ledger is named by its node and its own first entry. A node that lost its disk begins another
   ledger under the old name: both are kept, each for itself, and neither makes the other look
   tampered with.
5. Each kind of name has a size that its content cannot have: what is larger was not put by us, and
   is not read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote, unquote

from fleet.core.errors import EvidenceInvalid
from fleet.core.model import Digest
from fleet.evidence import layout
from fleet.evidence.parsed import Certificate

CERTIFICATES, LEDGERS, HEADS, RUNS, KEYS = "certificates/", "ledgers/", "heads/", "runs/", "keys/"
LOSSES = "losses/"
BY_TIME, BY_DEVICE, BY_CLAIM, BY_RUN = "by-time/", "by-device/", "by-claim/", "by-run/"
LOOKUPS = (BY_CLAIM, BY_DEVICE, BY_RUN, BY_TIME)
NODE_KEYS, COORDINATOR_KEYS, KEY_LISTS = "keys/nodes/", "keys/coordinator/", "keys/lists/"
CANARY = "canary/"
IDENTITY = "archive-id.json"
"""Which archive this is: made once, by chance. Another bucket of the same name has another."""
KNOWN = (CERTIFICATES, LEDGERS, LOSSES, HEADS, RUNS, KEYS, *LOOKUPS, CANARY, IDENTITY)
LEDGER_ID = 16
"""Hexadecimal digits of a ledger's first entry that tell it from others of the same node."""
_MIB = 1024 * 1024
_MOST_BYTES = {CERTIFICATES: _MIB, LOSSES: _MIB, HEADS: _MIB, KEY_LISTS: 16 * _MIB, RUNS: 64 * _MIB}
_MOST_REST_BYTES = 64 * 1024
_HEX = r"[0-9a-f]{64}"
_LEDGER = re.compile(
    rf"ledgers/([^/]+)/([0-9a-f]{{{LEDGER_ID}}})/([0-9]{{12}})/({_HEX})\.({_HEX})\.([^/]+)"
)
_CERTIFICATE = re.compile(rf"certificates/({_HEX})\.json")
_NUMBERED = re.compile(rf"(?:heads|keys/lists)/([0-9]{{12}})/({_HEX})\.json")
_LOSS = re.compile(rf"losses/([^/]+)/([0-9]{{8}})/({_HEX})\.json")
_RUN = re.compile(rf"runs/[^/]+/({_HEX})\.json")
_KEY = re.compile(rf"keys/(?:coordinator|nodes/([^/]+))/({_HEX})\.pub")


@dataclass(frozen=True, slots=True)
class Row:
    """One entry of a node's ledger, as the name of its row says."""

    node: str
    ledger: str
    """Which of the node's ledgers; see `ledger_id`."""
    number: int
    digest: Digest
    chain: str
    version: str
    """Version of the certificate's object."""


def hex_of(digest: Digest) -> str:
    """The digest without its kind."""
    return digest.removeprefix("sha256:")


def certificate(digest: Digest) -> str:
    """Name of a certificate."""
    return f"{CERTIFICATES}{hex_of(digest)}.json"


def ledger_id(first: Digest) -> str:
    """What tells the ledger that begins with this certificate from others of its node."""
    return hex_of(first)[:LEDGER_ID]


def is_ledger_id(text: str) -> bool:
    """Whether a ledger can be called so."""
    return re.fullmatch(rf"[0-9a-f]{{{LEDGER_ID}}}", text) is not None


def ledgers_of(node: str) -> str:
    """Where the ledgers of a node are listed."""
    return f"{LEDGERS}{layout.checked_name(node)}/"


def row(found: Row) -> str:
    """Name of a ledger's row."""
    return f"{row_stem(found)}{quote(found.version, safe='')}"


def row_stem(found: Row) -> str:
    """The same without the version: how each row of this entry begins."""
    return (
        f"{ledgers_of(found.node)}{found.ledger}/{found.number:012d}/"
        f"{hex_of(found.digest)}.{found.chain}."
    )


def read_row(key: str) -> Row:
    """The row of this name. Raises `EvidenceInvalid`."""
    match = _LEDGER.fullmatch(key)
    if match is None:
        raise EvidenceInvalid(f"{key} is not a ledger's row")
    node, ledger, number, digest, chain, version = match.groups()
    if not layout.is_name(node):
        raise EvidenceInvalid(f"{key} is a row of no node")
    found = Row(node, ledger, int(number), Digest(f"sha256:{digest}"), chain, unquote(version))
    if found.number < 1 or row(found) != key:
        raise EvidenceInvalid(f"{key} is not spelled as a ledger's row")
    return found


def lookups(found: Certificate, number: int) -> Iterator[str]:
    """Names of the rows that find a certificate by time, device, claim and run."""
    issued = found.predicate["issued_at"]
    name = f"{issued}.{layout.checked_name(found.node)}.{number:012d}.{hex_of(found.digest)}"
    yield f"{BY_TIME}{issued[:10].replace('-', '/')}/{name}"
    yield f"{by_device(found.device)}{name}"
    if claim := found.predicate["claim"]:
        yield f"{by_claim(claim)}{name}"
    if run := found.predicate["run"]:
        yield f"{by_run(run)}{name}"


def by_device(uuid: str) -> str:
    """Where the certificates of a device are listed, oldest first."""
    return f"{BY_DEVICE}{quote(uuid, safe='')}/"


def by_claim(uid: str) -> str:
    """Where the certificates of a claim are listed, oldest first."""
    return f"{BY_CLAIM}{quote(uid, safe='')}/"


def by_run(run: str) -> str:
    """Where the certificates of a campaign run are listed, oldest first."""
    return f"{BY_RUN}{quote(run, safe='')}/"


def looked_up(key: str) -> Digest:
    """The certificate that a row found by time, device, claim or run names."""
    digest = key.rpartition(".")[2]
    if not key.startswith(LOOKUPS) or not re.fullmatch(_HEX, digest):
        raise EvidenceInvalid(f"{key} names no certificate")
    return Digest(f"sha256:{digest}")


def losses_of(node: str) -> str:
    """Where the data-loss records of a node are listed."""
    return f"{LOSSES}{layout.checked_name(node)}/"


def loss(node: str, number: int, digest: Digest) -> str:
    """Name of a data-loss record."""
    return f"{losses_of(node)}{number:08d}/{hex_of(digest)}.json"


def loss_number(key: str) -> int:
    """Number in the name of a data-loss record. Raises `EvidenceInvalid`."""
    match = _LOSS.fullmatch(key)
    if match is None:
        raise EvidenceInvalid(f"{key} is no name of a data-loss record")
    return int(match[2])


def head(number: int, digest: Digest) -> str:
    """Name of a countersignature."""
    return f"{HEADS}{number:012d}/{hex_of(digest)}.json"


def key_list(number: int, digest: Digest) -> str:
    """Name of a signed list of keys."""
    return f"{KEY_LISTS}{number:012d}/{hex_of(digest)}.json"


def run(identity: str, started: str, digest: Digest) -> str:
    """Name of a campaign run; `started` as `dsse.moment` writes it."""
    return f"{RUNS}{started}.{quote(identity, safe='')}/{hex_of(digest)}.json"


def public_key(key_id: str, node: str = "") -> str:
    """Name of a public key; of the coordinator's without a node."""
    owner = f"{NODE_KEYS}{layout.checked_name(node)}/" if node else COORDINATOR_KEYS
    return f"{owner}{key_id}.pub"


def key_owner(key: str) -> str:
    """The node whose key has this name, "" for the coordinator. Raises `EvidenceInvalid`."""
    match = _KEY.fullmatch(key)
    if match is None or not (match[1] is None or layout.is_name(match[1])):
        raise EvidenceInvalid(f"{key} is no name of a public key")
    return match[1] or ""


def number_of(key: str) -> int:
    """Number in the name of a countersignature or a list of keys. Raises `EvidenceInvalid`."""
    match = _NUMBERED.fullmatch(key)
    if match is None:
        raise EvidenceInvalid(f"{key} has no number")
    return int(match[1])


def digest_named(key: str) -> Digest | None:
    """The digest that the content under this name must have; None: its name names none."""
    for pattern, group in ((_CERTIFICATE, 1), (_NUMBERED, 2), (_RUN, 1), (_LOSS, 3)):
        if (match := pattern.fullmatch(key)) is not None:
            return Digest(f"sha256:{match[group]}")
    return None


def matches(key: str, content: bytes) -> bool:
    """Whether `content` can be what is kept under this name, as far as the name tells."""
    if key.startswith((LEDGERS, *LOOKUPS)):
        return not content
    expected = digest_named(key)
    return expected is None or expected == f"sha256:{hashlib.sha256(content).hexdigest()}"


def most_bytes(key: str) -> int:
    """The size, bytes, that what is kept under this name can have at most."""
    return next(
        (size for kind, size in _MOST_BYTES.items() if key.startswith(kind)), _MOST_REST_BYTES
    )
