"""The parameters of the rules."""

from __future__ import annotations

from fleet.admission.ground import PARAMETERS, Ground, told
from fleet.core.settings import KubernetesSettings


def test_the_defaults_are_those_of_the_product() -> None:
    """C2: driver and class are what the settings say, whatever has no value of its own."""
    assert Ground().driver == KubernetesSettings().driver
    assert Ground() == Ground.of_driver(Ground().driver)


def test_another_driver_has_its_own_names() -> None:
    """C4: classes, the agent's class and the NUMA attribute go by the name of the driver."""
    ground = Ground.of_driver("gpu.acme.example")
    assert ground.classes == ("gpu.acme.example", "gpu-multi-tenant.acme.example")
    assert ground.agent_classes == ("agent.gpu.acme.example",)
    assert ground.near_attributes[1] == "gpu.acme.example/numaNode"


def test_texts_carry_the_values_of_the_cluster() -> None:
    """D1: what to write instead is said with this cluster's driver and wipe budget."""
    ground = Ground(driver="x.y", wipe_budget_s=90)
    assert told("<driver>: <budget> s", ground) == "x.y: 90 s"


def test_the_parameters_are_those_of_the_driver() -> None:
    """C2 C5: policy and tag are among the fields that our opaque parameters may have."""
    assert {"apiVersion", "kind", "deallocation", "isolationTag"} <= set(PARAMETERS)
