"""What stops a build."""

from __future__ import annotations


class BuildError(Exception):
    """The image cannot be built; the message says why and what to do."""


class BaseFailed(BuildError):
    """mmdebstrap made no base: no mirror, no network, or a package that cannot be installed."""
