"""The proof that a secret does not survive."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from fleet.cli.main import main
from fleet.cli.prove import Proof
from fleet.core.settings import HardwareSettings, Settings
from fleet.wiring import adapters, plans
from tests.drivers.pci_tree import TPU_V5E, PciTree


def test_a_secret_does_not_survive_a_hand_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise 1: what tenant A wrote was there, and tenant B finds no 64-byte block of it."""
    adapters.plan_fleet(tmp_path, simulate="1x1", memory_bytes=8 << 20)
    assert main(["prove", "--state", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["simulated"]
    assert document["planted"] > 0
    assert (document["after_release"], document["after_handover"]) == (0, 0)
    assert document["memory_bytes"] == 8 << 20
    assert document["certificates"]
    assert main(["audit", "--state", str(tmp_path)]) == 0


def test_f59_a_proof_says_how_often_the_secret_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F59: more blocks are found than the secret has, since it is written at three places: said."""
    adapters.plan_fleet(tmp_path, simulate="1x1", memory_bytes=8 << 20)
    assert main(["prove", "--state", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "192 blocks of the secret found (3 copies of it, 64 blocks each)" in said


@pytest.mark.parametrize(
    ("planted", "released", "handed", "holds"),
    [(3, 0, 0, True), (0, 0, 0, False), (3, 1, 0, False), (3, 0, 1, False)],
)
def test_a_proof_holds_only_if_the_secret_was_there_and_is_gone(
    planted: int, released: int, handed: int, holds: bool
) -> None:
    """A secret never seen proves nothing, and one block left is a failure."""
    proof = Proof(
        simulated=True,
        node="n",
        device="d",
        uuid="u",
        secret_bytes=64,
        memory_bytes=64,
        planted=planted,
        after_release=released,
        after_handover=handed,
        seconds=1.0,
    )
    assert proof.holds is holds


def test_a_secret_too_short_to_prove_anything_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A few bytes turn up by chance and prove nothing."""
    adapters.plan_fleet(tmp_path, simulate="1x1", memory_bytes=8 << 20)
    assert main(["prove", "--text", "abc", "--state", str(tmp_path)]) == 2
    assert "8 bytes" in capsys.readouterr().err


def test_nobody_waits_for_real_devices_that_a_person_must_decide_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Promise 7: on a first install all is HELD; waiting changes nothing, and what does is said."""
    tree = PciTree(tmp_path / "host")
    tree.add("0000:3b:00.0", TPU_V5E)
    settings = HardwareSettings(root=str(tree.root), run_directory=str(tmp_path / "run"))
    plans.discover_fleet(tmp_path / "state", Settings(hardware=settings))
    began = time.monotonic()
    assert main(["prove", "--state", str(tmp_path / "state")]) != 0
    assert time.monotonic() - began < 60
    told = capsys.readouterr().err
    assert "HELD" in told
    assert "fleet node adopt" in told
