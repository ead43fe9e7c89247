"""Quantities in the API server's canonical form: "1024Mi" reads back as "1Gi". Pure.

A publisher that compares what it sent with what it reads must expect this, else it writes for ever.
"""

from __future__ import annotations

import re
from decimal import ROUND_UP, Decimal

_PATTERN = re.compile(
    r"([+-]?(?:\d+\.?\d*|\.\d+))(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?\d+)?"
)
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_NANO = Decimal("1e-9")


def canonical(text: str) -> str:
    """The canonical form. Raises ValueError when `text` is no quantity."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(
            "quantities must match the regular expression"
            " '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        )
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in _BINARY[1:]:
        value = _whole_nanos(number * 1024 ** _BINARY.index(suffix))
        return _binary(value)
    if suffix in _DECIMAL:
        return _decimal(_whole_nanos(number * Decimal(10) ** _DECIMAL[suffix]), exponent=False)
    return _decimal(_whole_nanos(number * Decimal(10) ** int(suffix[1:])), exponent=True)


def _whole_nanos(value: Decimal) -> Decimal:
    return value.quantize(_NANO, rounding=ROUND_UP) if value % _NANO else value


def _binary(value: Decimal) -> str:
    if value % 1:
        return _decimal(value, exponent=False)
    whole, step = int(value), 0
    while whole and whole % 1024 == 0 and step < len(_BINARY) - 1:
        whole, step = whole // 1024, step + 1
    return f"{whole}{_BINARY[step]}"


def _decimal(value: Decimal, *, exponent: bool) -> str:
    if not value:
        return "0"
    for suffix, power in sorted(_DECIMAL.items(), key=lambda item: -item[1]):
        scaled = value / Decimal(10) ** power
        if scaled == scaled.to_integral_value():
            mark = (f"e{power}" if power else "") if exponent else suffix
            return f"{int(scaled)}{mark}"
    raise ValueError("finer than a billionth")
