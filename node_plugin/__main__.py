"""The node plugin as a process: ``fleet-node-plugin``, or ``python -m node_plugin``.

Runs until SIGTERM or SIGINT: then kubelet's registration goes first, calls in flight get their
time, and slices stay published for whoever comes next.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from fleet.core import errors, logs
from fleet.core import termination as ending
from fleet.core.settings import Settings
from fleet.core.settings_file import load
from fleet.core.terminal import visible
from fleet.kube import identity
from fleet.wiring import adapters, plans
from fleet.wiring import plugin as wiring_plugin
from fleet.wiring.adapters import NodePlan
from node_plugin.http import HttpServer
from node_plugin.wiring import Options, Plugin, open_plugin

LOG = logging.getLogger("node_plugin")
GRACE_S = 10.0
"""Time, s, calls in flight have at the end; kubelet repeats what was cut off."""
PRIVATE_UMASK = 0o077
"""What the node keeps is its owner's; what others must read says so itself (CDI specs)."""
HTTP_DEFAULT = "127.0.0.1:8086"
LOG_HELP = "How log lines look (text; $FLEET_LOG_FORMAT), also those of the child processes."


def run() -> None:
    """Console script."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Serve until asked to stop; the exit code."""
    asked = _parser().parse_args(arguments)
    os.umask(PRIVATE_UMASK)
    logs.begin(
        "node-plugin",
        wanted=asked.log_format,
        level=logging.INFO if asked.verbose else None,
        node=asked.node,
    )
    stop = threading.Event()
    ending.told(stop)
    try:
        return _serve(asked, stop)
    except errors.FleetError as error:
        sys.stderr.write(f"fleet-node-plugin: {visible(str(error))}\n")
        return error.exit_code


def _serve(asked: argparse.Namespace, stop: threading.Event) -> int:
    host, port = _address(asked.http)
    if not asked.node:
        raise errors.InputInvalid(
            "the name of the Node is not known", remedy="give it with --node or $NODE_NAME"
        )
    settings = load(asked.policy) if asked.policy else Settings()
    unplanned = NodePlan(node=asked.node, state=str(asked.state), settings=settings)
    cluster, answers = wiring_plugin.reach_cluster(unplanned, asked.kubeconfig or None, asked.state)
    plan = _plan(asked, settings)
    if answers:  # else the plugin meets it later, before any claim is judged by it
        wiring_plugin.answered(lambda: identity.meet(asked.state, cluster, [asked.node]))
    plans.record_kubeconfig(asked.state, _reached_by(asked.kubeconfig))
    options = Options(
        instance=asked.instance,
        standby=not asked.no_standby,
        ray_address=asked.ray_address,
        pod=asked.pod,
    )
    plugin = open_plugin(plan, cluster, options)
    with ExitStack() as ending:  # in reverse order: probes are answered until kubelet is let go
        ending.callback(plugin.stop, GRACE_S)
        pages = HttpServer(host, port, plugin.vitals.pages())
        ending.callback(pages.close)
        ending.callback(plugin.stop, GRACE_S)
        plugin.start()
        _announce(plan, plugin)
        stop.wait()
    return 0


def _announce(plan: NodePlan, plugin: Plugin) -> None:
    simulated = " SIMULATED devices," if plan.simulated is not None else ""
    LOG.warning(
        "serving%s driver %s on node %s at %s",
        simulated,
        plan.settings.kubernetes.driver,
        plan.node,
        plugin.server.paths.dra,
    )


def _plan(asked: argparse.Namespace, settings: Settings) -> NodePlan:
    fleet = adapters.plan_fleet(
        asked.state,
        simulate=f"1x{asked.simulate}" if asked.simulate else None,
        memory_bytes=asked.memory,
        profile=asked.profile,
        settings=settings,
        serve=asked.node,
    )
    return fleet.nodes[0].model_copy(update={"kubeconfig": asked.kubeconfig})


def _reached_by(kubeconfig: str) -> str:
    """The file that verbs need, run by others elsewhere; "" in a pod, which has none."""
    if kubeconfig or "KUBERNETES_SERVICE_HOST" in os.environ:
        return kubeconfig
    return os.environ.get("KUBECONFIG", "~/.kube/config")


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal():
        raise errors.InputInvalid(
            f"--http {text!r} is not HOST:PORT", remedy=f"write for example {HTTP_DEFAULT}"
        )
    return host.strip("[]"), int(port)


def _size(text: str) -> int:
    from fleet.core.settings_parse import parse_size

    try:
        return parse_size(text)
    except errors.FleetError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fleet-node-plugin",
        description="Serves this node's accelerators to kubelet: wiped, verified, certified.",
    )
    add = parser.add_argument
    add("--node", default=os.environ.get("NODE_NAME", ""), help="Name of the Node ($NODE_NAME).")
    add("--state", type=Path, default=Path("/var/lib/fleetscrub"), help="State directory.")
    add("--policy", type=Path, help="Settings file (TOML).")
    add("--profile", help="Sanitization profile: strict, fast or lab.")
    add("--simulate", metavar="N", help="Serve N simulated devices, labelled so everywhere.")
    add("--memory", type=_size, help="Memory of each simulated device, for example 256MiB.")
    add("--kubeconfig", default="", help="API server; default: the pod's own, else the user's.")
    add("--instance", default=os.environ.get("POD_UID", ""), help="UID of this pod ($POD_UID).")
    add(
        "--pod",
        default="",
        help="NAMESPACE/NAME of this pod, with --instance: events are about it.",
    )
    add("--ray-address", default="", help="Ray to attach to; without it the standby serves.")
    add("--no-standby", action="store_true", help="The standby runs elsewhere.")
    add("--http", default=HTTP_DEFAULT, help="HOST:PORT of /healthz, /readyz and /metrics.")
    add("--log-format", choices=list(logs.LogFormat), default="", help=LOG_HELP)
    add("--verbose", action="store_true", help="Log more.")
    return parser


if __name__ == "__main__":
    run()
