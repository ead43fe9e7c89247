"""CDI resolution and containers: what a runtime takes, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.core import errors
from tests.lab.kubelet.cgroups import PodCgroups
from tests.lab.kubelet.runtime import Runtime

POD = "d0d0d0d0-0000-4000-8000-000000000001"


def device(name: str = "d0", **edits: Any) -> dict[str, Any]:
    return {"name": name, "containerEdits": edits or {"env": ["A=1"]}}


def spec(*devices: Any, **more: Any) -> dict[str, Any]:
    found = list(devices) or [device()]
    return {"cdiVersion": "0.5.0", "kind": "example.com/gpu", "devices": found, **more}


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Runtime]:
    (tmp_path / "cdi").mkdir()
    found = Runtime(tmp_path / "cdi", PodCgroups(tmp_path / "cgroup"))
    yield found
    found.power_off()


def put(runtime: Runtime, name: str, content: Any) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    (runtime.cdi_directory / name).write_text(text)


def test_edits_of_file_and_device_are_joined(runtime: Runtime) -> None:
    """Reference 7.4: spec-level edits count once any device of the file is used."""
    mounts = [
        {"hostPath": "/m", "containerPath": "/dev/fleetsim/a", "options": ["rbind", "rw"]},
        {"hostPath": "/lib/x", "containerPath": "/lib/x", "options": ["ro", "bind"]},
    ]
    nodes = [{"path": "/dev/a", "type": "c", "major": 1, "minor": 3}]
    put(
        runtime,
        "a.json",
        spec(device(mounts=mounts, deviceNodes=nodes), containerEdits={"env": ["B=x=y"]}),
    )
    found = runtime.resolve(["example.com/gpu=d0"])
    assert dict(found.environment) == {"B": "x=y"}
    assert (found.memories, found.nodes) == (("/m",), ("/dev/a",))


def test_an_id_listed_twice_is_one_device(runtime: Runtime) -> None:
    """Reference 1.4: kubelet 1.36.2 sends ids twice; a runtime must not mind."""
    put(runtime, "a.json", spec(device(env=["A=1"])))
    assert dict(runtime.resolve(["example.com/gpu=d0"] * 2).environment) == {"A": "1"}


def test_an_unknown_id_is_an_error_that_names_it(runtime: Runtime) -> None:
    """B10: no readable file, no container."""
    put(runtime, "a.json", spec())
    with pytest.raises(errors.SpecUnavailable, match="gpu=d9"):
        runtime.resolve(["example.com/gpu=d0", "example.com/gpu=d9"])


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        {"cdiVersion": "9.9.9", "kind": "example.com/gpu", "devices": [device()]},
        {"cdiVersion": "0.5.0", "kind": "example.com/gpu", "devices": []},
        spec(extra=1),
        spec(device(), device()),
        spec({"name": "d0", "containerEdits": {}}),
        spec({"name": "d0"}),
    ],
)
def test_a_file_a_runtime_refuses_has_no_devices(runtime: Runtime, content: Any) -> None:
    """Reference 7.1, 7.2: an invalid file is ignored as a whole, the others are not affected."""
    put(runtime, "bad.json", content)
    put(runtime, "good.json", spec(device("d1")))
    with pytest.raises(errors.SpecUnavailable, match=r"bad\.json"):
        runtime.resolve(["example.com/gpu=d0"])
    assert runtime.resolve(["example.com/gpu=d1"]).environment


def test_a_name_defined_twice_is_not_defined(runtime: Runtime) -> None:
    """Reference 7.2: the same device in two files of a directory is a conflict (B56)."""
    put(runtime, "a.json", spec())
    put(runtime, "b.json", spec())
    with pytest.raises(errors.SpecUnavailable, match="twice"):
        runtime.resolve(["example.com/gpu=d0"])


def test_names_that_are_not_scanned_do_not_count(runtime: Runtime) -> None:
    """Reference 7.2: only .json here; temporary files under other names are never seen."""
    for name in ("a.json.tmp", "a.txt", ".a.tmp"):
        put(runtime, name, spec())
    with pytest.raises(errors.SpecUnavailable):
        runtime.resolve(["example.com/gpu=d0"])


def memory_spec(runtime: Runtime, size: int = 1 << 16) -> Path:
    memory = runtime.cdi_directory.parent / "memory.bin"
    memory.write_bytes(bytes(size))
    mount = {"hostPath": str(memory), "containerPath": "/dev/fleetsim/a", "options": ["bind"]}
    put(runtime, "a.json", spec(device(mounts=[mount])))
    return memory


def test_a_container_is_a_process_with_the_memory_open(runtime: Runtime) -> None:
    """A tenant writes into the very file, and finds there what others left."""
    memory = memory_spec(runtime)
    container = runtime.create(POD, ["example.com/gpu=d0"])
    secret = bytes(range(64))
    assert container.ask("search", secret)["found"] == 0
    container.ask("write", secret)
    assert memory.read_bytes().count(secret) == 3
    answer = container.ask("search", secret)
    assert (answer["found"], answer["searched"]) == (4, 1 << 16)
    maps = Path(f"/proc/{container.pid}/maps").read_text()
    assert str(memory) in maps


def test_a_mount_source_must_exist(runtime: Runtime) -> None:
    """B79: a stale path in a spec is an error at creation."""
    memory_spec(runtime).unlink()
    with pytest.raises(errors.SpecUnavailable, match="does not exist"):
        runtime.create(POD, ["example.com/gpu=d0"])
    assert runtime.container(POD) is None


def test_a_stubborn_process_ignores_sigterm(runtime: Runtime) -> None:
    """B01: only SIGKILL ends it, and then its cgroup goes with it."""
    memory_spec(runtime)
    runtime.start_sandbox(POD)
    container = runtime.create(POD, ["example.com/gpu=d0"], stubborn=True)
    container.terminate()
    assert container.ask("search", b"x" * 16)["found"] == 0
    assert container.running()
    runtime.remove_container(POD)
    assert not container.running()
    assert not container.cgroup.exists()
    assert runtime.sandboxes() == (POD,)
    runtime.remove_sandbox(POD)
    assert runtime.sandboxes() == runtime.cgroups.pods() == ()


def test_a_dead_container_does_not_answer(runtime: Runtime) -> None:
    """Asking a process that is gone is an error with its pid."""
    memory_spec(runtime)
    container = runtime.create(POD, ["example.com/gpu=d0"])
    container.kill()
    with pytest.raises(errors.DeviceBusy, match=str(container.pid)):
        container.ask("search", b"x")


def test_a_container_that_cannot_open_its_memory_is_none(runtime: Runtime) -> None:
    """A process that dies at once leaves neither container nor cgroup."""
    memory_spec(runtime, size=0)  # an empty file cannot be mapped
    with pytest.raises(errors.DeviceBusy):
        runtime.create(POD, ["example.com/gpu=d0"])
    assert runtime.container(POD) is None
    assert list((runtime.cgroups.make_pod(POD)).glob("*/")) == []


def test_power_off_leaves_nothing_but_memory(runtime: Runtime) -> None:
    """A reboot ends processes and empties the CDI directory; memory keeps its content."""
    memory = memory_spec(runtime)
    container = runtime.create(POD, ["example.com/gpu=d0"])
    container.ask("write", b"s" * 64)
    runtime.power_off()
    assert not container.running()
    assert list(runtime.cdi_directory.iterdir()) == []
    assert b"s" * 64 in memory.read_bytes()
