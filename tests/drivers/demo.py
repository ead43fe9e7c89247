"""The product on two stand-in GPUs, told step by step: ``python -m tests.drivers.demo``.

No GPU is touched: only the vendor's two libraries are stand-ins. Exit code 0 only if every check
held. ``--short`` leaves out what needs Ray or wipes whole GPUs.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
import time
from pathlib import Path

from fleet.core import errors
from tests.drivers import pods, slices
from tests.drivers.host import Gpu
from tests.drivers.stage import MEMORY_BYTES, BrokenOff, Part, Stage, loaded
from tests.drivers.tenants import GpuTenant
from tests.lab.kubelet.narration import Say, Telling

SECRET_BYTES = 4096
PART = Part(2, 2)
_PAGE = 1 << 16


def run(directory: Path, say: Say, *, short: bool = False) -> int:
    """Tell it below `directory`; exit code 0 when everything held."""
    telling = Telling(say)
    try:
        _tell(directory, telling, short=short)
    except (BrokenOff, errors.FleetError) as error:
        telling.expect(f"the demo comes to its end: {error}", holds=False)
    return telling.end()


def _tell(directory: Path, telling: Telling, *, short: bool) -> None:
    telling.line("SIMULATED GPUs.")
    telling.line("STAND-IN drivers: libnvidia-ml.so.1 and libcuda.so.1 are small C programs of the")
    telling.line("tests over files; no GPU is touched. Real are the back end, both bindings, the")
    telling.line(
        "kernels, the node service, its processes, the plugin, the evidence"
        + ("." if short else " and Ray.")
    )
    telling.step("A machine with two stand-in GPUs, one of them with MIG on")
    began = time.monotonic()
    stage = Stage(directory, telling)
    for gpu in (stage.whole, stage.divided):
        mig = "on" if gpu is stage.divided else "off"
        telling.line(
            f"   simulated: {gpu.bus_id} {gpu.get('name')} {gpu.uuid},"
            f" {MEMORY_BYTES >> 20} MiB, MIG {mig}"
        )
    telling.line(f"   {time.monotonic() - began:.1f} s, the stand-ins compiled where they were not")

    telling.step("fleet devices: what the back end finds")
    if not short:
        stage.verb("devices", "--policy", str(stage.policy))
    listed = stage.devices("--policy", str(stage.policy))
    _expect_listed(stage, listed)
    if short:
        telling.step("Why wipe at all: two programs use one MIG slice in turn")
        _tell_leak(stage, stage.divided, secrets.token_bytes(SECRET_BYTES))
    else:
        _tell_scrub(stage)
        _tell_proof(stage, stage.whole, _name_of(listed, stage.whole))
        _tell_proof(stage, stage.divided, stage.named(PART, list(listed)))
    with slices.opened(stage) as opened:
        if short:
            opened.adopt()
        slices.tell_three(stage, opened)
        if not short:
            slices.tell_foreign(stage, opened)
    pods.tell(stage, directory, beside=not short)

    telling.step("The evidence, verified from files and keys alone")
    stage.verb("evidence", "verify")
    telling.expect("evidence is whole", holds=True)
    telling.expect("this process itself never loaded a driver", holds=not loaded(stage.whole))


def _expect_listed(stage: Stage, listed: dict[str, dict[str, object]]) -> None:
    uuids = {device["uuid"] for device in listed.values()}
    parts = [device for device in listed.values() if device["profile"]]
    stage.telling.expect(
        f"both GPUs are listed, and {len(parts)} partitions of one of them",
        holds={stage.whole.uuid, stage.divided.uuid} <= uuids
        and {device["accelerator"] for device in parts} == {stage.divided.uuid},
    )
    stage.telling.expect(
        "nothing is taken for clean before it was wiped",
        holds={device["state"] for device in listed.values()} == {"HELD"},
    )


def _tell_scrub(stage: Stage) -> None:
    telling = stage.telling
    telling.step("fleet scrub: both GPUs wiped, verified and certified, on a Ray of its own")
    left = secrets.token_bytes(SECRET_BYTES)
    for gpu in (stage.whole, stage.divided):
        gpu.write_memory(MEMORY_BYTES // 3, left)
    stage.verb("scrub", "--policy", str(stage.policy), "--yes")
    for gpu in (stage.whole, stage.divided):
        telling.expect(
            f"nothing is left of what was in the memory of {gpu.bus_id}", holds=_absent(gpu, left)
        )
    states = {name: device["state"] for name, device in stage.devices().items()}
    telling.expect("every device is CLEAN", holds=set(states.values()) == {"CLEAN"})
    stage.verb("evidence", "verify")
    telling.expect("evidence is whole", holds=True)


def _tell_proof(stage: Stage, gpu: Gpu, name: str) -> None:
    telling = stage.telling
    telling.step(f"fleet prove: does a secret survive on {name}?")
    secret = secrets.token_bytes(SECRET_BYTES)
    _tell_leak(stage, gpu, secret)
    proof = json.loads(stage.verb("prove", "--device", name, "--json", quiet=True))
    telling.line(
        f"   searched {proof['memory_bytes']} B each time, {proof['seconds']:.1f} s in all"
    )
    telling.expect(
        f"while tenant A held it, its secret was there: {proof['planted']} blocks",
        holds=proof["planted"] > 0,
    )
    telling.expect(
        f"tenant B found {proof['after_handover']} blocks of it",
        holds=proof["after_handover"] == 0,
    )
    telling.expect(
        f"tenant B was given a certificate: {', '.join(proof['certificates'])[:23]}",
        holds=bool(proof["certificates"]) and not proof["simulated"],
    )
    telling.expect("of the first secret nothing is left either", holds=_absent(gpu, secret))


def _tell_leak(stage: Stage, gpu: Gpu, secret: bytes) -> None:
    """The stand-ins leak as hardware does: else no proof on them would mean anything."""
    found, searched = _leaked(gpu, secret)
    stage.telling.line(f"   without us: one program wrote a secret, the next searched {searched} B")
    stage.telling.expect(
        f"without our wipe the next program reads it: {found} blocks found", holds=found > 0
    )


def _leaked(gpu: Gpu, secret: bytes) -> tuple[int, int]:
    """(blocks of the secret the second of two programs finds, bytes it searched)."""
    gi, visible = None, gpu.uuid
    if gpu.get("mig_current") == "1":
        gi, visible = gpu.instance("2g", PART.start)
    try:
        with GpuTenant(visible) as first:
            first.plant(secret)
        with GpuTenant(visible) as second:
            return second.search(secret), second.size
    finally:
        if gi is not None:
            gpu.instance_gone(gi)


def _absent(gpu: Gpu, secret: bytes) -> bool:
    """Whether no 64-byte block of the secret stands anywhere in its memory, in use or not."""
    memory = gpu.memory()
    pages = (memory[at : at + _PAGE] for at in range(0, len(memory), _PAGE))
    written = b"".join(page for page in pages if page.count(0) != len(page))
    return not any(secret[at : at + 64] in written for at in range(0, len(secret), 64))


def _name_of(listed: dict[str, dict[str, object]], gpu: Gpu) -> str:
    (found,) = (name for name, device in listed.items() if device["uuid"] == gpu.uuid)
    return found


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.drivers.demo", description=__doc__)
    parser.add_argument("--short", action="store_true", help="without Ray, on slices only")
    chosen = parser.parse_args()

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    with tempfile.TemporaryDirectory(prefix="fleet-nvidia-") as directory:
        return run(Path(directory), say, short=chosen.short)


if __name__ == "__main__":
    sys.exit(main())
