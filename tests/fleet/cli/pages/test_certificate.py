"""The page to print: complete, alone, safe whatever a certificate says, and its commands work."""

from __future__ import annotations

import html
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.pages import certificate
from fleet.core.errors import InputInvalid
from fleet.core.model import Digest
from fleet.evidence import by_hand, layout
from fleet.evidence.sources import collect
from tests.fleet.evidence.samples import Site, Verdict, device_named, rewrite

HOSTILE = '</td><script>alert(1)</script><img src="https://x.example/a.png" onerror=x>\u202e\x1b[2J'
REAL: dict[str, Any] = {"backend": "nvidia", "simulated": False}


class Parsed(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Every element that is not void must be closed."""
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Elements close in the order they were opened in."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """What a reader sees."""
        self.text += data


@pytest.fixture(name="site")
def site_fixture(tmp_path: Path) -> Site:
    """One node with one simulated device, three certificates, countersigned."""
    site = Site(tmp_path / "state")
    site.certify(devices=("a",), rounds=3)
    site.countersign()
    return site


def newest(site: Site, name: str = "node-1-a") -> Digest:
    """The device's newest certificate."""
    return site.ledger().heads()[device_named(name).units[0]]


def written(site: Site, target: Path, digest: Digest | None = None) -> str:
    """The page of a certificate of the site."""
    certificate.write(target, collect(site.state), digest or newest(site))
    return target.read_text()


def test_the_page_says_everything_in_words_and_figures(site: Site, tmp_path: Path) -> None:
    """E3: words, figures, scope with what is not covered, health, chain, signer, blank lines."""
    text = written(site, tmp_path / "page.html")
    found = Parsed(text)
    assert found.open == []
    for words in (
        "Verified: the signature",
        str(60 << 20),
        "driver-reserved-memory",
        "Not covered:",
        "on-chip-memory",
        "ecc",
        "claim:tenant-a",
        newest(site),
        "BEGIN PUBLIC KEY",
        "Asset number",
        "Date and signature",
        "rose during the wipe: none",
        "the first",
        "after entry 2",
    ):
        assert words in found.text
    assert found.text.count("number 1, the first") == 1


def test_the_page_stands_alone(site: Site, tmp_path: Path) -> None:
    """E3: no script, nothing fetched, a style sheet for print, a policy against the rest."""
    text = written(site, tmp_path / "page.html")
    found = Parsed(text)
    assert not {"script", "link", "img", "iframe", "object", "base", "form", "a"} & set(found.tags)
    assert not {"src", "href", "onload"} & {name for name, _ in found.attributes}
    assert "@media print" in text
    assert "default-src 'none'" in text
    assert "http" not in re.sub(r'http-equiv="', "", text)
    assert "url(" not in text


def test_simulated_is_written_across_the_page(site: Site, tmp_path: Path) -> None:
    """Promise 10: a simulated device's page says so across it, on top and in its title."""
    text = written(site, tmp_path / "page.html")
    assert '<div class="watermark">SIMULATED</div>' in text
    assert "<title>SIMULATED: " in text
    with site.ledger() as ledger:
        real = ledger.append(site.issue(ledger, device_named("r"), **REAL).envelope)
    assert "SIMULATED" not in Parsed(written(site, tmp_path / "real.html", real)).text


def test_hostile_text_is_text(site: Site, tmp_path: Path) -> None:
    """E3: markup, scripts, direction marks and controls in any field are shown, never obeyed."""
    with site.ledger() as ledger:
        done = ledger.append(
            site.issue(
                ledger,
                device_named(f"x{HOSTILE}", (HOSTILE,)),
                previous_holder=HOSTILE,
                findings=(Verdict(HOSTILE, "pass", HOSTILE),),
                posture={HOSTILE: HOSTILE},
                profile=HOSTILE,
                boot_id=HOSTILE,
            ).envelope
        )
    text = written(site, tmp_path / "page.html", done)
    found = Parsed(text)
    assert found.open == []
    assert not {"script", "img"} & set(found.tags)
    assert "<script>alert(1)</script>" in found.text
    assert not {"\u202e", "\x1b"} & set(text)
    assert found.text.count("\\u202e") >= 7


def test_a_chain_of_a_hundred_is_whole_and_small(tmp_path: Path) -> None:
    """E3: all hundred links are on the page, each with its digest and verdict, under 200 kB."""
    site = Site(tmp_path / "state")
    digests = site.certify(devices=("a",), rounds=100)
    text = written(site, tmp_path / "page.html", digests[-1])
    assert len(text.encode()) < 200_000
    assert all(text.count(f"<td>{digest}</td>") >= 1 for digest in digests)
    assert text.count("<td>verified</td>") == 100


def test_what_is_wrong_stands_on_top(site: Site, tmp_path: Path) -> None:
    """E3: a forged link is named in its row; a forged certificate and a cut ledger on top."""
    text = written(site, tmp_path / "good.html")
    assert "NOT VERIFIED" not in text
    digest = newest(site)
    shutil.rmtree(layout.coordinator_directory(site.state))
    rewrite(site.segment(), lambda ls: [ls[0].replace(b'"sig":"', b'"sig":"AAAA', 1), *ls[1:]])
    text = written(site, tmp_path / "link.html", digest)
    assert "NOT VERIFIED: 1 problems" in text
    assert "2 of the 3 links of its chain are not verified" in text
    assert "missing-link" in text
    assert "not here: known by its digest only" in text
    rewrite(site.segment(), lambda ls: ls[1:])
    assert "NOT VERIFIED" in written(site, tmp_path / "cut.html", digest)


def test_the_commands_are_on_the_page_as_they_work(site: Site, tmp_path: Path) -> None:
    """E3: how to verify by hand is printed for this certificate, unescaped exactly as it is run."""
    text = written(site, tmp_path / "page.html")
    (found,) = re.findall(r'<pre id="commands">(.*?)</pre>', text, re.DOTALL)
    key_id = site.key("node-1").key_id
    lines = by_hand.commands("node-1", 3, newest(site), key_id=key_id)
    assert html.unescape(found) == lines


def test_what_cannot_be_written_is_told(site: Site, tmp_path: Path) -> None:
    """A certificate that is not there, and a file that cannot be, are errors with a remedy."""
    with pytest.raises(InputInvalid, match="no certificate"):
        certificate.write(tmp_path / "x.html", collect(site.state), Digest("sha256:0"))
    with pytest.raises(InputInvalid, match="cannot be written"):
        certificate.write(tmp_path / "gone" / "x.html", collect(site.state), newest(site))
    for file, options in (
        (None, {"as_json": False, "with_keys": True}),
        (Path("-"), {"as_json": True, "with_keys": False}),
    ):
        with pytest.raises(InputInvalid):
            certificate.check_asked(file, **options)
