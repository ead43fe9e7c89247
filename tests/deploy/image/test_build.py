"""The image, built and looked into."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.image import archive, base, build, left_out, recipe
from deploy.image.errors import BaseFailed
from deploy.image.sandbox import Sandbox
from tests import debian
from tests.deploy.manifests import ROOT

pytestmark = [pytest.mark.image, pytest.mark.timeout(1_800)]
PROJECT = ROOT.parent
LARGEST = 600e6
"""B, unpacked."""


@pytest.fixture(scope="session")
def order(tmp_path_factory: pytest.TempPathFactory) -> build.Order:
    """This checkout, with the cache of `make image`."""
    if os.geteuid() != 0:
        pytest.skip("SKIPPED: building the image needs root")
    try:
        mmdebstrap = debian.find("mmdebstrap", "mmdebstrap").path
    except debian.Unavailable as error:
        pytest.skip(f"SKIPPED: mmdebstrap cannot be had: {error}")
    return build.Order(
        source=PROJECT,
        output=tmp_path_factory.mktemp("image"),
        cache=PROJECT / ".venv" / "image",
        name="",
        mirror=base.MIRROR,
        mmdebstrap=str(mmdebstrap),
        uv=PROJECT / ".venv/bin/uv",
    )


@pytest.fixture(scope="session")
def built(order: build.Order) -> build.Built:
    """The image of this checkout; everything in it was started."""
    try:
        return build.build(order)
    except BaseFailed as error:
        pytest.skip(f"SKIPPED: {error}")


@contextmanager
def layers(image: Path) -> Iterator[list[tarfile.TarFile]]:
    """Its layers, in their order."""
    with tarfile.open(image) as opened, ExitStack() as stack:
        index = told(opened, "index.json")
        manifest = told(opened, blob(index["manifests"][0]["digest"]))
        files = [opened.extractfile(blob(one["digest"])) for one in manifest["layers"]]
        yield [stack.enter_context(tarfile.open(fileobj=file, mode="r:gz")) for file in files]


def blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def text(opened: tarfile.TarFile, name: str) -> bytes:
    file = opened.extractfile(name)
    assert file is not None
    return file.read()


def told(opened: tarfile.TarFile, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text(opened, name))
    return found


def test_f78_the_image_is_small(built: build.Built) -> None:
    """F78: unpacked the image has at most 600 MB."""
    assert 200e6 < built.unpacked <= LARGEST


def test_the_archive_is_an_image_layout(built: build.Built) -> None:
    """Every blob is what its name says; containerd finds the name that the chart asks for."""
    with tarfile.open(built.archive) as opened:
        assert told(opened, "oci-layout") == {"imageLayoutVersion": "1.0.0"}
        for name in opened.getnames():
            if name.startswith("blobs/"):
                assert hashlib.sha256(text(opened, name)).hexdigest() == Path(name).name
    index, configuration = archive.read(built.archive)
    (described,) = index["manifests"]
    assert described["digest"] == built.digest
    named = described["annotations"]["io.containerd.image.name"]
    assert named == f"docker.io/{build.REPOSITORY}:0.1.0"
    assert configuration["config"]["User"] == "65532:65532"
    assert configuration["architecture"] == base.architecture()
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=PROJECT, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert configuration["config"]["Labels"]["org.opencontainers.image.revision"].startswith(head)


def test_layers_hold_no_trace_of_their_maker(built: build.Built) -> None:
    """No time of the build, no account of this machine, no file that makes another user of one."""
    taken, _ = base.pins(base.pins_file())
    times = []
    with layers(built.archive) as opened:
        for layer in opened:
            entries = layer.getmembers()
            assert [entry.name for entry in entries] == sorted(entry.name for entry in entries)
            assert not [entry.name for entry in entries if entry.mode & 0o6000]
            assert not [entry.name for entry in entries if entry.uid != 0]
            times.append({entry.mtime for entry in entries})
        names = set(opened[0].getnames())
    assert times[:2] == [{taken}, {taken}], "what others wrote is the same layer at each commit"
    assert len(times[2]) == 1
    assert "usr/bin/python3" in names
    assert "etc/hostname" not in names


def test_every_package_is_in_the_bill(built: build.Built) -> None:
    """The bill of materials lists Debian's packages and Python's, each with its version."""
    bill = json.loads(built.bill.read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["version"] == "0.1.0"
    listed = {
        (one["purl"].split("/")[0], one["name"], one["version"]) for one in bill["components"]
    }
    _, pinned = base.pins(base.pins_file())
    assert {(name, version) for kind, name, version in listed if kind == "pkg:deb"} == set(
        pinned.items()
    )
    with layers(built.archive) as opened:
        names = [name for layer in opened for name in layer.getnames()]
    there = {
        (re.sub(r"[-_.]+", "-", found[1]).lower(), found[2])
        for name in names
        if (found := re.search(r"site-packages/([^/]+)-([^-/]+)\.dist-info$", name))
    }
    python = {
        (re.sub(r"[-_.]+", "-", name), version)
        for kind, name, version in listed
        if kind == "pkg:pypi"
    }
    assert python == there
    assert {"ray", "fleetscrub", "kubernetes"} <= {name for name, _ in python}


def another_checkout(directory: Path) -> Path:
    """What git knows of this one, somewhere else, as another account with other habits has it."""
    clone = directory / "elsewhere"
    subprocess.run(["git", "clone", "--quiet", PROJECT, clone], check=True, umask=0o077)
    changed = subprocess.run(
        ["git", "diff", "--binary", "HEAD"], cwd=PROJECT, capture_output=True, check=True
    ).stdout
    if changed:
        subprocess.run(["git", "apply"], cwd=clone, input=changed, check=True)
    return clone


def test_the_same_from_another_place(
    built: build.Built, order: build.Order, tmp_path: Path
) -> None:
    """Built again, later and from another directory, archive and bill are the same bytes."""
    clone = another_checkout(tmp_path)
    again = build.build(replace(order, source=clone, output=tmp_path), tried=False)
    assert again.digest == built.digest
    assert archive.digest_of(again.archive) == archive.digest_of(built.archive)
    assert again.bill.read_text() == built.bill.read_text()


@pytest.mark.slow
def test_the_same_from_nothing(
    built: build.Built,
    order: build.Order,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Without a cache it is the same again, and every entry of what is left out takes something."""
    again = build.build(replace(order, cache=tmp_path / "cache", output=tmp_path), tried=False)
    assert again.digest == built.digest
    printed = capfd.readouterr().out
    for entry in left_out.entries():
        assert entry.why in printed


