"""Rules of the port for probes and scrapers."""

from __future__ import annotations

import http.client
import socket
from http import HTTPStatus

import pytest

from fleet import errors
from node_plugin.http import HttpServer, Page, Pages


def asked(server: HttpServer, path: str, method: str = "GET") -> tuple[int, str, str]:
    """Status, type and text of a page."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


def broken() -> Page:
    """A page that cannot be made."""
    raise ZeroDivisionError


PAGES: Pages = {
    "/fine": lambda: Page("fine\n", content_type="text/x"),
    "/ill": lambda: Page("ill\n", HTTPStatus.SERVICE_UNAVAILABLE),
    "/broken": broken,
}


def test_pages_are_served_with_their_status_and_type() -> None:
    """A page says what it is; a question mark and what follows do not matter."""
    server = HttpServer("127.0.0.1", 0, PAGES)
    try:
        assert asked(server, "/fine") == (200, "text/x", "fine\n")
        assert asked(server, "/fine?x=1")[0] == 200
        assert asked(server, "/ill")[::2] == (503, "ill\n")
    finally:
        server.close()


def test_other_requests_get_an_error() -> None:
    """An unknown page, a page that fails and another method are answered, never left hanging."""
    server = HttpServer("127.0.0.1", 0, PAGES)
    try:
        status, _, text = asked(server, "/none")
        assert status == 404
        assert "/fine" in text
        assert asked(server, "/broken")[0] == 500
        assert asked(server, "/fine", method="POST")[0] == 501
    finally:
        server.close()


def test_a_silent_client_does_not_block_the_others() -> None:
    """A connection that sends nothing occupies one thread, not the port."""
    server = HttpServer("127.0.0.1", 0, PAGES)
    try:
        with socket.create_connection(("127.0.0.1", server.port)):
            assert asked(server, "/fine")[0] == 200
    finally:
        server.close()


def test_a_taken_port_is_named() -> None:
    """The error at start names the address and what to do."""
    server = HttpServer("127.0.0.1", 0, PAGES)
    try:
        with pytest.raises(errors.SocketTaken, match=str(server.port)):
            HttpServer("127.0.0.1", server.port, PAGES)
    finally:
        server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)
