"""`fleet evidence`: output, filters and exit codes, offline."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from fleet.cli.evidence import app
from fleet.core.errors import FleetError
from fleet.evidence import layout
from tests.fleet.evidence.samples import Site, device_named, rewrite

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(name="site")
def site_fixture(tmp_path: Path) -> Site:
    """Two nodes of two devices, countersigned."""
    site = Site(tmp_path / "state")
    for node in ("node-1", "node-2"):
        site.certify(node)
    site.countersign()
    return site


@pytest.fixture(name="run")
def run_fixture(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `fleet evidence ...`; exit code, stdout, and the error as it is shown."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        code, complaint = 0, ""
        try:
            returned = app([str(argument) for argument in arguments], standalone_mode=False)
            code = returned if isinstance(returned, int) else 0
        except typer.Exit as done:
            code = done.exit_code
        except FleetError as error:
            code, complaint = error.exit_code, str(error)
        return code, capsys.readouterr().out, complaint

    return run


def test_list_shows_all_and_filters(run: Run, site: Site) -> None:
    """Certificates are listed oldest first, and can be narrowed to a node and a device."""
    code, out, _ = run("list", "--state", site.state)
    assert code == 0
    assert "8 certificates" in out
    assert "SIMULATED" in out
    choices: list[tuple[list[str], int]] = [
        ([], 8),
        (["--node", "node-1"], 4),
        (["--node", "node-1", "--device", "node-1-a"], 2),
        (["--device", "SIM-node-2-b"], 2),
        (["--node", "node-9"], 0),
    ]
    for choice, count in choices:
        code, out, _ = run("list", "--state", site.state, "--json", *choice)
        assert (code, len(json.loads(out)["certificates"])) == (0, count)


def test_show_takes_a_prefix(run: Run, site: Site) -> None:
    """A certificate is shown by the first characters of its digest, with what is not covered."""
    digest = next(iter(site.ledger().entries())).digest
    short = digest.removeprefix("sha256:")[:12]
    code, out, _ = run("show", short, "--state", site.state)
    assert code == 0
    for words in (
        digest,
        "SIMULATED DEVICE",
        "NIST SP 800-88 Rev. 2 Clear",
        "on-chip-memory",
        "NO",
    ):
        assert words in out
    code, out, _ = run("show", digest, "--state", site.state, "--json")
    document: dict[str, Any] = json.loads(out)
    assert document["certificate"] == digest
    assert document["statement"]["predicate"]["node"] == "node-1"


def test_show_writes_a_page(run: Run, site: Site, tmp_path: Path) -> None:
    """E3: --html writes the page to a file, or to the standard output; never twice in one place."""
    digest = next(iter(site.ledger().entries())).digest
    target = tmp_path / "page.html"
    code, out, _ = run("show", digest, "--state", site.state, "--html", target, "--json")
    document = json.loads(out)
    assert (code, document["verified"], document["chain"]) == (0, True, 1)
    assert document["bytes"] == target.stat().st_size
    code, out, _ = run("show", digest[:20], "--state", site.state, "--html", target)
    assert (code, "(verified) with a chain of 1" in out) == (0, True)
    key = layout.node_key(site.state, "node-2").with_suffix(".pub")
    code, out, _ = run("show", digest, "--state", site.state, "--html", target, "--key", key)
    assert (code, "NOT verified" in out) == (0, True)
    assert run("show", digest, "--state", site.state, "--html", "-", "--json")[0] == 2
    assert run("show", digest, "--state", site.state, "--key", key)[0] == 2


@pytest.mark.parametrize("prefix", ["", "zz", "sha256:"])
def test_show_of_none_or_many_could_not_run(run: Run, site: Site, prefix: str) -> None:
    """No certificate, or more than one, is exit 2 with the remedy."""
    code, out, err = run("show", prefix, "--state", site.state)
    assert (code, out) == (2, "")
    assert "fleet evidence list" in err


def test_verify_passes_and_fails_with_its_place(run: Run, site: Site) -> None:
    """E3: whole evidence is exit 0; any change is exit 1 and named with its place."""
    code, out, _ = run("verify", "--state", site.state)
    assert code == 0
    assert "evidence is whole" in out
    rewrite(site.segment(), lambda lines: [*lines[:1], *lines[2:]])
    code, out, _ = run("verify", "--state", site.state)
    assert code == 1
    assert f"missing-entries: {site.segment()}" in out.replace("\n", "")
    code, out, _ = run("verify", "--state", site.state, "--json")
    document = json.loads(out)
    assert (code, document["ok"]) == (1, False)
    assert document["defects"][0]["code"] == "missing-entries"
    assert document["defects"][0]["file"] == str(site.segment())


def test_f49_verify_compares_with_what_is_known_from_elsewhere(
    run: Run, site: Site, tmp_path: Path
) -> None:
    """F49: times, counts and earlier copies are asked for by flags; what falls short is exit 1."""
    run("export", tmp_path / "copy", "--state", site.state)
    place = ["verify", "--state", str(site.state)]
    for flags in (["--at-least", "8"], ["--not-before", "2020-01-01"], ["--heads", "copy"]):
        told = [str(tmp_path / "copy") if flag == "copy" else flag for flag in flags]
        code, out, _ = run(*place, *told)
        assert (code, "evidence is whole as of" in out) == (0, True)
    code, out, _ = run(*place, "--at-least", "9")
    assert (code, "too-few" in out) == (1, True)
    code, out, _ = run(*place, "--not-before", "2026-01-31T12:00:00")
    assert (code, "too-old" in out) == (1, True)
    code, _, complaint = run(*place, "--not-before", "soon")
    assert (code, "'soon' is not a time" in complaint) == (2, True)
    code, _, complaint = run(*place, "--heads", tmp_path)
    assert (code, "holds no countersignatures" in complaint) == (2, True)


def test_verify_with_trusted_keys(run: Run, site: Site, tmp_path: Path) -> None:
    """Named keys are the only ones trusted; one that cannot be read is exit 2."""
    ledger = layout.ledger_directory(site.state, "node-1")
    key = layout.node_key(site.state, "node-1").with_suffix(".pub")
    other = layout.node_key(site.state, "node-2").with_suffix(".pub")
    heads = ("--heads", layout.heads_directory(site.state))
    coordinator = ("--coordinator-key", layout.coordinator_keys_directory(site.state))
    code, out, _ = run("verify", "--directory", ledger, "--key", key, *heads, *coordinator)
    assert code == 0
    assert "4 countersigned" in out
    assert run("verify", "--directory", ledger, "--key", other)[0] == 1
    code, _, err = run("verify", "--directory", ledger, "--key", tmp_path / "gone.pub")
    assert code == 2
    assert "cannot be read" in err
    (tmp_path / "empty").mkdir()
    assert run("verify", "--directory", ledger, "--key", tmp_path / "empty")[0] == 2


def test_verify_says_until_when_and_what_is_left_out(run: Run, site: Site, tmp_path: Path) -> None:
    """E3: the time of the newest countersignature; a part of the evidence is not called whole."""
    code, out, _ = run("verify", "--state", site.state)
    assert (code, "as of 2023-11-14T22:1" in out.replace("\n", " ")) == (0, True)
    run("export", tmp_path / "part", "--state", site.state, "--node", "node-2")
    assert "--coordinator-key" in (tmp_path / "part" / "README.txt").read_text()
    code, out, _ = run("verify", "--directory", tmp_path / "part")
    told = out.replace("\n", " ")
    assert (code, "evidence is whole" in told, "what is here is whole" in told) == (0, False, True)
    assert "node-1, 4 entries, is countersigned and is not here" in told
    other = Site(tmp_path / "other")
    other.certify(rounds=1)
    other.countersign()
    stranger = ("--coordinator-key", layout.coordinator_keys_directory(other.state))
    assert run("verify", "--directory", tmp_path / "part", *stranger)[0] == 1


def test_export_then_verify_the_copy(run: Run, site: Site, tmp_path: Path) -> None:
    """An export made by the command verifies by itself; a second one over it is exit 2."""
    target = tmp_path / "export"
    code, out, _ = run("export", target, "--state", site.state, "--json")
    assert (code, json.loads(out)["certificates"]) == (0, 8)
    code, out, _ = run("verify", "--directory", target)
    assert code == 0
    assert "8 countersigned" in out
    assert "the index of this export is not signed" in out
    assert run("export", target, "--state", site.state)[0] == 2
    code, out, _ = run("export", tmp_path / "part", "--state", site.state, "--device", "node-1-a")
    assert (code, "2 certificates" in out) == (0, True)
    code, out, _ = run("verify", "--directory", tmp_path / "part")
    assert "6 more left out" in out
    certificate = next((target / "certificates" / "node-1").iterdir())
    certificate.write_bytes(certificate.read_bytes()[:-1])
    assert run("verify", "--directory", target)[0] == 1


def test_key_given_for_a_node_counts_for_it_alone(run: Run, site: Site) -> None:
    """--key NODE=FILE is trusted for that node only; without a node, for all."""
    one, two = (layout.node_key(site.state, n).with_suffix(".pub") for n in ("node-1", "node-2"))
    state = ("--state", site.state)
    assert run("verify", *state, "--key", f"node-1={one}", "--key", f"node-2={two}")[0] == 0
    assert run("verify", *state, "--key", one, "--key", f"node-2={two}")[0] == 0
    code, out, _ = run("verify", *state, "--key", f"node-1={one}", "--key", f"node-1={two}")
    assert (code, "foreign-key" in out) == (1, True)
    assert run("verify", *state, "--key", f"node/1={one}")[0] == 2
    assert run("verify", *state, "--key", f"node-1={one}x")[0] == 2


def test_no_certificate_is_not_whole(run: Run, tmp_path: Path) -> None:
    """Verifying nothing proves nothing: exit 1, and never the words of a whole evidence."""
    layout.node_directory(tmp_path, "node-1").mkdir(parents=True)
    code, out, _ = run("verify", "--state", tmp_path)
    assert code == 1
    assert "there is no certificate" in out
    assert "whole" not in out
    code, out, _ = run("verify", "--state", tmp_path, "--json")
    assert (code, json.loads(out)["ok"]) == (1, False)


def test_no_evidence_could_not_run(run: Run, tmp_path: Path) -> None:
    """A directory without evidence is exit 2 with a remedy, never an empty success."""
    for verb in (["list"], ["verify"], ["export", str(tmp_path / "x")], ["show", "ab"]):
        code, out, err = run(*verb, "--directory", tmp_path, "--json")
        assert (code, out) == (2, "")
        assert "holds no evidence" in err


def test_reading_needs_no_private_key(run: Run, site: Site) -> None:
    """Verification works without any private key being there."""
    for node in ("node-1", "node-2"):
        layout.node_key(site.state, node).unlink()
    layout.coordinator_key(site.state).unlink()
    assert run("verify", "--state", site.state)[0] == 0


def test_text_in_certificates_is_not_markup(run: Run, site: Site) -> None:
    """What a certificate says is printed as it is, whatever it looks like."""
    with site.ledger() as ledger:
        done = site.issue(ledger, device_named("x"), previous_holder="claim:[/bold][red]x")
        ledger.append(done.envelope)
    code, out, _ = run("show", done.digest, "--state", site.state)
    assert (code, "claim:[/bold][red]x" in out) == (0, True)
    assert run("list", "--state", site.state)[0] == 0
