"""A way to the API server that a test can cut: the plugin's alone, so that the rest goes on."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml  # type: ignore[import-untyped]

CHUNK = 65536


class Link:
    """Forwards a port of this machine to the server of a kubeconfig, until it is cut."""

    def __init__(self, kubeconfig: Path, copy: Path) -> None:
        """Write a kubeconfig that leads through this link to `copy`."""
        whole: dict[str, Any] = yaml.safe_load(kubeconfig.read_text())
        clusters = {one["name"]: one["cluster"] for one in whole["clusters"]}
        contexts = {one["name"]: one["context"] for one in whole["contexts"]}
        cluster = clusters[contexts[whole["current-context"]]["cluster"]]
        server = urlsplit(cluster["server"])
        assert server.hostname
        self._address = (server.hostname, server.port or 443)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._cut = False
        self._flow = threading.Event()
        self._flow.set()
        cluster["server"] = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        cluster.setdefault("tls-server-name", server.hostname)
        copy.write_text(yaml.safe_dump(whole))
        copy.chmod(0o600)
        self.kubeconfig = copy
        self._thread = threading.Thread(target=self._accept, name="link", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """End all connections; new ones are ended at once."""
        with self._lock:
            self._cut = True
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def freeze(self) -> None:
        """Keep connections open, also new ones, and let no byte through."""
        self._flow.clear()

    def mend(self) -> None:
        """Forward again, what was held back included."""
        with self._lock:
            self._cut = False
        self._flow.set()

    def close(self) -> None:
        """Cut for good."""
        self.cut()
        self._flow.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._cut:
                near.close()
                continue
            threading.Thread(target=self._forward, args=(near,), daemon=True).start()

    def _forward(self, near: socket.socket) -> None:
        with near, socket.create_connection(self._address) as far:
            with self._lock:
                self._open |= {near, far}
            back = threading.Thread(target=self._pump, args=(far, near), daemon=True)
            back.start()
            self._pump(near, far)
            back.join()
            with self._lock:
                self._open -= {near, far}

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        """Carry bytes one way until either end closes; then both ways end."""
        with suppress(OSError):
            while content := source.recv(CHUNK):
                self._flow.wait()
                sink.sendall(content)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
