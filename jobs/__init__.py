"""Ray, short-lived: campaigns, sweeps and audits that run as ordinary drivers or submitted jobs."""

from __future__ import annotations

# For its effect, before any module here imports Ray: the mode of authentication.
import actors  # noqa: F401
