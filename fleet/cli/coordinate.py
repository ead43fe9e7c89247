"""`fleet coordinate`: reconciles a cluster's claims with the nodes of this host, without Ray."""

from __future__ import annotations

from fleet import coordinating, ending, logs
from fleet.binding.alive import Heartbeat
from fleet.binding.running import Loop
from fleet.cli.options import LogFormatOption, StateOption, state_directory
from fleet.cli.store import KubeconfigOption
from fleet.planning import plan_fleet


def coordinate(
    *,
    state: StateOption = None,
    kubeconfig: KubeconfigOption = "",
    log_format: LogFormatOption = "",
) -> None:
    """For a cluster of one node, and for tests; with Ray, the coordinator's actor does this.

    Runs until SIGTERM and logs. Two at once do no harm: nodes fence, and every write is guarded.
    """
    logs.begin("coordinator", wanted=log_format)
    directory = state_directory(state)
    alive = Heartbeat(directory)
    loop = Loop(coordinating.of_host(plan_fleet(directory), kubeconfig), told=alive)
    with ending.awaited() as wait:
        loop.start()
        wait()
        loop.stop()
    alive.end()
