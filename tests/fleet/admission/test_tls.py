"""TLS connections: few, short, and with the certificate that is there now."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fleet.admission.tls import Certificates, TlsServer
from fleet.core import errors
from fleet.core.listener import Requests
from tests.fleet.admission.certificates import Ca

HOST = "127.0.0.1"


class Hello(Requests):
    """Answers everything."""

    def do_GET(self) -> None:  # noqa: N802 - the base class's name
        self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\nhello")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


@pytest.fixture
def ca(tmp_path: Path) -> Ca:
    """An authority with a pair of files."""
    return Ca(tmp_path)


@contextmanager
def serving(ca: Ca, *, wait_s: float = 5.0, most: int = 8) -> Iterator[TlsServer]:
    certificates = Certificates(ca.certificate, ca.private)
    server = TlsServer((HOST, 0), Hello, certificates, wait_s=wait_s, most=most)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def said(server: TlsServer, ca: Ca) -> bytes:
    asked = http.client.HTTPSConnection(HOST, server.server_port, context=ca.trust(), timeout=5)
    try:
        asked.request("GET", "/")
        return asked.getresponse().read()
    finally:
        asked.close()


def serial(server: TlsServer, ca: Ca) -> int:
    with (
        socket.create_connection((HOST, server.server_port), timeout=5) as plain,
        ca.trust().wrap_socket(plain, server_hostname=HOST) as secure,
    ):
        found = secure.getpeercert()
        assert found
        return int(str(found["serialNumber"]), 16)


def test_a_renewed_certificate_is_served_without_a_restart(ca: Ca) -> None:
    """B65: certificate rotation: connections after the renewal get the new one; a pair that is
    replaced only half, or by nonsense, leaves the one in use."""
    with serving(ca) as server:
        first = serial(server, ca)
        renewed = ca.renew()
        assert serial(server, ca) == renewed != first
        good = ca.certificate.read_bytes()
        ca.certificate.write_bytes(b"nonsense")
        assert serial(server, ca) == renewed
        ca.certificate.unlink()
        assert serial(server, ca) == renewed
        ca.certificate.write_bytes(good)
        assert serial(server, ca) == renewed


def test_what_cannot_be_served_with_is_told_at_once(ca: Ca) -> None:
    """B65: a server that starts with no certificate would answer nobody."""
    ca.private.write_bytes(b"")
    with pytest.raises(errors.KeyUnusable, match="cannot be served with"):
        Certificates(ca.certificate, ca.private)
    with pytest.raises(errors.KeyUnusable):
        Certificates(ca.directory / "none", ca.private)


def test_idle_connections_keep_nobody_out(ca: Ca) -> None:
    """B65: who connects and says nothing goes first when places run out; the API server is
    answered at once."""
    with serving(ca, most=4) as server, ExitStack() as idle:
        for _ in range(9):
            idle.enter_context(socket.create_connection((HOST, server.server_port), timeout=5))
        assert said(server, ca) == b"hello"


def test_a_connection_ends_with_its_time(ca: Ca) -> None:
    """B65: a client that sends a byte now and then has no more time than any other."""
    with (
        serving(ca, wait_s=0.3) as server,
        socket.create_connection((HOST, server.server_port), timeout=5) as plain,
    ):
        assert plain.recv(1) == b""
        assert said(server, ca) == b"hello"


def test_what_is_no_tls_harms_nobody(ca: Ca) -> None:
    """B65: a plain request on the port is cut, the next one served; old TLS is refused."""
    with serving(ca) as server:
        with socket.create_connection((HOST, server.server_port), timeout=5) as plain:
            plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert b"hello" not in plain.recv(64)
        old = ca.trust()
        old.minimum_version = ssl.TLSVersion.TLSv1_2
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            socket.create_connection((HOST, server.server_port), timeout=5) as plain,
            old.wrap_socket(plain, server_hostname=HOST) as secure,
        ):
            assert secure.version() == "TLSv1.2"
        assert said(server, ca) == b"hello"
        server.settle(1.0)
