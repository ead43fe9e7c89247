"""Tokens that change under a running process (case B78)."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.kube import tokens
from fleet.kube.tokens import TokenFile, usable


def put(path: Path, token: str) -> None:
    """Replace the file as kubelet does."""
    fresh = path.with_suffix(".new")
    fresh.write_text(token)
    fresh.replace(path)


def test_the_file_is_read_again_by_period(tmp_path: Path) -> None:
    """B78: a replaced token is used within a period, without any refusal."""
    path, clock = tmp_path / "token", ManualClock(0.0)
    put(path, "v1\n")
    found = TokenFile(path, clock=clock)
    put(path, "v2\n")
    assert found.header() == "Bearer v1"
    clock.advance(tokens.PERIOD_S)
    assert found.header() == "Bearer v2"


def test_a_refused_token_is_read_again_at_once(tmp_path: Path) -> None:
    """B78: after a 401 the file is read; who used an older token gets the newer one unread."""
    path = tmp_path / "token"
    put(path, "v1")
    found = TokenFile(path, clock=ManualClock(0.0))
    put(path, "v2")
    assert found.renew("Bearer v1") == "Bearer v2"
    put(path, "v3")
    assert found.renew("Bearer v1") == "Bearer v2"
    assert found.renew("Bearer v2") == "Bearer v3"


@pytest.mark.parametrize("damage", [None, "", "two words", "line\nbreak", "\u00e9", "\x00"])
def test_a_missing_or_unfit_file_keeps_the_old_token(tmp_path: Path, damage: str | None) -> None:
    """B78: while the file is missing or unfit the last token stays; soon after, it is read."""
    path, clock = tmp_path / "token", ManualClock(0.0)
    put(path, "v1")
    found = TokenFile(path, clock=clock)
    if damage is None:
        path.unlink()
    else:
        put(path, damage)
    clock.advance(tokens.PERIOD_S)
    assert found.header() == "Bearer v1"
    assert found.renew("Bearer v1") == "Bearer v1"
    put(path, "v2")
    clock.advance(tokens.RETRY_S)
    assert found.header() == "Bearer v2"


def test_no_token_at_the_start_is_a_setting_to_correct(tmp_path: Path) -> None:
    """A missing token file at the start is told with its path and what to do."""
    with pytest.raises(errors.SettingsInvalid, match="holds no token") as caught:
        TokenFile(tmp_path / "token", clock=ManualClock(0.0))
    assert str(tmp_path) in str(caught.value)


def test_a_token_leaves_its_process_in_no_form(tmp_path: Path) -> None:
    """B78: neither representation nor pickle nor error shows the token."""
    path = tmp_path / "token"
    put(path, "secret-v1")
    found = TokenFile(path, clock=ManualClock(0.0))
    assert "secret-v1" not in f"{found!r} {found}"
    with pytest.raises(TypeError, match="stays in its process") as caught:
        pickle.dumps(found)
    assert "secret-v1" not in str(caught.value)


def test_only_printable_headers_are_sent() -> None:
    """A header with a line break is never handed to the HTTP client, whose error would show it."""
    assert usable("Bearer abc")
    assert not usable("Bearer a\r\nb")
    assert not usable("Bearer \u00e9")
