"""What a node demands of claims, whatever admission let through: told in the pod's events."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

import pytest

from fleet.kube.base import Name
from tests.e2e import workloads
from tests.e2e.ground import Ground
from tests.e2e.plugin_process import DEVICES, PluginProcess
from tests.e2e.polling import eventually
from tests.e2e.workloads import TEMPLATES, Wish, program
from tests.fleet.admission.rights import KEYS, LIST, ROOT, config, issued, parameters

pytestmark = pytest.mark.e2e


def template(ground: Ground, *entries: dict[str, Any]) -> dict[str, str]:
    """A new template with these configurations; as a pod names it."""
    name = f"template-{secrets.token_hex(3)}"
    spec = workloads.claim_spec(Wish())
    spec["devices"]["config"] = list(entries)
    ground.cluster.create(TEMPLATES, workloads.template(name, ground.namespace, spec))
    return {"resourceClaimTemplateName": name}


def told(ground: Ground, pod: Name) -> str:
    """What the pod's events say, once the prepare of its claim was refused."""
    return eventually(
        "an event",
        lambda: next((one for one in ground.events(pod) if "configuration" in one), ""),
        timeout_s=60,
        tell=lambda: ground.told(pod),
    )


@pytest.mark.timeout(300)
def test_a_claim_without_a_good_tag_gets_an_event_and_no_device(ground: Ground) -> None:
    """C2, C5, B65: made while nobody judged it: the event names what is missing and what to write;
    the next claim, with a tag, runs. Expiry is judged by the server's time of creation."""
    path = ground.plugin.state.parent / "tag-keys.json"
    path.write_bytes(LIST)
    section = f"[admission]\nrequired = true\ntag_keys = {json.dumps(str(path))}\n"
    assert ground.plugin.stop() == 0
    other = PluginProcess(
        ground.place,
        ground.plugin.state,
        ground.plugin.node,
        hardware=f'{section}tag_roots = ["{ROOT.key_id}"]\n',
    )
    ground.instances.append(other)
    other.start()
    eventually(
        "all are clean",
        lambda: other.serves() and len(ground.clean_devices()) == DEVICES,
        timeout_s=60,
        tell=other.told,
    )
    assert KEYS.number == 1
    now = int(time.time())
    right: dict[str, Any] = {
        "namespaces": (ground.namespace,),
        "not_before": now - 60,
        "not_after": now + 600,
    }
    late = {**right, "not_before": now - 120, "not_after": now - 60}
    bare = ground.run(program("say no"), template(ground))
    said = told(ground, bare)
    assert "no deallocation for request" in said
    assert "no isolationTag for request" in said
    assert "fleet tag issue" in said
    expired = ground.run(
        program("say no"), template(ground, config(given=parameters(issued(**late))))
    )
    assert "expired at" in told(ground, expired)
    good = ground.run(
        program("say $FLEETSIM_DEVICE"), template(ground, config(given=parameters(issued(**right))))
    )
    assert ground.ended(good)[0].startswith("gpu-")
    for pod in (bare, expired):
        ground.delete(pod)
    assert other.stop() == 0
