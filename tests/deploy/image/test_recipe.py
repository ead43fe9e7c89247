"""What both builders of the image go by: the Dockerfile, the list of what is left out, the pins."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped] # ships no types

from deploy.image import archive, base, build, left_out, recipe
from deploy.image.errors import BuildError
from tests.deploy.manifests import ROOT

DOCKERFILE = (ROOT / "image" / recipe.NAME).read_text()


def test_the_dockerfile_says_all() -> None:
    """User, paths, labels and command of the image are those of the Dockerfile's last stage."""
    found = recipe.configuration(DOCKERFILE, build.LAST, {"REVISION": "abc"})
    assert found.user == "65532:65532"
    assert found.directory == found.environment["HOME"]
    assert found.environment["PATH"].startswith("/opt/fleetscrub/bin:")
    assert found.labels["org.opencontainers.image.revision"] == "abc"
    assert found.labels["org.opencontainers.image.version"] == "0.1.0"
    assert found.command == ["fleet", "--help"]


def test_every_step_is_known() -> None:
    """The Dockerfile has no step that the builder without an engine would leave out in silence."""
    stage = recipe.stages(DOCKERFILE)["build"]
    first, second = build.installs(stage)
    assert "--no-install-project" in first
    assert "--no-editable" in second
    other = DOCKERFILE.replace("RUN uv sync", "RUN apt-get install gcc && uv sync")
    with pytest.raises(BuildError, match="apt-get install gcc"):
        build.installs(recipe.stages(other)["build"])
    with pytest.raises(BuildError, match="VOLUME"):
        recipe.configuration(DOCKERFILE + "VOLUME /data\n", build.LAST, {})


def test_the_default_name_is_the_charts() -> None:
    """An image that was built and imported without a word is found by a chart without a word."""
    values = yaml.safe_load((ROOT / "helm/fleetscrub/values.yaml").read_text())
    assert values["image"]["repository"] == build.REPOSITORY
    chart = yaml.safe_load((ROOT / "helm/fleetscrub/Chart.yaml").read_text())
    default = recipe.configuration(DOCKERFILE, build.LAST, {})
    assert default.labels["org.opencontainers.image.version"] == chart["appVersion"]


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ("fleetscrub:1", "docker.io/library/fleetscrub:1"),
        ("fleetscrub/fleetscrub:1", "docker.io/fleetscrub/fleetscrub:1"),
        ("registry.example/a/b:1", "registry.example/a/b:1"),
        ("localhost/b:1", "localhost/b:1"),
    ],
)
def test_names_are_those_of_kubelet(given: str, full: str) -> None:
    """A name without a registry is one of docker.io, as kubelet reads it."""
    assert archive.full_name(given) == full


def test_f78_what_is_left_out_has_a_reason() -> None:
    """F78: every entry says why, and none names a whole package of ours."""
    entries = left_out.entries()
    assert all(entry.why and entry.patterns for entry in entries)
    names = [pattern for entry in entries for pattern in entry.patterns]
    assert len(names) == len(set(names))
    for package in ("fleet", "actors", "node_plugin", "jobs"):
        assert not [name for name in names if f"site-packages/{package}/" in name]


def test_f78_what_is_kept_stays(tmp_path: Path) -> None:
    """F78: a file goes with its bytecode and its line of the package's list; what is kept stays."""
    site = tmp_path / "opt/fleetscrub/lib/python3.11/site-packages"
    files = {
        "kubernetes/client/models/__init__.py": True,
        "kubernetes/client/models/v1_pod.py": False,
        "kubernetes/client/models/__pycache__/v1_pod.cpython-311.pyc": False,
        "botocore/data/s3/model.json": True,
        "botocore/data/ec2/model.json": False,
    }
    for name in files:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("1234")
    record = site / "kubernetes-1.dist-info/RECORD"
    record.parent.mkdir()
    record.write_text(
        "kubernetes/client/models/__init__.py,,4\nkubernetes/client/models/v1_pod.py,,4\n"
    )
    assert sum(left_out.remove(tmp_path).values()) == 12
    assert {name: (site / name).exists() for name in files} == files
    assert record.read_text() == "kubernetes/client/models/__init__.py,,4\n"
    assert sum(left_out.remove(tmp_path).values()) == 0


def test_pins_that_the_mirror_lost_are_named() -> None:
    """A version that the mirror no longer has is named, with the command that takes today's."""
    base.compare({"bash": "1"}, {"bash": "1"}, base.pins_file())
    with pytest.raises(BuildError) as error:
        base.compare({"bash": "2", "dash": "1"}, {"bash": "1"}, base.pins_file())
    assert "bash 1 (the mirror has 2); dash not at all (the mirror has 1)" in str(error.value)
    assert "make image-pins" in str(error.value)
    assert "make image MIRROR=" in str(error.value)


def test_pins_are_needed(tmp_path: Path) -> None:
    """Where there are none the command that makes them is named."""
    with pytest.raises(BuildError, match="make image-pins"):
        base.pins(tmp_path / "debian-riscv64.txt")
    taken, versions = base.pins(ROOT / "image" / "debian-amd64.txt")
    assert taken > 1_700_000_000
    assert {"libc6", "python3.11", "dash"} <= versions.keys()


def test_the_status_of_dpkg_is_read() -> None:
    """Only what is installed counts."""
    text = (
        "Package: a\nStatus: install ok installed\nVersion: 1:2-3\nDescription: x\n Package: no\n\n"
        "Package: b\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    assert base.installed(text) == {"a": "1:2-3"}
