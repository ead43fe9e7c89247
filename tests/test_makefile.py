"""What `make` does before anything of ours is installed."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def python_without(module: str, directory: Path, name: str = "python3") -> Path:
    """A Python that lacks a module, as Debian's without python3-venv lacks ensurepip."""
    shadow = directory / "shadow"
    (shadow / module).mkdir(parents=True)
    (shadow / module / "__init__.py").write_text("raise ModuleNotFoundError(__name__)\n")
    python = directory / name
    python.write_text(f'#!/bin/sh\nPYTHONPATH={shadow} exec {sys.executable} "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return python


@pytest.mark.parametrize(
    ("name", "package"), [("python3", "python3-venv"), ("python3.12", "python3.12-venv")]
)
@pytest.mark.parametrize("target", ["scrub", "test", "kubelet-demo"])
def test_f52_what_is_missing_is_said_first(
    target: str, name: str, package: str, tmp_path: Path
) -> None:
    """F52: where Python cannot make a virtual environment `make` ends at once with one sentence
    that names the package, and leaves nothing behind."""
    venv = tmp_path / "venv"
    python = python_without("ensurepip", tmp_path, name)
    # Nothing can be downloaded here, so that whoever tries first fails otherwise.
    nowhere = {"PIP_NO_INDEX": "1", "UV_OFFLINE": "1"}
    ended = subprocess.run(
        ["make", "--no-print-directory", target, f"PYTHON={python}", f"VENV={venv}"],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
        | nowhere,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    (said, stopped) = ended.stderr.splitlines()
    assert f"install the package {package} (apt install {package})" in said
    assert stopped.startswith("make: ***")
    assert ended.stdout == ""
    assert not venv.exists()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/quick-start.md"])
def test_f52_pages_name_the_package(page: str) -> None:
    """F52: whoever reads before typing installs the package that `make` would name."""
    assert "apt install git make python3-venv" in (ROOT / page).read_text()


def test_the_installer_is_pinned_by_hash() -> None:
    """F69: what installs everything else is one version, and each of its files is known."""
    lines = [
        line.strip()
        for line in (ROOT / "deploy/uv.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert re.fullmatch(r"uv==\d+\.\d+\.\d+ \\", lines[0])
    hashes = [re.fullmatch(r"--hash=sha256:[0-9a-f]{64}(?: \\)?", line) for line in lines[1:]]
    assert len(hashes) > 1
    assert all(hashes)
    for builder in ("Makefile", "deploy/image/Dockerfile"):
        (line,) = [
            line for line in (ROOT / builder).read_text().splitlines() if "pip install" in line
        ]
        assert "--require-hashes --requirement deploy/uv.txt" in line
