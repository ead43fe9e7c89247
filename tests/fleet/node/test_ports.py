"""What the node service needs from outside is what the adapters give."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from fleet.node import ports
from fleet.node.cdi.directory import SpecDirectory
from fleet.node.pods import PodTenants
from fleet.node.tenancy import ProcessTenants
from fleet.stores.late import LateStore
from fleet.stores.sqlite import SqliteLeaseStore
from tests.fleet.node.conftest import Lab
from tests.lab.stores import MemoryLeaseStore

PAIRS = [
    (ports.Specs, SpecDirectory),
    (ports.TenantProof, ProcessTenants),
    (ports.TenantProof, PodTenants),
    (ports.Leases, LateStore),
    (ports.Leases, SqliteLeaseStore),
    (ports.Leases, MemoryLeaseStore),
]


@pytest.mark.parametrize(("port", "adapter"), PAIRS, ids=lambda v: v.__name__)
def test_an_adapter_has_every_method_of_its_port(port: type, adapter: type) -> None:
    """A port's methods exist in its adapters with parameters of the same names."""
    for name, wanted in inspect.getmembers(port, inspect.isfunction):
        if name.startswith("_"):
            continue
        given = inspect.signature(getattr(adapter, name)).parameters
        assert set(inspect.signature(wanted).parameters) <= set(given), name


def test_a_service_is_made_of_the_ports(lab: Lab, tmp_path: Path) -> None:
    """The parts a node runs on can be used through the ports alone."""
    store: ports.Leases = lab.node._parts.store
    tenants: ports.TenantProof = lab.node._parts.tenants
    specs: ports.Specs = SpecDirectory(tmp_path)
    assert store.newest().epoch == lab.node._registry.journal.epoch
    assert tenants.free(lab.node._registry.whole()[0].accelerator)
    assert list(specs.listed()) == []
    assert specs.directory == tmp_path
