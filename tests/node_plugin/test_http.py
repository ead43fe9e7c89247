"""Rules of the port for probes and scrapers."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from contextlib import ExitStack, suppress
from http import HTTPStatus
from pathlib import Path

import pytest

from fleet.core import errors
from node_plugin.http import (
    CONNECTIONS_MAX,
    COSTLY_S,
    KEPT_TIMES,
    HttpServer,
    Page,
    Pages,
)


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


def descriptors() -> int:
    """How many this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def connected(server: HttpServer) -> socket.socket:
    """A client's end of a new connection."""
    return socket.create_connection(("127.0.0.1", server.port), timeout=5)


def ended(client: socket.socket) -> bool:
    """Whether the server closed it without an answer; waits for the socket's timeout."""
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def test_slow_clients_neither_shut_others_out_nor_eat_descriptors() -> None:
    """100 clients that never finish: the next request is answered, and few descriptors are held."""
    server = HttpServer("127.0.0.1", 0, PAGES)
    with ExitStack() as stack:
        stack.callback(server.close)
        before = descriptors()
        clients = [stack.enter_context(connected(server)) for _ in range(100)]
        for client in clients:
            with suppress(ConnectionError):  # some were shown out already
                client.send(b"G")
        assert asked(server, "/fine")[0] == 200
        assert descriptors() - before - len(clients) <= CONNECTIONS_MAX
        assert asked(server, "/fine")[0] == 200
        assert ended(clients[0]), "the oldest gave way"


def test_a_connection_has_one_deadline_for_everything() -> None:
    """A byte now and then, in the headers too, does not buy more time."""
    server = HttpServer("127.0.0.1", 0, PAGES, wait_s=0.3)
    with ExitStack() as stack:
        stack.callback(server.close)
        client = stack.enter_context(connected(server))
        client.send(b"GET /fine HTTP/1.1\r\nX: ")
        client.settimeout(0.05)
        started = time.monotonic()
        while not ended(client):
            assert time.monotonic() - started < 3.0
            with suppress(ConnectionError):
                client.send(b"x")
        assert time.monotonic() - started > 0.1


def test_an_answer_nobody_takes_ends_at_the_deadline() -> None:
    """A client that asks for much and reads nothing is let go of as well."""
    long = Page("x" * 20_000_000)  # more than both sides' buffers take
    server = HttpServer("127.0.0.1", 0, {"/long": lambda: long}, wait_s=1.0)
    with ExitStack() as stack:
        stack.callback(server.close)
        before = descriptors()
        client = stack.enter_context(connected(server))
        client.send(b"GET /long HTTP/1.1\r\n\r\n")
        assert client.recv(4)
        started = time.monotonic()
        while descriptors() > before + 1:
            assert time.monotonic() - started < 10.0
            threading.Event().wait(0.02)


def test_without_a_free_place_a_connection_is_closed_at_once() -> None:
    """Pages that hang take their places, no more; once they go on the port works again."""
    go_on = threading.Event()
    pages: Pages = {"/stuck": lambda: Page(str(go_on.wait(20))), **PAGES}
    server = HttpServer("127.0.0.1", 0, pages)
    with ExitStack() as stack:
        stack.callback(server.close)
        before = descriptors()
        for _ in range(CONNECTIONS_MAX):
            client = stack.enter_context(connected(server))
            client.send(b"GET /stuck HTTP/1.0\r\n\r\n")
        try:
            assert ended(stack.enter_context(connected(server)))
            # A client sees the end a moment before the server's side is closed.
            until = time.monotonic() + 10.0
            while descriptors() - before > 2 * CONNECTIONS_MAX + 1:
                assert time.monotonic() < until
                threading.Event().wait(0.02)
        finally:
            go_on.set()
        assert asked(server, "/fine")[0] == 200


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


def test_f62_nobody_has_a_costly_page_made_all_the_time() -> None:
    """F62: figures that take a while to make are kept for a few times that long, so that who asks
    for them over and over leaves the processor to kubelet's calls."""
    made: list[int] = []

    def costly() -> Page:
        until = time.thread_time() + 5 * COSTLY_S
        while time.thread_time() < until:
            pass
        made.append(len(made))
        return Page(f"{len(made)}\n")

    server = HttpServer("127.0.0.1", 0, {"/metrics": costly})
    try:
        begun = time.monotonic()
        pages = [asked(server, "/metrics")[2] for _ in range(40)]
        passed_s = time.monotonic() - begun
        assert len(made) <= 1 + passed_s / (5 * COSTLY_S * KEPT_TIMES)
        assert pages == sorted(pages, key=int)
    finally:
        server.close()
