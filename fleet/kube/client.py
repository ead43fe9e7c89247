"""The way to a real API server; the only module that knows the `kubernetes` package.

The package is used for what is hard to get right (kubeconfig, in-cluster and exec credentials, TLS,
pooled connections) and not for its typed models, which drop fields they do not know (B19), nor for
its choice of a patch's content type (B76). `fleet.kube.cluster` says what is asked.

Decisions:

1. Texts of the package's configuration errors are cut before the first brace: they contain whole
   entries of the kubeconfig, tokens included. Such errors are never chained either.
2. A `tokenFile` is read by us (`fleet.kube.tokens`): the package reads it once. It wins over an
   inline token, as in client-go. The user's kubeconfig is never written.
3. An exec plugin has a time limit here, and only one runs at a time (`fleet.kube.kubeconfig`);
   the package would wait for ever.
"""

from __future__ import annotations

import http.client
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import urllib3
from kubernetes.client import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config import ConfigException, kube_config
from kubernetes.config.incluster_config import InClusterConfigLoader

from fleet.core import errors
from fleet.core.clock import Clock, SystemClock
from fleet.kube import answers
from fleet.kube.cluster import Answer, KubernetesCluster, Request
from fleet.kube.kubeconfig import Attempt, RenewedCredential
from fleet.kube.tokens import Credential, TokenFile, usable

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token and the server's certificate authority."""

POOL = 32
"""Idle connections kept; each open watch holds one more."""

CHUNK = 64 * 1024
AGENT = "fleetscrub"
"""User-Agent; the server also takes it for the name of the field manager of plain writes."""

# The package calls itself typed, yet these parts of it carry no annotations.
_CONFIG: Any = kube_config
_IN_CLUSTER: Any = InClusterConfigLoader
_CLIENT: Any = RESTClientObject

