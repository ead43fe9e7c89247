"""The image: what its recipe names exists, is pinned, and agrees with the package."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from deploy.image import recipe
from tests.deploy.chart import rendering
from tests.deploy.manifests import ROOT

pytestmark = pytest.mark.chart
PROJECT = ROOT.parent
RECIPE = ROOT / "image" / "Dockerfile"
KNOWN = {
    *("ARG", "FROM", "ENV", "RUN", "WORKDIR", "COPY", "LABEL", "USER"),
    *("HEALTHCHECK", "ENTRYPOINT", "CMD"),
}


def of(word: str) -> list[str]:
    return [step.argument for step in recipe.steps(RECIPE.read_text()) if step.word == word]


def copied() -> list[str]:
    """What is copied from this repository."""
    stages = recipe.stages(RECIPE.read_text()).values()
    return [source for stage in stages for source, _ in recipe.copied(stage)]


def test_the_recipe_is_one() -> None:
    """Only instructions that there are; more stages than one; no ADD, which fetches anything."""
    assert {step.word for step in recipe.steps(RECIPE.read_text())} <= KNOWN
    stages = [argument.split() for argument in of("FROM")]
    names = [stage[-1] for stage in stages]
    assert names == ["build", "runtime", "node-plugin", "fleetscrub"]
    for base, *_ in stages:
        assert base in (*names, "${PYTHON_IMAGE}@${PYTHON_DIGEST}")


def test_everything_copied_exists_and_is_sent() -> None:
    """A source that is not there fails the build; one that is ignored fails it as well."""
    ignored = RECIPE.with_name("Dockerfile.dockerignore").read_text().splitlines()
    sent = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert ignored[1] == "*", "everything is left out that is not named"
    for source in copied():
        assert (PROJECT / source).exists(), source
    assert set(copied()) == sent
    packages = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    wheel = packages["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {f"{name}/" for name in wheel} <= set(copied())


def test_no_secret_is_sent() -> None:
    """Neither key nor state nor history of this repository reaches a layer."""
    for source in copied():
        found = PROJECT / source
        files = [path for path in found.rglob("*") if path.is_file()] if found.is_dir() else [found]
        for path in files:
            assert path.suffix not in (".pem", ".key", ".env", ".db", ".kubeconfig"), path
    assert not re.search(r"(?i)(password|secret|token)=", RECIPE.read_text().replace("=token", ""))


def test_versions_agree() -> None:
    """Python is one that the package takes, the version is the package's."""
    arguments = dict(one.split("=", 1) for one in of("ARG") if "=" in one)
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert arguments["VERSION"] == project["version"]
    python = re.match(r"^.+/python:3\.(\d+)\.\d+-slim-\w+$", arguments["PYTHON_IMAGE"])
    assert python, "exact version of a slim Debian image"
    assert project["requires-python"] == ">=3.11,<3.14"
    assert 11 <= int(python[1]) < 14
    assert "PYTHON_DIGEST" in of("ARG"), "no default: a build names what it is built on"


def test_the_lock_is_kept() -> None:
    """What is installed is what is locked, without the test tools."""
    for line in of("RUN"):
        if "uv sync" in line:
            assert {"--frozen", "--no-dev"} <= set(line.split())
    (installed,) = (line for line in of("RUN") if " pip install " in line)
    assert installed.endswith("--require-hashes --requirement deploy/uv.txt")


def test_it_runs_as_nobody_unless_told() -> None:
    """The last stage has the user and the paths that the chart's pods are given."""
    assert of("USER")[0] == "65532:65532"
    assert recipe.steps(RECIPE.read_text())[-1].argument == '["fleet", "--help"]'
    template = rendering.one("CronJob", "fleetscrub-campaign")["spec"]["jobTemplate"]["spec"]
    assert template["template"]["spec"]["securityContext"]["runAsUser"] == 65532
    (path,) = re.findall(r"PATH=(\S+)", " ".join(of("ENV")))
    worker = rendering.one("DaemonSet", "fleetscrub-worker")["spec"]["template"]["spec"]
    for container in worker["containers"]:
        for variable in container["env"]:
            if variable["name"] == "PATH":
                assert variable["value"].startswith(path)


def test_health_is_asked_where_the_image_serves() -> None:
    """The plugin's own target is asked at the plugin's own port; pods have probes instead."""
    from node_plugin.__main__ import HTTP_DEFAULT

    asked, none = of("HEALTHCHECK")
    assert none == "NONE"
    words = json.loads(asked.partition("CMD ")[2])
    assert f"http://{HTTP_DEFAULT}/healthz" in words[-1]
    assert of("ENTRYPOINT") == ['["fleet-node-plugin"]']


def test_labels_say_what_it_is() -> None:
    """Licence, version and revision can be read off an image."""
    (labels,) = of("LABEL")
    for name in ("title", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in labels
    assert Path(PROJECT / "LICENSE").exists()
