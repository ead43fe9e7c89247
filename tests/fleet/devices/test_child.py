"""The process around a back end: one answer for each call, errors too, until its input ends."""

from __future__ import annotations

import io
import json
from pathlib import Path

from fleet.devices import child, codec
from fleet.devices.simulated.backend import SimulatedBackend
from fleet.rpc import wire
from tests.fleet.devices.wipe.orders import node


def said(backend: SimulatedBackend, *calls: bytes) -> list[dict[str, object]]:
    """The answers to these lines."""
    answers = io.BytesIO()
    child.serve(backend, io.BytesIO(b"".join(calls)), answers)
    return [json.loads(line) for line in answers.getvalue().splitlines()]


def test_every_call_has_one_answer_whatever_it_is(tmp_path: Path) -> None:
    """A bad call or a raising back end answers with an error and the next call is served."""
    backend = node(tmp_path)
    uuid = backend.inventory()[0].uuid
    unknown, wrong, short, good = said(
        backend,
        wire.call("nonsense", {}),
        wire.call("readings", {"accelerator": "0"}),
        wire.call("readings", {}),
        wire.call("readings", {"accelerator": uuid}),
    )
    assert "nonsense" in str(unknown["error"])
    assert "DeviceUnknown" in str(wrong["error"])
    assert "accelerator" in str(short["error"])
    assert "answer" in good


def test_a_back_end_without_partitions_says_so(tmp_path: Path) -> None:
    """Optional abilities that are missing are answers, not crashes."""
    backend = node(tmp_path)
    device = backend.inventory()[0]
    listed, made = said(
        backend,
        wire.call("instances", {"accelerator": device.uuid}),
        wire.call("make", {"device": codec.device(device.device)}),
    )
    assert listed == {"answer": []}
    assert "no partitions" in str(made["error"])


def test_what_a_back_end_cannot_tell_at_once_is_asked_one_by_one(tmp_path: Path) -> None:
    """DESIGN 7: the node gets the holders of every device, strays or none, and a clear refusal."""
    backend = node(tmp_path)
    accelerator = backend.inventory()[0]
    held, strays, divided = said(
        backend,
        wire.call("holders", {"accelerator": accelerator.uuid}),
        wire.call("strays", {}),
        wire.call("divide", {"accelerator": accelerator.uuid, "on": True}),
    )
    assert held == {"answer": {device.uuid: [] for device in accelerator.devices}}
    assert strays == {"answer": []}
    assert "no partitioning" in str(divided["error"])
