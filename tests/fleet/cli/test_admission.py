"""`fleet admission serve` as a process: it answers by HTTPS, and ends as it is told."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fleet.admission.ground import Ground
from fleet.cli.admission import Readiness, ground_of
from fleet.cli.main import build
from fleet.core import errors
from fleet.core.settings import Settings
from fleet.plugin.tags_file import TagKeyFile
from tests.fleet.admission.certificates import Ca
from tests.fleet.admission.reviews import FORBIDDEN_WISH, claim, devices, exactly, review
from tests.fleet.admission.rights import LIST, ROOT

END_S = 15.0


def policy(directory: Path, keys: Path) -> Path:
    """A settings file that names the list."""
    path = directory / "settings.toml"
    path.write_text(f'[admission]\ntag_keys = "{keys}"\ntag_roots = ["{ROOT.key_id}"]\n')
    return path


def test_it_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    """C5, B65: a review is judged by rules and tags; SIGTERM ends it in good order, exit 0."""
    ca, keys = Ca(tmp_path), tmp_path / "list"
    keys.write_bytes(LIST)
    command = [sys.executable, "-m", "fleet.cli.main", "admission", "serve"]
    command += ["--certificate", str(ca.certificate), "--key", str(ca.private)]
    command += ["--policy", str(policy(tmp_path, keys)), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            found = re.search(r"claims of driver gpu\.fleetscrub\.dev at port (\d+)$", said)
            assert found, said
            ask = http.client.HTTPSConnection(
                "127.0.0.1", int(found[1]), context=ca.trust(), timeout=10
            )
            wanted = review(claim(devices(exactly(**FORBIDDEN_WISH))))
            ask.request("POST", "/review", json.dumps(wanted), {"Content-Type": "application/json"})
            answer: dict[str, Any] = json.loads(ask.getresponse().read())
            ask.close()
            process.send_signal(signal.SIGTERM)
            _, rest = process.communicate(timeout=END_S)
        finally:
            process.kill()
    assert process.returncode == 0, rest
    assert answer["response"]["allowed"] is False
    assert "Traceback" not in rest


def test_it_does_not_start_without_what_it_judges_by(tmp_path: Path) -> None:
    """C5: no list configured, a bad address or no certificate: told at once, exit 2."""
    ca = Ca(tmp_path)
    pair = ["--certificate", str(ca.certificate), "--key", str(ca.private)]
    good = ["--policy", str(policy(tmp_path, tmp_path / "list"))]
    lost = ["--certificate", str(tmp_path / "none"), "--key", str(ca.private)]
    for words, kind in (
        (pair, errors.SettingsInvalid),
        ([*pair, *good, "--listen", "8443"], errors.InputInvalid),
        ([*pair, *good, "--listen", "[::1]:99999"], errors.InputInvalid),
        ([*lost, *good], errors.KeyUnusable),
    ):
        found = CliRunner().invoke(build(), ["admission", "serve", *words])
        assert isinstance(found.exception, kind), found.output


def test_a_replica_is_ready_once_it_could_judge(tmp_path: Path) -> None:
    """B65: a wrong list stops a rollout; one that breaks later takes no replica away."""
    path = tmp_path / "list"
    ready = Readiness(TagKeyFile(path, [ROOT.key_id]))
    assert "cannot be read" in ready()
    path.write_bytes(LIST)
    assert ready() == ""
    path.unlink()
    assert ready() == ""


def test_the_ground_is_as_it_is_said() -> None:
    """B35, C4: each list replaces its default; requesters may be said to be nobody."""
    ours = ground_of(Settings())
    assert ours == Ground()
    told = ground_of(Settings(), spread_classes=["far"], requesters=["user-7"], classes=["far"])
    assert (told.spread_classes, told.requesters, told.classes) == (("far",), ("user-7",), ("far",))
    assert told.own_namespaces == ours.own_namespaces
    assert ground_of(Settings(), requesters=[""]).requesters == ()


def test_a_class_may_be_spread_by_the_command_line(tmp_path: Path) -> None:
    """C4: the option is there, and taken again and again, before anything else is missed."""
    ca = Ca(tmp_path)
    words = ["--certificate", str(ca.certificate), "--key", str(ca.private)]
    words += ["--spread-class", "a", "--spread-class", "b"]
    found = CliRunner().invoke(build(), ["admission", "serve", *words])
    assert isinstance(found.exception, errors.SettingsInvalid), found.output


@pytest.mark.parametrize("words", [["--help"], ["serve", "--help"]])
def test_help_says_what_it_is(words: list[str]) -> None:
    """Every verb explains itself."""
    found = CliRunner().invoke(build(), ["admission", *words])
    assert found.exit_code == 0
    assert "claims" in found.stdout or "reviews" in found.stdout
