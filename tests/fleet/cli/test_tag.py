"""`fleet tag`: an authority is made, issues, verifies and revokes, from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fleet.cli.main import build
from fleet.core import errors
from fleet.plugin import tags
from fleet.plugin.tags import TagKeysUnreadable

runner = CliRunner()
APP = build()


class Hands:
    """The command line over one authority."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def run(self, *words: str, given: str = "", code: int = 0) -> str:
        found = runner.invoke(
            APP, ["tag", *words], input=given, env={"FLEET_TAG_AUTHORITY": str(self.directory)}
        )
        assert found.exit_code == code, (found.output, found.exception)
        return found.stdout

    def told(self, *words: str, **more: Any) -> dict[str, Any]:
        """A verb's JSON."""
        found: dict[str, Any] = json.loads(self.run(*words, "--json", **more))
        return found

    def refused(self, *words: str) -> errors.FleetError:
        found = runner.invoke(
            APP, ["tag", *words], env={"FLEET_TAG_AUTHORITY": str(self.directory)}
        )
        assert isinstance(found.exception, errors.FleetError), found.output
        return found.exception


@pytest.fixture
def hands(tmp_path: Path) -> Hands:
    """An authority that was just made."""
    found = Hands(tmp_path / "authority")
    found.run("key", "new")
    return found


def test_a_tag_is_one_line_that_verifies(hands: Hands) -> None:
    """C5: what `issue` prints goes into a manifest as it is; `verify` says what it gives."""
    text = hands.run("issue", "--namespace", "team-a", "--profile", "1g.10gb")
    assert text.count("\n") == 1
    good = hands.run("verify", "-", "--namespace", "team-a", "--profile", "1g.10gb", given=text)
    assert "namespaces: team-a" in good
    assert "good, by list 1 of tag keys" in good
    bad = hands.run("verify", text.strip(), "--namespace", "team-b", code=1)
    assert "NOT GOOD: is for namespace team-a, not for team-b" in bad
    said = hands.told("verify", text.strip(), "--profile", "whole", code=1)
    assert len(said["problems"]) == 1


def test_what_a_tag_says_is_what_was_asked(hands: Hands) -> None:
    """C5: namespaces, profiles, minimum and times are those of the command."""
    said = hands.told(
        *("issue", "--namespace", "b", "--namespace", "a", "--minimum", "WipeOnDeallocate"),
        *("--days", "10", "--not-before", "2027-01-31"),
    )
    assert (said["namespaces"], said["profiles"]) == (["a", "b"], ["any"])
    assert said["not_before"] == "2027-01-31T00:00:00Z"
    assert said["not_after"] == "2027-02-10T00:00:00Z"
    text = said["tag"]
    hands.run("verify", text, code=1)
    hands.run("verify", text, "--at", "2027-02-10T00:00:00Z", "--deallocation", "WipeOnDeallocate")
    hands.run("verify", text, "--at", "2027-02-10T00:00:01Z", code=1)


def test_a_tag_is_good_where_clocks_are_behind(hands: Hands) -> None:
    """C5: a claim made by an API server whose clock is minutes behind may show it at once."""
    tag = tags.read(hands.told("issue", "--namespace", "a")["tag"]).tag
    assert tag.issued_at - tag.not_before == 300


def test_a_list_elsewhere_needs_its_root(hands: Hands, tmp_path: Path) -> None:
    """C5: as nodes see it: the file, and the id of the root that must have signed it."""
    text = hands.told("issue", "--namespace", "a")["tag"]
    shown = hands.told("key", "list")
    copy = tmp_path / "copy"
    copy.write_bytes(Path(shown["file"]).read_bytes())
    hands.run("verify", text, "--keys", str(copy), "--root", shown["root"])
    assert "what its root is" in str(hands.refused("verify", text, "--keys", str(copy)))
    wrong = hands.refused("verify", text, "--keys", str(copy), "--root", "0" * 64)
    assert isinstance(wrong, TagKeysUnreadable)


def test_rotation_and_revocation_show_in_the_list(hands: Hands) -> None:
    """C5: a rotated key ends and its tags stay good; a revoked tag or key voids."""
    first = hands.told("issue", "--namespace", "a")
    old = hands.told("key", "list")["issuer"]
    rotated = hands.told("key", "rotate")
    assert rotated["issuer"] != old
    hands.run("verify", first["tag"])
    second = hands.told("issue", "--namespace", "a")
    hands.run("revoke", second["id"], "--reason", "mistake")
    assert "mistake" in hands.run("verify", second["tag"], code=1)
    assert "mistake" in hands.run("revoke", first["tag"], "--reason", "team left")
    third = hands.told("issue", "--namespace", "a")
    found = hands.told("key", "revoke", rotated["issuer"][:8].upper(), "--reason", "stolen")
    assert {row["reason"] for row in found["keys"]} == {"", "stolen"}
    assert len(found["revoked_tags"]) == 2
    assert "stolen" in hands.run("verify", third["tag"], code=1)


def test_mistakes_are_told_with_what_to_do(hands: Hands) -> None:
    """Wrong words end in a remedy, not in a tag nobody can use."""
    for words, told in (
        (("issue", "--namespace", "Team A"), "no tag can say that"),
        (("issue", "--namespace", "a", "--profile", "any", "--profile", "x"), "no tag can say"),
        (("issue", "--namespace", "a", "--not-before", "soon"), "is not a time"),
        (("verify", "nonsense"), "'nonsense' is not a tag"),
        (("revoke", "nonsense", "--reason", "x"), "no id of a tag"),
        (("key", "revoke", "zz", "--reason", "x"), "keys begin with"),
        (("key", "new"), "holds a tag authority already"),
    ):
        found = hands.refused(*words)
        assert told in str(found)
        assert found.remedy
