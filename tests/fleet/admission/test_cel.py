"""Selectors mean what they mean to the scheduler, or are refused by name."""

from __future__ import annotations

import pytest

from fleet import errors
from fleet.admission.cel import LENGTH_MAX, Selector, qualified
from tests.fleet.binding.scenes import DRIVER, device, entry

OURS = f'device.attributes["{DRIVER}"]'
MEMORY = f'device.capacity["{DRIVER}"].memory'
WHERE = "claim tenant/c, request gpu"


def asked(expression: str) -> bool:
    """What the selector says of a device."""
    found = entry(device("gpu-0"))
    return Selector.parse(expression, where=WHERE).matches(found, driver=DRIVER)


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        (f'device.driver == "{DRIVER}"', True),
        ('device.driver == "gpu.example.com"', False),
        ("device.allowMultipleAllocations", False),
        (f'{OURS}.productName == "X1" && {OURS}.numaNode == 0', True),
        (f"{OURS}.numaNode in [1, 2]", False),
        (f'{OURS}.productName.lowerAscii().startsWith("x")', True),
        (f'{OURS}.uuid.matches("^GPU-n1-.*0$")', True),
        (f"{OURS}.agent", False),
        ('device.attributes["resource.kubernetes.io"].pcieRoot == ""', True),
        (f'["a", "b"].exists(x, x == "b") && {OURS}.simulated == false', True),
    ],
)
def test_what_a_selector_sees(expression: str, selected: bool) -> None:
    """Driver, attributes by domain, and whether a device can be shared, with CEL's own words."""
    assert asked(expression) is selected


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        (f'{MEMORY}.compareTo(quantity("1Gi")) == 0', True),
        (f'{MEMORY} == quantity("1024Mi")', True),
        (f'{MEMORY}.isGreaterThan(quantity("1000M"))', True),
        (f'{MEMORY}.isLessThan(quantity("1Gi"))', False),
        (f'{MEMORY}.sub(quantity("1Gi")).sign() == 0', True),
        (f"{MEMORY}.add(1).asInteger() == {2**30 + 1}", True),
        (f"{MEMORY}.asApproximateFloat() > 1.0e9 && {MEMORY}.isInteger()", True),
        ('isQuantity("3x")', False),
    ],
)
def test_quantities_are_numbers(expression: str, selected: bool) -> None:
    """A capacity compares by its amount, whatever its spelling."""
    assert asked(expression) is selected


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        (f'{OURS}.driverVersion.isGreaterThan(semver("550.0.99"))', True),
        (f'{OURS}.driverVersion.isLessThan(semver("550.1.0-rc.1"))', False),
        (f'{OURS}.driverVersion == semver("550.1.0+build")', True),
        (f"{OURS}.driverVersion.major() == 550 && {OURS}.driverVersion.minor() == 1", True),
        ('semver("1.0.0-alpha.2").compareTo(semver("1.0.0-alpha.10")) < 0', True),
        ('semver("1.0.0-1").isLessThan(semver("1.0.0-a"))', True),
        ('isSemver("1.0")', False),
    ],
)
def test_versions_compare_by_the_rules_of_semver(expression: str, selected: bool) -> None:
    """An attribute that is a version has its methods."""
    assert asked(expression) is selected


def test_a_domain_that_nobody_publishes_is_empty() -> None:
    """An unknown domain is an empty map: one can ask whether it has something."""
    other = 'device.attributes["x.example.com"]'
    assert asked(f'has({other}.model) || "model" in {other}') is False
    assert asked(f"!has({OURS}.model)") is True


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        (f'{OURS}.model == "a"', "no attribute, capacity or entry 'model'"),
        ('device.attributes["x.example.com"].model == "a"', "'model'"),
        (f"{OURS}.numaNode", "the result is int"),
        (f'{OURS}.numaNode > "a"', "overload"),
        (f'{MEMORY}.isLessThan(quantity("nope"))', "'nope' is no quantity"),
        (f'{MEMORY}.isLessThan(semver("1.0.0"))', "cannot be compared"),
        (f"{OURS}.productName.major() == 1", "expected was"),
        ("device.nothing", "'nothing'"),
        ("unknown", "unknown"),
    ],
)
def test_what_cannot_be_told_is_an_error(expression: str, told: str) -> None:
    """A missing attribute aborts the choice, as it aborts scheduling; claim, request, expression
    and device are named."""
    with pytest.raises(errors.InputInvalid) as caught:
        asked(expression)
    assert told in caught.value.detail
    assert WHERE in caught.value.detail
    assert expression in caught.value.detail
    assert "gpu-0" in caught.value.detail


@pytest.mark.parametrize(
    "expression", ["(", "", 'device.attributes["a"].?b.orValue("") == ""', "1 +", "a b"]
)
def test_what_is_no_expression_is_refused_at_once(expression: str) -> None:
    """Syntax we do not have, optional fields among it, is refused before any device is asked."""
    with pytest.raises(errors.InputInvalid, match="claim tenant/c, request gpu: selector"):
        Selector.parse(expression, where=WHERE)


@pytest.mark.parametrize(
    "expression",
    [
        "true" + " && true" * (LENGTH_MAX // 8),
        "[1].map(a, [a].map(b, [b].map(c, [c].map(d, d)))).size() == 1",
        "[" + "1," * 900 + "1].all(a, [1].all(b, [1].all(c, true)))",
    ],
)
def test_the_work_of_an_expression_is_bounded(expression: str) -> None:
    """At most 10 KiB, and no more nested macros than that text can afford."""
    with pytest.raises(errors.InputInvalid, match="bytes"):
        Selector.parse(expression, where=WHERE)


def test_the_longest_expression_is_taken() -> None:
    """The API server's limit is ours."""
    assert asked("true" + " && true" * ((LENGTH_MAX - 4) // 8)) is True


def test_a_name_without_domain_is_the_drivers() -> None:
    """Attributes are published short and asked for in full."""
    assert qualified("uuid", "d") == ("d", "uuid")
    assert qualified("resource.kubernetes.io/pcieRoot", "d") == (
        "resource.kubernetes.io",
        "pcieRoot",
    )
