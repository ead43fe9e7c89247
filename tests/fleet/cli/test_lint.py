"""`fleet lint`."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from fleet.cli.lint import SIZE_MAX
from fleet.cli.main import main
from tests.fleet.admission import corpus

GOOD = """apiVersion: v1
kind: Pod
metadata: {name: plain}
spec:
  containers:
  - {name: work, image: x}
"""
BAD = GOOD.replace("image: x}", "image: x, securityContext: {privileged: true}}")


class Standard(io.StringIO):
    """A standard input with bytes below it, as a pipe has."""

    def __init__(self, content: bytes) -> None:
        super().__init__()
        self.buffer = io.BytesIO(content)  # type: ignore[misc] # read-only in the base class


def test_findings_say_file_line_rule_and_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A5: one line for each, which an editor can jump to; exit code 1."""
    file = tmp_path / "bad.yaml"
    file.write_text(f"{GOOD}---\n{BAD}")
    assert main(["lint", str(file)]) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith(
        f"{file}:13: A5-privileged Pod/plain spec.containers[0].securityContext.privileged:"
        " container work is privileged"
    )
    assert " — leave privileged out" in first
    assert last == "2 objects in 1 files judged: 1 finding"


def test_the_corpus_is_found_as_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    """A5 B17 B20 B35 B51 C1 C2 C3 C4 C5 D1 D2: a directory, as JSON, with the rules expected."""
    assert main(["lint", str(corpus.ROOT), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    cases = [case for case in corpus.cases() if not case.said(corpus.REQUESTER)]
    found = {(Path(one["file"]).stem, one["object"], one["rule"]) for one in document["findings"]}
    for case in cases:
        name = f"{case.document.value['kind']}/{case.document.value['metadata']['name']}"
        assert {(case.file, name, rule) for rule in case.expected} <= found
    assert document["objects"] == len(corpus.cases())
    assert document["files"] == len(list(corpus.ROOT.glob("*.yaml")))


def test_good_manifests_are_exit_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A5: nothing found; what is ours or the cluster's is not judged, and said to be so."""
    (tmp_path / "good.yml").write_text(GOOD)
    (tmp_path / "ours.json").write_text(
        json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "kube-system"}})
    )
    assert main(["lint", str(tmp_path)]) == 0
    assert "1 objects in 2 files judged, 1 not governed: 0 findings" in capsys.readouterr().out


def test_what_helm_printed_is_read_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A5: `helm template | fleet lint -`, with the template each finding came from."""
    text = f"---\n# Source: chart/templates/pod.yaml\n{BAD}"
    monkeypatch.setitem(sys.__dict__, "stdin", Standard(text.encode()))
    assert main(["lint", "-"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("<stdin>:8: A5-privileged")
    assert "(chart/templates/pod.yaml)" in said


def test_templates_are_told_once_for_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B20: to be rendered first; the rest of the file is judged all the same."""
    file = tmp_path / "templates.yaml"
    file.write_text(f"a: {{{{ .Values.a }}}}\n---\nb: {{{{ .Values.b }}}}\n---\n{BAD}")
    assert main(["lint", str(file)]) == 1
    said = capsys.readouterr().out
    assert said.count("helm template") == 1
    assert "A5-privileged" in said


def test_what_cannot_be_read_does_not_hide_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """B20: a missing file, or one that is no text, is exit 2, once all else was judged."""
    (tmp_path / "bad.yaml").write_text(BAD)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    large = tmp_path / "large.yaml"
    with large.open("wb") as opened:
        opened.truncate(SIZE_MAX + 1)
    assert main(["lint", str(tmp_path / "nowhere"), str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert "A5-privileged" in told.out
    assert "nowhere: No such file" in told.err
    assert "binary.yaml: no UTF-8 text" in told.err
    assert "large.yaml: larger than" in told.err


def test_nothing_to_judge_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """B20: a wrong directory must not look like a clean one."""
    (tmp_path / "values.yaml").write_text("replicas: 1\n")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "bad.yaml").write_text(BAD)
    assert main(["lint", str(tmp_path)]) == 2
    assert "no Kubernetes object in" in capsys.readouterr().err


def test_a_cluster_of_other_names_is_judged_by_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """C2 D1: driver, classes and wipe budget are those of the cluster the manifests are for."""
    file = str(corpus.ROOT / "good.yaml")
    assert main(["lint", file]) == 0
    assert main(["lint", file, "--wipe-budget", "90"]) == 1
    assert "set terminationGracePeriodSeconds to 90 or more" in capsys.readouterr().out
    assert main(["lint", file, "--driver", "gpu.acme.example", "--class", "nic.example.com"]) == 1
    assert "driver gpu.acme.example with deallocation" in capsys.readouterr().out


def test_the_chart_s_own_namespace_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A5: the chart may be installed elsewhere; then what is for `fleetscrub` is a tenant's."""
    files = []
    for namespace in ("fleetscrub", "gpu-system", "kube-system"):
        files.append(str(tmp_path / f"{namespace}.yaml"))
        told = BAD.replace("name: plain}", f"name: plain, namespace: {namespace}}}")
        Path(files[-1]).write_text(told)
    found = []
    for option in ([], ["--own-namespace", "gpu-system"]):
        assert main(["lint", *files, *option, "--json"]) == 1
        findings = json.loads(capsys.readouterr().out)["findings"]
        found.append([Path(one["file"]).stem for one in findings])
    assert found == [["gpu-system"], ["fleetscrub"]]


def test_a_list_of_pods_is_judged_as_pods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A5 B20: members of a typed list need not say their kind."""
    inner = BAD.partition("metadata")[2].replace("\n", "\n  ").rstrip()
    file = tmp_path / "pods.yaml"
    file.write_text(f"apiVersion: v1\nkind: PodList\nitems:\n- metadata{inner}\n")
    assert main(["lint", str(file)]) == 1
    assert "A5-privileged Pod/plain" in capsys.readouterr().out
