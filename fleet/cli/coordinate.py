"""`fleet coordinate`: reconciles a cluster's claims with the nodes of this host, without Ray."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.cli.options import LogFormatOption, StateOption, state_directory
from fleet.cli.store import KubeconfigOption
from fleet.control.binding.loop import Loop
from fleet.core import logs, termination
from fleet.wiring import coordinator
from fleet.wiring.plans import plan_fleet

NodesOption = Annotated[
    str,
    typer.Option(
        "--nodes",
        metavar="SELECTOR",
        help="Decide only about claims of the Nodes with these labels, such as pool=a: another"
        " coordinator has the others.",
        rich_help_panel="Common",
    ),
]


def coordinate(
    *,
    state: StateOption = None,
    kubeconfig: KubeconfigOption = "",
    nodes: NodesOption = "",
    log_format: LogFormatOption = "",
) -> None:
    """For a cluster of one node, and for tests; with Ray, the coordinator's actor does this.

    Runs until SIGTERM and logs. Two at once do no harm: nodes fence, and every write is guarded.
    """
    logs.begin("coordinator", wanted=log_format)
    directory = state_directory(state)
    plan = plan_fleet(directory)
    opener = coordinator.of_host(plan, kubeconfig, nodes)
    loop = Loop(opener, selecting=nodes)
    heartbeat = coordinator.heartbeat(coordinator.plan_of_host(plan, kubeconfig, nodes), loop)
    with termination.awaited() as wait:
        loop.start()
        heartbeat.start()
        wait()
        loop.stop()
        heartbeat.end()
