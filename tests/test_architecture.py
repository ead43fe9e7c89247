"""The law of the tree: what DESIGN 8 says about imports, names and docstrings.

Read line by line, which the formatter makes safe: the syntax trees of the whole project cost
seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("fleet", "actors", "node_plugin", "jobs")
SOURCES = sorted(
    path
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if "_pb2" not in path.name  # generated
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))

PURE = (
    "fleet/node/cdi/model.py",
    "fleet/node/cdi/names.py",
    "fleet/node/cdi/parser.py",
    "fleet/node/cdi/spec.py",
    "fleet/node/cdi/rules.py",
    "fleet/node/cdi/versions.py",
    "fleet/rpc/wire.py",
    "fleet/plugin/requests.py",
    "fleet/plugin/configuration.py",
    "fleet/plugin/health.py",
    "fleet/plugin/resource_claim.py",
    "fleet/kube/answers.py",
    "fleet/kube/base.py",
    "fleet/kube/slice_equality.py",
    "fleet/plugin/slices/foreign.py",
    "fleet/plugin/slices/gate.py",
    "fleet/plugin/slices/offer.py",
    "fleet/plugin/slices/pool.py",
    "fleet/plugin/slices/pool_view.py",
    "fleet/plugin/slices/device_attributes.py",
    "fleet/plugin/slices/report.py",
    "fleet/core/model.py",
    "fleet/core/table.py",
    "fleet/core/unit_states.py",
    "fleet/core/claim_states.py",
    "fleet/core/labels.py",
    "fleet/core/leases.py",
    "fleet/core/profiles.py",
    "fleet/core/messages.py",
    "fleet/core/settings.py",
    "fleet/core/settings_hardware.py",
    "fleet/core/settings_kubernetes.py",
    "fleet/core/pci.py",
    "fleet/devices/health/kernel_log.py",
    "fleet/devices/codec.py",
    "fleet/devices/nvidia/layout.py",
    "fleet/plugin/slices/counters.py",
    "fleet/core/settings_section.py",
    "fleet/kube/marks.py",
    "fleet/kube/claim.py",
    "fleet/kube/claim_bodies.py",
    "fleet/control/binding/claim_judge.py",
    "fleet/control/binding/decisions.py",
    "fleet/control/binding/device_choice.py",
    "fleet/control/binding/wishes.py",
    "fleet/control/binding/offers.py",
    "fleet/control/binding/pledge.py",
    "fleet/control/binding/allocation.py",
    "fleet/control/binding/explanation.py",
    "fleet/plugin/slices/takeover.py",
    "fleet/control/campaign/roster.py",
    "fleet/control/campaign/sight.py",
    "fleet/stores/dynamodb_sheet.py",
    "fleet/stores/kubernetes_state.py",
    "fleet/control/repair/leftovers.py",
    "fleet/core/errors.py",
    "fleet/devices/wipe/plan.py",
    "fleet/devices/wipe/result.py",
    "fleet/devices/health/readings.py",
    "fleet/devices/health/checks.py",
    "fleet/devices/health/rules.py",
    "fleet/devices/health/reasons.py",
    "fleet/control/campaign/plan.py",
    "fleet/control/campaign/budget.py",
    "fleet/control/campaign/breaker.py",
    "fleet/control/campaign/select.py",
    "fleet/control/campaign/run.py",
    "fleet/control/campaign/report.py",
    "fleet/evidence/requirements/mapping.py",
    "fleet/evidence/requirements/report.py",
    "fleet/core/privileges.py",
    "fleet/admission/ground.py",
    "fleet/admission/rule.py",
    "fleet/kube/shapes.py",
    "fleet/admission/pods.py",
    "fleet/admission/claims.py",
    "fleet/admission/classes.py",
    "fleet/admission/invented.py",
    "fleet/admission/rules.py",
    "fleet/admission/policies.py",
    "fleet/admission/documents.py",
    "fleet/plugin/tags.py",
    "fleet/plugin/tags_claim.py",
    "fleet/admission/review.py",
    "fleet/admission/judge.py",
    "fleet/core/settings_admission.py",
    "fleet/core/terminal.py",
    "fleet/cli/pages/run_figures.py",
    "fleet/cli/pages/timeline.py",
    "fleet/control/campaign/verdict.py",
    "fleet/control/binding/receipt.py",
    "fleet/metrics/catalogue.py",
    "fleet/metrics/exposition.py",
    "fleet/stores/lease_operations.py",
    "fleet/metrics/metric.py",
    "fleet/metrics/of_coordinator.py",
    "fleet/metrics/of_node.py",
    "fleet/metrics/of_plugin.py",
    "fleet/node/tallies.py",
    "fleet/core/state_targets.py",
)
IMPURE = frozenset(
    {"os", "time", "random", "socket", "subprocess", "threading", "asyncio", "logging", "secrets"}
)
HOMES = {
    "ray": ("actors/", "jobs/"),
    "grpc": ("node_plugin/",),
    "sqlite3": ("fleet/core/sqlite.py",),
    "cryptography": ("fleet/evidence/keys.py",),
    "kubernetes": ("fleet/kube/client.py",),
    "boto3": ("fleet/stores/aws.py",),
    "botocore": ("fleet/stores/aws.py",),
    "pynvml": ("fleet/devices/nvidia/",),
    "cuda": ("fleet/devices/nvidia/",),
    "numpy": ("fleet/devices/wipe/", "fleet/devices/simulated/"),
    "rich": ("fleet/cli/",),
    "typer": ("fleet/cli/",),
    "cel": ("fleet/kube/cel.py",),
    "tests": (),  # its stand-ins are in no wheel and no image
}
FORBIDDEN_WORDS = frozenset(
    {"manager", "helper", "helpers", "util", "utils", "common", "misc", "handler", "data", "info"}
)
IMPORT = re.compile(
    r"^ *(?:import (\w+)[\w.]*(?: as \w+)?(?:  #.*)?$|from (\w+)[\w.]* import )", re.MULTILINE
)
UNTOLD = re.compile(
    r"^ *(?:async )?def (test_\w+)\((?:[^()]|\([^()]*\))*\)[^\n]*:\n(?! *r?\"{3})", re.MULTILINE
)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path) -> Iterator[str]:
    """Top-level names of everything a module imports, wherever in it."""
    for found in IMPORT.finditer(path.read_text()):
        yield found[1] or found[2]


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_touch_no_world(name: str) -> None:
    """Rules take time, randomness and the outside as arguments; they import none of it."""
    assert not IMPURE.intersection(imports(ROOT / name))


def test_each_foreign_library_has_one_home() -> None:
    """A library is imported only where DESIGN 8 puts it, so that it can be changed in one place."""
    strays = [
        f"{relative(path)} imports {library}"
        for path in SOURCES
        for library in imports(path)
        if library in HOMES and not relative(path).startswith(HOMES[library])
    ]
    assert strays == []


def test_only_wiring_builds_adapters() -> None:
    """Adapters are built by fleet.wiring.adapters (and by the worker for its one back end)."""
    adapters = re.compile(r"\b(open_stores|SimulatedBackend|open_or_set_aside|Spawner)\(")
    homes = ("fleet/wiring/adapters.py", "fleet/devices/", "fleet/stores/", "fleet/node/journal/",
             "fleet/cli/sim.py", "fleet/cli/store.py")  # fmt: skip
    strays = [
        relative(path)
        for path in SOURCES
        if adapters.search(path.read_text()) and not relative(path).startswith(homes)
    ]
    assert strays == []


def test_names_use_the_words_of_the_field() -> None:
    """Names that mean nothing (manager, helper, data ...) are not used for modules or classes."""
    found = []
    for path in SOURCES:
        words = set(re.split(r"[_.]", path.stem.lower()))
        for name in re.findall(r"^ *class (\w+)[(:\[]", path.read_text(), re.MULTILINE):
            words |= {w.lower() for w in re.findall(r"[A-Z][a-z]+", name)}
        if bad := FORBIDDEN_WORDS.intersection(words):
            found.append(f"{relative(path)}: {sorted(bad)}")
    assert found == []


def test_every_test_says_what_it_is_for() -> None:
    """A test carries its rule as a docstring; of modules and classes `make lint` asks for one."""
    untold = [
        f"{relative(path)}:{name}" for path in TESTS for name in UNTOLD.findall(path.read_text())
    ]
    assert untold == []


def test_tests_neither_sleep_nor_patch_us() -> None:
    """Tests wait for facts with a deadline and use shipped fakes: no mock, no patching."""
    banned = re.compile(
        r"unittest\.mock|from unittest import mock|monkeypatch\.setattr|pytest\.mark\.skip"
    )
    found = [
        relative(path)
        for path in TESTS
        if path != Path(__file__) and banned.search(path.read_text())
    ]
    assert found == []
