"""`fleet claim show` for a tenant: the receipts on claims, with the rights of one namespace alone.

Two calls of the API at most per claim: the pod is read where one is named, then each of its claims.
No list is made and no discovery is asked for, so that `get` on these two kinds of one's own
namespace is all the right that is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from fleet.cli import text
from fleet.control.binding.receipt import ClaimReceipt, DeviceReceipt, Standing, receipt
from fleet.core import errors
from fleet.core.settings import KubernetesSettings
from fleet.kube.base import CLAIMS, PODS, Cluster, Name, Object, Resource
from fleet.kube.claim import read
from fleet.kube.marks import Marks


def receipts(
    cluster: Cluster, *, claim: Name | None, pod: Name | None, driver: str
) -> list[ClaimReceipt]:
    """The receipts of a claim, or of each claim of a pod, in the order the pod names them.

    Raises `ApiForbidden` with the right that is missing, `ApiNotFound`, and `ClaimUnready` for a
    claim that cannot be understood.
    """
    names = [claim] if claim is not None else []
    if pod is not None:
        names = list(_claims(_get(cluster, PODS, pod), pod))
        if not names:
            raise errors.InputInvalid(
                f"pod {pod} uses no claim, or none was made for it yet",
                remedy="name a pod that has resource claims and was scheduled",
            )
    marks = Marks(driver)
    return [receipt(read(_get(cluster, CLAIMS, name), marks), marks) for name in names]


def connected(kubeconfig: Path | None) -> Cluster:
    """The API server of `kubeconfig`, else the user's own; nothing is asked of it yet."""
    from fleet.kube import client  # the client library takes 0.3 s to load: only where it is used

    terms = KubernetesSettings()
    where = None if kubeconfig is None else str(kubeconfig)
    return client.connect(where, qps=terms.api_qps, timeout_s=terms.api_timeout_s)


def _get(cluster: Cluster, resource: Resource, name: Name) -> Object:
    try:
        return cluster.get(resource, name)
    except errors.ApiForbidden as error:
        raise errors.ApiForbidden(
            error.detail,
            remedy=f"ask for a role in {name.namespace} that may `get` {resource.plural}",
            **error.fields,
        ) from error


def _claims(pod: Object, name: Name) -> Iterator[Name]:
    """The claims of a pod: named by itself, or made for it from templates or extended resources."""
    spec, status = _mapping(pod.get("spec")), _mapping(pod.get("status"))
    made = {
        str(one.get("name")): one.get("resourceClaimName")
        for one in _objects(status.get("resourceClaimStatuses"))
    }
    for one in _objects(spec.get("resourceClaims")):
        found = one.get("resourceClaimName") or made.get(str(one.get("name")))
        if isinstance(found, str) and found:
            yield Name(found, name.namespace)
    extended = _mapping(status.get("extendedResourceClaimStatus")).get("resourceClaimName")
    if isinstance(extended, str) and extended:
        yield Name(extended, name.namespace)


def _mapping(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _objects(found: Any) -> list[dict[str, Any]]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


# --- printing -------------------------------------------------------------------------------------


def render(console: Console, found: list[ClaimReceipt]) -> None:
    """Each claim with its devices, and how to verify what is said of them without us."""
    for one in found:
        console.print(text.plain(f"claim {one.namespace}/{one.name} ({one.uid})", "bold"))
        console.print(text.plain(f"  used by: {', '.join(one.pods) or 'no pod'}"))
        if not one.allocated:
            console.print("  it has no device yet")
        elif not one.devices:
            console.print(text.plain(f"  none of its devices is of driver {one.driver}"))
        if one.held:
            console.print("  kept from others after use until its devices are wiped again: yes")
        for device in one.devices:
            _device(console, device)


def _device(console: Console, one: DeviceReceipt) -> None:
    colour = {Standing.PROVEN: "green", Standing.FAILED: "red"}.get(one.standing, "yellow")
    console.print(
        text.joined(
            f"  {one.request}: {one.node}/{one.device}  ",
            (str(one.standing), colour),
            f": {one.why}",
        )
    )
    for name, value in (
        ("UUID", one.uuid),
        ("wiped", one.wiped_at),
        ("token", one.token),
        ("certificate", one.certificate),
    ):
        if value:
            console.print(text.plain(f"    {name:>11}: {value}"))
    if one.verify:
        console.print("    to verify it yourself, in a copy of the evidence the operator gives you")
        console.print("    (`fleet evidence export`), with the node's public key as KEY.pub:")
        for command in one.verify:
            console.print(text.plain(f"      {command}"))
        console.print("    the first must print the digest above; the certificate names this claim")