_ESCAPED = {ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&"}
"""Go's encoder escapes them; in JSON they stand inside of strings only."""

_BROKEN = (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError)
_UNUSABLE = (ConfigException, OSError, ValueError, TypeError, KeyError, AttributeError)


def connect(kubeconfig: str | None, *, qps: float, timeout_s: float) -> KubernetesCluster:
    """The API server of `kubeconfig`; None: that of the pod we run in, else the default kubeconfig.

    `qps`: requests per second on average. `timeout_s` bounds connecting, every wait for bytes and
    the wait for the budget of one request. Raises `SettingsInvalid`; sends nothing.
    """
    clock = SystemClock()
    transport = _transport(kubeconfig, timeout_s=timeout_s, clock=clock)
    return KubernetesCluster(transport, qps=qps, timeout_s=timeout_s, clock=clock)


def encoded(body: object) -> bytes:
    """JSON as the API server writes it, the order of keys apart: no spaces, the same escapes.

    It keeps raw JSON, such as opaque parameters, byte by byte as it was sent, and writes it so at
    the next patch: whatever was spelled otherwise has changed then, and where it is immutable the
    patch is refused (F61).
    """
    return json.dumps(body, separators=(",", ":")).translate(_ESCAPED).encode()


@dataclass(frozen=True, slots=True)
class Source:
    """One reading of a configuration."""

    configuration: Configuration = field(repr=False)
    header: str = field(default="", repr=False)
    """Value of the Authorization header, "" without one."""
    token_file: Path | None = None
    expires_at: float = float("inf")
    """When the credential ends, seconds since the epoch."""


class HttpTransport:
    """`fleet.kube.cluster.Transport` over the package's pooled HTTP client."""

    def __init__(self, source: Source, credential: Credential, *, timeout_s: float) -> None:
        """`credential` authenticates; `source` says where to and under which TLS settings."""
        self._credential = credential
        self._timeout_s = timeout_s
        self._reach(source.configuration)

    def use(self, configuration: Configuration) -> None:
        """Go on with renewed client certificates or another address, if they are others."""
        if _tls(configuration) != self._tls:
            self._reach(configuration)

    def _reach(self, configuration: Configuration) -> None:
        self._tls = _tls(configuration)
        self._host, self._pool = configuration.host.rstrip("/"), _pool(configuration)

    def exchange(self, request: Request) -> Answer:
        """As `Transport.exchange`."""
        return self._whole(self._send(request), request)

    def stream(self, request: Request) -> HttpStream | Answer:
        """As `Transport.stream`."""
        found = self._send(request)
        if 200 <= found.status < 300:
            return HttpStream(found, request.what)
        return self._whole(found, request)

    def close(self) -> None:
        """As `Transport.close`."""
        self._pool.clear()

    def _send(self, request: Request) -> urllib3.BaseHTTPResponse:
        used = self._credential.header()
        found = self._once(request, used)
        if found.status != 401:
            return found
        try:
            renewed = self._credential.renew(used)
        except errors.ApiUnavailable:
            self._whole(found, request)
            raise
        if renewed == used:
            return found
        self._whole(found, request)
        return self._once(request, renewed)

    def _once(self, request: Request, header: str) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json", "User-Agent": AGENT}
        if header:
            headers["Authorization"] = header
        if request.content_type:
            headers["Content-Type"] = request.content_type
        read_s = request.read_timeout_s or self._timeout_s
        with _Converted(request.what):
            found: urllib3.BaseHTTPResponse = self._pool.request(
                request.method,
                self._host + request.target,
                body=None if request.body is None else encoded(request.body),
                headers=headers,
                timeout=urllib3.Timeout(connect=min(self._timeout_s, read_s), read=read_s),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            return found

    def _whole(self, found: urllib3.BaseHTTPResponse, request: Request) -> Answer:
        with _Converted(request.what):
            body = found.read()
        return Answer(found.status, body, found.headers.get("Retry-After", ""))

    def __repr__(self) -> str:
        return f"HttpTransport({self._host!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("connections stay in their process: connect again in the other one")


class HttpStream:
    """`fleet.kube.cluster.Stream` over one open answer."""

    def __init__(self, response: urllib3.BaseHTTPResponse, what: str) -> None:
        """`what` names the request in errors."""
        self._response = response
        self._what = what

    def chunks(self) -> Iterator[bytes]:
        """As `Stream.chunks`."""
        while True:
            with _Converted(self._what):
                chunk = self._response.read1(CHUNK)
            if not chunk:
                return
            yield chunk

    def close(self) -> None:
        """As `Stream.close`."""
        self._response.close()
        self._response.release_conn()


class _Converted:
    """Turns what the HTTP client raises into `ApiUnavailable`."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, _BROKEN):
            timed_out = isinstance(error, urllib3.exceptions.TimeoutError | TimeoutError)
            why = f"no answer ({type(error).__name__}: {error})"
            raise answers.unreachable(self._what, why, timed_out=timed_out) from error


def bounded(load: Callable[[], Source], *, timeout_s: float) -> Source:
    """What `load` returns or raises (`SettingsInvalid`), waited for `timeout_s` at most."""
    found = Attempt(load, timeout_s=timeout_s).result()
    if found is None:
        raise _invalid("kubeconfig", f"its exec plugin gave no credential in {timeout_s:g} s")
    return found


def from_kubeconfig(path: str) -> Source:
    """Read a kubeconfig (or several, separated by colons). Raises `SettingsInvalid`."""
    configuration = _configuration()
    try:
        merged = _CONFIG.KubeConfigMerger(path).config
        if merged is None:
            raise _invalid(path, "there is no such file")
        loader = _CONFIG.KubeConfigLoader(config_dict=merged, config_base_path=None)
        context = loader.current_context["context"]
        user = _user(merged, str(context.get("user") or ""))
        loader.load_and_set(configuration)
    except _UNUSABLE as error:
        raise _invalid(path, _safe(error)) from None
    except _CONFIG.yaml.YAMLError:
        raise _invalid(path, "it is not valid YAML") from None
    header = "".join(configuration.api_key.values()).strip()
    configuration.api_key.clear()
    configuration.refresh_api_key_hook = None
    file = user.get("tokenFile")
    if not configuration.host.startswith(("http://", "https://")):
        raise _invalid(path, f"its server {configuration.host!r} is no http(s) address")
    if not usable(header):
        raise _invalid(path, "the token contains characters that cannot be sent")
    if "exec" in user and not header and not configuration.cert_file:
        raise _invalid(path, "its exec plugin gave neither a token nor a certificate")
    expiry = getattr(loader, "expiry", None)
    return Source(
        configuration,
        header,
        token_file=_beside(user, str(file)) if file else None,
        expires_at=expiry.timestamp() if expiry else float("inf"),
    )


def in_cluster(directory: Path, environment: Mapping[str, str]) -> Source:
    """The server of the pod we run in. Raises `SettingsInvalid` when this is no pod."""
    configuration = _configuration()
    try:
        _IN_CLUSTER(
            token_filename=str(directory / "token"),
            cert_filename=str(directory / "ca.crt"),
            try_refresh_token=False,
            environ=environment,
        ).load_and_set(configuration)
    except _UNUSABLE as error:
        raise _invalid(str(directory), _safe(error)) from None
    configuration.api_key.clear()
    return Source(configuration, token_file=directory / "token")


def transport_of(
    source: Source, load: Callable[[], Source], *, timeout_s: float, clock: Clock
) -> HttpTransport:
    """The transport for `source`, of which `load` makes a new reading."""
    if source.token_file is not None:
        credential: Credential = TokenFile(source.token_file, clock=clock)
        return HttpTransport(source, credential, timeout_s=timeout_s)
    renewed = RenewedCredential(source, load, clock=clock, timeout_s=timeout_s)
    transport = HttpTransport(source, renewed, timeout_s=timeout_s)
    renewed.adopt = lambda found: transport.use(found.configuration)
    return transport


def _transport(kubeconfig: str | None, *, timeout_s: float, clock: Clock) -> HttpTransport:
    if kubeconfig is None:
        try:
            found = in_cluster(SERVICE_ACCOUNT, os.environ)
        except errors.SettingsInvalid as error:
            if "KUBERNETES_SERVICE_HOST" in os.environ:
                raise error from None
            # The library reads the variable once, when it is imported.
            kubeconfig = os.environ.get("KUBECONFIG") or kube_config.KUBE_CONFIG_DEFAULT_LOCATION
        else:
            return transport_of(found, lambda: found, timeout_s=timeout_s, clock=clock)
    path = kubeconfig

    def load() -> Source:
        return from_kubeconfig(path)

    source = bounded(load, timeout_s=timeout_s)
    return transport_of(source, load, timeout_s=timeout_s, clock=clock)


def _configuration() -> Configuration:
    configuration = Configuration()
    configuration.connection_pool_maxsize = POOL
    configuration.keep_alive = True
    return configuration


def _pool(configuration: Configuration) -> urllib3.PoolManager:
    """The package's connection pool, made with its TLS and proxy rules.

    Requests go to the pool itself: the package's own `request` changes content types (B76) and
    differs between releases.
    """
    pool: urllib3.PoolManager = _CLIENT(configuration).pool_manager
    return pool


def _user(merged: Any, name: str) -> dict[str, object]:
    """The entry of the user `name`, with the path of its file under ``"path"``; {} without one."""
    entry = merged["users"].get_with_name(name, safe=True) if name else None
    found = entry.safe_get("user") if entry is not None else None
    if entry is None or not isinstance(found, dict):
        return {}
    return {**found, "path": str(entry.path)}


def _beside(user: Mapping[str, object], file: str) -> Path:
    return Path(str(user["path"])).parent / file


def _tls(configuration: Configuration) -> tuple[object, ...]:
    return (
        configuration.host,
        configuration.ssl_ca_cert,
        configuration.cert_file,
        configuration.key_file,
        configuration.verify_ssl,
        configuration.tls_server_name,
        configuration.proxy,
    )


def _safe(error: BaseException) -> str:
    """The text of a configuration error without the entries it quotes."""
    return re.sub(r"/?\{.*", "...", str(error), flags=re.DOTALL)


def _invalid(place: str, why: str) -> errors.SettingsInvalid:
    return errors.SettingsInvalid(
        f"the Kubernetes configuration {place} cannot be used: {why}",
        remedy="name a kubeconfig that works with kubectl, or run in a pod with a service account",
        problems=[f"{place}: {why}"],
    )
