"""The webhook by real HTTPS on loopback: B20, B35 and what of B65 is the server's."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fleet.admission.ground import Ground
from fleet.admission.judge import judges
from fleet.admission.review import Judge, Objection, Reviewing, Subject
from fleet.admission.tls import CONNECTIONS_MAX, Certificates
from fleet.admission.webhook import BODY_MAX, PATH, Webhook
from fleet.core import errors
from tests.fleet.admission.certificates import Ca
from tests.fleet.admission.reviews import (
    FORBIDDEN_WISH,
    claim,
    devices,
    exactly,
    flat,
    review,
    second,
    template,
)
from tests.fleet.admission.rights import KEYS, NOW, config, parameters

HOST = "127.0.0.1"
GROUND = Ground()
HARMLESS = template(devices(exactly()))


class Site:
    """A webhook and the API server that asks it."""

    def __init__(self, ca: Ca, *more: Judge, names: frozenset[str] | None = None) -> None:
        """`names`: of client certificates that may ask; None: none is asked for."""
        self.ca = ca
        self.trust = ca.trust()
        self.unready = ""
        reviewing = Reviewing(
            (*judges(GROUND, lambda: KEYS), *more), frozenset(GROUND.own_namespaces)
        )
        self.webhook = Webhook(
            (HOST, 0),
            Certificates(ca.certificate, ca.private, None if names is None else ca.authority),
            reviewing,
            trouble=lambda: self.unready,
            now=lambda: float(NOW),
            wait_s=5.0 if names is None else 10.0,
            callers=names or frozenset(),
        )

    def send(
        self,
        body: bytes = b"",
        *,
        method: str = "POST",
        path: str = PATH,
        headers: dict[str, str] | None = None,
        source: str = HOST,
        trust: ssl.SSLContext | None = None,
    ) -> tuple[int, bytes]:
        """Status and body of the answer. `source`: where it comes from."""
        asked = http.client.HTTPSConnection(
            HOST,
            self.webhook.port,
            context=trust or self.trust,
            timeout=10,
            source_address=(source, 0),
        )
        try:
            given = {"Content-Type": "application/json"} if headers is None else headers
            asked.request(method, path, body or None, given)
            answer = asked.getresponse()
            return answer.status, answer.read()
        finally:
            asked.close()

    def ask(self, given: dict[str, Any]) -> dict[str, Any]:
        """The response to a review."""
        status, body = self.send(json.dumps(given).encode())
        assert status == 200, body
        found = json.loads(body)
        assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
        response: dict[str, Any] = found["response"]
        assert response["uid"] == given["request"]["uid"]
        return response


def judge_failing(subject: Subject) -> Iterator[Objection]:
    """A fault of the product, for objects of this name."""
    if subject.document["metadata"]["name"] == "breaks":
        raise KeyError("nobody thought of it")
    yield from ()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A webhook with the rules, the tags and a judge that may break."""
    found = Site(Ca(tmp_path), judge_failing)
    try:
        yield found
    finally:
        found.webhook.close()


def test_every_forbidden_shape_is_denied_over_https(site: Site) -> None:
    """B20: v1, v1beta2 and flat v1beta1, a second alternative, claim and template, and an update
    of something harmless: denied with the path; uid and version as asked."""
    forbidden = [
        claim(devices(exactly(**FORBIDDEN_WISH))),
        template(devices(exactly(**FORBIDDEN_WISH))),
        template(devices(second(**FORBIDDEN_WISH))),
        template(devices(flat(**FORBIDDEN_WISH)), "v1beta1"),
        template(devices(exactly(**FORBIDDEN_WISH)), "v1beta2"),
        claim(devices(exactly(tolerations=[{"operator": "Exists"}]))),
    ]
    for number, document in enumerate(forbidden):
        response = site.ask(review(document, uid=f"rev-{number}"))
        assert response["allowed"] is False
        assert ".devices.requests[0]." in response["status"]["message"]
    changed = review(forbidden[1], operation="UPDATE", oldObject=HARMLESS, uid="rev-9")
    assert site.ask(changed)["allowed"] is False
    assert site.ask(review(claim(devices(), "v9"), uid="rev-10"))["allowed"] is False


