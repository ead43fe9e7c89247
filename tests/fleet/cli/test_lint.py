"""`fleet lint`."""

from __future__ import annotations

import io
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.cli.lint import SIZE_MAX
from fleet.cli.main import main
from tests.fleet.admission import corpus

LISTS = corpus.ROOT / "F69-admission"
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
    """A5 B17 B20 B35 B51 C1 C2 C3 C4 C5 D1 D2: files, as JSON, with the rules expected."""
    files = sorted(map(str, corpus.ROOT.glob("*.yaml")))
    assert main(["lint", *files, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    cases = [case for case in corpus.cases() if not case.said(corpus.REQUESTER)]
    found = {(Path(one["file"]).stem, one["object"], one["rule"]) for one in document["findings"]}
    for case in cases:
        name = f"{case.document.value['kind']}/{case.document.value['metadata']['name']}"
        assert {(case.file, name, rule) for rule in case.expected} <= found
    assert document["objects"] == len(corpus.cases())
    assert document["files"] == len(list(corpus.ROOT.glob("*.yaml")))


def test_good_manifests_are_exit_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A5: all was judged, and nothing is refused; advice refuses nothing."""
    (tmp_path / "good.yml").write_text(GOOD)
    assert main(["lint", str(tmp_path)]) == 0
    assert "1 objects in 1 files judged: 0 findings" in capsys.readouterr().out
    assert main(["lint", str(LISTS / "accept" / "15-uncounted-exactly.yaml")]) == 0
    said = capsys.readouterr().out
    assert "C3-explicit advice: ResourceClaim/g15" in said
    assert "1 objects in 1 files judged: 0 findings, 1 of advice" in said


def test_f69_what_is_not_judged_is_told_by_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F69: what is for kube-system is not judged, is said to be so, and is no success."""
    (tmp_path / "good.yml").write_text(GOOD)
    (tmp_path / "ours.json").write_text(
        json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "kube-system"}})
    )
    assert main(["lint", str(tmp_path)]) == 3
    said = capsys.readouterr().out
    assert "ours.json:1: not judged: Pod: the rules do not hold in namespace kube-system" in said
    assert "1 objects in 2 files judged, 1 not judged: 0 findings" in said


def test_f15_an_object_that_hides_its_pods_is_not_judged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """F15: pods are found in any kind; where none are, lint says so, and so does its exit code."""
    file = str(corpus.ROOT / "F15-workload-kinds-not-judged" / "workloads.yaml")
    assert main(["lint", file, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    named = {one["object"] for one in document["findings"]}
    assert named == {
        *("JobSet/train", "LeaderWorkerSet/serve", "PyTorchJob/ddp"),
        *("RayCronJob/nightly", "RayCluster/rc"),
    }
    assert [one["object"] for one in document["not_judged"]] == ["VirtualMachineInstance/vm-gpu"]
    assert document["objects"] == 5


def test_f15_a_kind_can_be_said_to_make_no_pods(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F15: what nobody knows is not judged, unless it is said to make no pods."""
    file = tmp_path / "route.yaml"
    file.write_text("apiVersion: example.com/v1\nkind: Route\nmetadata: {name: x}\n")
    assert main(["lint", str(file)]) == 3
    assert "not judged: Route/x" in capsys.readouterr().out
    assert main(["lint", str(file), "--podless", "Route"]) == 0


def test_f16_what_a_cluster_allows_is_read_from_the_values_of_the_chart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F16, F69: lint judges by the values that the policies were made with."""
    values = tmp_path / "values.yaml"
    claim = str(LISTS / "refuse" / "03-13-ext-github.com_fuse.yaml")
    values.write_text("admission: {extendedResources: [github.com/fuse]}\n")
    assert main(["lint", claim]) == 1
    assert main(["lint", claim, "--values", str(values)]) == 0
    values.write_text("admission: {capabilities: [], spreadClasses: []}\n")
    for name in ("03-rdma-IPC_LOCK", "06-2-gpus"):
        file = str(LISTS / "accept" / f"{name}.yaml")
        assert main(["lint", file]) == 0
        assert main(["lint", file, "--values", str(values)]) == 1
    capsys.readouterr()
    values.write_text("admission: {capabilities: IPC_LOCK}\n")
    assert main(["lint", claim, "--values", str(values)]) == 2
    assert "admission.capabilities is not a list of texts" in capsys.readouterr().err


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


def blocks(page: Path) -> Iterator[str]:
    """The manifests of a page: fenced, or set in by four blanks."""
    found = page.read_text()
    for match in re.finditer(
        r"^```\w*\n(.*?)^```|((?:^    .*\n|^\n)+)", found, re.MULTILINE | re.DOTALL
    ):
        text = match[1] or textwrap.dedent(match[2])
        if re.search(r"^\s*apiVersion:", text, re.MULTILINE):
            yield text


def test_f59_every_example_of_ours_passes_our_own_lint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F59: what we show people to copy is not refused by what we have them run."""
    root = corpus.ROOT.parent.parent
    files = [root / "deploy" / "kubernetes" / name for name in ("example-pod.yaml", "classes.yaml")]
    for page in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        for number, text in enumerate(blocks(page)):
            files.append(tmp_path / f"{page.stem}-{number}.yaml")
            files[-1].write_text(text)
    assert len(files) >= 3
    assert main(["lint", *map(str, files)]) == 0, capsys.readouterr().out


def test_f21_a_group_whose_pods_share_a_claim_is_not_judged_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F21: a claim of a group of pods is named with what to write instead, and the exit code says
    that not all was judged; a group without claims is judged like anything that makes no pods.
    """
    file = corpus.ROOT / "F21-podgroup-reserved-claim" / "workload.yaml"
    assert main(["lint", str(file)]) == 3
    shown = capsys.readouterr().out
    assert "not judged: PodGroup/group-1: its pods share one claim, which is not served" in shown
    plain = tmp_path / "group.yaml"
    plain.write_text(
        file.read_text().replace(
            "  resourceClaims:\n  - {name: gpu, resourceClaimT",
            "  x:\n  - {name: gpu, resourceClaimT",
            1,
        )
    )
    assert main(["lint", str(plain)]) == 0
