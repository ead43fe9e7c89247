"""The two processes that die: the node's owner, and the plugin. Each is forked, and told its blows.

A blow is armed over a socket just before the call it belongs to, by whoever plays kubelet.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from fleet.node.service import NodeService
from fleet.node.standby import Patience
from fleet.rpc.calls import Verb
from fleet.rpc.node_api import HandOver, NodeApi
from fleet.wiring import plugin as wiring_plugin
from fleet.wiring.adapters import NodePlan
from tests.chaos.kubelet.story import Who
from tests.chaos.story import Point, Side, Strike, Victim
from tests.chaos.strikes import Striker, StruckLedger

T = TypeVar("T")

PATIENCE = Patience(grace_s=0.1, silence_s=20.0, yield_s=1.0, pulse_s=0.05)
"""A standby that takes over at once: everything else here is fast as well."""
STEP_S = 0.01
ARM_S = 15.0
"""Time, s, a process that was just killed has to be there again."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where everything of one story is."""

    root: Path
    plan: NodePlan

    @property
    def kubeconfig(self) -> Path:
        """How the API server is reached."""
        return self.root / "kubeconfig"

    def control(self, who: Who) -> Path:
        """At which socket a process is told its blows."""
        return self.root / f"{who}.sock"


def own(site: Site, told: int) -> None:
    """Own the node, as the standby does. Never returns."""
    striker = Striker([], site.root, told)
    striker.arm()
    standing = wiring_plugin.open_standby(site.plan)
    standing.patience = PATIENCE
    opener = standing.open

    def opened(hand_over: HandOver) -> NodeService:
        service = opener(hand_over)
        wiper: Any = service._parts.wiper
        ledger = StruckLedger(service._parts.ledger, striker)
        wiper.certifier = replace(wiper.certifier, ledger=ledger)
        return service

    standing.open = opened
    _listen(site.control(Who.OWNER), striker)
    while True:
        standing.step()
        striker.collect()
        time.sleep(STEP_S)


def serve(site: Site, told: int) -> None:
    """Serve kubelet, as the plugin does. Never returns."""
    from node_plugin import wiring

    striker = Striker([], site.root, told)
    striker.arm()
    cluster = wiring_plugin.open_cluster(site.plan, str(site.kubeconfig))
    plugin = wiring.open_plugin(site.plan, cluster, wiring.Options(standby=False))
    plugin.serving.node = StruckNode(plugin.serving.node, striker)
    plugin.start()
    _listen(site.control(Who.PLUGIN), striker)
    while True:
        time.sleep(1.0)


@dataclass(frozen=True)
class StruckNode(NodeApi):
    """The node behind its door; a blow may fall around a claim's call."""

    node: NodeApi
    striker: Striker

    def ask(self, verb: Verb, given: Mapping[str, Any], timeout_s: float | None) -> Any:
        """As the node."""
        if verb.name in ("prepare", "unprepare"):
            return self._struck(lambda: self.node.ask(verb, given, timeout_s))
        return self.node.ask(verb, given, timeout_s)

    def _struck(self, call: Callable[[], T]) -> T:
        number = self.striker.begins(Point.DOOR)
        answer = call()
        self.striker.reached(Point.DOOR, number, Side.AFTER)
        return answer


# --- telling a process its blows ------------------------------------------------------------------


def arm(site: Site, who: Who, strikes: Sequence[Strike]) -> bool:
    """Tell a process what is to strike it from now on; whether it is there to be told."""
    deadline = time.monotonic() + ARM_S
    line = json.dumps([asdict(strike) for strike in strikes]).encode()
    while time.monotonic() < deadline:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as call:
            call.settimeout(1.0)
            call.connect(str(site.control(who)))
            call.sendall(line + b"\n")
            if call.recv(2) == b"ok":
                return True
        time.sleep(STEP_S)
    return False


def _listen(path: Path, striker: Striker) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - the audit hook of the striker knows this call's argument
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(path))
    listening.listen()

    def converse() -> None:
        while True:
            call, _ = listening.accept()
            with suppress(OSError), call, call.makefile("rb") as lines:
                strikes = [_strike(found) for found in json.loads(lines.readline())]
                striker.renew(strikes)
                call.sendall(b"ok")
                _wait_for(striker, strikes)

    threading.Thread(target=converse, daemon=True).start()


def _wait_for(striker: Striker, strikes: Sequence[Strike]) -> None:
    """Those that fall by the clock fall from a thread of their own."""
    for strike in strikes:
        if strike.point is Point.TIME:
            timer = threading.Timer(strike.at, striker.passed, (Point.TIME, strike.at))
            timer.daemon = True
            timer.start()


def _strike(found: dict[str, Any]) -> Strike:
    return Strike(
        victim=Victim(found["victim"]),
        point=Point(found["point"]),
        side=Side(found["side"]),
        count=int(found["count"]),
        at=float(found["at"]),
    )
