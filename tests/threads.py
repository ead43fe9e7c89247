"""A process to which the host gives no thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

STACK_BYTES = 1 << 62
"""More than any processor can address: no setting of a host's memory makes room for it."""


@contextmanager
def none_to_be_had() -> Iterator[None]:
    """Inside the block no thread can be started."""
    before = threading.stack_size(STACK_BYTES)
    try:
        yield
    finally:
        threading.stack_size(before)
