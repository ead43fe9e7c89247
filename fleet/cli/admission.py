"""`fleet admission`: the webhook that judges claims before they are made."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fleet.admission.ground import Ground
from fleet.admission.judge import judges
from fleet.admission.review import Reviewing
from fleet.admission.tls import Certificates
from fleet.admission.webhook import Webhook
from fleet.cli.options import LogFormatOption
from fleet.core import errors, logs, settings_file, termination
from fleet.core.settings import Settings
from fleet.plugin.tags_file import TagKeyFile

LISTEN_DEFAULT = "0.0.0.0:8443"
_log = logging.getLogger(__name__)

app = typer.Typer(no_args_is_help=True)


@app.callback()
def admission() -> None:
    """Judge claims and templates before they are made."""


@app.command()
def serve(
    *,
    certificate: Annotated[
        Path, typer.Option("--certificate", metavar="FILE", help="PEM, with its chain.")
    ],
    key: Annotated[Path, typer.Option("--key", metavar="FILE", help="PEM, of the certificate.")],
    client_ca: Annotated[
        Path | None,
        typer.Option(
            "--client-ca",
            metavar="FILE",
            help="PEM of the authority of client certificates: reviews are then for callers with"
            " one (the API server, once it is given one), probes for all.",
            show_default=False,
        ),
    ] = None,
    client_name: Annotated[
        list[str] | None,
        typer.Option(
            help="Common name of a client certificate that may ask; again for each. Default: all"
            " of --client-ca."
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy", metavar="FILE", help="Settings (TOML or JSON).", show_default=False
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to serve; port 0: a free one.")
    ] = LISTEN_DEFAULT,
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", help="A governed device class; again for each. Default: ours."),
    ] = None,
    spread_class: Annotated[
        list[str] | None,
        typer.Option(
            help="Class whose devices need not be near each other, and may be asked for all at"
            " once; again for each. Default: the driver's; empty: none."
        ),
    ] = None,
    other_class: Annotated[
        list[str] | None,
        typer.Option(
            help="Class of another driver that may be named although it sounds like accelerators;"
            " again for each."
        ),
    ] = None,
    requester: Annotated[
        list[str] | None,
        typer.Option(
            help="User that may tolerate our taints; again for each. Default: ours; empty: none."
        ),
    ] = None,
    own_namespace: Annotated[
        list[str] | None,
        typer.Option(help="Namespace never judged; again for each. Default: ours, kube-system."),
    ] = None,
    log_format: LogFormatOption = "",
) -> None:
    """Serve reviews by HTTPS until SIGTERM; `admission.tag_keys` must be set.

    The files are read again when they change. Logs, and says where it serves.
    """
    logs.begin("admission", wanted=log_format, level=logging.INFO)
    settings = settings_file.load(policy) if policy else Settings()
    ground = ground_of(
        settings,
        classes=classes,
        spread_classes=spread_class,
        other_classes=other_class,
        requesters=requester,
        own_namespaces=own_namespace,
    )
    keys = _key_file(settings)
    reviewing = Reviewing(judges(ground, keys.keys), frozenset(ground.own_namespaces))
    if client_name and client_ca is None:
        raise errors.InputInvalid(
            "--client-name without --client-ca: nobody's name could be believed",
            remedy="name the authority of the client certificates with --client-ca",
        )
    with termination.awaited() as wait:
        webhook = Webhook(
            _place(listen),
            Certificates(certificate, key, client_ca),
            reviewing,
            trouble=Readiness(keys),
            callers=frozenset(client_name or ()),
        )
        _log.info("serving claims of driver %s at port %d", ground.driver, webhook.port)
        wait()
        webhook.close()


class Readiness:
    """Ready once the list of tag keys was read; later trouble is told in each denial.

    A rollout with a wrong list stops before it replaces what works. A list that breaks later takes
    no replica out of service: a denial that says why is better than no answer.
    """

    def __init__(self, keys: TagKeyFile) -> None:
        self._keys = keys
        self._was = False

    def __call__(self) -> str:
        """Why it is not ready; "": it is."""
        if self._was:
            return ""
        try:
            self._keys.keys()
        except errors.FleetError as error:
            return str(error)
        self._was = True
        return ""


def ground_of(
    settings: Settings,
    *,
    classes: list[str] | None = None,
    spread_classes: list[str] | None = None,
    other_classes: list[str] | None = None,
    requesters: list[str] | None = None,
    own_namespaces: list[str] | None = None,
) -> Ground:
    """The ground that is said in words; where nothing is, the driver's own.

    Requesters or classes that are said to be "" are none: a list in the chart may be empty.
    """
    ground = Ground.of_driver(settings.kubernetes.driver)
    spared = ground.requesters if requesters is None else filter(None, requesters)
    spread = ground.spread_classes if spread_classes is None else filter(None, spread_classes)
    return replace(
        ground,
        classes=tuple(classes or ground.classes),
        spread_classes=tuple(spread),
        other_classes=tuple(other_classes or ()),
        requesters=tuple(spared),
        own_namespaces=tuple(own_namespaces or ground.own_namespaces),
    )


def _key_file(settings: Settings) -> TagKeyFile:
    admission = settings.admission
    if not admission.tag_keys:
        raise errors.SettingsInvalid(
            "admission.tag_keys is not set: no tag could be judged",
            remedy="name a settings file with --policy that has [admission] tag_keys, tag_roots",
        )
    return TagKeyFile(Path(admission.tag_keys), admission.tag_roots)


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise errors.InputInvalid(f"{text!r} is no address", remedy=f"write {LISTEN_DEFAULT}")
    return host.strip("[]"), int(port)
