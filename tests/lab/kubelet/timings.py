"""How long kubelet waits for what (reference 1.1 to 1.7), and the same faster. Pure.

Deadlines of calls stay as they are when time is scaled: a plugin that is slow must fail as it would
before a real kubelet, and one that is merely tested on a busy machine must not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Timings:
    """All waits in seconds. The defaults are kubelet's."""

    poll_s: float = 0.2
    """Between two looks into the directory of registration sockets (kubelet is told by inotify)."""
    greet_s: float = 1.0
    """Deadline of GetInfo."""
    notify_s: float = 5.0
    """Deadline of NotifyRegistrationStatus."""
    backoff_first_s: float = 0.5
    """Wait after the first failed registration; doubles up to `backoff_last_s`."""
    backoff_last_s: float = 122.0
    call_s: float = 45.0
    """Deadline of a prepare or unprepare."""
    prepare_retry_s: float = 75.0
    """Until a failed prepare is asked again: kubelet draws from 60 to 90 s."""
    unprepare_retry_s: float = 12.0
    """Until a failed unprepare is asked again: kubelet draws from 10 to 15 s."""
    container_retry_s: float = 10.0
    """Until a container that could not be created is tried again."""
    grace_s: float = 30.0
    """Between SIGTERM and SIGKILL at a normal deletion."""
    force_grace_s: float = 2.0
    """The same at a forced deletion; kubelet never waits less."""
    orphan_period_s: float = 60.0
    """Between two looks for claims whose pods are gone."""
    health_reopen_s: float = 5.0
    """Until a health stream that ended is opened again."""
    absent_s: float = 30.0
    """How long no instance of a driver may be connected before its slices are deleted."""

    def scaled(self, factor: float) -> Timings:
        """Waits times `factor`; deadlines of calls are kept."""
        return replace(
            self,
            backoff_first_s=self.backoff_first_s * factor,
            backoff_last_s=self.backoff_last_s * factor,
            prepare_retry_s=self.prepare_retry_s * factor,
            unprepare_retry_s=self.unprepare_retry_s * factor,
            container_retry_s=self.container_retry_s * factor,
            grace_s=self.grace_s * factor,
            force_grace_s=self.force_grace_s * factor,
            orphan_period_s=self.orphan_period_s * factor,
            health_reopen_s=self.health_reopen_s * factor,
            absent_s=self.absent_s * factor,
        )
