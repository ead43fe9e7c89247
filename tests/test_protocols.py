"""Rules of the generated messages."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool

from node_plugin.proto import dra_v1_pb2, dra_v1beta1_pb2, health_v1alpha1_pb2, registration_pb2
from tests.protocols import PACKAGE, ROOT, generate, protocols

NUMBERS = {
    "pluginregistration.PluginInfo": "type=1 name=2 endpoint=3 supported_versions=4",
    "pluginregistration.RegistrationStatus": "plugin_registered=1 error=2",
    "k8s.io.kubelet.pkg.apis.dra.v1.Claim": "namespace=1 uid=2 name=3",
    "k8s.io.kubelet.pkg.apis.dra.v1.NodePrepareResourceResponse": "devices=1 error=2",
    "k8s.io.kubelet.pkg.apis.dra.v1.Device": (
        "request_names=1 pool_name=2 device_name=3 cdi_device_ids=4 share_id=5"
    ),
    "k8s.io.kubelet.pkg.apis.dra.v1beta1.Claim": "namespace=1 uid=2 name=3",
    "k8s.io.kubelet.pkg.apis.dra.v1beta1.Device": (
        "request_names=1 pool_name=2 device_name=3 cdi_device_ids=4"
    ),
    "k8s.io.kubelet.pkg.apis.dra.v1beta1.NodeUnprepareResourceResponse": "error=1",
    "v1alpha1.DeviceIdentifier": "pool_name=1 device_name=2",
    "v1alpha1.DeviceHealth": (
        "device=1 health=2 last_updated_time=3 health_check_timeout_seconds=4 message=5"
    ),
}
MODULES = (dra_v1_pb2, dra_v1beta1_pb2, health_v1alpha1_pb2, registration_pb2)


def test_committed_modules_are_what_the_protocols_say(tmp_path: Path) -> None:
    """Generating again gives the committed bytes, module for module, and leaves none over."""
    made = {path.relative_to(tmp_path): path.read_bytes() for path in generate(tmp_path)}
    committed = {
        path.relative_to(ROOT): path.read_bytes() for path in (ROOT / PACKAGE).glob("*_pb2*.py*")
    }
    assert made == committed
    assert len(made) == 4 * len(protocols(ROOT))


@pytest.mark.parametrize("name", NUMBERS)
def test_field_numbers_are_kubelets(name: str) -> None:
    """Names and numbers on the wire are those of the reference, 1.1 to 1.7."""
    found = descriptor_pool.Default().FindMessageTypeByName(name)
    assert " ".join(f"{field.name}={field.number}" for field in found.fields) == NUMBERS[name]


def test_files_have_names_of_their_own_in_protobufs_pool() -> None:
    """The pool is one for the whole process: a file called `api.proto` would meet another's."""
    names = [module.DESCRIPTOR.name for module in MODULES]
    assert sorted(names) == list(protocols(ROOT))


def test_a_wrong_protocol_is_an_error(tmp_path: Path) -> None:
    """A file the compiler refuses stops the making instead of leaving the old modules in peace."""
    (tmp_path / PACKAGE).mkdir(parents=True)
    (tmp_path / PACKAGE / "wrong.proto").write_text("no protocol")
    with pytest.raises(subprocess.CalledProcessError):
        generate(tmp_path, root=tmp_path)
