"""TLS connections: what the webhook's requests come in by, within the limits of
`fleet.core.listener`.

Who calls proves it with a certificate, where an authority for callers is named. Without one nobody
can, since an API server shows no certificate unless it was told to.

Certificate files are read again when they change, for the connections that come after; those that
were replaced only half, or by something else, leave the ones in use as they are.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet.core import errors
from fleet.core.listener import Listener, Requests

CONNECTIONS_MAX = 64
"""Connections at once: an API server asks for each object that is made, and there are few."""
CONNECTION_WAIT_S = 10.0
"""Time, s, of a connection in all: twice what the API server waits for us."""

_log = logging.getLogger(__name__)
_Stamp = tuple[tuple[int, int, int], ...]


class Certificates:
    """A certificate and its key, as files that somebody else renews."""

    def __init__(self, certificate: Path, key: Path, callers: Path | None = None) -> None:
        """Raises `KeyUnusable` if they cannot be used now.

        `callers`: PEM of the authorities that certificates of callers are signed by. A caller may
        still come without one (kubelet's probes have none); see `caller_of`.
        """
        self._pair, self._callers = (certificate, key), callers
        self._files = [*self._pair, *([] if callers is None else [callers])]
        self._lock = threading.Lock()
        try:
            self._stamp = self._seen()
            self._context = self._loaded()
        except (OSError, ValueError) as error:
            raise errors.KeyUnusable(
                f"{' and '.join(map(str, self._files))} cannot be served with: {error}",
                remedy="name PEM files with a certificate (and its chain), the key to it, and, if"
                " callers must show one, the authority of theirs",
            ) from error

    def context(self) -> ssl.SSLContext:
        """What the next connection is served with."""
        with self._lock:
            try:
                stamp = self._seen()
                if stamp != self._stamp:
                    self._stamp = stamp
                    self._context = self._loaded()
                    _log.info("certificate %s was renewed", self._files[0])
            except (OSError, ValueError) as error:
                _log.warning("the certificate stays the one in use: %s", error)
            return self._context

    def _seen(self) -> _Stamp:
        found = [path.stat() for path in self._files]
        return tuple((one.st_ino, one.st_mtime_ns, one.st_size) for one in found)

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self._pair)
        if self._callers is not None:
            context.load_verify_locations(self._callers)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    @property
    def asks(self) -> bool:
        """Whether callers must show a certificate."""
        return self._callers is not None


def caller_of(connection: ssl.SSLSocket) -> str | None:
    """Common name of the certificate the caller has proven to be his; None: he showed none."""
    shown = connection.getpeercert()
    if not shown:
        return None
    subject: Any = shown.get("subject", ())
    return next((str(v) for part in subject for k, v in part if k == "commonName"), "")


class TlsServer(Listener):
    """A listener of TLS connections."""

    def __init__(
        self,
        place: tuple[str, int],
        requests: type[Requests],
        certificates: Certificates,
        *,
        wait_s: float = CONNECTION_WAIT_S,
        most: int = CONNECTIONS_MAX,
        on_cut: Callable[[Any], None] = lambda _: None,
    ) -> None:
        """As its base is made."""
        self._certificates = certificates
        super().__init__(place, requests, wait_s=wait_s, most=most, on_cut=on_cut)

    def get_request(self) -> tuple[Any, Any]:
        """The next connection; its handshake is its own thread's, which alone waits for it."""
        plain, address = self.socket.accept()
        try:
            plain.settimeout(self._wait_s)
            found = self._certificates.context().wrap_socket(
                plain, server_side=True, do_handshake_on_connect=False
            )
        except BaseException:
            plain.close()
            raise
        return found, address
