"""The key a served node signs with, opened as soon as it can be.

Without it nothing can be certified, so nothing is wiped or prepared; a pod that leaves is let go
all the same, and its devices are kept until the key is there (B72).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from fleet.core import errors
from fleet.evidence.keys import SigningKey

LOG = logging.getLogger(__name__)
AGAIN_S = 5.0
"""Period, s, in which a key that cannot be used is tried again."""


class NodeKey:
    """A `Signer` that may not be there yet. Safe for threads."""

    def __init__(self, open_key: Callable[[], SigningKey]) -> None:
        """`open_key` raises `KeyUnusable`."""
        self._open = open_key
        self._key: SigningKey | None = None
        self._due = float("-inf")
        self.trouble: errors.KeyUnusable | None = None
        """Why nothing can be signed now."""
        self.retry()

    def retry(self) -> bool:
        """Open it when it is time; whether it came just now."""
        if self._key is not None or time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + AGAIN_S
        try:
            self._key = self._open()
        except OSError as error:
            self.trouble = errors.KeyUnusable(f"the signing key cannot be kept: {error}")
            return False
        except errors.KeyUnusable as error:
            if self.trouble is None:
                LOG.warning("nothing can be certified on this node: %s", error)
            self.trouble = error
            return False
        self.trouble = None
        return True

    @property
    def key_id(self) -> str:
        """Of the key. Raises `KeyUnusable`."""
        return self._there().key_id

    def sign(self, message: bytes) -> bytes:
        """The signature. Raises `KeyUnusable`."""
        return self._there().sign(message)

    def _there(self) -> SigningKey:
        if self._key is None:
            error = self.trouble or errors.KeyUnusable("the signing key was not opened yet")
            raise errors.KeyUnusable(error.detail, remedy=error.remedy)
        return self._key
