"""The way to a real server: credentials, TLS, connections, and what becomes of their failures."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import logging
import os
import pickle
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fleet.core import errors
from fleet.core.clock import ManualClock
from fleet.kube import client
from fleet.kube.base import NODES, Change, Name, PatchKind
from fleet.kube.cluster import KubernetesCluster, Request
from fleet.kube.kubeconfig import EXPIRY_LEAD_S, RenewedCredential
from fleet.kube.tokens import TokenFile

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n", "resourceVersion": "1"},
    "status": {"futureField": [None, {"x": 1}]},
}


class Server(ThreadingHTTPServer):
    """A few lines of API server. `accept`: Authorization values it takes; None: everything."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.accept: set[str] | None = None
        self.answer: Callable[[_Requests], None] | None = None
        self.seen: list[tuple[str, str, str, bytes]] = []
        self.tokens: list[str] = []
        self.connections = 0
        self.more = threading.Event()
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the tests."""


class _Requests(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        kind = self.headers.get("Content-Type", "")
        self.server.seen.append((self.command, self.path, kind, self.rfile.read(length)))
        token = self.headers.get("Authorization", "")
        self.server.tokens.append(token)
        if self.server.accept is not None and token not in self.server.accept:
            self.send(401, {"kind": "Status", "message": "Unauthorized", "code": 401})
        elif "watch=true" in self.path:
            self.follow()
        elif self.server.answer is not None:
            self.server.answer(self)
        elif self.path.startswith("/api/v1/nodes?"):
            self.send(200, {"metadata": {"resourceVersion": "5"}, "items": [NODE]})
        else:
            self.send(200, NODE)

    do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = serve  # noqa: N815

    def send(self, status: int, body: object, **headers: str) -> None:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(text)

    def follow(self) -> None:
        """A watch: one change when `more` is set, then the end. Chunked, as Go servers stream."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        self.server.more.wait(10.0)
        self.server.more.clear()
        text = json.dumps({"type": "MODIFIED", "object": NODE}).encode() + b"\n"
        for part in (b"null\n", text[:20], text[20:]):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_arguments: object) -> None:
        """Quiet."""


def started(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.more.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    """A server without TLS."""
    yield from started(Server())


def certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public, private = directory / "ca.crt", directory / "tls.key"
    public.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return public, private


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Server]:
    """A server with TLS whose authority lies in tmp_path, as a service account's does."""
    public, private = certificate(tmp_path)
    found = Server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)
    found.socket = context.wrap_socket(found.socket, server_side=True)
    found.scheme = "https"
    yield from started(found)


def kubeconfig(directory: Path, url: str, user: object) -> str:
    """A kubeconfig for `url` (JSON is YAML)."""
    path = directory / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(content))
    return str(path)


def reach(directory: Path, server: Server, user: object = None) -> KubernetesCluster:
    """A cluster at `server` by a kubeconfig."""
    path = kubeconfig(directory, server.url, user or {"token": "secret-1"})
    return client.connect(path, qps=1e4, timeout_s=5.0)


def pod_of(directory: Path, server: Server, clock: ManualClock) -> KubernetesCluster:
    """A cluster at `server` as a pod reaches it, its token file in `directory`."""
    environment = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.server_address[1]),
    }
    found = client.in_cluster(directory, environment)
    transport = client.transport_of(found, lambda: found, timeout_s=5.0, clock=clock)
    return KubernetesCluster(transport, qps=1e4, timeout_s=5.0, clock=clock)


