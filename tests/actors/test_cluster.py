"""What is decided before Ray starts."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from actors import cluster
from fleet import errors


def test_a_ray_that_would_hide_the_accelerators_is_refused() -> None:
    """B13: with this variable Ray blanks the accelerators of an actor that asks for none."""
    with pytest.raises(errors.SettingsInvalid):
        cluster.refuse_override({"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"})
    cluster.refuse_override({"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"})
    cluster.refuse_override({})


def test_the_token_is_private_and_stays(tmp_path: Path) -> None:
    """The token of a state directory is made once, for its owner's eyes only."""
    first = cluster.token_file(tmp_path)
    content = first.read_text()
    first.chmod(0o644)
    assert cluster.token_file(tmp_path) == first
    assert first.read_text() == content
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    assert len(content) == 64


def test_authentication_is_explicit(tmp_path: Path) -> None:
    """Ray's default depends on its version and on $HOME: ours is written out."""
    environment = {"RAY_AUTH_TOKEN": "somebody else's", "PATH": "/usr/bin"}
    cluster.prepare_environment(environment, token=tmp_path / "token", directory=tmp_path)
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / "token")
    assert "RAY_AUTH_TOKEN" not in environment
    assert environment["RAY_USAGE_STATS_ENABLED"] == "0"
    assert environment["PATH"].endswith(":/usr/bin")


def test_the_scratch_directory_leaves_room_for_sockets() -> None:
    """A socket's path has at most 107 bytes, whatever the temporary directory is called."""
    long = "/" + "x" * 90
    assert cluster.scratch_parent(long) == "/tmp"  # noqa: S108
    assert cluster.scratch_parent("/var/tmp") == "/var/tmp"  # noqa: S108