HEAD = """
cd /tmp
python -c 'import secrets; print(secrets.token_hex(32), end="")' > token
export RAY_AUTH_TOKEN_PATH=/tmp/token
ray start --head --node-ip-address=127.0.0.1 --port=6379 --num-cpus=2 --num-gpus=0 \
  --object-store-memory=80000000 --include-dashboard=true --dashboard-host=0.0.0.0 \
  --dashboard-port=8265 --metrics-export-port=8080 --disable-usage-stats
cat > job.py <<'END'
import ray
ray.init()
print(ray.get([ray.remote(lambda one: one + 1).remote(one) for one in range(4)]))
END
ray job submit --address http://127.0.0.1:8265 -- python /tmp/job.py
python - <<'END'
import urllib.request
token = open("/tmp/token").read()
for page in (":8265/", ":8265/api/jobs/", ":8265/logical/actors", ":8265/nodes?view=summary",
             ":8080/metrics"):
    asked = urllib.request.Request(f"http://127.0.0.1{page}")
    asked.add_header("Authorization", f"Bearer {token}")
    print(page, urllib.request.urlopen(asked, timeout=20).status)
END
! grep -rE 'ModuleNotFoundError|ImportError' /tmp/ray/session_latest/logs
ray stop
python - <<'END'
import boto3
for service in ("dynamodb", "s3", "sts", "sso", "sso-oidc", "signin"):
    made = boto3.client(service, region_name="eu-central-1",
                        aws_access_key_id="a", aws_secret_access_key="b")
    print(service, made.meta.service_model.service_name)
from cuda.bindings import driver
import pynvml
END
python -m tests.lab.kubelet
echo all of it ran
"""
"""What pods do beside what every build tries: a head with dashboard, a job, clients of clouds."""


@pytest.mark.slow
def test_f78_nothing_of_ours_misses_what_is_left_out(built: build.Built, tmp_path: Path) -> None:
    """F78: Ray's head with dashboard and jobs, cloud clients and pods of a kubelet run in it."""
    root = tmp_path / "root"
    root.mkdir()
    with layers(built.archive) as opened:
        for layer in opened:
            layer.extractall(root, filter="fully_trusted")  # noqa: S202 # we made it
    dockerfile = (ROOT / "image" / recipe.NAME).read_text()
    environment = recipe.configuration(dockerfile, build.LAST, {}).environment
    tests = {"/tmp/tests": str(PROJECT / "tests")}  # noqa: S108 # no part of the image
    printed = Sandbox(root, environment, shown=tests).run(["bash", "-ec", HEAD])
    assert "succeeded" in printed
    assert "[1, 2, 3, 4]" in printed
    assert len(re.findall(r"^:\d+/\S* 200$", printed, re.MULTILINE)) == 5
    assert printed.splitlines()[-1] == "all of it ran"
