"""What a runtime sees: names, problems, and devices that two files define."""

from __future__ import annotations

import json
from pathlib import Path

from fleet.node.cdi import scan


def text(*devices: str, kind: str = "vendor.com/gpu") -> str:
    edits = {"env": ["A=1"]}
    return json.dumps(
        {
            "cdiVersion": "0.5.0",
            "kind": kind,
            "devices": [{"name": name, "containerEdits": edits} for name in devices],
        }
    )


def test_a_device_of_two_files_exists_for_nobody(tmp_path: Path) -> None:
    """Reference 7.2: a conflict takes that device from both files, and only that one."""
    (tmp_path / "a.json").write_text(text("d0", "d1"))
    (tmp_path / "b.yaml").write_text(text("d1", "d2"))
    (tmp_path / "c.json").write_text(text("d1", kind="vendor.com/nic"))
    found = scan.scan(tmp_path)
    assert found.resolvable == {
        "vendor.com/gpu=d0", "vendor.com/gpu=d2", "vendor.com/nic=d1",
    }  # fmt: skip
    (conflict,) = scan.conflicts(tmp_path)
    assert "vendor.com/gpu=d1" in conflict
    assert "a.json and b.yaml" in conflict


def test_only_what_a_runtime_scans_is_seen(tmp_path: Path) -> None:
    """Reference 7.2: exact endings, dot-files too, no sub-directories, links followed."""
    (tmp_path / "sub.json").mkdir()
    (tmp_path / "sub.json" / "a.json").write_text(text("sub"))
    for name in ("a.yml", "a.JSON", ".x.json.tmp", "a.json.aside"):
        (tmp_path / name).write_text(text(name[0]))
    (tmp_path / ".dot.json").write_text(text("dot"))
    (tmp_path / "target").write_text(text("linked"))
    (tmp_path / "link.yaml").symlink_to("target")
    assert scan.scan(tmp_path).resolvable == {"vendor.com/gpu=dot", "vendor.com/gpu=linked"}


def test_an_invalid_file_costs_only_its_own_devices(tmp_path: Path) -> None:
    """Reference 7.2: malformed, empty and invalid files are problems of their own."""
    (tmp_path / "good.json").write_text(text("d0"))
    (tmp_path / "empty.json").touch()
    (tmp_path / "half.json").write_text(text("d1")[:-5])
    (tmp_path / "none.json").write_text(text())
    (tmp_path / "loop.json").symlink_to("loop.json")
    found = scan.scan(tmp_path)
    assert found.resolvable == {"vendor.com/gpu=d0"}
    assert sorted(found.problems) == ["empty.json", "half.json", "loop.json", "none.json"]


def test_a_missing_directory_is_empty(tmp_path: Path) -> None:
    """Reference 7.2: a directory that does not exist yet holds nothing."""
    assert scan.scan(tmp_path / "cdi") == scan.Scan()
