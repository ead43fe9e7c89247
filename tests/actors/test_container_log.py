"""What actors log reaches the log of the container that Ray runs in, beside Ray's own files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fleet.wiring import adapters, plugin
from tests.actors.trees import Rays
from tests.actors.waiting import until
from tests.lab.apiserver.server import StandIn

AS_IN_THE_CHART = 'FLEET_LOG_ALSO=/proc/$$/fd/2 exec "$0" "$@"'


@pytest.mark.ray
@pytest.mark.timeout(240)
def test_f71_actors_log_where_the_pod_s_log_is_read(tmp_path: Path) -> None:
    """F71: lines of coordinator and node actor are in the standard error of `ray start`, and still
    in the files of Ray's session, where its dashboard shows them."""
    rays = Rays()
    for tree in (rays.head, rays.node):
        tree.shell = AS_IN_THE_CHART
    with StandIn() as standin:
        kubeconfig = str(standin.kubeconfig(tmp_path / "kubeconfig"))
        (plan,) = adapters.plan_fleet(tmp_path, simulate="1x1", memory_bytes=1 << 20).nodes
        plan = plan.model_copy(update={"kubernetes": True, "kubeconfig": kubeconfig})
        command = [sys.executable, "-P", "-m", "actors.bridge"]
        command += [str(plugin.write_plan(plan)), rays.address]
        try:
            rays.start()
            with (tmp_path / "bridge.log").open("wb") as log:
                bridge = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stderr=log, env=rays.environment(), cwd="/"
                )
            try:
                seen = [rays.directory / f"{tree}.log" for tree in ("head", "node")]
                until(lambda: _all(seen, "fleet.control.binding.loop: claims are rec"), 150.0)
                until(lambda: _all(seen, "node-actor actors.node_actor: node-01: "), 60.0)
                files = list(rays.directory.glob("ray/session_latest/logs/worker-*.err"))
                assert _all(files, "claims are reconciled")
            finally:
                bridge.kill()
                bridge.communicate()
        finally:
            rays.end()


def _all(paths: list[Path], text: str) -> bool:
    return any(text in path.read_text(errors="replace") for path in paths)
