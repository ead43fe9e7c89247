"""Selectors mean what they mean to the scheduler, or are refused by name."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from fleet.core import errors
from fleet.kube.cel import LENGTH_MAX, Selector, qualified
from tests.fleet.admission import corpus
from tests.fleet.control.binding.scenes import DRIVER, device, entry

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
    "expression", ["(", "", "1 +", "a b", "a.?", "a[?1", "cel.bind(a, 1)", "cel.bind(a, 1, a"]
)
def test_what_is_no_expression_is_refused_at_once(expression: str) -> None:
    """What is no CEL, or half of it, is refused before any device is asked."""
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


def f12_cases() -> list[dict[str, Any]]:
    """The selectors of real classes and of drivers' guides, each with its device and outcome."""
    path = corpus.ROOT / "F12-cel-of-real-classes" / "expressions.json"
    found = json.loads(path.read_text())
    return [{**one, **found["devices"][one["device"]]} for one in found["cases"]]


@pytest.mark.parametrize("case", f12_cases(), ids=lambda case: case["expression"][:60])
def test_f12_selectors_of_real_classes_are_spoken(case: dict[str, Any]) -> None:
    """F12: a selector of a driver's guide selects what it selects in the scheduler."""
    found = Selector.parse(case["expression"], where=WHERE)
    if case["want"] == "error":
        with pytest.raises(errors.InputInvalid):
            found.matches(case["device"], driver=case["driver"])
    else:
        assert found.matches(case["device"], driver=case["driver"]) is case["want"]


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        ("device.attributes['d'].n == 'a'", True),
        ("has(device.attributes['d'].strange)", None),
        ("device.attributes['d'].?strange.hasValue()", None),
        ("device.attributes['d'].exists(k, k == 'n')", None),
        ("device.attributes.exists(k, k == 'd')", None),
        ("'d' in device.attributes && device.attributes['d'] != {}", None),
    ],
)
def test_f12_a_kind_of_attribute_that_is_not_known_is_never_taken_for_none(
    expression: str, selected: bool | None
) -> None:
    """F12: what asks for it, or may, is refused; what does not is answered."""
    entry = {"name": "x", "attributes": {"n": {"string": "a"}, "strange": {"complex": 1}}}
    found = Selector.parse(expression, where=WHERE)
    if selected is None:
        with pytest.raises(errors.InputInvalid, match="not known here"):
            found.matches(entry, driver="d")
    else:
        assert found.matches(entry, driver="d") is selected


@pytest.mark.parametrize(
    ("expression", "selected"),
    [
        (f"{OURS}.?model.hasValue() || {OURS}.?numaNode.hasValue()", True),
        (f'{OURS}[?"model"].or(optional.of("x")).value() == "x"', True),
        (f"{OURS}.?model.?inner.orValue(true)", True),
        ('"a.?b" + "[?" == "a.?b[?" // ', True),
        ("cel.bind(a, cel.bind(b, [1, 2], b), a.size() == 2 && sets.contains(a, [1]))", True),
        ("['', 'a'] == 'a'.split('').map(x, '') + ['a']", True),
        ("'a-b-c'.split('-', 2) == ['a', 'b-c'] && 'abab'.replace('a', 'x', 1) == 'xbab'", True),
        ("['a', 'b'].join('-').indexOf('b') == 2 && 'H100'.find('[0-9]+') == '100'", True),
        ("semver('v01.02', true).compareTo(semver('1.2.0')) == 0", True),
        ("isSemver('1.2') || !isSemver('1.2', true)", False),
        ("cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && isIP('::1') && !isCIDR('::1')", True),
        ("ip('10.0.0.1').family() == 4 && cidr('10.0.0.0/8').prefixLength() == 8", True),
    ],
)
def test_f12_what_the_servers_cel_has_is_said_in_the_librarys_words(
    expression: str, selected: bool
) -> None:
    """F12: optional fields, names bound, texts, lists, sets, versions and addresses."""
    assert asked(expression) is selected


@pytest.mark.parametrize(
    "expression",
    [
        "'a'.find('(a+)+$') == ''",
        "'a'.find('a*a*a*b') == ''",
        "'aa'" + ".replace('a', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa')" * 9 + " == ''",
        "'a'.format([1]) == 'a'",
        f"{OURS}.?model.orValue('a').nothing() == 1",
        f"{OURS}.?model.value() == 'a'",
        f"{MEMORY}.?quantity.hasValue()",
        "device.attributes.optMap(x, x) == 1",
    ],
)
def test_f12_what_is_not_spoken_is_refused(expression: str) -> None:
    """F12: never a guess: an unknown function, a pattern that may take for ever, a text that
    grows, an optional value that is not there."""
    with pytest.raises(errors.InputInvalid):
        asked(expression)


@pytest.mark.parametrize(
    "expression",
    [
        f"'{'a' * 128}'.find('a*a*a?a?a?a?a?a?a?a?a?b') == ''",
        f"[{','.join('0' * 900)}].all(x, '{'a' * 100}'.find('a*b') == '')",
        f"'{'a' * 100}'.split('').size() == 100",
        f"'{'a' * 100}'.findAll('a').size() == 100",
        f"sets.intersects([{','.join('0' * 2500)}], [{','.join('1' * 2500)}])",
        f"sets.contains([{','.join('0' * 1250)},1], [{','.join('1' * 2500)}])",
        "quantity('1e99999999999').isGreaterThan(quantity('1'))",
        "[1].all//\n(a, [1].all//\n(b, " * 5
        + "true"
        + "))" * 5
        + f" // {'x' * 900}\n|| {'1+' * 900}1 == 0",
        "cel.bind(a, [0], cel.bind(b, "
        + "+".join(["a"] * 60)
        + ", cel.bind(c, "
        + "+".join(["b"] * 60)
        + ", cel.bind(d, "
        + "+".join(["c"] * 60)
        + ", d.size() > 0))))",
    ],
    ids=(
        "find",
        "find-again",
        "split",
        "find-all",
        "meets",
        "contains",
        "power",
        "comments",
        "bind",
    ),
)
def test_f12_a_selector_takes_no_more_work_than_its_text_is_worth(expression: str) -> None:
    """F12: whatever repeats or grows counts, however it is written: nobody's selector keeps the
    processor or the memory from others.
    """
    begun = time.process_time()
    with pytest.raises(errors.InputInvalid):
        asked(expression)
    assert time.process_time() - begun < 2.0


def test_a_name_without_domain_is_the_drivers() -> None:
    """Attributes are published short and asked for in full."""
    assert qualified("uuid", "d") == ("d", "uuid")
    assert qualified("resource.kubernetes.io/pcieRoot", "d") == (
        "resource.kubernetes.io",
        "pcieRoot",
    )