def test_others_and_the_harmless_are_left_alone(site: Site) -> None:
    """B20: another driver's parameters untouched, deletions and the plain claim allowed; an unknown
    field in ours is denied."""
    other = config(driver="nic.example.com", given={"apiVersion": "nic/v1", "anything": 1})
    assert site.ask(review(template(devices(exactly(), entries=[config(), other]))))["allowed"]
    foreign = devices({"name": "n", "exactly": {"deviceClassName": "nic"}}, entries=[other])
    assert site.ask(review(template(foreign)))["allowed"]
    assert site.ask(review(HARMLESS))["allowed"]
    assert site.ask(review(None, operation="DELETE", oldObject=HARMLESS))["allowed"]
    ours = config(given=parameters(skipScrubb=True))
    response = site.ask(review(template(devices(exactly(), entries=[ours]))))
    assert response["allowed"] is False
    assert "opaque.parameters.skipScrubb" in response["status"]["message"]


@pytest.mark.parametrize("user", ["user-1", "system:serviceaccount:kube-system:claims", ""])
def test_nobody_else_gets_admin_access(site: Site, user: str) -> None:
    """B35: (a) a tenant whatever its namespace is labelled, (c) a controller that makes the claim
    for it: the template is denied, and a stray claim too; (b) our own account may."""
    given = devices(exactly(adminAccess=True))
    for document in (template(given), claim(given)):
        found = review(document, userInfo={"username": user})
        assert site.ask(found)["allowed"] is False
        found["request"]["userInfo"]["username"] = GROUND.requesters[0]
        assert site.ask(found)["allowed"] is True


def test_bad_input_is_the_senders_fault(site: Site) -> None:
    """B20: wrong type, 5 MiB, nothing, no length, no JSON, no review: a 4xx each, and the next
    review is answered."""
    good = json.dumps(review(HARMLESS)).encode()
    kind = {"Content-Type": "application/json"}
    assert site.send(good, headers={"Content-Type": "text/yaml"})[0] == 415
    assert site.send(good, headers={})[0] == 415
    assert site.send(b"x" * (5 << 20))[0] == 413
    assert site.send(headers={**kind, "Content-Length": "99999999999999999999"})[0] == 411
    assert site.send(headers={**kind, "Content-Length": "-1"})[0] == 411
    assert site.send(headers={**kind, "Transfer-Encoding": "chunked", "Content-Length": "x"})[0]
    assert site.send()[0] == 400
    for body in (b"{", b"[]", b"null", b"NaN", b"[" * 100_000, b"\xff", b"1" * 10_000):
        assert site.send(body)[0] == 400
    old = {**review(HARMLESS), "apiVersion": "admission.k8s.io/v1beta1"}
    assert site.send(json.dumps(old).encode())[0] == 400
    assert site.send(good)[0] == 200
    assert len(good) < BODY_MAX


def test_a_body_made_to_be_slow_is_denied_at_once(site: Site) -> None:
    """B65: as many requests, and names of requests, as a body can hold, several at once: each is
    refused before it is parsed, and a review after them is answered."""
    wishes = [{"name": str(number), "exactly": {}} for number in range(20_000)]
    entry = {**config(), "requests": ["n"] * 400_000}
    slow = review(claim({"requests": wishes, "config": [entry]}))
    body = json.dumps(slow, separators=(",", ":")).encode()
    assert 2_000_000 < len(body) < BODY_MAX
    begun = time.process_time()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: site.send(body), range(4)))
    assert time.process_time() - begun < 4 * 0.5
    for status, answer in answers:
        assert status == 413
        assert "at most 200000" in answer.decode()
    wishes = wishes[:5_000]
    response = site.ask(review(claim({"requests": wishes})))
    assert "spec.devices.requests has 5000 entries" in response["status"]["message"]
    assert site.ask(review(HARMLESS))["allowed"] is True