def replace(path: Path, text: str) -> None:
    """Replace a file as kubelet does."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def test_objects_come_and_go_unchanged(tmp_path: Path, server: Server) -> None:
    """B19: a field unknown to the client survives reading and writing over the wire."""
    cluster = reach(tmp_path, server)
    found = cluster.get(NODES, Name("n"))
    assert found == NODE
    cluster.replace(NODES, found)
    assert json.loads(server.seen[1][3]) == NODE


def test_the_wire_carries_the_content_type_of_each_write(tmp_path: Path, server: Server) -> None:
    """B76: captured from the socket: type and body of every write are what was meant."""
    cluster = reach(tmp_path, server)
    operations = [{"op": "test", "path": "/metadata/uid", "value": "u"}]
    cluster.apply(NODES, NODE, manager="m")
    cluster.patch(NODES, Name("n"), {"spec": None}, kind=PatchKind.MERGE)
    cluster.patch(NODES, Name("n"), operations, kind=PatchKind.JSON)
    cluster.create(NODES, NODE)
    cluster.replace(NODES, NODE)
    cluster.delete(NODES, Name("n"), uid="u")
    assert [(one[0], one[2], json.loads(one[3])) for one in server.seen] == [
        ("PATCH", "application/apply-patch+yaml", NODE),
        ("PATCH", "application/merge-patch+json", {"spec": None}),
        ("PATCH", "application/json-patch+json", operations),
        ("POST", "application/json", NODE),
        ("PUT", "application/json", NODE),
        (
            "DELETE",
            "application/json",
            {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "u"}},
        ),
    ]


def test_connections_are_kept_alive(tmp_path: Path, server: Server) -> None:
    """A peer that is gone without a word is noticed by the kernel, not after minutes of silence."""
    path = kubeconfig(tmp_path, server.url, {"token": "secret-1"})
    pool = client._pool(client.from_kubeconfig(str(path)).configuration)
    options = pool.connection_pool_kw["socket_options"]
    assert (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1) in options
    spans = {name: value for _, name, value in options}
    assert spans[socket.TCP_KEEPIDLE] + spans[socket.TCP_KEEPINTVL] <= 90


def test_a_watch_streams(tmp_path: Path, server: Server) -> None:
    """Events arrive while the stream is open, cut or not; null items are counted (B19)."""
    cluster = reach(tmp_path, server)
    got = []
    for event in cluster.watch(NODES, timeout_s=1.0):
        got.append(event.change)
        if event.change is Change.SYNCED:
            server.more.set()
        if event.change is Change.MODIFIED:
            break
    assert got == [Change.ADDED, Change.SYNCED, Change.MODIFIED]
    assert cluster.skipped == 1


def test_a_quiet_watch_ends_on_time(tmp_path: Path, server: Server) -> None:
    """A stream in which nothing happens ends with the watch, without an error."""
    begun = time.monotonic()
    got = list(reach(tmp_path, server).watch(NODES, timeout_s=0.3))
    assert [event.change for event in got] == [Change.ADDED, Change.SYNCED]
    assert 0.3 <= time.monotonic() - begun < 2.0


def test_a_token_is_rotated_under_a_running_pod(tmp_path: Path, secure: Server) -> None:
    """B78: watch open, file replaced, v1 refused: patch and new watch succeed without a restart."""
    replace(tmp_path / "token", "v1\n")
    secure.accept = {"Bearer v1"}
    cluster = pod_of(tmp_path, secure, ManualClock(0.0))
    old = cluster.watch(NODES, timeout_s=60.0)
    assert [next(old).change, next(old).change] == [Change.ADDED, Change.SYNCED]
    replace(tmp_path / "token", "v2\n")
    secure.accept = {"Bearer v2"}
    cluster.patch(NODES, Name("n"), {"spec": {}}, kind=PatchKind.MERGE)
    assert secure.tokens[-2:] == ["Bearer v1", "Bearer v2"]
    assert [one[0] for one in secure.seen[-2:]] == ["PATCH", "PATCH"]
    secure.more.set()
    assert next(old).change is Change.MODIFIED
    new = cluster.watch(NODES, timeout_s=60.0)
    assert [next(new).change, next(new).change] == [Change.ADDED, Change.SYNCED]
    assert secure.tokens[-1] == "Bearer v2"


def test_an_open_watch_outlives_its_token(tmp_path: Path, secure: Server) -> None:
    """B78: a watch whose stream ends after the rotation goes on with the new token."""
    replace(tmp_path / "token", "v1")
    secure.accept = {"Bearer v1"}
    watch = pod_of(tmp_path, secure, ManualClock(0.0)).watch(NODES, timeout_s=60.0)
    assert [next(watch).change, next(watch).change] == [Change.ADDED, Change.SYNCED]
    secure.more.set()
    assert next(watch).change is Change.MODIFIED
    replace(tmp_path / "token", "v2")
    secure.accept = {"Bearer v2"}
    assert [next(watch).change, next(watch).change] == [Change.ADDED, Change.SYNCED]


def test_a_briefly_missing_file_costs_one_call(tmp_path: Path, secure: Server) -> None:
    """B78, variant: without a file the old token is used, told as refused, and read when back."""
    token = tmp_path / "token"
    replace(token, "v1")
    secure.accept = {"Bearer v1"}
    cluster = pod_of(tmp_path, secure, ManualClock(0.0))
    token.unlink()
    assert cluster.get(NODES, Name("n")) == NODE
    secure.accept = {"Bearer v2"}
    with pytest.raises(errors.ApiForbidden) as caught:
        cluster.get(NODES, Name("n"))
    assert caught.value.status == 401
    replace(token, "v2")
    assert cluster.get(NODES, Name("n")) == NODE


def test_a_foreign_certificate_is_refused(tmp_path: Path, secure: Server) -> None:
    """A server that our authority did not sign is never spoken to."""
    replace(tmp_path / "token", "v1")
    other = tmp_path / "other"
    other.mkdir()
    certificate(other)[0].replace(tmp_path / "ca.crt")
    with pytest.raises(errors.ApiUnavailable, match="CERTIFICATE"):
        pod_of(tmp_path, secure, ManualClock(0.0)).get(NODES, Name("n"))
    assert secure.seen == []


def test_no_token_is_seen_anywhere(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """B78: not in logs of any level, errors, representations or pickles."""
    caplog.set_level(logging.DEBUG)
    server.accept = set()
    path = kubeconfig(tmp_path, server.url, {"token": "secret-1"})
    source = client.from_kubeconfig(path)
    cluster = reach(tmp_path, server)
    with pytest.raises(errors.ApiForbidden) as caught:
        cluster.get(NODES, Name("n"))
    assert server.tokens == ["Bearer secret-1"]
    shown = f"{caught.value!r} {caught.value} {caught.value.fields} {cluster!r} {source!r}"
    assert "secret-1" not in shown + caplog.text
    assert b"secret-1" not in pickle.dumps(caught.value)
    transport = client.transport_of(source, lambda: source, timeout_s=1.0, clock=ManualClock(0.0))
    for kept in (cluster, transport, transport._credential):
        with pytest.raises(TypeError, match="in the other one"):
            pickle.dumps(kept)


def test_a_token_file_of_a_kubeconfig_is_followed(tmp_path: Path, server: Server) -> None:
    """B78: `tokenFile` is read again after a refusal and wins over an inline token."""
    replace(tmp_path / "tok", "v1\n")
    server.accept = {"Bearer v1"}
    cluster = reach(tmp_path, server, {"tokenFile": "tok", "token": "inline"})
    assert cluster.get(NODES, Name("n")) == NODE
    replace(tmp_path / "tok", "v2\n")
    server.accept = {"Bearer v2"}
    assert cluster.get(NODES, Name("n")) == NODE
    assert "Bearer inline" not in server.tokens
    assert server.connections == 1


def plugin(directory: Path, body: str) -> dict[str, object]:
    """A user whose credential comes from a program."""
    path = directory / "plugin"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": str(path), "interactiveMode": "Never"}}


GIVE = (
    'echo x >> "$0.calls"; n=$(wc -l < "$0.calls" | tr -d " ");'
    ' echo "{\\"apiVersion\\":\\"client.authentication.k8s.io/v1\\",'
    '\\"kind\\":\\"ExecCredential\\",\\"status\\":{\\"token\\":\\"t$n\\"%s}}"'
)


def test_a_program_gives_the_token_again_when_it_is_refused(tmp_path: Path, server: Server) -> None:
    """B78: an exec plugin runs once, and again after a 401, not for every request."""
    server.accept = {"Bearer t1"}
    cluster = reach(tmp_path, server, plugin(tmp_path, GIVE % ""))
    for _ in range(3):
        cluster.get(NODES, Name("n"))
    server.accept = {"Bearer t2"}
    assert cluster.get(NODES, Name("n")) == NODE
    assert (tmp_path / "plugin.calls").read_text() == "x\nx\n"


def test_a_program_that_always_fails_is_not_run_for_every_refusal(
    tmp_path: Path, server: Server
) -> None:
    """Refusals in a row start the plugin once in a while only."""
    cluster = reach(tmp_path, server, plugin(tmp_path, GIVE % ""))
    server.accept = set()
    for _ in range(4):
        with pytest.raises(errors.ApiForbidden):
            cluster.get(NODES, Name("n"))
    assert (tmp_path / "plugin.calls").read_text() == "x\nx\n"


def test_a_program_that_hangs_later_leaves_nothing_behind(tmp_path: Path, server: Server) -> None:
    """B78: refused requests fail at once with the reason; no thread, no process stays for them."""
    hang = 'if [ -e "$0.calls" ]; then echo $$ > "$0.pid"; exec sleep 300; fi; '
    path = kubeconfig(tmp_path, server.url, plugin(tmp_path, hang + GIVE % ""))
    cluster = client.connect(path, qps=1e4, timeout_s=1.5)
    server.accept = set()
    begun = time.monotonic()
    for _ in range(12):
        with pytest.raises(errors.ApiUnavailable, match="exec plugin that gives another one hangs"):
            cluster.get(NODES, Name("n"))
    assert time.monotonic() - begun < 5.0
    assert "kubeconfig" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "plugin.pid").read_text()), 0)
    server.accept = None
    assert cluster.get(NODES, Name("n")) == NODE


def test_a_token_with_an_end_is_renewed_before_it(tmp_path: Path, server: Server) -> None:
    """B78: the end stated by the plugin is kept; renewal comes a minute before it."""
    ends = '\\"expirationTimestamp\\":\\"2030-01-01T00:00:00Z\\"'
    path = kubeconfig(tmp_path, server.url, plugin(tmp_path, GIVE % f",{ends}"))
    source = client.from_kubeconfig(path)
    assert source.expires_at == dt.datetime(2030, 1, 1, tzinfo=dt.UTC).timestamp()
    clock = ManualClock(source.expires_at - EXPIRY_LEAD_S - 1.0)
    credential = RenewedCredential(
        source, lambda: client.from_kubeconfig(path), clock=clock, timeout_s=5.0
    )
    assert credential.header() == "Bearer t1"
    clock.advance(2.0)
    assert credential.header() == "Bearer t2"
    assert credential.header() == "Bearer t2"


def test_renewed_connection_settings_are_adopted(tmp_path: Path, server: Server) -> None:
    """A kubeconfig that was rewritten for another server is followed after a refusal."""
    server.accept = {"Bearer new"}
    path = kubeconfig(tmp_path, server.url, {"token": "old"})
    cluster = client.connect(path, qps=1e4, timeout_s=5.0)
    kubeconfig(tmp_path, server.url.replace("127.0.0.1", "localhost"), {"token": "new"})
    assert cluster.get(NODES, Name("n")) == NODE
    assert "localhost" in repr(cluster._transport)


@pytest.mark.parametrize(
    ("body", "told"),
    [("exit 3", "neither a token"), ("echo secret-9", "neither a token"), ("sleep 5", "gave no")],
)
def test_a_program_without_a_credential_is_told(tmp_path: Path, body: str, told: str) -> None:
    """A failing, babbling or hanging plugin ends in time with an error that shows no secret."""
    path = kubeconfig(tmp_path, "http://127.0.0.1:1", plugin(tmp_path, body))
    with pytest.raises(errors.SettingsInvalid, match=told) as caught:
        client.connect(path, qps=1.0, timeout_s=0.5)
    assert "secret-9" not in str(caught.value)


WHOLE = (
    "{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}],"
    " users: [{name: u, user: {token: secret-7}}]"
)
BENT = WHOLE.replace("secret-7", r'"secret-7\nX: y"')


@pytest.mark.parametrize(
    "content",
    [
        "users: [{name: u, user: {token: secret-7",
        "just text",
        "[]",
        "",
        "{}",
        "current-context: x",
        f"{WHOLE}, clusters: [{{name: c, token: secret-7}}]}}",
        f"{WHOLE}, clusters: [{{token: secret-7}}]}}",
        f"{WHOLE}, clusters: [{{name: c, cluster: {{server: 'ftp://h'}}}}]}}",
        f"{BENT}, clusters: [{{name: c, cluster: {{server: 'http://h'}}}}]}}",
    ],
)
def test_a_broken_kubeconfig_is_told_without_its_secrets(tmp_path: Path, content: str) -> None:
    """B78: the package's errors quote entries of the file; ours name the file and the fault."""
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    with pytest.raises(errors.SettingsInvalid) as caught:
        client.connect(str(path), qps=1.0, timeout_s=5.0)
    assert str(path) in str(caught.value)
    assert "secret-7" not in f"{caught.value} {caught.value.fields}"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_missing_kubeconfig_or_pod_is_told(tmp_path: Path) -> None:
    """Neither a file nor a service account: the error says what was looked for."""
    with pytest.raises(errors.SettingsInvalid, match="no such file"):
        client.connect(str(tmp_path / "none"), qps=1.0, timeout_s=5.0)
    with pytest.raises(errors.SettingsInvalid, match="Service host/port"):
        client.in_cluster(tmp_path, {})


