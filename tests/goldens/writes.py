"""What is written: to the API in stories of the twin, as statements, CDI specs, gRPC messages."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fleet.core.model import ClaimUid, NodeName, Token, Uuid
from fleet.devices.base import DeviceNode, Grant, Mount
from fleet.evidence import layout, losses
from fleet.evidence.keys import SigningKey
from fleet.node.cdi import spec as cdi_spec
from fleet.node.cdi.names import Kind
from node_plugin.proto import dra_v1_pb2, dra_v1beta1_pb2, health_v1alpha1_pb2, registration_pb2
from tests.fleet.evidence.samples import START, Site, device_named
from tests.lab.apiserver.engine import Engine
from tests.twin.runs import Verdict, run_seed
from tests.twin.story import Story
from tests.twin.world import Plan, World

SEEDS = range(1, 21)
WHOLE = (14,)
"""Seeds whose writes are kept word for word; of the others a digest."""
EPOCH = re.compile(r"\b\d{17,}(?=\.\d)")
"""A store's epoch: drawn anew in every process."""


def stories() -> Iterator[tuple[str, str]]:
    """Each write to the API in stories of the twin: who, what, the body."""
    digests = []
    for seed in SEEDS:
        lines, verdict = _played(seed)
        text = "".join(f"{line}\n" for line in lines)
        digest = hashlib.sha256(text.encode()).hexdigest()
        ended = verdict.trouble or f"{verdict.events} events, {verdict.exposures} exposures"
        digests.append(f"seed {seed}: {len(lines)} writes {digest}, {ended}\n")
        if seed in WHOLE:
            yield f"stories/seed-{seed}.txt", text
    yield "stories/digests.txt", "".join(digests)


class Recorder(Engine):
    """An API server that keeps what it was asked to write."""

    lines: list[str]

    def create(self, *args: Any, **named: Any) -> Any:
        """As the server's own, kept."""
        return self._kept("create", super().create, *args, **named)

    def replace(self, *args: Any, **named: Any) -> Any:
        """As the server's own, kept."""
        return self._kept("replace", super().replace, *args, **named)

    def patch(self, *args: Any, **named: Any) -> Any:
        """As the server's own, kept."""
        return self._kept("patch", super().patch, *args, **named)

    def delete(self, *args: Any, **named: Any) -> Any:
        """As the server's own, kept."""
        return self._kept("delete", super().delete, *args, **named)

    def _kept(self, verb: str, act: Callable[..., Any], *args: Any, **named: Any) -> Any:
        said = " ".join(_spelled(one) for one in (*args, *named.values()))
        self.__dict__.setdefault("lines", []).append(EPOCH.sub("EPOCH", f"{verb} {said}"))
        return act(*args, **named)


class RecordedWorld(World):
    """A cluster whose API server is a `Recorder`."""

    server = Recorder


class RecordedStory(Story):
    """A story in a recorded world."""

    def make(self, plan: Plan) -> World:
        """The world it happens in."""
        return RecordedWorld(plan)


def _played(seed: int) -> tuple[list[str], Verdict]:
    told: list[Story] = []

    def tell(seed: int, only: frozenset[str] | None) -> Story:
        told.append(RecordedStory(seed, only))
        return told[0]

    verdict = run_seed(seed, tell=tell)
    engine = told[0].world.engine
    return engine.lines if isinstance(engine, Recorder) else [], verdict


def _spelled(value: Any) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True, default=str)
    return str(value)


def statements(scratch: Path) -> Iterator[tuple[str, str]]:
    """Certificates, countersignatures and losses, signed with keys that are always the same."""
    site = Site(scratch / "site")
    key = _key(layout.node_key(site.state, "node-1"), "node")
    _key(layout.coordinator_key(site.state), "coordinator")
    site.certify(rounds=3, segment_bytes=8192)
    site.countersign()
    device = device_named("node-1-a")
    lost = losses.Loss(
        node=NodeName("node-1"),
        claim=ClaimUid("uid-1"),
        namespace="tenant-a",
        name="train",
        token=Token(1, 7),
        devices=(losses.LostDevice(device.uuid, device.units, reasons=()),),
        began_at=START,
        simulated=True,
    )
    looked = losses.Look(
        node=NodeName("node-1"),
        claim=ClaimUid("uid-2"),
        namespace="support",
        name="look",
        pods=("uid-3",),
        devices={device.uuid: device.units},
        read_only=True,
        simulated=False,
    )
    log = losses.LossLog(scratch / "losses")
    for said in (lost, looked):
        log.append(said, key=key, now=START + 60, version="0.1")
    for path in sorted(scratch.rglob("*.json*")):
        yield f"statements/{path.relative_to(scratch)}", path.read_text()


def _key(path: Path, text: str) -> SigningKey:
    """A key that this text decides, put where its owner looks for it."""
    made = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(text.encode()).digest())
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_bytes(
        made.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    path.chmod(0o600)
    return SigningKey.load(path)


def specs() -> Iterator[tuple[str, str]]:
    """The CDI spec of a claim with everything that a grant can say, and of a bare one."""
    whole = Grant(
        (DeviceNode("/dev/nvidia0", "c", 195, 0), DeviceNode("/dev/nvidiactl", "c", 195, 255)),
        (Mount("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi", read_only=True),),
        {"LIMIT": "1"},
    )
    kind = Kind("fleetscrub.dev", "gpu")
    for name, grants in (
        ("whole", {Uuid("GPU-1"): whole, Uuid("GPU-2"): Grant()}),
        ("bare", {Uuid("GPU-1"): Grant()}),
    ):
        spec = cdi_spec.spec(kind, ClaimUid("0b6b2c3a-1111-4222-8333-444455556666"), grants)
        yield f"cdi/{name}.json", cdi_spec.text(spec).decode()


def wire() -> Iterator[tuple[str, str]]:
    """The services and messages that kubelet speaks, field by field with their numbers."""
    for module in (dra_v1_pb2, dra_v1beta1_pb2, health_v1alpha1_pb2, registration_pb2):
        file = module.DESCRIPTOR
        lines = [
            f"{message.full_name}.{field.name} = {field.number} type {field.type}\n"
            for message in file.message_types_by_name.values()
            for field in message.fields
        ]
        lines += [
            f"{service.full_name}/{method.name}({method.input_type.full_name})"
            f" {method.output_type.full_name}\n"
            for service in file.services_by_name.values()
            for method in service.methods
        ]
        yield f"wire/{file.name.replace('/', '-')}.txt", "".join(lines)