def test_other_requests_get_a_4xx(site: Site) -> None:
    """B20: other paths and methods, also invented ones: never a 5xx."""
    for method in ("GET", "POST"):
        assert site.send(b"{}", method=method, path="/other")[0] == 404
    for method in ("PUT", "DELETE", "HEAD", "PATCH", "BREW"):
        assert site.send(method=method, headers={})[0] == 405
    assert site.send(method="GET", path="/" + "x" * 70_000)[0] == 414


def test_a_fault_of_ours_is_a_denial(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """B20: an error nobody planned for is a no, and not a 500 that somebody may take for a yes."""
    broken = claim(devices(exactly()))
    broken["metadata"]["name"] = "breaks"
    response = site.ask(review(broken))
    assert response["allowed"] is False
    assert "see its log" in response["status"]["message"]
    assert "nobody thought of it" in caplog.text


def test_probes_tell_alive_from_ready(site: Site) -> None:
    """B65: a replica that never read its list of keys takes no traffic, and is alive."""
    assert site.send(method="GET", path="/healthz") == (200, b"ok")
    assert site.send(method="GET", path="/readyz") == (200, b"ok")
    site.unready = "no list"
    assert site.send(method="GET", path="/readyz") == (503, b"no list")
    assert site.send(method="GET", path="/healthz")[0] == 200


def test_a_certificate_of_another_authority_is_not_trusted(site: Site, tmp_path: Path) -> None:
    """B65: caBundle: the API server asks only who serves under it; renewals under it go on."""
    site.ca.renew()
    assert site.ask(review(HARMLESS))["allowed"]
    (tmp_path / "other").mkdir()
    site.trust = Ca(tmp_path / "other").trust()
    with pytest.raises(OSError, match="certificate verify failed"):
        site.ask(review(HARMLESS))


def test_a_taken_port_is_told(site: Site) -> None:
    """The address is in use: an error that says what to do."""
    certificates = Certificates(site.ca.certificate, site.ca.private)
    with pytest.raises(errors.SocketTaken, match="cannot be had"):
        Webhook((HOST, site.webhook.port), certificates, Reviewing(()))


# --- strangers -----------------------------------------------------------------------------------

STRANGER = "127.0.0.2"
TIMEOUT_S = 5.0
"""What the API server waits for us, as the chart says."""


def costly() -> bytes:
    """A review that takes as long to judge as any."""
    tolerations = [{"key": f"k{n}", "operator": "Exists"} for n in range(16)]
    among = [
        {"name": f"s{n}", "deviceClassName": f"c{n}", "tolerations": tolerations} for n in range(8)
    ]
    wishes = [{"name": f"r{n}", "firstAvailable": among} for n in range(32)]
    return json.dumps(review(claim({"requests": wishes}))).encode()


def crowd(site: Site, source: str) -> list[socket.socket]:
    """More connections than there are places, that say nothing."""
    place = (HOST, site.webhook.port)
    return [
        socket.create_connection(place, timeout=5, source_address=(source, 0))
        for _ in range(CONNECTIONS_MAX + 20)
    ]


@pytest.mark.parametrize("source", [STRANGER, HOST])
def test_f62_costly_reviews_of_others_hold_nobody_up(site: Site, source: str) -> None:
    """F62: while 60 connections send reviews as costly as any, a usual one is answered within the
    API server's time, also when they come from its own address."""
    body, over = costly(), threading.Event()

    def flood(_: int) -> None:
        while not over.is_set():
            with suppress(OSError, http.client.HTTPException):
                site.send(body, source=source)

    with ThreadPoolExecutor(60) as pool:
        waiting = [pool.submit(flood, one) for one in range(60)]
        try:
            for number in range(4):
                begun = time.monotonic()
                assert site.ask(review(HARMLESS, uid=f"rev-{number}"))["allowed"] is True
                assert time.monotonic() - begun < TIMEOUT_S
        finally:
            over.set()
    assert all(one.done() for one in waiting)


def test_f62_a_flood_takes_places_from_itself(site: Site) -> None:
    """F62: more connections than there are places, of one stranger: somebody else's review that is
    still on its way keeps its place and is answered."""
    body = json.dumps(review(HARMLESS)).encode()
    asked = http.client.HTTPSConnection(HOST, site.webhook.port, context=site.trust, timeout=10)
    asked.putrequest("POST", PATH)
    asked.putheader("Content-Type", "application/json")
    asked.putheader("Content-Length", str(len(body)))
    asked.endheaders(body[:10])
    idle: list[socket.socket] = []
    try:
        idle += crowd(site, STRANGER)
        assert site.ask(review(HARMLESS))["allowed"] is True
        asked.send(body[10:])
        assert asked.getresponse().status == 200
    finally:
        asked.close()
        for one in idle:
            one.close()


def test_f62_only_the_api_server_is_answered_where_it_shows_a_certificate(tmp_path: Path) -> None:
    """F62: with an authority for callers a review of anybody else is refused before its body is
    read; probes need no certificate, and strangers take no place of who has one."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    ca, other = Ca(tmp_path / "a"), Ca(tmp_path / "b")
    site = Site(ca, names=frozenset({"kube-apiserver"}))
    good = json.dumps(review(HARMLESS)).encode()
    server = ca.trust_as("kube-apiserver")
    idle: list[socket.socket] = []
    try:
        assert site.send(good, trust=server)[0] == 200
        kind = {"Content-Type": "application/json", "Content-Length": str(3 << 20)}
        status, told = site.send(headers=kind)
        assert (status, b"client certificate" in told) == (401, True)
        status, told = site.send(good, trust=ca.trust_as("kubelet"))
        assert (status, b"kubelet" in told) == (403, True)
        with pytest.raises((OSError, http.client.HTTPException)):
            site.send(good, trust=ca.trust_as("kube-apiserver", other))
        assert site.send(method="GET", path="/readyz") == (200, b"ok")
        held = http.client.HTTPSConnection(HOST, site.webhook.port, context=server, timeout=10)
        held.putrequest("POST", PATH)
        held.putheader("Content-Type", "application/json")
        held.putheader("Content-Length", str(len(good)))
        held.endheaders(good[:10])
        site.send(method="GET", path="/healthz")
        idle += crowd(site, HOST)
        held.send(good[10:])
        assert held.getresponse().status == 200
        held.close()
    finally:
        for one in idle:
            one.close()
        site.webhook.close()


def test_f62_what_is_too_much_is_never_parsed(site: Site) -> None:
    """F62: bodies of 3 MiB made of nothing but structure are refused by counting, 62 at once."""
    body = b"[" + b"{}," * ((BODY_MAX - 10) // 3) + b"{}]"
    begun = time.process_time()
    with ThreadPoolExecutor(62) as pool:
        answers = list(pool.map(lambda _: site.send(body, source=STRANGER), range(62)))
    assert {status for status, _ in answers} == {413}
    assert time.process_time() - begun < 62 * 0.2
    assert site.ask(review(HARMLESS))["allowed"] is True


def test_f62_a_head_of_any_length_is_read_for_nobody(site: Site) -> None:
    """F62: what stands before a body is bounded as a body is: a stranger's six megabytes of headers
    are answered with 431 after some kilobytes."""
    many = {f"x-{number}": "x" * 65_000 for number in range(90)}
    with suppress(OSError, http.client.HTTPException):  # it may still be sending
        assert site.send(headers=many, source=STRANGER)[0] == 431
    assert site.send(headers={"x-long": "x" * 40_000})[0] == 431
    assert site.send(method="GET", path="/healthz", headers={"x-usual": "x" * 8_000})[0] == 200
    assert site.ask(review(HARMLESS))["allowed"] is True