def test_the_default_kubeconfig_is_found(tmp_path: Path, server: Server) -> None:
    """Outside a pod, without a path, the default kubeconfig is used, as by kubectl."""
    outside = {key: value for key, value in os.environ.items() if "KUBERNETES_" not in key}
    path = kubeconfig(tmp_path, server.url, {"token": "t"})
    code = (
        "from fleet.kube import base, client\n"
        "found = client.connect(None, qps=9.0, timeout_s=5.0)\n"
        "assert found.get(base.NODES, base.Name('n'))['kind'] == 'Node'\n"
    )
    subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        check=True,
        timeout=60,
        env=outside | {"KUBECONFIG": path, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert server.tokens == ["Bearer t"]


def test_connections_are_kept(tmp_path: Path, server: Server) -> None:
    """One connection serves many calls, refused ones and lists included."""
    cluster = reach(tmp_path, server)
    for _ in range(5):
        cluster.get(NODES, Name("n"))
        cluster.list(NODES)
    server.accept = set()
    with pytest.raises(errors.ApiForbidden):
        cluster.get(NODES, Name("n"))
    assert server.connections == 1


def test_a_read_is_cheap(tmp_path: Path, server: Server) -> None:
    """A GET costs less than 1.5 ms of this thread's processor time."""
    cluster = reach(tmp_path, server)
    costs = []
    for _ in range(5):
        begun = time.thread_time()
        for _ in range(20):
            cluster.get(NODES, Name("n"))
        costs.append((time.thread_time() - begun) / 20)
    assert min(costs) < 0.0015


def cut(request: _Requests) -> None:
    """Say more than is sent, and close."""
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    request.wfile.write(b"{")
    request.close_connection = True


def stall(request: _Requests) -> None:
    """Say nothing for longer than the caller waits."""
    request.server.more.wait(5.0)


def hang_up(request: _Requests) -> None:
    """Close without an answer."""
    request.close_connection = True


@pytest.mark.parametrize("fault", [cut, stall, hang_up])
def test_an_answer_that_does_not_come_whole_is_no_answer(
    tmp_path: Path, server: Server, fault: Callable[[_Requests], None]
) -> None:
    """A cut, a silence and a hang-up are retryable, in bounded time, and never retried here."""
    server.answer = fault
    path = kubeconfig(tmp_path, server.url, {"token": "t"})
    cluster = client.connect(path, qps=100.0, timeout_s=0.3)
    begun = time.monotonic()
    with pytest.raises(errors.ApiUnavailable):
        cluster.replace(NODES, NODE)
    assert time.monotonic() - begun < 2.0
    assert len(server.seen) == 1


def test_nobody_listening_is_no_answer(tmp_path: Path) -> None:
    """A refused connection is retryable and names the request."""
    path = kubeconfig(tmp_path, "http://127.0.0.1:1", {"token": "t"})
    with pytest.raises(errors.ApiUnavailable, match="GET nodes n"):
        client.connect(path, qps=1.0, timeout_s=1.0).get(NODES, Name("n"))


def test_redirects_and_overload_are_not_followed(tmp_path: Path, server: Server) -> None:
    """A redirect would carry the token elsewhere; 429 and 503 are the caller's to retry."""
    cluster = reach(tmp_path, server)
    server.answer = lambda request: request.send(302, b"", Location=f"{server.url}/x")
    with pytest.raises(errors.ApiFailed):
        cluster.get(NODES, Name("n"))
    server.answer = lambda request: request.send(503, b"", Retry_After="4")
    with pytest.raises(errors.ApiUnavailable) as caught:
        cluster.get(NODES, Name("n"))
    assert caught.value.retry_after_s == 4.0
    assert len(server.seen) == 2


def test_a_stream_may_end_with_its_connection(tmp_path: Path, server: Server) -> None:
    """A proxy that streams without chunks is read as it comes too."""
    event = json.dumps({"type": "ADDED", "object": NODE}).encode() + b"\n"

    def plain(request: _Requests) -> None:
        request.send_response(200)
        request.send_header("Connection", "close")
        request.end_headers()
        request.wfile.write(event)
        request.wfile.flush()
        request.server.more.wait(5.0)
        request.close_connection = True

    server.answer = plain
    path = kubeconfig(tmp_path, server.url, {"token": "t"})
    source = client.from_kubeconfig(path)
    transport = client.transport_of(source, lambda: source, timeout_s=5.0, clock=ManualClock(0.0))
    stream = transport.stream(Request("GET", "/x", "GET x"))
    assert isinstance(stream, client.HttpStream)
    assert next(stream.chunks()) == event
    server.more.set()
    assert list(stream.chunks()) == []
    stream.close()
    stream.close()


def test_a_token_file_needs_no_kubeconfig_token(tmp_path: Path, server: Server) -> None:
    """The credential of a token file is the one that follows the file."""
    replace(tmp_path / "tok", "v1")
    path = kubeconfig(tmp_path, server.url, {"tokenFile": str(tmp_path / "tok")})
    source = client.from_kubeconfig(path)
    transport = client.transport_of(source, lambda: source, timeout_s=5.0, clock=ManualClock(0.0))
    assert isinstance(transport._credential, TokenFile)
