"""What we write: exactly what the grants name, the same bytes for the same grants, always valid."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.core import errors
from fleet.core.model import ClaimUid, Uuid
from fleet.devices.base import DeviceNode, Grant, Mount
from fleet.node.cdi import parser, rules, versions
from fleet.node.cdi import spec as cdi_spec
from fleet.node.cdi.names import Kind
from tests.fleet.node.cdi.conftest import UID
from tests.fleet.node.cdi.writing import NULL

KIND = Kind("fleetscrub.dev", "gpu")
PATHS = st.from_regex(r"(/[a-z0-9_-][a-z0-9._-]{0,6}){1,3}", fullmatch=True)
NODES = st.builds(
    DeviceNode,
    PATHS,
    st.sampled_from("bc"),
    st.integers(1, 2**31),
    st.integers(0, 2**31),
    file_mode=st.integers(0, 0o7777),
    permissions=st.sampled_from(["r", "rw", "wr", "mwr"]),
    host_path=st.one_of(st.just(""), PATHS),
)
GRANTS = st.builds(
    Grant,
    nodes=st.lists(NODES, max_size=3, unique_by=lambda node: node.path),
    mounts=st.lists(
        st.builds(Mount, PATHS, PATHS, st.booleans()),
        max_size=3,
        unique_by=lambda mount: mount.container_path,
    ),
    environment=st.dictionaries(st.from_regex(r"[A-Z_]{1,6}", fullmatch=True), st.text("ab =")),
)
UUIDS = st.text("aZ09 _.:/-\u00fc\u20ac=", min_size=1, max_size=9).map(Uuid)
UIDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}", fullmatch=True).map(ClaimUid)


def apart(grants: dict[Uuid, Grant]) -> dict[Uuid, Grant]:
    """The grants, each with places of its own in the container."""
    return {
        uuid: replace(
            grant,
            nodes=[replace(node, path=f"/n{number}{node.path}") for node in grant.nodes],
            mounts=[
                replace(mount, container_path=f"/m{number}{mount.container_path}")
                for mount in grant.mounts
            ],
        )
        for number, (uuid, grant) in enumerate(grants.items())
    }


SEVERAL = st.dictionaries(UUIDS, GRANTS, min_size=1, max_size=3).map(apart)
LIGHT = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
"""Grants are costly to make; each example tries many at once."""


def render(grants: Mapping[Uuid, Grant], kind: Kind = KIND, uid: ClaimUid = UID) -> bytes:
    return cdi_spec.text(cdi_spec.spec(kind, uid, grants))


def one(grant: Grant) -> bytes:
    return render({Uuid("d"): grant})


@given(
    UIDS,
    SEVERAL,
    st.sampled_from([KIND, KIND.agent, Kind("ab", "g.pu")]),
)
@LIGHT
def test_whatever_is_granted_is_a_valid_spec(
    uid: ClaimUid, grants: dict[Uuid, Grant], kind: Kind
) -> None:
    """Invariants 25, 26: strict schema, version max(0.5.0, minimum), legal and unique names."""
    text = render(grants, kind, uid)
    assert rules.check(text, kind.file(uid)) == []
    spec = parser.spec(parser.tree(text, "x.json"))
    least = max("0.5.0", versions.minimum(spec), key=versions.rank)
    assert spec.cdi_version == least == ("0.6.0" if "." in kind.name else "0.5.0")
    assert sorted(spec.ids) == sorted(kind.id(uid, device) for device in grants)
    assert not [device for device in spec.devices if device.container_edits.empty]


@given(st.dictionaries(UUIDS, GRANTS, min_size=2, max_size=3).map(apart))
@LIGHT
def test_the_order_of_grants_changes_no_byte(grants: dict[Uuid, Grant]) -> None:
    """A6: deterministic: devices, nodes, mounts and variables in the order of their names."""
    turned = {
        uuid: Grant(
            tuple(reversed(grant.nodes)),
            tuple(reversed(grant.mounts)),
            dict(reversed(list(grant.environment.items()))),
        )
        for uuid, grant in reversed(grants.items())
    }
    assert render(turned) == render(grants)


def test_a_spec_says_everything_explicitly_and_nothing_else() -> None:
    """A6: path, hostPath, type, numbers, mode 0660 as 432, permissions; mounts with options."""
    grant = Grant(
        (DeviceNode("/dev/nv0", "c", 195, 0, host_path="/dev/nvidia0"), NULL),
        (Mount("/usr/lib/b", "/lib/b"), Mount("/memory", "/dev/fleetsim/a", read_only=False)),
        {"Z": "1", cdi_spec.VARIABLE: "something else"},
    )
    tree = json.loads(render({Uuid("GPU-0"): grant}))
    assert tree == {
        "cdiVersion": "0.5.0",
        "kind": "fleetscrub.dev/gpu",
        "devices": [
            {
                "name": f"{UID}_GPU-0",
                "containerEdits": {
                    "env": ["FLEETSCRUB_DEVICE=GPU-0", "Z=1"],
                    "deviceNodes": [
                        {
                            "path": "/dev/fleetsim/null", "hostPath": "/dev/null",
                            "type": "c", "major": 1, "minor": 3, "fileMode": 432,
                            "permissions": "rw",
                        },
                        {
                            "path": "/dev/nv0", "hostPath": "/dev/nvidia0", "type": "c",
                            "major": 195, "minor": 0, "fileMode": 432, "permissions": "rw",
                        },
                    ],
                    "mounts": [
                        {
                            "hostPath": "/memory", "containerPath": "/dev/fleetsim/a",
                            "options": ["rw", "nosuid", "nodev", "bind"],
                        },
                        {
                            "hostPath": "/usr/lib/b", "containerPath": "/lib/b",
                            "options": ["ro", "nosuid", "nodev", "bind"],
                        },
                    ],
                },
            }
        ],
    }  # fmt: skip


def test_a_device_without_anything_is_still_a_device() -> None:
    """Invariant 27: an empty grant resolves; empty edits would make the file invalid."""
    assert rules.check(one(Grant()), "x.json") == []


@pytest.mark.parametrize(
    "grant",
    [
        Grant((DeviceNode("dev/a", "c", 1, 3),)),
        Grant((DeviceNode("/dev/../a", "c", 1, 3),)),
        Grant((DeviceNode("/dev//a", "c", 1, 3),)),
        Grant((DeviceNode("/dev/a", "c", 1, 3, host_path="a"),)),
        Grant((DeviceNode("/dev/a", "p", 1, 3),)),
        Grant((DeviceNode("/dev/a", "c", 0, 3),)),
        Grant((DeviceNode("/dev/a", "c", 1, -1),)),
        Grant((DeviceNode("/dev/a", "c", 1, 3, permissions="rx"),)),
        Grant((DeviceNode("/dev/a", "c", 1, 3, permissions=""),)),
        Grant((DeviceNode("/dev/a", "c", 1, 3, file_mode=0o10000),)),
        Grant((DeviceNode("/dev/a", "c", 2**63, 3),)),
        Grant((NULL, NULL)),
        Grant(mounts=(Mount("/a", "/b"), Mount("/c", "/b"))),
        Grant(mounts=(Mount("", "/b"),)),
        Grant(mounts=(Mount("/a\0", "/b"),)),
        Grant(environment={"": "1"}),
        Grant(environment={"A=B": "1"}),
        Grant(environment={"A": "\0"}),
        Grant(environment={"A": "\ud800"}),
    ],
    ids=repr,
)
def test_a_grant_that_cannot_be_said_is_refused(grant: Grant) -> None:
    """A6: no path leads elsewhere than it says, no device is guessed, none gets all permissions."""
    with pytest.raises(errors.InputInvalid):
        one(grant)


def test_a_claim_without_devices_has_no_spec() -> None:
    """Reference 7.2: a file with zero devices is invalid, so it is never made."""
    with pytest.raises(errors.InputInvalid, match="no devices"):
        render({})


@pytest.mark.parametrize("letter", ["\n", "\r", "\x1b", "\x7f", "\u2028", "\u202e"])
@pytest.mark.parametrize(
    "grant",
    [
        lambda x: Grant(environment={"A": f"b{x}B=c"}),
        lambda x: Grant(environment={f"A{x}": "b"}),
        lambda x: Grant((DeviceNode(f"/dev/a{x}", "c", 1, 3),)),
        lambda x: Grant((DeviceNode("/dev/a", "c", 1, 3, host_path=f"/dev/{x}a"),)),
        lambda x: Grant(mounts=(Mount(f"/lib/{x}", "/lib/a"),)),
        lambda x: Grant(mounts=(Mount("/lib/a", f"/lib/{x}"),)),
    ],
)
def test_b69_no_text_of_a_spec_has_a_line_break(grant: Callable[[str], Grant], letter: str) -> None:
    """B69: a text that is no plain line is refused with its place, whatever it is the text of."""
    with pytest.raises(errors.InputInvalid, match="control character or line break"):
        one(grant(letter))
    one(grant("x"))


def test_b69_what_is_longer_than_the_kernel_takes_is_refused() -> None:
    """B69: paths, names in them and variables have a length; what is just short enough is fine."""
    deep = "/" + "/".join(["a" * 254] * 17)
    for grant in (
        Grant(mounts=(Mount(deep, "/lib/a"),)),
        Grant((DeviceNode("/dev/" + "a" * 256, "c", 1, 3),)),
        Grant(environment={"A": "b" * (128 * 1024)}),
    ):
        with pytest.raises(errors.InputInvalid, match="longer than"):
            one(grant)
    one(Grant(mounts=(Mount(deep[:4095].rstrip("/"), "/lib/a"),)))
    one(Grant((DeviceNode("/dev/" + "a" * 255, "c", 1, 3),)))
    one(Grant(environment={"A": "b" * (128 * 1024 - 3)}))


def test_b69_two_devices_of_a_claim_share_a_place_only_with_the_same() -> None:
    """B69: what stands at a path of the container is not left to the order of two devices; a node
    that both need, the same for each, is no collision.
    """
    shared = DeviceNode("/dev/ctl", "c", 195, 255, shared=True)
    first, second = DeviceNode("/dev/gpu", "c", 195, 0), DeviceNode("/dev/gpu", "c", 195, 1)
    render({Uuid("a"): Grant((shared,)), Uuid("b"): Grant((shared,))})
    for one_grant, other in (
        (Grant((first,)), Grant((second,))),
        (Grant((first,)), Grant((replace(first, permissions="r"),))),
        (Grant(mounts=(Mount("/a", "/lib"),)), Grant(mounts=(Mount("/b", "/lib"),))),
        (Grant(mounts=(Mount("/a", "/dev/gpu"),)), Grant((first,))),
    ):
        with pytest.raises(errors.InputInvalid, match="both put something at"):
            render({Uuid("a"): one_grant, Uuid("b"): other})
